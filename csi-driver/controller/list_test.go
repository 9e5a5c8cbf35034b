// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func TestPage(t *testing.T) {
	items := func() []string { return []string{"e", "a", "d", "b", "c"} }
	name := func(s *string) string { return *s }
	for _, tc := range []struct {
		token   string
		entries int32
		want    string
		next    string
		code    codes.Code
	}{
		{"", 0, "[a b c d e]", "", codes.OK},
		{"", 5, "[a b c d e]", "", codes.OK},
		{"", 2, "[a b]", "after/b", codes.OK},
		{"after/b", 2, "[c d]", "after/d", codes.OK},
		{"after/d", 2, "[e]", "", codes.OK},
		// What the token names was deleted meanwhile.
		{"after/bb", 1, "[c]", "after/c", codes.OK},
		{"after/e", 0, "[]", "", codes.OK},
		{"2", 0, "", "", codes.Aborted},
		{"after/", 0, "", "", codes.Aborted},
		{"", -1, "", "", codes.InvalidArgument},
	} {
		got, next, err := page(items(), name, tc.token, tc.entries)
		if err != nil {
			if code(err) != tc.code {
				t.Errorf("%+v: %v", tc, err)
			}
			continue
		}
		if fmt.Sprint(got) != tc.want || next != tc.next || tc.code != codes.OK {
			t.Errorf("%+v: got %v, %q", tc, got, next)
		}
	}
}

func TestLists(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	a, b := newVolume(t, s, st, "a"), newVolume(t, s, st, "b")
	nodeID := newHost(t, "host")
	if _, err := s.ControllerPublishVolume(within(t, enough), publishRequest(b, nodeID)); err != nil {
		t.Fatal(err)
	}
	first, second := newSnapshot(t, s, "first", b), newSnapshot(t, s, "second", b)

	published := map[string][]string{}
	token := ""
	for {
		resp, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: token, MaxEntries: 3})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Entries {
			if e.Volume.CapacityBytes == 0 || e.Volume.VolumeContext["target"] == "" {
				t.Errorf("got %v", e)
			}
			if _, twice := published[e.Volume.VolumeId]; twice {
				t.Errorf("%s is listed twice", e.Volume.VolumeId)
			}
			published[e.Volume.VolumeId] = e.Status.PublishedNodeIds
		}
		if token = resp.NextToken; token == "" {
			break
		}
	}
	if nodes, ok := published[a]; !ok || len(nodes) != 0 || !slices.Equal(published[b], []string{nodeID}) {
		t.Errorf("got %v, %v", published[a], published[b])
	}
	_, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "invalid"})
	expectError(t, err, codes.Aborted, "start again")

	for name, tc := range map[string]struct {
		req  *csi.ListSnapshotsRequest
		want []string
	}{
		"by id":             {&csi.ListSnapshotsRequest{SnapshotId: first.SnapshotId}, []string{first.SnapshotId}},
		"by volume":         {&csi.ListSnapshotsRequest{SourceVolumeId: b}, []string{first.SnapshotId, second.SnapshotId}},
		"by another volume": {&csi.ListSnapshotsRequest{SourceVolumeId: a}, nil},
		"unknown":           {&csi.ListSnapshotsRequest{SnapshotId: "unknown"}, nil},
		"no id of ours":     {&csi.ListSnapshotsRequest{SnapshotId: "A B"}, nil},
		"a page":            {&csi.ListSnapshotsRequest{SourceVolumeId: b, StartingToken: tokenPrefix + first.SnapshotId}, []string{second.SnapshotId}},
	} {
		resp, err := s.ListSnapshots(t.Context(), tc.req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, e := range resp.Entries {
			got = append(got, e.Snapshot.SnapshotId)
		}
		slices.Sort(got)
		slices.Sort(tc.want)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestGetVolumeAndSnapshot(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	resp, err := s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	if err != nil || resp.Volume.VolumeId != id || len(resp.Status.PublishedNodeIds) != 0 {
		t.Errorf("got %v, %v", resp, err)
	}
	_, err = s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: "unknown"})
	expectError(t, err, codes.NotFound)
	snap := newSnapshot(t, s, "snap", id)
	got, err := s.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: snap.SnapshotId})
	if err != nil || got.Snapshot.String() != snap.String() {
		t.Errorf("got %v, %v; want %v", got, err, snap)
	}
	for id, want := range map[string]codes.Code{"unknown": codes.NotFound, "A B": codes.NotFound, "": codes.InvalidArgument} {
		_, err = s.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: id})
		expectError(t, err, want)
	}
}
