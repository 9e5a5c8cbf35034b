// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// sourceOf a volume that is asked for; nil for a blank one.
func sourceOf(req *csi.CreateVolumeRequest) (*v1alpha1.VolumeSource, error) {
	content := req.GetVolumeContentSource()
	switch {
	case content == nil:
		return nil, nil
	case content.GetSnapshot() != nil:
		id := content.GetSnapshot().GetSnapshotId()
		if id == "" {
			return nil, failf(invalid, "the source has no snapshot_id")
		}
		return &v1alpha1.VolumeSource{Snapshot: id}, nil
	case content.GetVolume() != nil:
		id := content.GetVolume().GetVolumeId()
		if id == "" {
			return nil, failf(invalid, "the source has no volume_id")
		}
		return &v1alpha1.VolumeSource{Volume: id}, nil
	}
	return nil, failf(invalid, "the source is neither a snapshot nor a volume")
}

// contentSource of a volume, as it is answered.
func contentSource(source *v1alpha1.VolumeSource) *csi.VolumeContentSource {
	switch {
	case source == nil:
		return nil
	case source.Snapshot != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: source.Snapshot},
		}}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source.Volume},
	}}
}

// origin is where a source lies, and how large it is: a copy is made there, and is at least as large.
type origin struct {
	name, node, device string
	// proof is what checkCopy holds the source volume against; empty for a snapshot.
	proof string
	// sizeBytes that pods get of it, and how it is encrypted.
	sizeBytes  int64
	encryption v1alpha1.VolumeEncryption
	// trailer: its data ends before a trailer, and so does that of a copy.
	trailer bool
}

func (s *Service) origin(ctx context.Context, source *v1alpha1.VolumeSource) (origin, error) {
	if source.Volume != "" {
		vol, err := s.source(ctx, source.Volume)
		if err != nil {
			return origin{}, err
		}
		of, proof, err := s.copyable(ctx, vol)
		if err != nil {
			return origin{}, err
		}
		rep, err := s.replicas.read(ctx, of.Name)
		if err != nil {
			return origin{}, err
		}
		if rep == nil {
			return origin{}, failf(waiting, "volume %s has no data to copy: NvmfReplica %s does not exist", vol.Name, of.Name)
		}
		return origin{name: "volume " + vol.Name, proof: proof, node: rep.Spec.Node, device: rep.Status.Device, sizeBytes: capacity(vol), encryption: vol.Spec.Encryption, trailer: vol.Spec.Trailer}, nil
	}
	var snap *v1alpha1.NvmfSnapshot
	if validID(source.Snapshot) {
		var err error
		if snap, err = s.snapshots.read(ctx, source.Snapshot); err != nil {
			return origin{}, err
		}
	}
	switch {
	case snap == nil:
		return origin{}, failf(notFound, "snapshot %s not found", source.Snapshot)
	case snap.DeletionTimestamp != nil:
		return origin{}, failf(notFound, "snapshot %s is being deleted", source.Snapshot)
	case !snap.Status.Ready || snap.Status.Size == nil:
		return origin{}, s.lateSnapshot(ctx, snap, v1alpha1.ConditionReady)
	case !handedOut(snap):
		return origin{}, failf(waiting, "snapshot %s is not complete yet: it may lack data", snap.Name)
	}
	return origin{name: "snapshot " + snap.Name, node: snap.Spec.Node, device: snap.Status.Device, sizeBytes: snapshotSize(snap), encryption: snap.Spec.Encryption, trailer: snap.Spec.Trailer}, nil
}

// replicaSource is where the replica of a volume gets its first data from, nil for a blank one.
func (s *Service) replicaSource(ctx context.Context, vol *v1alpha1.NvmfVolume) (*v1alpha1.ReplicaSource, error) {
	source := vol.Spec.Source
	switch {
	case source == nil:
		return nil, nil
	case source.Snapshot != "":
		return &v1alpha1.ReplicaSource{Snapshot: source.Snapshot}, nil
	}
	of, err := s.source(ctx, source.Volume)
	if err != nil {
		return nil, err
	}
	copied, proof, err := s.copyable(ctx, of)
	if err != nil {
		return nil, err
	}
	if vol.Annotations[sourceProofAnnotation] != proof {
		return nil, errNoSource // as it was when the copy was asked for
	}
	return &v1alpha1.ReplicaSource{Replica: copied.Name}, nil
}

// sourceGone returns errNoSource when a volume's source does not exist any more, and nil when it may still come to be
// ready.
func (s *Service) sourceGone(ctx context.Context, source *v1alpha1.VolumeSource) error {
	var gone bool
	var err error
	if source.Volume != "" {
		var vol *v1alpha1.NvmfVolume
		vol, err = s.volumes.read(ctx, source.Volume)
		gone = vol == nil
	} else {
		var snap *v1alpha1.NvmfSnapshot
		snap, err = s.snapshots.read(ctx, source.Snapshot)
		gone = snap == nil
	}
	if err == nil && gone {
		err = errNoSource
	}
	return err
}

// copySize is the size of a copy: what is asked for, at least the source's.
func copySize(want volumeRequest, from origin) (int64, error) {
	sizes := want.sizes
	if sizes.required == 0 {
		sizes.required = from.sizeBytes
	}
	if sizes.required < from.sizeBytes || sizes.limit != 0 && sizes.limit < from.sizeBytes {
		return 0, failf(outOfRange, "size: the source %s has %s; request %s or more",
			from.name, quantity(from.sizeBytes), quantity(from.sizeBytes))
	}
	return sizes.choose(want.minBytes, want.why)
}
