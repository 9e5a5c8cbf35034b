// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// All portals of the volume's transports, so that the kernel's multipath has them all; never those of another
// transport.
func TestPathsAreThoseOfTheVolumesTransports(t *testing.T) {
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
		vol := &v1alpha1.NvmfReplica{}
		vol.Spec.Connection.Transports = tc.transports
		vol.Status.Portals = []v1alpha1.Portal{first, rdma, second}
		if diff := cmp.Diff(tc.want, vol.Paths()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
