// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Made, retried, described and attached over both transports, whatever the order in which somebody writes them.
func TestVolumeOverBothTransports(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	nodeID := newHost(t, "host")
	name := own(t, "v")
	for _, written := range []string{"TCP,RDMA", "RDMA,TCP", "TCP, RDMA"} {
		req := createRequest(st, name, gi)
		req.Parameters["transport"] = written
		resp, err := s.CreateVolume(within(t, enough), req)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"target": st.target, "transport": "RDMA,TCP", "uuid": volume(t, name).Spec.UUID}, resp.Volume.VolumeContext); diff != "" {
			t.Error(diff)
		}
	}
	less := createRequest(st, name, gi)
	less.Parameters["transport"] = "TCP"
	_, err := s.CreateVolume(within(t, enough), less)
	expectError(t, err, codes.AlreadyExists, "transport is RDMA,TCP, not TCP")

	for written, want := range map[string]codes.Code{"TCP,RDMA": codes.OK, "RDMA,TCP": codes.OK, "TCP": codes.InvalidArgument, "RDMA,FC": codes.InvalidArgument} {
		req := publishRequest(name, nodeID)
		req.VolumeContext = map[string]string{"transport": written}
		if want == codes.OK {
			publishAs(t, s, req)
			continue
		}
		_, err := s.ControllerPublishVolume(within(t, enough), req)
		expectError(t, err, want, "transport is "+written+", but that of volume "+name+" is RDMA,TCP")
	}
	if diff := cmp.Diff([]v1alpha1.Portal{
		{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4421}, {Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420},
	}, replica(t, name).Paths()); diff != "" {
		t.Error(diff)
	}
	capacity, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target, "transport": "RDMA,TCP"}})
	if err != nil || capacity.AvailableCapacity != 9*gi-2*overhead {
		t.Errorf("capacity %v, %v", capacity, err)
	}
}
