// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// convertAnnotation of an NvmfVolume has a new value with each attempt to give it a mirror. Two replicas of this
// service may try at once, and either may stop for a while. Who has written the annotation knows that nobody who
// began earlier can complete an attempt: that is a write of the volume as it was read. So a record that is there, while
// the volume is still as the annotation left it, means nothing, and is replaced.
const convertAnnotation = "weft.storage/convert"

// shared tells whether nodes share a volume.
func shared(vol *v1alpha1.NvmfVolume) bool {
	return slices.ContainsFunc(vol.Spec.Attachments, func(h v1alpha1.VolumeHost) bool { return accessOf(h) != v1alpha1.AccessExclusive })
}

// convert makes a volume with one replica mirrored in place, also while a node uses it, if it is to have another one.
// The record begins with that node as its holder; its node plugin puts the mirror under the device.
func (s *Service) convert(ctx context.Context, a *arrangement) (outcome, error) {
	if a.Replicated() || a.surplus() >= 0 {
		return outcome{}, nil
	}
	if ready, why := convertible(a.NvmfVolume, a.replicas[0]); !ready {
		return outcome{waiting: why}, nil
	}
	// Those that attach it later are asked when they do.
	if err := s.mirrorableWhereUsed(ctx, a.NvmfVolume); err != nil {
		if f, ok := errors.AsType[*failure](err); ok {
			return outcome{waiting: f.message}, nil
		}
		return outcome{}, err
	}
	claimed := a.DeepCopy()
	if claimed.Annotations == nil {
		claimed.Annotations = map[string]string{}
	}
	claimed.Annotations[convertAnnotation] = uuid.NewString()
	if err := s.patch(ctx, a.NvmfVolume, claimed); err != nil {
		return outcome{}, fmt.Errorf("write NvmfVolume %s: %w", a.Name, err)
	}
	// Read after that: while the volume is as it was written, nobody else is admitted.
	rep, err := s.replicas.read(ctx, a.Spec.Members[0].Name)
	if err != nil {
		return outcome{}, err
	}
	if ready, why := convertible(claimed, rep); !ready {
		return outcome{waiting: why}, nil
	}
	var holder, node string
	if len(claimed.Spec.Attachments) > 0 {
		h := &claimed.Spec.Attachments[0]
		holder, node = h.AttachmentUUID(), h.Node
	}
	record, err := mirror.New(holder, []mirror.Replica{{Name: rep.Name, UID: string(rep.UID)}}, nil, time.Now())
	if err != nil {
		return outcome{}, err
	}
	record.HolderNode = node
	if current, err := s.dropAttempt(ctx, claimed); err != nil || !current {
		return changed, err
	}
	is := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: a.Name, Labels: a.Labels}, Spec: record}
	if err := s.client.Create(ctx, is, client.FieldOwner(fieldManager)); err != nil {
		return outcome{}, fmt.Errorf("store NvmfMirror %s: %w", a.Name, err)
	}
	mirrored := claimed.DeepCopy()
	mirrored.Spec.Mirrored = true
	delete(mirrored.Annotations, convertAnnotation)
	if err := s.patch(ctx, claimed, mirrored); err != nil {
		return outcome{}, fmt.Errorf("write NvmfVolume %s: %w", a.Name, err)
	}
	klog.FromContext(ctx).Info("The volume is mirrored from now on", "volume", a.Name, "record", mirror.String(record))
	return changed, nil
}

// dropAttempt deletes the record of an earlier attempt. It tells whether the volume is still as it was claimed.
func (s *Service) dropAttempt(ctx context.Context, claimed *v1alpha1.NvmfVolume) (current bool, err error) {
	is, err := s.mirrors.read(ctx, claimed.Name)
	if err != nil || is == nil {
		return err == nil, err
	}
	// The volume is read after the record, and the record deleted only as it was read: it is of an earlier attempt, and
	// none that is completed.
	now, err := s.volume(ctx, claimed.Name)
	if err != nil || now.ResourceVersion != claimed.ResourceVersion {
		return false, err
	}
	if err := s.client.Delete(ctx, is, asRead(is)); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("delete NvmfMirror %s: %w", claimed.Name, err)
	}
	return true, nil
}

// convertible tells whether a volume can become mirrored now, and if not, why, unless that is a matter of a moment. Its
// only attachment must be in effect, so that it is not in the middle of beginning, and no host of an earlier one may be
// left.
func convertible(vol *v1alpha1.NvmfVolume, rep *v1alpha1.NvmfReplica) (ready bool, why string) {
	switch {
	case vol.Annotations[sourceProofAnnotation] != "":
		return false, "" // CreateVolume may find that it lacks data, and make it again
	case shared(vol):
		return false, "nodes share the volume, which they cannot do with more than one replica: detach it first"
	case !isCreated(rep):
		return false, fmt.Sprintf("node %s has not created the volume's replica", vol.Spec.Members[0].Node)
	case rep.Status.ObservedGeneration < rep.Generation:
		return false, ""
	}
	if len(vol.Spec.Attachments) == 0 {
		if off, _ := dismissed(rep, rep.Generation); !off || len(rep.Spec.Hosts) > 0 {
			return false, "the volume is being detached"
		}
		return true, ""
	}
	if on, err := exportedToOne(rep, vol.Spec.Attachments[0].AttachmentUUID(), rep.Generation); err != nil || !on || len(rep.Spec.Hosts) > 1 || len(admittedOnly(rep)) > 0 {
		return false, "the volume is being attached"
	}
	return true, ""
}
