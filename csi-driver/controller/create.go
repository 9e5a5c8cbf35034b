// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

// The agent says that it has not made the volume.
var (
	// errNoSpace: for want of room.
	errNoSpace = errors.New("no space")
	// errNoSource: for want of its source, which does not exist any more.
	errNoSource = errors.New("no source")
)

func (s *Service) createVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	want, err := newVolumeRequest(req)
	if err != nil {
		return nil, err
	}
	unlock, err := s.locks.lock("volume", want.id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	vol, err := s.ensureVolume(ctx, want)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: csiVolume(vol)}, nil
}

// uuidAttribute of a PersistentVolume. With it, a volume whose object was lost can be found among the data that its
// node kept, and is not mistaken for another one of its name.
const uuidAttribute = "uuid"

// volumeContext is for people who read a PersistentVolume; checkContext holds it against the volume.
func volumeContext(vol *v1alpha1.NvmfVolume) map[string]string {
	return map[string]string{
		parameters.Target: vol.Spec.Target, parameters.Transport: parameters.FormatTransports(vol.Spec.Connection.Transports), uuidAttribute: vol.Spec.UUID,
	}
}

// ensureVolume returns the volume once it exists on its node. Where an agent has no room for it after all,
// the object is withdrawn and another node is tried; where its source is gone, that is found out anew without it.
func (s *Service) ensureVolume(ctx context.Context, want volumeRequest) (*v1alpha1.NvmfVolume, error) {
	wctx, cancel := waitContext(ctx)
	defer cancel()
	changed, unsubscribe := s.volumes.subscribe(want.id)
	defer unsubscribe()
	// Most volumes are new. One that the cache does not show is stored without asking whether it is there: if it is,
	// the API server refuses, and whatever else goes wrong is believed only after a look.
	vol, err := s.volumes.get(ctx, s.client, want.id)
	if err != nil {
		return nil, err
	}
	fresh := vol == nil
	var full []string
	for ; ; fresh = false {
		if !fresh {
			if vol, err = s.volumes.read(ctx, want.id); err != nil {
				return nil, err
			}
		}
		if vol != nil && vol.DeletionTimestamp != nil {
			if err := s.waitGone(wctx, vol); err != nil {
				return nil, err
			}
			continue
		}
		if vol == nil {
			vol, err = s.makeObject(ctx, want, full)
			if apierrors.IsAlreadyExists(err) || fresh && err != nil && ctx.Err() == nil {
				continue
			}
		} else {
			err = want.checkExisting(vol)
		}
		if err != nil {
			return nil, err
		}
		vol, err = s.waitCreated(wctx, vol, changed)
		cause := err
		if err == nil {
			if vol, err = s.unmark(ctx, vol); apierrors.IsConflict(err) {
				continue
			}
		}
		if !errors.Is(cause, errNoSpace) && !errors.Is(cause, errNoSource) {
			return vol, err
		}
		withdrawn, err := s.withdraw(wctx, vol, cause)
		if err != nil {
			return nil, err
		}
		if withdrawn && errors.Is(cause, errNoSpace) {
			full = append(full, vol.Spec.Node)
		}
	}
}

// makeObject places the volume and stores its NvmfVolume.
func (s *Service) makeObject(ctx context.Context, want volumeRequest, avoid []string) (*v1alpha1.NvmfVolume, error) {
	target, err := s.target(ctx, want.params.Target)
	if err != nil {
		return nil, err
	}
	connection, err := want.params.ConnectionTo(target.Name, target.Spec.Transports)
	if err != nil {
		return nil, err
	}
	if err := s.checkLimits(ctx, target.Name, want.params.QoS); err != nil {
		return nil, err
	}
	if err := checkDeviceClass(want.params, target); err != nil {
		return nil, err
	}
	req := placement.Request{Target: target.Name, Connection: asked(want.params, connection), DeviceClass: want.params.DeviceClass, Avoid: avoid}
	if err = s.nodesFor(ctx, &req, want.params); err != nil {
		return nil, err
	}
	if want.source == nil {
		if req.Near, err = s.near(ctx, want.params, req.ZoneOf); err != nil {
			return nil, err
		}
		req.SizeBytes, err = want.sizes.choose(want.minBytes, want.why)
	} else {
		var from origin
		if from, err = s.origin(ctx, want.source); err == nil {
			req.Node, req.Device = from.node, from.device
			req.SizeBytes, err = copySize(want, from)
		}
	}
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("create a UUID: %w", err)
	}
	node, err := s.reservations.place(ctx, req, want.id, id.String())
	if err != nil {
		return nil, withTargetsReasons(err, target)
	}
	vol := &v1alpha1.NvmfVolume{
		ObjectMeta: want.object(),
		Spec: v1alpha1.NvmfVolumeSpec{
			UUID: id.String(), Target: target.Name, Node: node,
			Size: *resource.NewQuantity(req.SizeBytes, resource.BinarySI), Source: want.source,
			DeviceClass: req.DeviceClass, Connection: connection, QoS: want.params.QoS,
		},
	}
	err = s.client.Create(ctx, vol, client.FieldOwner(fieldManager))
	if err != nil {
		if refused(err) || apierrors.IsAlreadyExists(err) {
			s.reservations.release(want.id, id.String(), req.SizeBytes)
		}
		return nil, fmt.Errorf("store NvmfVolume %s: %w", want.id, err)
	}
	klog.FromContext(ctx).Info("Placed volume", "volume", vol.Name, "node", node, "target", target.Name, "size", quantity(req.SizeBytes))
	return vol, nil
}

// asked of a node: what the StorageClass gives, and the transports in any case. What is settled by default is lowered
// by the kernel to what a node serves.
func asked(p parameters.Parameters, settled v1alpha1.Connection) v1alpha1.Connection {
	c := p.Connection
	c.Transports = settled.Transports
	return c
}

// withTargetsReasons adds, where no node serves the target, why the operator found none capable.
func withTargetsReasons(err error, target *v1alpha1.NvmfTarget) error {
	var none *placement.NoNodeError
	if !errors.As(err, &none) || len(none.Refusals) > 0 {
		return err
	}
	with := *none
	for _, n := range target.Status.NotCapable {
		with.Refusals = append(with.Refusals, placement.Refusal{Node: n.Node, Reason: fmt.Sprintf("not capable (%s: %s)", n.Reason, n.Message)})
	}
	return &with
}

// waitCreated until the volume exists on its node. It fails with errNoSpace or errNoSource when the agent says that it
// could not make the volume there. The subscription began before the volume was read.
func (s *Service) waitCreated(ctx context.Context, vol *v1alpha1.NvmfVolume, changed <-chan struct{}) (*v1alpha1.NvmfVolume, error) {
	last, err := s.volumes.await(ctx, vol, changed, true, func(vol *v1alpha1.NvmfVolume) (bool, error) {
		done, err := created(vol)
		if errors.Is(err, errNoSource) {
			return false, s.sourceGone(ctx, vol.Spec.Source)
		}
		return done, err
	})
	if errors.Is(err, errLate) {
		return nil, s.late(ctx, last, v1alpha1.ConditionCreated)
	}
	return last, err
}

func created(vol *v1alpha1.NvmfVolume) (bool, error) {
	if vol == nil || vol.DeletionTimestamp != nil {
		return false, failf(busy, "the volume was deleted while it was being created; try again")
	}
	c := meta.FindStatusCondition(vol.Status.Conditions, v1alpha1.ConditionCreated)
	if c == nil {
		return false, nil
	}
	if c.Status == metav1.ConditionFalse && vol.Status.ObservedGeneration >= vol.Generation {
		switch c.Reason {
		case v1alpha1.ReasonNoSpace:
			return false, errNoSpace
		case v1alpha1.ReasonSourceNotReady:
			return false, errNoSource
		}
	}
	return c.Status == metav1.ConditionTrue, nil
}

// withdraw deletes the object of a volume that its agent could not make. This loses nothing: the resource
// version makes sure that the agent's word is still what it was, nobody was admitted to a volume that was never
// created, and the agent's finalizer keeps the object until the engine has nothing of it. It returns
// false when the object has changed meanwhile and must be looked at again.
func (s *Service) withdraw(ctx context.Context, vol *v1alpha1.NvmfVolume, cause error) (bool, error) {
	klog.FromContext(ctx).Info("The node could not create the volume", "volume", vol.Name, "node", vol.Spec.Node, "cause", cause)
	err := s.erase(ctx, vol)
	if apierrors.IsConflict(err) {
		return false, nil
	}
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("remove NvmfVolume %s: %w", vol.Name, err)
	}
	return true, s.waitGone(ctx, vol)
}

// unmark a volume that is handed out. A withdrawal, or a deletion, that was not carried through leaves its mark, and
// then whoever deletes the object by mistake would delete the data.
func (s *Service) unmark(ctx context.Context, vol *v1alpha1.NvmfVolume) (*v1alpha1.NvmfVolume, error) {
	if vol.Spec.DeletionMark == "" {
		return vol, nil
	}
	kept := vol.DeepCopy()
	kept.Spec.DeletionMark = ""
	patch := client.MergeFromWithOptions(vol, client.MergeFromWithOptimisticLock{})
	if err := s.client.Patch(ctx, kept, patch, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("remove the deletion mark of NvmfVolume %s: %w", vol.Name, err)
	}
	return kept, nil
}

// waitGone until the agent has let go of the volume and the object is gone.
func (s *Service) waitGone(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	last, err := s.volumes.wait(ctx, vol, func(vol *v1alpha1.NvmfVolume) (bool, error) { return vol == nil, nil })
	if errors.Is(err, errLate) {
		return s.late(ctx, last, deletion)
	}
	return err
}
