// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

const (
	// takeBackInterval is how often attachments that nobody asks for any more are looked for.
	takeBackInterval = time.Minute
	// sealInterval is how often hosts' keys are compared with the public keys that nodes have now. Each Node that uses
	// volumes is read once for that.
	sealInterval = 5 * time.Minute
	// settleDelay leaves a change of a volume to the call that made it, which as a rule goes on with it at once.
	settleDelay = 5 * time.Second
	// describesPerSecond are the volumes whose replicas get another description and nothing else, as all do after an
	// upgrade that describes more. What waits is looked at again after describeLater to twice that: no other volume
	// waits for it.
	describesPerSecond = 10
	describeLater      = time.Minute
)

// An attacher that lost its leadership may send a publish that comes after the volume was detached and its
// VolumeAttachment deleted: nobody would ever detach it again. So an attachment whose VolumeAttachment is gone is taken
// back. The volume is read first, then whether the VolumeAttachment exists, and what is written is written only if the
// volume has not changed since: a UID that is gone does not come back, and a publish for another one finds the host of
// an attachment that is not its own.

// Settle goes on, until the context ends, with what calls have left half done or what people have changed: replicas
// that do not follow their volume, members that are to be added or removed, volumes that are being deleted, attachments
// whose VolumeAttachment is gone.
func (s *Service) Settle(ctx context.Context) {
	go func() {
		<-ctx.Done()
		s.unsettled.ShutDown()
	}()
	go s.takeBackLoop(ctx)
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.sealAllAgain(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot seal new keys")
		}
	}, sealInterval)
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.rotateAll(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot rotate the keys of hosts")
		}
	}, rotateInterval)
	for {
		id, stopped := s.unsettled.Get()
		if stopped {
			return
		}
		if err := s.settle(ctx, id); err != nil {
			klog.FromContext(ctx).Info("Cannot bring the replicas in line with their volume; trying again", "volume", id, "reason", err)
			s.unsettled.AddRateLimited(id)
		} else {
			s.unsettled.Forget(id)
		}
		s.unsettled.Done(id)
	}
}

// settle a volume, if the cache shows that there is something to do.
func (s *Service) settle(ctx context.Context, id string) error {
	vol, err := s.volumes.get(ctx, s.client, id)
	if err != nil {
		return err
	}
	if vol == nil {
		return s.eraseLeft(ctx, id)
	}
	seen, err := s.cachedReplicas(ctx, vol)
	if err != nil {
		return err
	}
	record, err := s.recordOf(ctx, s.client, vol)
	if err != nil {
		return err
	}
	unlisted, err := s.unlisted(ctx, s.client, vol)
	if err != nil {
		return err
	}
	due := s.replacementDue(ctx, seen, record)
	complete := vol.DeletionTimestamp != nil || len(unlisted) == 0 && !due && arranged(seen, record)
	if complete && settled(seen, record, false) {
		return s.settleKeys(ctx, seen)
	}
	// A call that works on the volume does it all, or leaves the rest for later. None is kept waiting by this one: what
	// both write, they write only as they read it.
	if s.locks.taken("volume", id) {
		s.unsettled.AddAfter(id, s.delay)
		return nil
	}
	if complete && settled(seen, record, true) && !s.describes.TryAccept() {
		s.unsettled.AddAfter(id, wait.Jitter(describeLater, 1))
		return s.settleKeys(ctx, seen)
	}
	if vol.DeletionTimestamp == nil {
		_, err = s.follow(ctx, vol)
		if err == nil && !complete {
			err = s.arrange(ctx, id)
		}
	} else {
		// A replica's end is an event, which brings the volume here again.
		wctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err = s.waitGone(wctx, vol)
	}
	if isNoVolume(err) {
		return nil
	}
	return err
}

// settled tells whether there is nothing to do for a volume: its replicas follow it, or CreateVolume has not made them
// yet. With butDescribed they may describe it otherwise.
func settled(vol *replicatedVolume, record *mirror.Record, butDescribed bool) bool {
	return vol.DeletionTimestamp == nil && !slices.ContainsFunc(vol.replicas, func(rep *v1alpha1.NvmfReplica) bool {
		if rep == nil {
			return vol.Spec.Used
		}
		derived := derive(vol.NvmfVolume, record, rep)
		if butDescribed {
			derived.Description = rep.Spec.Description
		}
		return !follows(rep, derived)
	})
}

// settleKeys of replicas whose agents cannot read them.
func (s *Service) settleKeys(ctx context.Context, vol *replicatedVolume) error {
	for _, rep := range vol.replicas {
		if rep == nil || !keysUnreadable(rep) {
			continue
		}
		if err := s.sealAgain(ctx, rep); err != nil {
			return fmt.Errorf("seal new keys of NvmfReplica %s: %w", rep.Name, err)
		}
	}
	return nil
}

func (s *Service) takeBackLoop(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.takeBackAll(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot revoke attachments without a VolumeAttachment")
		}
	}, takeBackInterval)
}

func (s *Service) takeBackAll(ctx context.Context) error {
	var volumes v1alpha1.NvmfVolumeList
	if err := s.client.List(ctx, &volumes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list NvmfVolumes: %w", err)
	}
	asked := func(h v1alpha1.VolumeHost) bool { return h.VolumeAttachment != "" }
	volumes.Items = slices.DeleteFunc(volumes.Items, func(v v1alpha1.NvmfVolume) bool { return !slices.ContainsFunc(v.Spec.Attachments, asked) })
	if len(volumes.Items) == 0 {
		return nil
	}
	// A cache that is behind could lack the VolumeAttachment of an attachment that was made a moment ago, and end it.
	var requests metav1.PartialObjectMetadataList
	requests.SetGroupVersionKind(storagev1.SchemeGroupVersion.WithKind("VolumeAttachmentList"))
	if err := s.live.List(ctx, &requests); err != nil {
		return fmt.Errorf("list VolumeAttachments: %w", err)
	}
	exists := map[string]bool{}
	for i := range requests.Items {
		exists[string(requests.Items[i].UID)] = true
	}
	for i := range volumes.Items {
		over := func(h v1alpha1.VolumeHost) bool { return asked(h) && !exists[h.VolumeAttachment] }
		if vol := &volumes.Items[i]; slices.ContainsFunc(vol.Spec.Attachments, over) {
			if _, err := s.endAttachments(ctx, vol.DeepCopy(), over); err != nil {
				return fmt.Errorf("volume %s: %w", vol.Name, err)
			}
		}
	}
	return nil
}

// takeBack those of a volume's attachments whose VolumeAttachments are gone; it tells whether there were any, or the
// volume has changed since it was read.
func (s *Service) takeBack(ctx context.Context, vol *v1alpha1.NvmfVolume) (bool, error) {
	gone := map[string]bool{}
	for _, h := range vol.Spec.Attachments {
		if h.VolumeAttachment == "" {
			continue
		}
		request, err := s.request(ctx, vol.Name, h.Node)
		if err != nil {
			return false, err
		}
		gone[h.NQN] = request == nil || string(request.UID) != h.VolumeAttachment
	}
	return s.endAttachments(ctx, vol, func(h v1alpha1.VolumeHost) bool { return gone[h.NQN] })
}

// endAttachments of the hosts that are over; it tells whether there were any, or the volume has changed since.
func (s *Service) endAttachments(ctx context.Context, vol *v1alpha1.NvmfVolume, over func(v1alpha1.VolumeHost) bool) (bool, error) {
	if !slices.ContainsFunc(vol.Spec.Attachments, over) {
		return false, nil
	}
	written, err := s.withoutHosts(ctx, vol, over)
	if err == nil && vol.Replicated() {
		_, err = s.fence(ctx, written)
	}
	if err == nil {
		_, err = s.follow(ctx, written)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || isNoVolume(err) {
		return true, nil
	}
	if err == nil {
		klog.FromContext(ctx).Info("Revoking an attachment: its VolumeAttachment is gone", "volume", vol.Name)
	}
	return err == nil, err
}
