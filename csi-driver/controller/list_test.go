// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/test/apiserver"
)

// A page ends after the entries that were asked for, and before it is too large to be sent. What is made and deleted
// between two pages moves nothing from one to the other.
func TestPageOf(t *testing.T) {
	names := &order{}
	for _, name := range []string{"e", "a", "d", "b", "c"} {
		names.set(name, true)
	}
	var got []string
	entry := 1
	take := func(name string) (int, error) { //nolint:unparam // what pageOf calls may fail
		if name == "x" { // is gone by now
			return 0, nil
		}
		got = append(got, name)
		return entry, nil
	}
	pages := func(token string, entries int32, want, wantNext string, wantCode codes.Code) {
		t.Helper()
		got = nil
		next, err := pageOf(names, token, entries, take)
		if err != nil && code(err) == wantCode {
			return
		}
		if err != nil || wantCode != codes.OK || fmt.Sprint(got) != want || next != wantNext {
			t.Errorf("token %q, %d entries: got %v, %q, %v; want %s, %q", token, entries, got, next, err, want, wantNext)
		}
	}
	pages("", 0, "[a b c d e]", "", codes.OK)
	pages("", 5, "[a b c d e]", "", codes.OK)
	pages("", 2, "[a b]", "after/b", codes.OK)
	pages("2", 0, "", "", codes.Aborted)
	pages("after/", 0, "", "", codes.Aborted)
	pages("", -1, "", "", codes.InvalidArgument)
	names.set("b", false)
	names.set("bb", true)
	names.set("a", false)
	pages("after/b", 2, "[bb c]", "after/c", codes.OK)
	names.set("x", true)
	pages("after/c", 2, "[d e]", "after/e", codes.OK)
	pages("after/e", 2, "[]", "", codes.OK)
	entry = pageBytes/2 + 1
	pages("", 0, "[bb c]", "after/c", codes.OK)
	pages("after/c", 1, "[d]", "after/d", codes.OK)
}

// Whatever is set and asked for in between, the order is that of the names that there are.
func TestOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	names, there := &order{}, map[string]bool{}
	for step := range 2000 {
		name := fmt.Sprint(random.IntN(50))
		if exists := random.IntN(2) == 0; exists {
			there[name] = true
			names.set(name, true)
		} else {
			delete(there, name)
			names.set(name, false)
		}
		if names.has(name) != there[name] {
			t.Fatalf("step %d: has %s: %v", step, name, names.has(name))
		}
		if want := slices.Sorted(maps.Keys(there)); step%7 == 0 && !slices.Equal(names.after(""), want) {
			t.Fatalf("step %d: got %v, want %v", step, names.after(""), want)
		}
	}
}

// A list is answered from the cache, and shows what was answered before.
func TestListAsksNothingAndMissesNothing(t *testing.T) {
	st := newStorage(t, 1, 100*gi)
	var asked apiserver.Requests
	s, _ := newServiceOn(t, asked.Of(restConfig))
	seen(t, s, st)
	host := newHost(t, "host")
	list := func() map[string][]string {
		t.Helper()
		asked.Reset()
		resp, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		if counts, _ := asked.Reset(); err != nil || len(counts) > 0 {
			t.Fatalf("asked for %v: %v", counts, err)
		}
		volumes := map[string][]string{}
		for _, e := range resp.Entries {
			volumes[e.Volume.VolumeId] = e.Status.PublishedNodeIds
		}
		return volumes
	}
	snapshots := func() map[string]bool {
		t.Helper()
		asked.Reset()
		resp, err := s.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
		if counts, _ := asked.Reset(); err != nil || len(counts) > 0 {
			t.Fatalf("asked for %v: %v", counts, err)
		}
		ready := map[string]bool{}
		for _, e := range resp.Entries {
			ready[e.Snapshot.SnapshotId] = e.Snapshot.ReadyToUse
		}
		return ready
	}
	for i := range 3 {
		id := newVolume(t, s, st, fmt.Sprint(i))
		snap := newSnapshot(t, s, fmt.Sprint("of-", i), id).SnapshotId
		if !snapshots()[snap] {
			t.Errorf("%s is not listed as ready", snap)
		}
		if _, err := s.DeleteSnapshot(within(t, enough), &csi.DeleteSnapshotRequest{SnapshotId: snap}); err != nil {
			t.Fatal(err)
		}
		if _, is := snapshots()[snap]; is {
			t.Errorf("%s is listed after its deletion", snap)
		}
		if nodes, is := list()[id]; !is || len(nodes) > 0 {
			t.Errorf("%s is listed as made: %v, on %v", id, is, nodes)
		}
		if _, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, host)); err != nil {
			t.Fatal(err)
		}
		if nodes := list()[id]; !slices.Equal(nodes, []string{host}) {
			t.Errorf("%s is listed on %v", id, nodes)
		}
		if _, err := s.ControllerUnpublishVolume(within(t, enough), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: host}); err != nil {
			t.Fatal(err)
		}
		if nodes := list()[id]; len(nodes) > 0 {
			t.Errorf("%s is listed on %v after its end", id, nodes)
		}
		if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Fatal(err)
		}
		if _, is := list()[id]; is {
			t.Errorf("%s is listed after its deletion", id)
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
