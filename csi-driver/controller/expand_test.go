// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func expandRequest(volume string, size int64) *csi.ControllerExpandVolumeRequest {
	return &csi.ControllerExpandVolumeRequest{
		VolumeId: volume, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: mount("ext4"),
	}
}

func TestExpand(t *testing.T) {
	st := newStorage(t, 1, 10*gi+overhead)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	nodeID := newHost(t, "host")
	for _, tc := range []struct {
		name     string
		attached bool
		block    bool
		size     int64
		want     int64
		onNode   bool
	}{
		{"a detached filesystem, rounded up", false, false, 2*gi - 1, 2 * gi, true},
		{"the same again", false, false, 2*gi - 1, 2 * gi, true},
		{"less than it has", false, false, gi, 2 * gi, true},
		{"a detached block volume", false, true, 3 * gi, 3 * gi, false},
		{"an attached block volume", true, true, 4 * gi, 4 * gi, true},
		{"an attached filesystem", true, false, 10 * gi, 10 * gi, true},
	} {
		if tc.attached {
			if _, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, nodeID)); err != nil {
				t.Fatal(err)
			}
		}
		req := expandRequest(id, tc.size)
		if tc.block {
			req.VolumeCapability = block(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)
		}
		resp, err := s.ControllerExpandVolume(within(t, enough), req)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if resp.CapacityBytes != tc.want || resp.NodeExpansionRequired != tc.onNode {
			t.Errorf("%s: got %v", tc.name, resp)
		}
		if vol := replica(t, id); vol.Status.Size.Value() != tc.want {
			t.Errorf("%s: answered before the target had it: %s", tc.name, vol.Status.Size)
		}
	}
}

func TestExpandRefusesBadInput(t *testing.T) {
	st := newStorage(t, 1, 10*gi+2*overhead)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	newVolume(t, s, st, "neighbour")
	for name, tc := range map[string]struct {
		change func(*csi.ControllerExpandVolumeRequest)
		code   codes.Code
		says   string
	}{
		"no id":    {func(r *csi.ControllerExpandVolumeRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume_id"},
		"no range": {func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = nil }, codes.InvalidArgument, "capacity_range"},
		"no size": {func(r *csi.ControllerExpandVolumeRequest) {
			r.CapacityRange.RequiredBytes, r.CapacityRange.LimitBytes = 0, gi
		}, codes.InvalidArgument, "required_bytes is required"},
		"unknown volume": {func(r *csi.ControllerExpandVolumeRequest) { r.VolumeId = "unknown" }, codes.NotFound, "unknown"},
		"a filesystem that there is not": {func(r *csi.ControllerExpandVolumeRequest) { r.VolumeCapability = mount("btrfs") }, codes.InvalidArgument,
			"btrfs"},
		"a limit below what it has": {func(r *csi.ControllerExpandVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 1, LimitBytes: gi / 2}
		},
			codes.OutOfRange, "volumes cannot shrink"},
		"more than its drive has": {func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange.RequiredBytes = 10 * gi }, codes.OutOfRange,
			"from 1Gi to 10Gi: its drive, " + poolDevice + " on node " + st.nodes[0] + ", has space for at most 9Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			req := expandRequest(id, 2*gi)
			tc.change(req)
			_, err := s.ControllerExpandVolume(within(t, enough), req)
			expectError(t, err, tc.code, tc.says)
			if vol := volume(t, id); vol.Spec.Size.Value() != gi {
				t.Errorf("its spec was changed to %s", &vol.Spec.Size)
			}
		})
	}
	// What was refused can be asked for again, with less.
	if _, err := s.ControllerExpandVolume(within(t, enough), expandRequest(id, 9*gi)); err != nil {
		t.Error(err)
	}
}

// Two growths at once must not both be promised the last of a drive.
func TestExpandAtOnceNeverPromisesMoreThanThereIs(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	ids := []string{newVolume(t, s, st, "a"), newVolume(t, s, st, "b"), newVolume(t, s, st, "c")}
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { _, errs[i] = s.ControllerExpandVolume(within(t, enough), expandRequest(id, 5*gi)) })
	}
	wg.Wait()
	var promised int64
	for i, id := range ids {
		if c := status.Code(errs[i]); c != codes.OK && c != codes.OutOfRange {
			t.Error(errs[i])
		}
		promised += volume(t, id).Spec.Size.Value()
	}
	if promised != 7*gi {
		t.Errorf("%d bytes are promised, want one volume grown to 5Gi", promised)
	}
}

// A growth that the second replica has no room for keeps none for the first.
func TestExpandKeepsSpaceForAllReplicasOrNone(t *testing.T) {
	st := newDrives(t, []string{"tlc"}, []drive{{"tlc0", "tlc", 40 * gi}}, []drive{{"tlc1", "tlc", 4 * gi}})
	s, _ := newService(t)
	seen(t, s, st)
	id := newMirrored(t, s, st, "v")
	largest := func() int64 {
		return capacityOf(t, s, map[string]string{"target": st.target}).MaximumVolumeSize.GetValue()
	}
	before := largest()
	_, err := s.ControllerExpandVolume(within(t, enough), expandRequest(id, 20*gi))
	expectError(t, err, codes.OutOfRange, "tlc1 on node "+st.nodes[1])
	if after := largest(); after != before {
		t.Errorf("the largest volume may have %d bytes, and %d after a growth that was refused", before, after)
	}
}

func TestExpandWhenTheNodeDecidesOtherwise(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")

	silence(t, st.nodes[0])
	err := inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerExpandVolume(ctx, expandRequest(id, 2*gi))
		return err
	})
	expectError(t, err, codes.Unavailable, "is not Grown yet", st.nodes[0])

	agents[st.nodes[0]].NoRoom(true)
	agents[st.nodes[0]].Start(t.Context())
	_, err = s.ControllerExpandVolume(within(t, enough), expandRequest(id, 2*gi))
	expectError(t, err, codes.ResourceExhausted, "has not enough space", "is expanded automatically")

	agents[st.nodes[0]].NoRoom(false)
	NewWithT(t).Eventually(func() error { // until the agent has tried again, the refusal stands
		_, err := s.ControllerExpandVolume(within(t, enough), expandRequest(id, 2*gi))
		return err
	}).WithTimeout(enough).WithPolling(10 * time.Millisecond).Should(Succeed())
	if got := replica(t, id); got.Spec.Size.Value() != 2*gi || got.Status.Size.Value() != 2*gi || got.Spec.Node != st.nodes[0] {
		t.Errorf("got %v", got.Spec)
	}
	if err := api.Delete(t.Context(), &v1alpha1.NvmfVolume{ObjectMeta: volume(t, id).ObjectMeta}); err != nil {
		t.Fatal(err)
	}
	err = inVain(t, func(ctx context.Context) error {
		_, err := s.ControllerExpandVolume(ctx, expandRequest(id, 3*gi))
		return err
	})
	if c := status.Code(err); c != codes.NotFound && c != codes.FailedPrecondition {
		t.Errorf("of a deleted volume: %v", err)
	}
}

// A spec never shrinks: what is asked for while nobody knows the room must leave it as it is.
func TestExpandWaitsWhileTheRoomIsUnknown(t *testing.T) {
	st := newStorage(t, 1, 10*gi+overhead)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	var known []v1alpha1.PoolStatus
	setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) { known = slices.Clone(n.Pools) })
	for name, tc := range map[string]struct {
		change func(*v1alpha1.PoolStatus)
		says   string
	}{
		"its drive is not reported": {func(p *v1alpha1.PoolStatus) { p.Device = "another" }, "does not report drive " + poolDevice},
		"its drive cannot be read": {func(p *v1alpha1.PoolStatus) {
			p.Ready, p.Reason, p.Message = false, v1alpha1.ReasonDeviceMissing, "it was pulled"
		}, poolDevice + ": " + v1alpha1.ReasonDeviceMissing + ": it was pulled"},
		"its drive has no size yet": {func(p *v1alpha1.PoolStatus) { p.Total = nil }, "has not reported the size"},
	} {
		setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) {
			n.Pools = slices.Clone(known)
			tc.change(&n.Pools[0])
		})
		seen(t, s, st)
		_, err := s.ControllerExpandVolume(within(t, enough), expandRequest(id, 10*1024*gi))
		expectError(t, err, codes.Unavailable, "stays at 1Gi", "10Ti", st.nodes[0], tc.says)
		if vol := volume(t, id); vol.Spec.Size.Value() != gi {
			t.Fatalf("%s: its spec was changed to %s", name, &vol.Spec.Size)
		}
	}

	// A pool that can be read grows what it holds, although it is no longer planned.
	setNodeStatus(t, st.nodes[0], func(n *v1alpha1.NvmfNodeStatus) {
		n.Pools = slices.Clone(known)
		n.Pools[0].Ready, n.Pools[0].Reason, n.Pools[0].Message = false, v1alpha1.ReasonNotClaimed, "no longer planned"
	})
	seen(t, s, st)
	_, err := s.ControllerExpandVolume(within(t, enough), expandRequest(id, 10*1024*gi))
	expectError(t, err, codes.OutOfRange, "has space for at most 10Gi")
	if _, err := s.ControllerExpandVolume(within(t, enough), expandRequest(id, 10*gi)); err != nil {
		t.Error(err)
	}
}
