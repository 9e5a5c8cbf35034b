// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
		vol, err := s.volume(ctx, id)
		if isNoVolume(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if users := users(vol); users != "" {
			return failf(inUse, "volume %s is still attached to %s; delete the pods that use it first", id, users)
		}
		// Only as it was read: a host that is admitted meanwhile stops the deletion.
		err = s.erase(ctx, vol)
		if apierrors.IsConflict(err) {
			continue
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete NvmfVolume %s: %w", id, err)
		}
		klog.FromContext(ctx).Info("Deleting volume", "volume", id, "node", vol.Spec.Node)
		return s.waitGone(wctx, vol)
	}
}

// data is an NvmfVolume or an NvmfSnapshot.
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
		patch := client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
		if err := s.client.Patch(ctx, obj, patch, client.FieldOwner(fieldManager)); err != nil {
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
