// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/server"
)

// tokenPrefix of a page's token; the rest is the last name of the page before. So a token never expires, and
// what is made or deleted between two pages moves nothing from one page to another.
const tokenPrefix = "after/"

// lastOf the page before the one that is asked for; empty for the first page.
func lastOf(token string, entries int32) (name string, err error) {
	if entries < 0 {
		return "", failf(invalid, "max_entries is negative")
	}
	if token == "" {
		return "", nil
	}
	name, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok || !validID(name) {
		return "", failf(busy, "starting_token %q is not valid; start again without one", token)
	}
	return name, nil
}

// pageBytes is where a page ends, whatever was asked for: gRPC's clients take 4 MiB and no more, unless they are told
// to, and csi-attacher asks for all volumes without a limit. An entry has some 300 bytes, so that a page has some 3,500
// volumes.
const pageBytes = 1 << 20

// pageOf the names, which are in order, after a token. Add returns the bytes of the entry that it made for a name; 0
// for none.
func pageOf(names *order, token string, entries int32, add func(name string) (int, error)) (next string, err error) {
	after, err := lastOf(token, entries)
	if err != nil {
		return "", err
	}
	count, size := int32(0), 0
	left := names.after(after)
	for i, name := range left {
		bytes, err := add(name)
		if err != nil {
			return "", err
		}
		if bytes > 0 {
			count, size = count+1, size+bytes
		}
		if i < len(left)-1 && (count == entries && entries > 0 || size >= pageBytes) {
			return tokenPrefix + name, nil
		}
	}
	return "", nil
}

// listVolumes from the cache: what this process has answered before is in it (objects.show), and what another has
// answered comes within moments. Csi-attacher compares the list with its VolumeAttachments, and repeats the attachment
// of a volume that differs, which changes nothing where the list was merely behind.
func (s *Service) listVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if err := s.listable(); err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{}
	var err error
	resp.NextToken, err = pageOf(&s.volumes.names, req.GetStartingToken(), req.GetMaxEntries(), func(name string) (int, error) {
		vol, p, err := s.look(ctx, name)
		if vol == nil || err != nil {
			return 0, err
		}
		status := &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: published(vol)}
		p.AddCondition(status)
		entry := &csi.ListVolumesResponse_Entry{Volume: csiVolume(vol), Status: status}
		resp.Entries = append(resp.Entries, entry)
		return proto.Size(entry), nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// listable fails until the cache has all objects: a list from less would say that the others are gone.
func (s *Service) listable() error {
	if !s.Synced() {
		return failf(waiting, "it is not known yet which volumes and snapshots there are; try again")
	}
	return nil
}

// look at a volume in the cache, and at what is wrong with it; nil when the cache does not show it (any more). The
// volume is the cache's own: not to be changed.
func (s *Service) look(ctx context.Context, name string) (*v1alpha1.NvmfVolume, server.Problems, error) {
	vol, err := s.volumes.peek(ctx, name)
	if vol == nil || err != nil {
		return nil, nil, err
	}
	reps, err := s.peekReplicas(ctx, vol)
	if err != nil {
		return nil, nil, err
	}
	p, err := s.problems(ctx, reps)
	return vol, p, err
}

func (s *Service) getVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	vol, err := s.withReplicas(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	p, err := s.problems(ctx, vol)
	if err != nil {
		return nil, err
	}
	status := &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: published(vol.NvmfVolume)}
	p.AddCondition(status)
	return &csi.ControllerGetVolumeResponse{Volume: csiVolume(vol.NvmfVolume), Status: status}, nil
}

func csiVolume(vol *v1alpha1.NvmfVolume) *csi.Volume {
	return &csi.Volume{
		VolumeId:      vol.Name,
		CapacityBytes: capacity(vol),
		VolumeContext: volumeContext(vol),
		ContentSource: contentSource(vol.Spec.Source),
	}
}

// listSnapshots from the cache, as listVolumes does. A list decides nothing about data: a copy, and a deletion, read
// the snapshot that they name from the API server. So does a list of one snapshot by its id, by which csi-snapshotter
// learns that a snapshot is ready, or not there: another replica of this service may have made it a moment ago.
func (s *Service) listSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	names, find := &s.snapshots.names, s.snapshots.peek
	if id := req.GetSnapshotId(); id != "" {
		names, find = &order{}, s.snapshots.read
		names.set(id, validID(id))
	} else if err := s.listable(); err != nil {
		return nil, err
	}
	resp := &csi.ListSnapshotsResponse{}
	var err error
	resp.NextToken, err = pageOf(names, req.GetStartingToken(), req.GetMaxEntries(), func(name string) (int, error) {
		snap, err := find(ctx, name)
		if snap == nil || err != nil || req.GetSourceVolumeId() != "" && snap.Spec.Volume != req.GetSourceVolumeId() {
			return 0, err
		}
		entry := &csi.ListSnapshotsResponse_Entry{Snapshot: csiSnapshot(snap)}
		resp.Entries = append(resp.Entries, entry)
		return proto.Size(entry), nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (s *Service) getSnapshot(ctx context.Context, id string) (*csi.GetSnapshotResponse, error) {
	if id == "" {
		return nil, failf(invalid, "snapshot_id is required")
	}
	var snap *v1alpha1.NvmfSnapshot
	if validID(id) {
		var err error
		if snap, err = s.snapshots.read(ctx, id); err != nil {
			return nil, err
		}
	}
	if snap == nil {
		return nil, failf(notFound, "snapshot %s not found", id)
	}
	return &csi.GetSnapshotResponse{Snapshot: csiSnapshot(snap)}, nil
}
