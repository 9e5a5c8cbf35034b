// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	wctx, cancel := waitContext(ctx)
	defer cancel()
	vol, err := s.dismiss(ctx, id, nodeID)
	if isNoVolume(err) {
		return s.dismissLeft(ctx, wctx, id)
	}
	if err != nil {
		return err
	}
	if vol.Replicated() && vol.DeletionTimestamp == nil {
		// From here on the former holder can record nothing.
		if _, err := s.fence(ctx, vol); err != nil {
			return err
		}
	}
	now, err := s.follow(ctx, vol)
	if isNoVolume(err) {
		return s.dismissLeft(ctx, wctx, id)
	}
	if err != nil {
		return err
	}
	if now.Replicated() {
		return s.release(ctx, wctx, now)
	}
	return s.await(wctx, now, detached, dismissed)
}

// dismissLeft ends what the replicas of a volume without an object admit: somebody took off its finalizer.
func (s *Service) dismissLeft(ctx, wctx context.Context, id string) error {
	if !validID(id) {
		return nil
	}
	var list v1alpha1.NvmfReplicaList
	if err := s.live.List(ctx, &list, client.MatchingFields{volumeNameField: id}); err != nil {
		return fmt.Errorf("list NvmfReplicas of volume %s: %w", id, err)
	}
	left := &replicatedVolume{NvmfVolume: &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: id}}}
	for i := range list.Items {
		rep := &list.Items[i]
		if len(rep.Spec.Hosts) > 0 {
			was := rep.DeepCopy()
			rep.Spec.Hosts = nil
			if err := s.patch(ctx, was, rep); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("write NvmfReplica %s: %w", rep.Name, err)
			}
		}
		left.replicas = append(left.replicas, rep)
	}
	return s.await(wctx, left, detached, dismissed)
}

// dismiss takes the hosts that are leaving off the volume's hosts, and returns the volume without them.
func (s *Service) dismiss(ctx context.Context, id, nodeID string) (*v1alpha1.NvmfVolume, error) {
	for {
		vol, err := s.volume(ctx, id)
		if err != nil {
			return nil, err
		}
		// A mover was never published.
		leaving := func(h v1alpha1.VolumeHost) bool { return !h.Mover && (nodeID == "" || h.Node == nodeID) }
		if !slices.ContainsFunc(vol.Spec.Attachments, leaving) {
			return vol, nil
		}
		for _, h := range vol.Spec.Attachments {
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
			klog.FromContext(ctx).Info("Dismissing host", "volume", id, "members", vol.Spec.Members, "host", nodeID)
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

// withoutHosts takes hosts off the volume's, as attach does, and with them what they were permitted.
func (s *Service) withoutHosts(ctx context.Context, vol *v1alpha1.NvmfVolume, leaving func(v1alpha1.VolumeHost) bool) (*v1alpha1.NvmfVolume, error) {
	return s.attach(ctx, vol, func(vol *v1alpha1.NvmfVolume) {
		vol.Spec.Attachments = slices.DeleteFunc(vol.Spec.Attachments, leaving)
		endUnlisted(vol)
	})
}

// dismissed says that the target admits nobody who is not listed. A status from before this generation does not say so,
// even where it lists no such host: the agent may be about to admit one that it read of earlier.
func dismissed(rep *v1alpha1.NvmfReplica, generation int64) (bool, error) {
	return rep == nil || len(admittedOnly(rep)) == 0 && rep.Status.ObservedGeneration >= generation, nil
}
