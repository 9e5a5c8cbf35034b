// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
)

// modifyVolume gives a volume the limits of a VolumeAttributesClass, and no others, and what the class says of its
// replicas. It answers once the limits are in force; the number of replicas is only written down then, since it
// can take hours to fill a replica. Settle adds and removes them.
func (s *Service) modifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) error {
	to, err := parameters.ParseMutable(req.GetMutableParameters())
	if err != nil {
		return err
	}
	id := req.GetVolumeId()
	unlock, err := s.locks.lock("volume", id)
	if err != nil {
		return err
	}
	defer unlock()
	vol, err := s.modify(ctx, id, to)
	if err != nil {
		return err
	}
	wctx, cancel := waitContext(ctx)
	defer cancel()
	now, err := s.follow(ctx, vol)
	if err != nil {
		return err
	}
	return s.await(wctx, now, v1alpha1.ConditionQoSApplied, limited)
}

// modify writes limits into the volume's spec, and of the other parameters those that are given.
func (s *Service) modify(ctx context.Context, id string, to parameters.Mutable) (*v1alpha1.NvmfVolume, error) {
	for {
		vol, err := s.volume(ctx, id)
		if err != nil {
			return nil, err
		}
		if vol.DeletionTimestamp != nil {
			return nil, failf(inUse, "volume %s is being deleted", id)
		}
		if err := s.checkLimits(ctx, vol.Spec.Target, to.QoS); err != nil {
			return nil, err
		}
		if to.Replicas > 1 && shared(vol) {
			return nil, failf(invalid, "volume %s cannot have %d replicas while nodes share it: %s; detach it from all nodes first, and use ReadWriteOnce", id, to.Replicas, strings.Join(published(vol), ", "))
		}
		if to.Replicas > 1 && replicasOf(vol) == 1 && !vol.Replicated() {
			if err := s.mirrorableWhereUsed(ctx, vol); err != nil {
				return nil, err
			}
		}
		changed := vol.DeepCopy()
		changed.Spec.QoS, changed.Spec.Replicas = to.QoS, cmp.Or(to.Replicas, vol.Spec.Replicas)
		changed.Spec.ReplaceLostReplicaAfterMinutes = cmp.Or(to.ReplaceLostReplicaAfterMinutes, vol.Spec.ReplaceLostReplicaAfterMinutes)
		err = s.patch(ctx, vol, changed)
		switch {
		case apierrors.IsConflict(err):
			continue
		case apierrors.IsNotFound(err):
			return nil, errNoVolume(id)
		case err != nil:
			return nil, fmt.Errorf("modify NvmfVolume %s: %w", id, err)
		}
		if changed.Generation != vol.Generation {
			klog.FromContext(ctx).Info("Modifying volume", "volume", id, "replicas", changed.Spec.Replicas)
		}
		return changed, nil
	}
}

// checkLimits refuses limits that the target's engine does not have.
func (s *Service) checkLimits(ctx context.Context, name string, limits *v1alpha1.VolumeQoS) error {
	if limits == nil {
		return nil
	}
	var target v1alpha1.NvmfTarget
	err := s.client.Get(ctx, keyOf(name), &target)
	if apierrors.IsNotFound(err) {
		return nil // what its agent says then counts
	}
	if err != nil {
		return fmt.Errorf("read NvmfTarget %s: %w", name, err)
	}
	if target.Spec.Engine == v1alpha1.EngineNvmet {
		return failf(invalid, "target %q has engine Nvmet, which does not support IOPS and bandwidth limits; use a target with engine SPDK, or remove the limits", name)
	}
	return nil
}

// limited says that the limits of this generation of a replica are in force.
func limited(rep *v1alpha1.NvmfReplica, generation int64) (bool, error) {
	if rep == nil || rep.DeletionTimestamp != nil {
		return false, failf(inUse, "the volume was deleted while it was being modified")
	}
	c := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionQoSApplied)
	if c == nil || rep.Generation < generation || rep.Status.ObservedGeneration < generation {
		return false, nil
	}
	if c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonUnsupported {
		return false, failf(invalid, "cannot limit volume %s: %s", rep.Spec.Volume.Name, c.Message)
	}
	return c.Status == metav1.ConditionTrue, nil
}
