// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// unpublishVolume takes the host away, or all hosts when nodeID is empty. That the Node is gone, or that
// the id is not one of ours, is no obstacle: a host that is not admitted is what was asked for.
func (s *Service) unpublishVolume(ctx context.Context, id, nodeID string) error {
	unlock, err := s.locks.lock("volume", id)
	if err != nil {
		return err
	}
	defer unlock()
	matches := func(nqn string) bool { return nodeID == "" || nqn == nodeID }
	vol, err := s.dismiss(ctx, id, matches)
	if isNoVolume(err) {
		return nil
	}
	if err != nil {
		return err
	}
	wctx, cancel := waitContext(ctx)
	defer cancel()
	generation := vol.Generation
	last, err := s.volumes.wait(wctx, vol, func(vol *v1alpha1.NvmfVolume) (bool, error) {
		return dismissed(vol, matches, generation), nil
	})
	if errors.Is(err, errLate) {
		return s.late(ctx, last, detached)
	}
	return err
}

// dismiss takes the hosts that match off the volume's hosts and returns the volume without them.
func (s *Service) dismiss(ctx context.Context, id string, matches func(nqn string) bool) (*v1alpha1.NvmfVolume, error) {
	for {
		vol, err := s.volume(ctx, id)
		if err != nil {
			return nil, err
		}
		gone := func(h v1alpha1.VolumeHost) bool { return matches(h.NQN) }
		if !slices.ContainsFunc(vol.Spec.Hosts, gone) {
			return vol, nil
		}
		vol, err = s.changeHosts(ctx, vol, func(vol *v1alpha1.NvmfVolume) {
			vol.Spec.Hosts = slices.DeleteFunc(vol.Spec.Hosts, gone)
			endPermission(vol, matches)
		})
		if apierrors.IsConflict(err) {
			continue
		}
		if apierrors.IsNotFound(err) {
			return nil, errNoVolume(id)
		}
		if err == nil {
			klog.FromContext(ctx).Info("Dismissing host", "volume", id, "node", vol.Spec.Node)
		}
		return vol, err
	}
}

// dismissed says that the target admits none of the hosts that match. A status from before the spec of this
// generation does not say so, even where it lists no such host: the agent may be about to admit one that it read of earlier.
func dismissed(vol *v1alpha1.NvmfVolume, matches func(nqn string) bool, generation int64) bool {
	if vol == nil {
		return true
	}
	still := slices.ContainsFunc(vol.Status.Hosts, func(h v1alpha1.AdmittedHost) bool { return matches(h.NQN) })
	return !still && vol.Status.ObservedGeneration >= generation
}
