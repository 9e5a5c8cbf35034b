// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func onSPDK(target *v1alpha1.NvmfTarget) {
	count := int32(1)
	target.Spec.Engine, target.Spec.Cores = v1alpha1.EngineSPDK, &v1alpha1.Cores{Count: &count}
}

func TestModify(t *testing.T) {
	st := newStorageOf(t, onSPDK, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	req := createRequest(st, own(t, "v"), gi)
	req.Parameters["iops"] = "1000"
	// The claim's class takes the place of the StorageClass's limits.
	req.MutableParameters = map[string]string{"bandwidth": "10Mi"}
	if _, err := s.CreateVolume(within(t, enough), req); err != nil {
		t.Fatal(err)
	}
	id := req.Name
	expect := func(when string, want *v1alpha1.VolumeQoS) {
		t.Helper()
		if diff := cmp.Diff(want, volume(t, id).Spec.QoS); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	expect("made", &v1alpha1.VolumeQoS{BandwidthMiBps: new(int64(10))})
	modify := func(m map[string]string) error {
		_, err := s.ControllerModifyVolume(within(t, enough), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: m})
		return err
	}
	for range 2 {
		if err := modify(map[string]string{"iops": "3000"}); err != nil {
			t.Fatal(err)
		}
		expect("changed", &v1alpha1.VolumeQoS{IOPS: new(int64(3000))})
	}
	if got := replica(t, id).Status.QoS; got == nil || *got.IOPS != 3000 {
		t.Errorf("answered before the target held to it: %v", got)
	}
	expectError(t, modify(map[string]string{"iops": "2500"}), codes.InvalidArgument, "use 2000 or 3000")
	expectError(t, modify(map[string]string{"target": "other"}), codes.InvalidArgument, "supported parameters: replicas, replaceLostReplicaAfter, iops")
	expect("refused", &v1alpha1.VolumeQoS{IOPS: new(int64(3000))})
	if err := modify(nil); err != nil {
		t.Error(err)
	}
	expect("no limits", nil)

	agents[st.nodes[0]].NoLimits()
	expectError(t, modify(map[string]string{"iops": "1000"}), codes.InvalidArgument, "does not support limits")
	id = "unknown"
	expectError(t, modify(nil), codes.NotFound)
	id = ""
	expectError(t, modify(nil), codes.InvalidArgument)
}

func TestModifyOnTheKernelsTarget(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	_, err := s.ControllerModifyVolume(within(t, enough), &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: map[string]string{"iops": "1000"}})
	expectError(t, err, codes.InvalidArgument, st.target, "engine Nvmet", "remove the limits")
	silence(t, st.nodes[0])
	_, err = s.ControllerModifyVolume(within(t, enough), &csi.ControllerModifyVolumeRequest{VolumeId: id})
	if err != nil {
		t.Errorf("no limits are no change: %v", err)
	}
}
