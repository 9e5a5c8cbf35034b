// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// tokenPrefix of a page's token; the rest is the last name of the page before. So a token never expires, and
// what is made or deleted between two pages moves nothing from one page to another.
const tokenPrefix = "after/"

// page of the items, which are in the order of their names.
func page[T any](items []T, name func(*T) string, token string, entries int32) (part []T, next string, err error) {
	if entries < 0 {
		return nil, "", failf(invalid, "max_entries is negative")
	}
	slices.SortFunc(items, func(a, b T) int { return strings.Compare(name(&a), name(&b)) })
	if token != "" {
		after, ok := strings.CutPrefix(token, tokenPrefix)
		if !ok || !validID(after) {
			return nil, "", failf(busy, "starting_token %q is not valid; start again without one", token)
		}
		items = items[firstAfter(items, name, after):]
	}
	if entries > 0 && int(entries) < len(items) {
		items = items[:entries]
		next = tokenPrefix + name(&items[entries-1])
	}
	return items, next, nil
}

func firstAfter[T any](items []T, name func(*T) string, after string) int {
	at, found := slices.BinarySearchFunc(items, after, func(item T, after string) int { return strings.Compare(name(&item), after) })
	if found {
		at++
	}
	return at
}

// listVolumes asks the API server rather than the cache: another replica may have made a volume a moment ago.
func (s *Service) listVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	var vols v1alpha1.NvmfVolumeList
	if err := s.live.List(ctx, &vols); err != nil {
		return nil, fmt.Errorf("list NvmfVolumes: %w", err)
	}
	part, next, err := page(vols.Items, func(v *v1alpha1.NvmfVolume) string { return v.Name }, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	resp := &csi.ListVolumesResponse{NextToken: next}
	for i := range part {
		reps, err := s.cachedReplicas(ctx, &part[i])
		if err != nil {
			return nil, err
		}
		p, err := s.problems(ctx, reps)
		if err != nil {
			return nil, err
		}
		status := &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: published(&part[i])}
		p.AddCondition(status)
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: csiVolume(&part[i]), Status: status})
	}
	return resp, nil
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

func (s *Service) listSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	var snaps v1alpha1.NvmfSnapshotList
	if id := req.GetSnapshotId(); id == "" {
		if err := s.live.List(ctx, &snaps); err != nil {
			return nil, fmt.Errorf("list NvmfSnapshots: %w", err)
		}
	} else if validID(id) {
		snap, err := s.snapshots.read(ctx, id)
		if err != nil {
			return nil, err
		}
		if snap != nil {
			snaps.Items = append(snaps.Items, *snap)
		}
	}
	if id := req.GetSourceVolumeId(); id != "" {
		snaps.Items = slices.DeleteFunc(snaps.Items, func(s v1alpha1.NvmfSnapshot) bool { return s.Spec.Volume != id })
	}
	part, next, err := page(snaps.Items, func(s *v1alpha1.NvmfSnapshot) string { return s.Name }, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	resp := &csi.ListSnapshotsResponse{NextToken: next}
	for i := range part {
		resp.Entries = append(resp.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: csiSnapshot(&part[i])})
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
