// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// All portals of the volume's transports are given, so that the kernel's multipath has them all; never those of another
// transport.
func TestPublishContextHasAllPaths(t *testing.T) {
	first := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}
	second := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "fd00::2", Port: 4421}
	rdma := v1alpha1.Portal{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4420}
	for name, tc := range map[string]struct {
		transports []v1alpha1.TransportType
		want       []v1alpha1.Portal
	}{
		"TCP":  {[]v1alpha1.TransportType{v1alpha1.TransportTCP}, []v1alpha1.Portal{first, second}},
		"RDMA": {[]v1alpha1.TransportType{v1alpha1.TransportRDMA}, []v1alpha1.Portal{rdma}},
		"both": {[]v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA}, []v1alpha1.Portal{first, rdma, second}},
	} {
		t.Run(name, func(t *testing.T) {
			vol := &v1alpha1.NvmfVolume{}
			vol.Name, vol.Spec.UUID = "v", "11111111-2222-4333-8444-555555555555"
			vol.Spec.Connection.Transports = tc.transports
			vol.Status.Portals = []v1alpha1.Portal{first, rdma, second}
			got, err := publishcontext.Decode(publishContext(vol, host{nqn: "nqn"}, 1).Encode())
			if diff := cmp.Diff(tc.want, got.Portals); err != nil || diff != "" {
				t.Errorf("%v: %s", err, diff)
			}
		})
	}
}

// Made, retried, described and attached over both transports, whatever the order in which somebody writes them.
func TestVolumeOverBothTransports(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	_, nodeID := newHost(t, s, "host")
	name := own(t, "v")
	for _, written := range []string{"TCP,RDMA", "RDMA,TCP", "TCP, RDMA"} {
		req := createRequest(st, name, gi)
		req.Parameters["transport"] = written
		resp, err := s.CreateVolume(within(t, enough), req)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"target": st.target, "transport": "RDMA,TCP"}, resp.Volume.VolumeContext); diff != "" {
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
		resp, err := s.ControllerPublishVolume(within(t, enough), req)
		if want != codes.OK {
			expectError(t, err, want, "transport is "+written+", and that of volume "+name+" is RDMA,TCP")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := publishcontext.Decode(resp.PublishContext)
		if diff := cmp.Diff([]v1alpha1.Portal{
			{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4421}, {Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420},
		}, got.Portals); err != nil || diff != "" {
			t.Errorf("%v: %s", err, diff)
		}
	}
	capacity, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"target": st.target, "transport": "RDMA,TCP"}})
	if err != nil || capacity.AvailableCapacity != 9*gi {
		t.Errorf("capacity %v, %v", capacity, err)
	}
}
