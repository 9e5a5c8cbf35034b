// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func (s *Service) deleteVolume(ctx context.Context, id string) error {
	unlock, err := s.locks.lock("volume", id)
	if err != nil {
		return err
	}
	defer unlock()
	wctx, cancel := waitContext(ctx)
	defer cancel()
	for {
		vol, err := s.withReplicas(ctx, id)
		if isNoVolume(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if vol.Mover() != nil {
			if err := s.leaveMover(ctx, wctx, vol.NvmfVolume); err != nil {
				return err
			}
			continue
		}
		if users := users(vol); users != "" {
			return failf(inUse, "volume %s is still attached to %s; delete the pods that use it first", id, users)
		}
		// Only as it was read: a host that is admitted meanwhile stops the deletion.
		err = s.erase(ctx, vol.NvmfVolume)
		if apierrors.IsConflict(err) {
			continue
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete NvmfVolume %s: %w", id, err)
		}
		klog.FromContext(ctx).Info("Deleting volume", "volume", id, "members", vol.Spec.Members)
		return s.waitGone(wctx, vol.NvmfVolume)
	}
}

// data is an NvmfVolume, an NvmfReplica or an NvmfSnapshot.
type data interface {
	client.Object
	Mark()
	Marked() bool
}

// erase deletes an object with the data that it stands for: it marks the object, without which the agent keeps the
// data, then deletes it. Both are done only to the object as it was read; else the API server answers Conflict. An
// object that is being deleted already is marked all the same.
func (s *Service) erase(ctx context.Context, read data) error {
	obj := read.DeepCopyObject().(data)
	if !obj.Marked() {
		obj.Mark()
		if err := s.patch(ctx, read, obj); err != nil {
			return fmt.Errorf("mark %s: %w", obj.GetName(), err)
		}
	}
	if obj.GetDeletionTimestamp() != nil {
		return nil
	}
	return s.client.Delete(ctx, obj, asRead(obj))
}

// asRead lets a deletion through only when nothing has changed since the object was read.
func asRead(obj client.Object) client.Preconditions {
	uid, version := obj.GetUID(), obj.GetResourceVersion()
	return client.Preconditions{UID: &uid, ResourceVersion: &version}
}

// waitGone takes the replicas of a volume that is being deleted with it, and waits until all objects are gone. They are
// deleted with their data only if the volume is: one that was deleted without a mark leaves its data on the nodes. The
// volume's object goes last, so that whoever is interrupted finds it and goes on.
func (s *Service) waitGone(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	for {
		now, err := s.withReplicas(ctx, vol.Name)
		if isNoVolume(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if now.UID != vol.UID || now.DeletionTimestamp == nil {
			return nil // it is another, or the deletion is not of this moment's concern
		}
		if now.Mover() != nil {
			if err := s.leaveMover(ctx, ctx, now.NvmfVolume); err != nil {
				return err
			}
			continue
		}
		if users := users(now); users != "" {
			return failf(inUse, "volume %s is still attached to %s; delete the pods that use it first", now.Name, users)
		}
		again, err := s.deleteReplicas(ctx, now)
		if err != nil {
			return err
		}
		if again {
			continue
		}
		unlisted, err := s.deleteUnlisted(ctx, now.NvmfVolume)
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return err
		}
		now.replicas = append(now.replicas, unlisted...)
		if err := s.await(ctx, now, deletion, gone); err != nil {
			return err
		}
		err = s.deleteMirror(ctx, now.NvmfVolume)
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return err
		}
		released := now.DeepCopy()
		if !controllerutil.RemoveFinalizer(released, v1alpha1.ReplicasFinalizer) {
			return nil
		}
		err = s.patch(ctx, now.NvmfVolume, released)
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("release NvmfVolume %s: %w", vol.Name, err)
		}
	}
}

// deleteWith its volume a replica, and its data only if the volume's are to be deleted.
func (s *Service) deleteWith(ctx context.Context, vol *v1alpha1.NvmfVolume, rep *v1alpha1.NvmfReplica) error {
	switch {
	case vol.Marked():
		return s.erase(ctx, rep)
	case rep.DeletionTimestamp == nil:
		return s.client.Delete(ctx, rep, asRead(rep))
	}
	return nil
}

func gone(rep *v1alpha1.NvmfReplica, _ int64) (bool, error) { return rep == nil, nil }

// deleteReplicas of a volume that is being deleted. It tells whether one has changed since it was read.
func (s *Service) deleteReplicas(ctx context.Context, vol *replicatedVolume) (changed bool, _ error) {
	for _, rep := range vol.replicas {
		if rep == nil {
			continue
		}
		err := s.deleteWith(ctx, vol.NvmfVolume, rep)
		if apierrors.IsConflict(err) {
			return true, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("delete NvmfReplica %s: %w", rep.Name, err)
		}
	}
	return false, nil
}
