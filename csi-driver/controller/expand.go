// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// expandVolume grows a volume on its target. Hosts see the new size by themselves, or when the node plugin
// asks their kernel to look; the filesystem is the node plugin's to grow.
func (s *Service) expandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	id := req.GetVolumeId()
	size, sizes, err := checkExpand(req)
	if err != nil {
		return nil, err
	}
	unlock, err := s.locks.lock("volume", id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	vol, err := s.enlarge(ctx, id, size, sizes)
	if err != nil {
		return nil, err
	}
	header := vol.Spec.Encryption.HeaderBytes()
	wctx, cancel := waitContext(ctx)
	defer cancel()
	now, err := s.follow(ctx, vol)
	if err != nil {
		return nil, err
	}
	if err := s.await(wctx, now, growth, func(rep *v1alpha1.NvmfReplica, _ int64) (bool, error) { return grown(rep, size+header) }); err != nil {
		return nil, err
	}
	served := size + header
	for _, rep := range now.replicas {
		if rep == nil || rep.Status.Size == nil {
			return nil, failf(inUse, "the volume was deleted while it was being expanded")
		}
		if n := rep.Status.Size.Value(); rep == now.replicas[0] || n < served {
			served = n
		}
	}
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes: served - header,
		// A block volume that no node uses has nothing that would have to grow with it.
		NodeExpansionRequired: req.GetVolumeCapability().GetBlock() == nil || now.InUse(),
	}, nil
}

// checkExpand returns the size that the volume shall have at least.
func checkExpand(req *csi.ControllerExpandVolumeRequest) (size int64, sizes sizeRange, err error) {
	if req.GetVolumeId() == "" {
		return 0, sizes, failf(invalid, "volume_id is required")
	}
	if req.GetCapacityRange() == nil {
		return 0, sizes, failf(invalid, "capacity_range is required")
	}
	if sizes, err = newSizeRange(req.GetCapacityRange()); err != nil {
		return 0, sizes, err
	}
	if sizes.required == 0 {
		return 0, sizes, failf(invalid, "size: required_bytes is required")
	}
	if c := req.GetVolumeCapability(); c != nil {
		if _, _, err := checkCapabilities([]*csi.VolumeCapability{c}, ""); err != nil {
			return 0, sizes, err
		}
	}
	size, err = sizes.choose(sizeStep, "volume sizes are multiples of 4Mi")
	return size, sizes, err
}

// enlarge writes the size into the volume's spec, unless it has as much already. Since a spec never shrinks, a size for
// which its pool has no room is refused before it is written: the claim can then be set to a smaller one.
func (s *Service) enlarge(ctx context.Context, id string, size int64, sizes sizeRange) (*v1alpha1.NvmfVolume, error) {
	for {
		vol, err := s.withReplicas(ctx, id)
		if err != nil {
			return nil, err
		}
		if vol.DeletionTimestamp != nil {
			return nil, failf(inUse, "volume %s is being deleted", id)
		}
		if now := capacity(vol.NvmfVolume); now >= size {
			if !sizes.holds(now) {
				return nil, failf(outOfRange, "size: volume %s already has %s, which is more than the limit of %s; volumes cannot shrink", id, quantity(now), quantity(sizes.limit))
			}
			return vol.NvmfVolume, nil
		}
		if err := s.mayGrow(ctx, vol.NvmfVolume); err != nil {
			return nil, err
		}
		stored := size + vol.Spec.Encryption.HeaderBytes()
		if err := s.reservations.grow(ctx, vol, stored); err != nil {
			return nil, err
		}
		changed := vol.DeepCopy()
		changed.Spec.Size = *resource.NewQuantity(stored, resource.BinarySI)
		err = s.patch(ctx, vol.NvmfVolume, changed)
		if err == nil {
			klog.FromContext(ctx).Info("Growing volume", "volume", id, "members", vol.Spec.Members, "size", quantity(size))
			return changed, nil
		}
		if refused(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			s.reservations.releaseAll(vol.Spec.Members, stored)
		}
		if apierrors.IsConflict(err) {
			continue
		}
		if apierrors.IsNotFound(err) {
			return nil, errNoVolume(id)
		}
		return nil, fmt.Errorf("write size of NvmfVolume %s: %w", id, err)
	}
}

// grown says that the target serves the size.
func grown(rep *v1alpha1.NvmfReplica, size int64) (bool, error) {
	if rep == nil || rep.DeletionTimestamp != nil {
		return false, failf(inUse, "the volume was deleted while it was being expanded")
	}
	if rep.Status.Size != nil && rep.Status.Size.Value() >= size {
		return true, nil
	}
	c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionDegraded)
	if c != nil && c.Status == "True" && c.Reason == v1alpha1.ReasonNoSpace && rep.Status.ObservedGeneration >= rep.Generation {
		return false, failf(full, "volume %s is not expanded yet: %s; it is expanded automatically when there is enough space", rep.Spec.Volume.Name, c.Message)
	}
	return false, nil
}
