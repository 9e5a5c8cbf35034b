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

// unpublishVolume ends the attachment to a node, or all when nodeID is empty. That the Node is gone is no obstacle: a
// host that is not admitted is what was asked for.
func (s *Service) unpublishVolume(ctx context.Context, id, nodeID string) error {
	unlock, err := s.locks.lock("volume", id)
	if err != nil {
		return err
	}
	defer unlock()
	vol, err := s.dismiss(ctx, id, nodeID)
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
		return dismissed(vol, generation), nil
	})
	if errors.Is(err, errLate) {
		return s.late(ctx, last, detached)
	}
	return err
}

// dismiss takes the hosts that are leaving off the volume's hosts, and returns the volume without them.
func (s *Service) dismiss(ctx context.Context, id, nodeID string) (*v1alpha1.NvmfVolume, error) {
	for {
		vol, err := s.volume(ctx, id)
		if err != nil {
			return nil, err
		}
		leaving := func(h v1alpha1.VolumeHost) bool { return nodeID == "" || h.Node == nodeID }
		if !slices.ContainsFunc(vol.Spec.Hosts, leaving) {
			return vol, nil
		}
		for _, h := range vol.Spec.Hosts {
			if !leaving(h) {
				continue
			}
			if err := s.mayLeave(ctx, vol, h); err != nil {
				return nil, err
			}
		}
		vol, err = s.withoutHosts(ctx, vol, leaving)
		if apierrors.IsConflict(err) {
			continue
		}
		if apierrors.IsNotFound(err) {
			return nil, errNoVolume(id)
		}
		if err == nil {
			klog.FromContext(ctx).Info("Dismissing host", "volume", id, "node", vol.Spec.Node, "host", nodeID)
		}
		return vol, err
	}
}

// mayLeave fails with busy while the VolumeAttachment that asked for a host's attachment exists and is not being
// deleted: the call is for an earlier attachment to the same node. An attacher that lost its leadership may send it
// after the volume was attached again. The volume was read before, and is written only as it was read.
func (s *Service) mayLeave(ctx context.Context, vol *v1alpha1.NvmfVolume, h v1alpha1.VolumeHost) error {
	if h.VolumeAttachment == "" {
		return nil
	}
	request, err := s.request(ctx, vol.Name, h.Node)
	if err != nil {
		return err
	}
	if request != nil && string(request.UID) == h.VolumeAttachment && request.DeletionTimestamp == nil {
		return failf(busy, "VolumeAttachment %s requests volume %s on node %s; delete it to detach the volume", request.Name, vol.Name, h.Node)
	}
	return nil
}

// withoutHosts takes hosts off the volume's, as changeHosts does, and with them what they were permitted.
func (s *Service) withoutHosts(ctx context.Context, vol *v1alpha1.NvmfVolume, leaving func(v1alpha1.VolumeHost) bool) (*v1alpha1.NvmfVolume, error) {
	return s.changeHosts(ctx, vol, func(vol *v1alpha1.NvmfVolume) {
		vol.Spec.Hosts = slices.DeleteFunc(vol.Spec.Hosts, leaving)
		endUnlisted(vol)
	})
}

// dismissed says that the target admits nobody who is not listed. A status from before the spec of this generation does
// not say so, even where it lists no such host: the agent may be about to admit one that it read of earlier.
func dismissed(vol *v1alpha1.NvmfVolume, generation int64) bool {
	return vol == nil || len(lingering(vol)) == 0 && vol.Status.ObservedGeneration >= generation
}
