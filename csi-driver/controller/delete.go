// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
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
		if nqns := admitted(vol); len(nqns) > 0 {
			hosts, err := s.describeHosts(ctx, nqns)
			if err != nil {
				return err
			}
			return failf(inUse, "volume %s is still attached to %s; delete what uses it there first", id, hosts)
		}
		if vol.DeletionTimestamp == nil {
			// Only as it was read: a host that is admitted meanwhile stops the deletion.
			err = s.client.Delete(ctx, vol, asRead(vol))
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
		}
		return s.waitGone(wctx, vol)
	}
}
