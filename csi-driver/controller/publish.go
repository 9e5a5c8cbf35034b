// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

func (s *Service) publishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	id := req.GetVolumeId()
	h, how, err := checkPublish(req)
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
	vol, err := s.admit(ctx, req, h, node, how)
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
	return &csi.ControllerPublishVolumeResponse{PublishContext: publishContext(last, h, generation).Encode()}, nil
}

func checkPublish(req *csi.ControllerPublishVolumeRequest) (h host, how v1alpha1.HostAccess, err error) {
	switch {
	case req.GetVolumeId() == "":
		return h, how, failf(invalid, "the request has no volume id")
	case req.GetNodeId() == "":
		return h, how, failf(invalid, "the request has no node id")
	case req.GetVolumeCapability() == nil:
		return h, how, failf(invalid, "the request has no volume capability")
	case req.GetReadonly():
		return h, how, failf(invalid, "attaching a volume read-only is not supported; mount it read-only in the pod instead (volumeMounts[].readOnly)")
	}
	if _, _, err := checkCapabilities([]*csi.VolumeCapability{req.GetVolumeCapability()}, ""); err != nil {
		return h, how, err
	}
	if how, err = access(req.GetVolumeCapability()); err != nil {
		return h, how, err
	}
	h, err = parseHost(req.GetNodeId())
	return h, how, err
}

// admit adds the host to the volume's hosts and returns the volume with it. A volume with other hosts is refused,
// unless all of them share it in the same way.
func (s *Service) admit(ctx context.Context, req *csi.ControllerPublishVolumeRequest, h host, node string, how v1alpha1.HostAccess) (*v1alpha1.NvmfVolume, error) {
	id := req.GetVolumeId()
	for {
		vol, err := s.volume(ctx, id)
		if err != nil {
			return nil, err
		}
		if err := checkContext(vol, req.GetVolumeContext()); err != nil {
			return nil, err
		}
		if node == "" {
			return nil, failf(notFound, "there is no Node with UID %s", h.uid)
		}
		if vol.DeletionTimestamp != nil {
			return nil, failf(inUse, "volume %s is being deleted", id)
		}
		if now, ok := accessOf(vol, h.nqn); ok && now != how {
			return nil, failf(exists, "volume %s is attached to node %s already, in another way: %s, not %s", id, node, now, how)
		}
		if others := inTheWay(vol, h, how); len(others) > 0 {
			names, err := s.describeHosts(ctx, others)
			if err != nil {
				return nil, err
			}
			if how == v1alpha1.AccessExclusive {
				return nil, failf(inUse, "volume %s is attached to %s; it can be attached to one node at a time", id, names)
			}
			return nil, failf(inUse, "volume %s is attached to %s in another way than %s", id, names, how)
		}
		if _, ok := accessOf(vol, h.nqn); ok {
			return vol, nil
		}
		if err := s.unobstructed(ctx, node, id); err != nil {
			return nil, err
		}
		vol, err = s.changeHosts(ctx, vol, func(vol *v1alpha1.NvmfVolume) {
			givePermission(vol, h.nqn)
			vol.Spec.Hosts = append(vol.Spec.Hosts, v1alpha1.VolumeHost{NQN: h.nqn, Access: how})
		})
		if apierrors.IsConflict(err) {
			continue
		}
		if err == nil {
			klog.FromContext(ctx).Info("Admitting host", "volume", id, "node", vol.Spec.Node, "host", node, "access", how)
		}
		return vol, err
	}
}

// accessOf a host that is listed in the volume's spec.
func accessOf(vol *v1alpha1.NvmfVolume, nqn string) (v1alpha1.HostAccess, bool) {
	i := slices.IndexFunc(vol.Spec.Hosts, func(v v1alpha1.VolumeHost) bool { return v.NQN == nqn })
	if i < 0 {
		return "", false
	}
	return cmp.Or(vol.Spec.Hosts[i].Access, v1alpha1.AccessExclusive), true
}

// inTheWay are the other hosts that do not share the volume in this way. Of one that is admitted still
// but not listed any more, it is not known how it uses the volume.
func inTheWay(vol *v1alpha1.NvmfVolume, h host, how v1alpha1.HostAccess) []string {
	return slices.DeleteFunc(admitted(vol), func(nqn string) bool {
		if nqn == h.nqn {
			return true
		}
		theirs, listed := accessOf(vol, nqn)
		return listed && theirs == how && how != v1alpha1.AccessExclusive
	})
}

// exportedTo says that the agent has seen the spec of this generation, and that its target serves the volume to the
// host.
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

// portals of the volume's transports: its paths.
func portals(vol *v1alpha1.NvmfVolume) []v1alpha1.Portal {
	return slices.DeleteFunc(slices.Clone(vol.Status.Portals), func(p v1alpha1.Portal) bool {
		return !slices.Contains(vol.Spec.Connection.Transports, p.Transport)
	})
}

// publishContext of an exported volume. NQN and NGUID follow from the object's name and UUID, as they do
// for the agent; the node checks what it connects to against both. The generation is the one with which the host was
// admitted, or a later one when it had been before.
func publishContext(vol *v1alpha1.NvmfVolume, h host, generation int64) publishcontext.Context {
	size := vol.Spec.Size.Value()
	if vol.Status.Size != nil {
		size = vol.Status.Size.Value()
	}
	a, _ := admittedHost(vol, h)
	c := vol.Spec.Connection
	c.Transports = nil // those of the portals
	return publishcontext.Context{
		NQN:         v1alpha1.SubsystemNQN(vol.Name),
		NGUID:       strings.ReplaceAll(vol.Spec.UUID, "-", ""),
		Attachment:  generation,
		SizeBytes:   size,
		Blank:       a.Blank,
		AllowFormat: mayFormat(vol, h.nqn),
		Portals:     portals(vol),
		Connection:  c,
	}
}
