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

	"github.com/weft-storage/weft/api/v1alpha1"
)

// takeBackInterval is how often attachments that nobody asks for any more are looked for.
const takeBackInterval = time.Minute

// An attacher that lost its leadership may send a publish that comes after the volume was detached and its
// VolumeAttachment deleted: nobody would ever detach it again. So an attachment whose VolumeAttachment is gone is taken
// back. The volume is read first, then whether the VolumeAttachment exists, and what is written is written only if the
// volume has not changed since: a UID that is gone does not come back, and a publish for another one finds the host of
// an attachment that is not its own.

// TakeBack ends, again and again until the context does, attachments whose VolumeAttachment is gone.
func (s *Service) TakeBack(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.takeBackAll(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot revoke attachments without a VolumeAttachment")
		}
	}, takeBackInterval)
}

func (s *Service) takeBackAll(ctx context.Context) error {
	var volumes v1alpha1.NvmfVolumeList
	if err := s.client.List(ctx, &volumes); err != nil {
		return fmt.Errorf("list NvmfVolumes: %w", err)
	}
	asked := func(h v1alpha1.VolumeHost) bool { return h.VolumeAttachment != "" }
	volumes.Items = slices.DeleteFunc(volumes.Items, func(v v1alpha1.NvmfVolume) bool { return !slices.ContainsFunc(v.Spec.Hosts, asked) })
	if len(volumes.Items) == 0 {
		return nil
	}
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
		if _, err := s.endAttachments(ctx, &volumes.Items[i], over); err != nil {
			return err
		}
	}
	return nil
}

// takeBack those of a volume's attachments whose VolumeAttachments are gone; it tells whether there were any, or the
// volume has changed since it was read.
func (s *Service) takeBack(ctx context.Context, vol *v1alpha1.NvmfVolume) (bool, error) {
	gone := map[string]bool{}
	for _, h := range vol.Spec.Hosts {
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
	if !slices.ContainsFunc(vol.Spec.Hosts, over) {
		return false, nil
	}
	_, err := s.withoutHosts(ctx, vol, over)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return true, nil
	}
	if err == nil {
		klog.FromContext(ctx).Info("Revoking an attachment: its VolumeAttachment is gone", "volume", vol.Name)
	}
	return err == nil, err
}
