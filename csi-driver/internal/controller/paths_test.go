// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/internal/attachment"
)

// All portals of the volume's transport are given, so that the kernel's multipath has them all; never those of another transport.
func TestPublishContextHasAllPaths(t *testing.T) {
	first := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: 4420}
	second := v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "fd00::2", Port: 4421}
	other := v1alpha1.Portal{Transport: v1alpha1.TransportRDMA, Address: "10.0.0.1", Port: 4420}
	vol := &v1alpha1.NvmfVolume{}
	vol.Name, vol.Spec.UUID = "v", "11111111-2222-4333-8444-555555555555"
	vol.Spec.Connection.Transport = v1alpha1.TransportTCP
	vol.Status.Portals = []v1alpha1.Portal{first, other, second}
	got, err := attachment.Decode(publishContext(vol, host{nqn: "nqn"}).Encode())
	if diff := cmp.Diff([]v1alpha1.Portal{first, second}, got.Portals); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}
