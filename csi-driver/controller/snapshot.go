// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func (s *Service) createSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	switch {
	case req.GetName() == "":
		return nil, failf(invalid, "name of the snapshot is required")
	case req.GetSourceVolumeId() == "":
		return nil, failf(invalid, "source_volume_id is required")
	case len(req.GetParameters()) > 0:
		return nil, failf(invalid, "VolumeSnapshotClass parameters: %s not supported; remove all parameters",
			strings.Join(slices.Sorted(maps.Keys(req.GetParameters())), ", "))
	}
	id := objectName("snap-", req.GetName())
	unlock, err := s.locks.lock("snapshot", id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	wctx, cancel := waitContext(ctx)
	defer cancel()
	snap, err := s.ensureSnapshot(ctx, wctx, id, req)
	if err != nil {
		return nil, err
	}
	snap, err = s.snapshots.wait(wctx, snap, snapshotReady)
	if errors.Is(err, errLate) {
		return nil, s.lateSnapshot(ctx, snap, v1alpha1.ConditionReady)
	}
	if err != nil {
		return nil, err
	}
	if !snap.Spec.Taken {
		same, err := s.proven(ctx, wctx, snap.Spec.Volume, snap.Spec.Replica, snap.Annotations[sourceProofAnnotation])
		if err != nil {
			return nil, err
		}
		if !same {
			return nil, s.discardSnapshot(ctx, snap)
		}
	}
	if snap, err = s.recordTaken(ctx, snap); err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: csiSnapshot(snap)}, nil
}

// discardSnapshot that may lack data, and say so. One that another call has handed out stays.
func (s *Service) discardSnapshot(ctx context.Context, snap *v1alpha1.NvmfSnapshot) error {
	for is := snap; is != nil && is.UID == snap.UID && !is.Spec.Taken && is.DeletionTimestamp == nil; {
		err := s.erase(ctx, is)
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete NvmfSnapshot %s: %w", snap.Name, err)
		}
		if is, err = s.snapshots.read(ctx, snap.Name); err != nil {
			return err
		}
	}
	return failf(busy, "volume %s changed while its snapshot was taken: it was attached or detached, or its replicas changed; the snapshot is deleted; try again", snap.Spec.Volume)
}

// handedOut tells whether a snapshot was answered as ready: until then it may turn out to lack data.
func handedOut(snap *v1alpha1.NvmfSnapshot) bool {
	return snap.Spec.Taken || snap.Annotations[sourceProofAnnotation] == ""
}

// recordTaken before anybody is told that the snapshot is ready: an agent never takes it again.
func (s *Service) recordTaken(ctx context.Context, snap *v1alpha1.NvmfSnapshot) (*v1alpha1.NvmfSnapshot, error) {
	proven := snap.UID // of another one of its name, nothing is proven
	for !snap.Spec.Taken {
		taken := snap.DeepCopy()
		taken.Spec.Taken = true
		err := s.patch(ctx, snap, taken)
		if err == nil {
			return taken, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("record that NvmfSnapshot %s was taken: %w", snap.Name, err)
		}
		if snap, err = s.snapshots.read(ctx, snap.Name); err != nil {
			return nil, err
		}
		if ready, err := snapshotReady(snap); err != nil {
			return nil, err
		} else if !ready || snap.UID != proven {
			return nil, failf(busy, "the snapshot was replaced while it was being created; try again")
		}
	}
	return snap, nil
}

// ensureSnapshot returns the object of the snapshot, made now or before.
func (s *Service) ensureSnapshot(ctx, wctx context.Context, id string, req *csi.CreateSnapshotRequest) (*v1alpha1.NvmfSnapshot, error) {
	for {
		snap, err := s.snapshots.read(ctx, id)
		if err != nil {
			return nil, err
		}
		switch {
		case snap == nil:
			snap, err = s.makeSnapshot(ctx, id, req)
			if apierrors.IsAlreadyExists(err) {
				continue
			}
			return snap, err
		case snap.DeletionTimestamp != nil:
			if err := s.waitSnapshotGone(wctx, snap); err != nil {
				return nil, err
			}
		case snap.Spec.Volume != req.GetSourceVolumeId():
			return nil, failf(exists, "snapshot %s already exists, but of volume %s", id, snap.Spec.Volume)
		case snap.Annotations[requestNameAnnotation] != req.GetName():
			return nil, failf(exists, "snapshot %s already exists, but was created for the name %q", id, snap.Annotations[requestNameAnnotation])
		default:
			return snap, nil
		}
	}
}

func (s *Service) makeSnapshot(ctx context.Context, id string, req *csi.CreateSnapshotRequest) (*v1alpha1.NvmfSnapshot, error) {
	vol, err := s.source(ctx, req.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	of, proof, err := s.copyable(ctx, vol)
	if err != nil {
		return nil, err
	}
	identity, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("create a UUID: %w", err)
	}
	snap := &v1alpha1.NvmfSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Name: id, Finalizers: []string{v1alpha1.EngineFinalizer},
			Annotations: map[string]string{requestNameAnnotation: req.GetName(), sourceProofAnnotation: proof},
		},
		Spec: v1alpha1.NvmfSnapshotSpec{UUID: identity.String(), Volume: vol.Name, Replica: of.Name, Node: of.Node, Encryption: vol.Spec.Encryption, Trailer: vol.Spec.Trailer},
	}
	if err := s.client.Create(ctx, snap, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("store NvmfSnapshot %s: %w", id, err)
	}
	klog.FromContext(ctx).Info("Taking snapshot", "snapshot", id, "volume", vol.Name, "node", of.Node)
	return snap, nil
}

// source is a volume that is to be copied. One that is being deleted is as good as gone.
func (s *Service) source(ctx context.Context, id string) (*v1alpha1.NvmfVolume, error) {
	vol, err := s.volume(ctx, id)
	if err == nil && vol.DeletionTimestamp != nil {
		err = failf(notFound, "volume %s is being deleted", id)
	}
	return vol, err
}

func snapshotReady(snap *v1alpha1.NvmfSnapshot) (bool, error) {
	if snap == nil || snap.DeletionTimestamp != nil {
		return false, failf(busy, "the snapshot was deleted while it was being created; try again")
	}
	c := meta.FindStatusCondition(snap.Status.Conditions, v1alpha1.ConditionCreated)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonNoSpace && snap.Status.ObservedGeneration >= snap.Generation {
		return false, failf(full, "snapshot %s is not taken yet: %s; it is taken automatically when there is enough space", snap.Name, c.Message)
	}
	return snap.Status.Ready && snap.Status.Size != nil && snap.Status.CreatedAt != nil, nil
}

// snapshotSize is what pods get of a volume that is created from a snapshot whose size is known.
func snapshotSize(snap *v1alpha1.NvmfSnapshot) int64 {
	return snap.Status.Size.Value() - snap.Spec.Encryption.HeaderBytes()
}

func csiSnapshot(snap *v1alpha1.NvmfSnapshot) *csi.Snapshot {
	c := &csi.Snapshot{SnapshotId: snap.Name, SourceVolumeId: snap.Spec.Volume, ReadyToUse: snap.Status.Ready && handedOut(snap) && snap.DeletionTimestamp == nil}
	if snap.Status.Size != nil {
		c.SizeBytes = snapshotSize(snap)
	}
	// Required by CSI; until the agent has frozen the data, the moment at which that was asked for.
	c.CreationTime = timestamppb.New(snap.CreationTimestamp.Time)
	if snap.Status.CreatedAt != nil {
		c.CreationTime = timestamppb.New(snap.Status.CreatedAt.Time)
	}
	return c
}

// deleteSnapshot does not ask for the snapshot's volume, nor for volumes that were made from it: they do
// not need it any more, or the engine keeps what they need.
func (s *Service) deleteSnapshot(ctx context.Context, id string) error {
	if id == "" {
		return failf(invalid, "snapshot_id is required")
	}
	if !validID(id) {
		return nil
	}
	unlock, err := s.locks.lock("snapshot", id)
	if err != nil {
		return err
	}
	defer unlock()
	wctx, cancel := waitContext(ctx)
	defer cancel()
	for {
		snap, err := s.snapshots.read(ctx, id)
		if err != nil || snap == nil {
			return err
		}
		err = s.erase(ctx, snap)
		if apierrors.IsConflict(err) {
			continue
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delete NvmfSnapshot %s: %w", id, err)
		}
		klog.FromContext(ctx).Info("Deleting snapshot", "snapshot", id, "volume", snap.Spec.Volume, "node", snap.Spec.Node)
		return s.waitSnapshotGone(wctx, snap)
	}
}

// waitSnapshotGone until the agent has let go of the snapshot and the object is gone.
func (s *Service) waitSnapshotGone(ctx context.Context, snap *v1alpha1.NvmfSnapshot) error {
	last, err := s.snapshots.wait(ctx, snap, func(snap *v1alpha1.NvmfSnapshot) (bool, error) { return snap == nil, nil })
	if errors.Is(err, errLate) {
		return s.lateSnapshot(ctx, last, deletion)
	}
	return err
}
