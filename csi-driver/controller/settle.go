// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

const (
	// takeBackInterval is how often attachments that nobody asks for any more are looked for, in the cache.
	takeBackInterval = time.Minute
	// sealInterval is how often hosts' keys are compared with the public keys that nodes have now.
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
//
// Each of the service's processes settles, and none has to be elected first: so work goes on when one of them hangs.
// What they do twice is to look at their caches, which costs the API server nothing while nothing is left to do. What
// is to be written, both may find; each writes an object only as it read it, so one of them is refused, looks again,
// and finds it done. Limits of how much is done at once, as mostRotations, may be exceeded by as much again when both
// begin at the same moment.
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

// settle a volume, if the cache shows that there is something to do, and tell its state.
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
	return errors.Join(s.bringInLine(ctx, seen, record), s.tellState(ctx, seen, record))
}

// bringInLine with a volume, as the cache shows it, its members and its replicas.
func (s *Service) bringInLine(ctx context.Context, vol *replicatedVolume, record *mirror.Record) error {
	unlisted, err := s.unlisted(ctx, s.client, vol.NvmfVolume)
	if err != nil {
		return err
	}
	due := s.replacementDue(ctx, vol, record)
	complete := vol.DeletionTimestamp != nil || len(unlisted) == 0 && !due && arranged(vol, record)
	if complete && settled(vol, record, false) {
		return s.settleKeys(ctx, vol)
	}
	// A call that works on the volume does it all, or leaves the rest for later. None is kept waiting by this one: what
	// both write, they write only as they read it.
	if s.locks.taken("volume", vol.Name) {
		s.unsettled.AddAfter(vol.Name, s.delay)
		return nil
	}
	if complete && settled(vol, record, true) && !s.describes.TryAccept() {
		s.unsettled.AddAfter(vol.Name, wait.Jitter(describeLater, 1))
		return s.settleKeys(ctx, vol)
	}
	if vol.DeletionTimestamp == nil {
		_, err = s.follow(ctx, vol.NvmfVolume)
		if err == nil && !complete {
			err = s.arrange(ctx, vol.Name)
		}
	} else {
		// A replica's end is an event, which brings the volume here again.
		wctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err = s.waitGone(wctx, vol.NvmfVolume)
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

// takeBackAll attachments whose VolumeAttachments are gone. Which may be, the cache says, which has no more of them
// than their metadata; it may be behind, so each of those is asked for at the API server before anything is done.
func (s *Service) takeBackAll(ctx context.Context) error {
	waiting, stop := context.WithTimeout(ctx, takeBackInterval)
	defer stop()
	if !toolscache.WaitForCacheSync(waiting.Done(), s.requestsKnown) {
		return errors.New("the VolumeAttachments are not known yet: the role of the CSI controller must allow to list and watch them")
	}
	var errs []error
	for _, name := range s.volumes.names.after("") {
		vol, err := s.volumes.peek(ctx, name)
		if err != nil {
			return err
		}
		if vol == nil {
			continue
		}
		over, err := s.seemsOver(ctx, vol)
		if err == nil && over {
			_, err = s.takeBack(ctx, vol.DeepCopy())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// seemsOver tells whether the cache lacks the VolumeAttachment of one of a volume's attachments.
func (s *Service) seemsOver(ctx context.Context, vol *v1alpha1.NvmfVolume) (bool, error) {
	for _, h := range vol.Spec.Attachments {
		if h.VolumeAttachment == "" {
			continue
		}
		request := &metav1.PartialObjectMetadata{}
		request.SetGroupVersionKind(requestGVK)
		err := s.client.Get(ctx, keyOf(requestName(vol.Name, h.Node)), request, client.UnsafeDisableDeepCopy)
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return false, fmt.Errorf("read a VolumeAttachment: %w", err)
		}
		if missing || string(request.UID) != h.VolumeAttachment {
			return true, nil
		}
	}
	return false, nil
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
