// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/attachment"
)

func (s *Service) publishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	id := req.GetVolumeId()
	h, err := checkPublish(req)
	if err != nil {
		return nil, err
	}
	unlock, err := s.locks.lock("volume", id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	node, err := s.nodeName(ctx, h.uid)
	if err != nil {
		return nil, err
	}
	vol, err := s.admit(ctx, id, h, node)
	if err != nil {
		return nil, err
	}
	wctx, cancel := waitContext(ctx)
	defer cancel()
	generation := vol.Generation
	last, err := s.volumes.wait(wctx, vol, func(vol *v1alpha1.NvmfVolume) (bool, error) { return exportedTo(vol, h, generation) })
	if errors.Is(err, errLate) {
		return nil, s.late(ctx, last, v1alpha1.ConditionExported)
	}
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: publishContext(last, h).Encode()}, nil
}

func checkPublish(req *csi.ControllerPublishVolumeRequest) (host, error) {
	if req.GetVolumeId() == "" {
		return host{}, failf(invalid, "the request has no volume id")
	}
	if req.GetNodeId() == "" {
		return host{}, failf(invalid, "the request has no node id")
	}
	if req.GetVolumeCapability() == nil {
		return host{}, failf(invalid, "the request has no volume capability")
	}
	if req.GetReadonly() {
		return host{}, failf(invalid, "attaching a volume read-only is not supported; mount it read-only in the pod instead (volumeMounts[].readOnly)")
	}
	if _, _, err := checkCapabilities([]*csi.VolumeCapability{req.GetVolumeCapability()}, ""); err != nil {
		return host{}, err
	}
	return parseHost(req.GetNodeId())
}

// admit adds the host to the volume's hosts and returns the volume with it. Access modes all being of
// one node, a volume with another host is refused.
func (s *Service) admit(ctx context.Context, id string, h host, node string) (*v1alpha1.NvmfVolume, error) {
	for {
		vol, err := s.volume(ctx, id)
		if err != nil {
			return nil, err
		}
		if node == "" {
			return nil, failf(notFound, "there is no Node with UID %s", h.uid)
		}
		if vol.DeletionTimestamp != nil {
			return nil, failf(inUse, "volume %s is being deleted", id)
		}
		others := slices.DeleteFunc(admitted(vol), func(nqn string) bool { return nqn == h.nqn })
		if len(others) > 0 {
			names, err := s.describeHosts(ctx, others)
			if err != nil {
				return nil, err
			}
			return nil, failf(inUse, "volume %s is attached to %s; it can be attached to one node at a time", id, names)
		}
		if len(vol.Spec.Hosts) > 0 {
			return vol, nil
		}
		vol, err = s.setHosts(ctx, vol, []v1alpha1.VolumeHost{{NQN: h.nqn}})
		if apierrors.IsConflict(err) {
			continue
		}
		if err == nil {
			klog.FromContext(ctx).Info("Admitting host", "volume", id, "node", vol.Spec.Node, "host", node)
		}
		return vol, err
	}
}

// exportedTo says that the agent has seen the spec of this generation, and that its target serves the volume to the host.
func exportedTo(vol *v1alpha1.NvmfVolume, h host, generation int64) (bool, error) {
	if vol == nil || vol.DeletionTimestamp != nil {
		return false, failf(inUse, "the volume was deleted while it was attached")
	}
	if vol.Generation < generation || vol.Status.ObservedGeneration < generation {
		return false, nil
	}
	asked := slices.ContainsFunc(vol.Spec.Hosts, func(v v1alpha1.VolumeHost) bool { return v.NQN == h.nqn })
	if !asked {
		return false, failf(busy, "the volume was detached from the node while it was attached; try again")
	}
	if _, ok := admittedHost(vol, h); !ok || !meta.IsStatusConditionTrue(vol.Status.Conditions, v1alpha1.ConditionExported) {
		return false, nil
	}
	return len(portals(vol)) > 0, nil
}

func admittedHost(vol *v1alpha1.NvmfVolume, h host) (v1alpha1.AdmittedHost, bool) {
	i := slices.IndexFunc(vol.Status.Hosts, func(a v1alpha1.AdmittedHost) bool { return a.NQN == h.nqn })
	if i < 0 {
		return v1alpha1.AdmittedHost{}, false
	}
	return vol.Status.Hosts[i], true
}

// portals of the volume's transport.
func portals(vol *v1alpha1.NvmfVolume) []v1alpha1.Portal {
	return slices.DeleteFunc(slices.Clone(vol.Status.Portals), func(p v1alpha1.Portal) bool {
		return p.Transport != vol.Spec.Connection.Transport
	})
}

// publishContext of an exported volume. NQN and NGUID follow from the object's name and UUID, as they do
// for the agent; the node checks what it connects to against both.
func publishContext(vol *v1alpha1.NvmfVolume, h host) attachment.Context {
	size := vol.Spec.Size.Value()
	if vol.Status.Size != nil {
		size = vol.Status.Size.Value()
	}
	a, _ := admittedHost(vol, h)
	c := vol.Spec.Connection
	return attachment.Context{
		NQN:       v1alpha1.NQNPrefix + vol.Name,
		NGUID:     strings.ReplaceAll(vol.Spec.UUID, "-", ""),
		SizeBytes: size,
		// A volume with a source holds that source's data, whatever an agent says.
		Blank:       a.Blank && vol.Spec.Source == nil,
		AllowFormat: vol.Annotations[v1alpha1.AllowFormatAnnotation] == vol.Spec.UUID,
		Portals:     portals(vol),
		IOQueues:    c.IOQueues, QueueDepth: c.QueueDepth, CtrlLossTimeoutSeconds: c.CtrlLossTimeoutSeconds,
	}
}
