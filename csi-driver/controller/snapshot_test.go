// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func ofSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func ofVolume(id string) *csi.VolumeContentSource {
	return contentSource(&v1alpha1.VolumeSource{Volume: id})
}

func snapshotRequest(t *testing.T, name, volume string) *csi.CreateSnapshotRequest {
	t.Helper()
	return &csi.CreateSnapshotRequest{Name: own(t, name), SourceVolumeId: volume}
}

func newSnapshot(t *testing.T, s *Service, name, volume string) *csi.Snapshot {
	t.Helper()
	resp, err := s.CreateSnapshot(within(t, enough), snapshotRequest(t, name, volume))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Snapshot
}

func TestSnapshot(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	req := snapshotRequest(t, "snap", id)
	resp, err := s.CreateSnapshot(within(t, enough), req)
	if err != nil {
		t.Fatal(err)
	}
	snap := resp.Snapshot
	if snap.SnapshotId != req.Name || snap.SourceVolumeId != id || snap.SizeBytes != gi || !snap.ReadyToUse || !snap.CreationTime.IsValid() {
		t.Errorf("got %v", snap)
	}
	again, err := s.CreateSnapshot(within(t, enough), req)
	if err != nil || again.Snapshot.String() != snap.String() {
		t.Errorf("asked again: %v, %v; want %v", again, err, snap)
	}
	// Another one of its name has been made since it was proven.
	former, err := s.snapshots.read(t.Context(), snap.SnapshotId)
	if err != nil {
		t.Fatal(err)
	}
	former.UID, former.ResourceVersion, former.Spec.Taken = "former", "1", false
	if _, err = s.recordTaken(t.Context(), former); err == nil || !strings.Contains(err.Error(), "the snapshot was replaced") {
		t.Errorf("proven was another one: %v", err)
	}

	req.SourceVolumeId = newVolume(t, s, st, "other")
	_, err = s.CreateSnapshot(within(t, enough), req)
	expectError(t, err, codes.AlreadyExists, "of volume "+id)

	// A volume goes without its snapshots, and a snapshot without its volume.
	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := s.DeleteSnapshot(within(t, enough), &csi.DeleteSnapshotRequest{SnapshotId: snap.SnapshotId}); err != nil {
			t.Error(err)
		}
	}
	if left, err := s.snapshots.read(t.Context(), snap.SnapshotId); err != nil || left != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestSnapshotRefusesBadInput(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	for name, tc := range map[string]struct {
		change func(*csi.CreateSnapshotRequest)
		code   codes.Code
		says   string
	}{
		"no name":      {func(r *csi.CreateSnapshotRequest) { r.Name = "" }, codes.InvalidArgument, "name of the snapshot is required"},
		"no source":    {func(r *csi.CreateSnapshotRequest) { r.SourceVolumeId = "" }, codes.InvalidArgument, "source_volume_id"},
		"unknown":      {func(r *csi.CreateSnapshotRequest) { r.SourceVolumeId = "unknown" }, codes.NotFound, "volume unknown not found"},
		"a parameter":  {func(r *csi.CreateSnapshotRequest) { r.Parameters = map[string]string{"incremental": "true"} }, codes.InvalidArgument, "incremental"},
		"not a volume": {func(r *csi.CreateSnapshotRequest) { r.SourceVolumeId = "A B" }, codes.NotFound, "A B"},
	} {
		req := snapshotRequest(t, name, id)
		tc.change(req)
		_, err := s.CreateSnapshot(within(t, enough), req)
		t.Run(name, func(t *testing.T) { expectError(t, err, tc.code, tc.says) })
	}
	_, err := s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{})
	expectError(t, err, codes.InvalidArgument, "snapshot_id")
	for _, id := range []string{"unknown", "A B"} {
		if _, err := s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id}); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestSnapshotOfASilentNode(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	silence(t, st.nodes[0])
	req := snapshotRequest(t, "snap", id)
	err := inVain(t, func(ctx context.Context) error { _, err := s.CreateSnapshot(ctx, req); return err })
	expectError(t, err, codes.Unavailable, st.nodes[0], "has not reported")

	r := createRequest(st, own(t, "copy"), gi)
	r.VolumeContentSource = ofSnapshot(req.Name)
	err = inVain(t, func(ctx context.Context) error { _, err := s.CreateVolume(ctx, r); return err })
	expectError(t, err, codes.Unavailable, "is not Ready yet")
	if volume(t, r.Name) != nil {
		t.Error("an object was made without knowing how large it must be")
	}
}

func TestCopies(t *testing.T) {
	st := newStorage(t, 3, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	home := replica(t, id).Spec.Node
	markWritten(t, home, volume(t, id).Spec.UUID)
	snap := newSnapshot(t, s, "snap", id)
	nodeID := newHost(t, "host")
	for name, tc := range map[string]struct {
		source *csi.VolumeContentSource
		sizes  *csi.CapacityRange
		want   int64
	}{
		"a snapshot restored":       {ofSnapshot(snap.SnapshotId), &csi.CapacityRange{RequiredBytes: gi}, gi},
		"a snapshot without a size": {ofSnapshot(snap.SnapshotId), nil, gi},
		"a larger restore":          {ofSnapshot(snap.SnapshotId), &csi.CapacityRange{RequiredBytes: 2 * gi}, 2 * gi},
		"a clone":                   {ofVolume(id), &csi.CapacityRange{RequiredBytes: gi}, gi},
		"a larger clone":            {ofVolume(id), &csi.CapacityRange{RequiredBytes: 2 * gi, LimitBytes: 3 * gi}, 2 * gi},
	} {
		req := createRequest(st, own(t, name), 0)
		req.Name, req.VolumeContentSource, req.CapacityRange = objectName("", req.Name), tc.source, tc.sizes
		for range 2 {
			resp, err := s.CreateVolume(within(t, enough), req)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if resp.Volume.CapacityBytes != tc.want || resp.Volume.ContentSource.String() != tc.source.String() {
				t.Errorf("%s: got %v", name, resp.Volume)
			}
		}
		vol := replica(t, req.Name)
		if vol.Spec.Node != home {
			t.Errorf("%s: on %s, its source is on %s", name, vol.Spec.Node, home)
		}
		req.VolumeContentSource = nil
		_, err := s.CreateVolume(within(t, enough), req)
		expectError(t, err, codes.AlreadyExists, "its source is")
		if c := publish(t, s, req.Name, nodeID); c.Blank {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for name, sizes := range map[string]*csi.CapacityRange{
		"smaller": {RequiredBytes: gi / 2}, "a smaller limit": {LimitBytes: gi / 2},
	} {
		req := createRequest(st, own(t, name), 0)
		req.VolumeContentSource, req.CapacityRange = ofSnapshot(snap.SnapshotId), sizes
		_, err := s.CreateVolume(within(t, enough), req)
		expectError(t, err, codes.OutOfRange, "has 1Gi", "or more")
	}
	// The source's node is full; the others, which have room, are of no use.
	req := createRequest(st, own(t, "huge"), 9*gi)
	req.VolumeContentSource = ofVolume(id)
	_, err := s.CreateVolume(within(t, enough), req)
	expectError(t, err, codes.ResourceExhausted, home)
}

// noSnapshots fails to read NvmfSnapshots.
type noSnapshots struct{ client.Reader }

func (n noSnapshots) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewInternalError(errors.New("etcd"))
}

func TestACopyWhoseSourceWentAway(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	snap := newSnapshot(t, s, "snap", id).SnapshotId
	agents[st.nodes[0]].NoSources()
	g := NewWithT(t)

	// What the agent does not find may still come, while the API server has it or does not say.
	await := func(name string, source *csi.VolumeContentSource) *csi.CreateVolumeRequest {
		t.Helper()
		req := createRequest(st, own(t, name), gi)
		req.VolumeContentSource = source
		var err error
		g.Eventually(func() error { // the agent takes its time to say so
			err = inVain(t, func(ctx context.Context) error { _, err := s.CreateVolume(ctx, req); return err })
			return err
		}).WithTimeout(enough).Should(MatchError(ContainSubstring("SourceNotReady")))
		expectError(t, err, codes.Unavailable)
		return req
	}
	restore, clone := await("restore", ofSnapshot(snap)), await("clone", ofVolume(id))
	reader := s.snapshots.live
	s.snapshots.live = noSnapshots{reader}
	_, err := s.CreateVolume(within(t, enough), restore)
	expectError(t, err, codes.Unavailable, "etcd")
	s.snapshots.live = reader
	for _, req := range []*csi.CreateVolumeRequest{restore, clone} {
		if vol := volume(t, req.Name); vol == nil || vol.DeletionTimestamp != nil {
			t.Errorf("withdrawn while its source is there: %v", vol)
		}
	}

	// An agent keeps a source that it has until all copies are made; one that is lost it lets go.
	volumes, snapshots := holds(t, st.nodes[0])
	for _, uuid := range slices.Concat(volumes, snapshots) {
		agents[st.nodes[0]].Lose(uuid)
	}
	if _, err := s.DeleteSnapshot(within(t, enough), &csi.DeleteSnapshotRequest{SnapshotId: snap}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Fatal(err)
	}
	for says, req := range map[string]*csi.CreateVolumeRequest{"snapshot " + snap + " not found": restore, "volume " + id + " not found": clone} {
		_, err := s.CreateVolume(within(t, enough), req)
		expectError(t, err, codes.NotFound, says)
		if vol := volume(t, req.Name); vol != nil {
			t.Errorf("left: %v", vol)
		}
	}
}

func TestACopyStaysWithItsTarget(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	var other storage
	t.Run("another target", func(t *testing.T) { other = newStorage(t, 1, 10*gi) })
	s, _ := newService(t)
	seen(t, s, st)
	seen(t, s, other)
	id := newVolume(t, s, st, "v")
	req := createRequest(other, own(t, "copy"), gi)
	req.VolumeContentSource = ofVolume(id)
	_, err := s.CreateVolume(within(t, enough), req)
	expectError(t, err, codes.FailedPrecondition, st.target, "a copy is stored on the node of its source")
}

// Without room for a snapshot the caller hears so at once, not when its time is over; with room it is taken after all.
func TestSnapshotWithoutRoom(t *testing.T) {
	st := newStorage(t, 1, 2*(gi+overhead))
	s, _ := newService(t)
	seen(t, s, st)
	id, other := newVolume(t, s, st, "v"), newVolume(t, s, st, "other")
	markWritten(t, st.nodes[0], volume(t, id).Spec.UUID)
	req := snapshotRequest(t, "snap", id)
	for range 2 {
		_, err := s.CreateSnapshot(within(t, enough), req)
		expectError(t, err, codes.ResourceExhausted, req.Name, "has no space", "automatically when there is enough space")
	}
	if _, snapshots := holds(t, st.nodes[0]); len(snapshots) != 0 {
		t.Errorf("%d snapshots were made", len(snapshots))
	}
	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: other}); err != nil {
		t.Fatal(err)
	}
	NewWithT(t).Eventually(func() error { _, err := s.CreateSnapshot(within(t, enough), req); return err }).
		WithTimeout(enough).WithPolling(10 * time.Millisecond).Should(Succeed())
	if _, snapshots := holds(t, st.nodes[0]); len(snapshots) != 1 {
		t.Errorf("%d snapshots were made", len(snapshots))
	}
}

func TestSnapshotsCountAsPromised(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	markWritten(t, st.nodes[0], volume(t, id).Spec.UUID)
	for _, name := range []string{"a", "b"} {
		newSnapshot(t, s, name, id)
	}
	resp, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target}})
	if want := 9*gi - 2*overhead - 2*writtenBytes; err != nil || resp.AvailableCapacity != want {
		t.Errorf("got %v, %v; want %d", resp, err, want)
	}
}

func TestOneSnapshotForCallsAtOnce(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	second, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	req := snapshotRequest(t, "snap", id)
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, replica := range []*Service{s, second} {
		wg.Go(func() { _, errs[i] = replica.CreateSnapshot(within(t, enough), req) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if _, snapshots := holds(t, st.nodes[0]); len(snapshots) != 1 {
		t.Errorf("%d snapshots were made", len(snapshots))
	}
}
