// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A class decides where new volumes go, and needs no restart: a StorageClass must not wait for the node's turn.
func TestHeldPlanHasTheClassesOfTheNext(t *testing.T) {
	has := &v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, SPDK: &v1alpha1.SPDKPlan{CoreMask: "0x2"}, Drives: []v1alpha1.PlannedDrive{{ID: "a", DeviceClass: "old"}, {ID: "gone", DeviceClass: "old"}}}
	wants := has.DeepCopy()
	wants.SPDK.CoreMask = "0x6"
	wants.Drives = []v1alpha1.PlannedDrive{{ID: "new", DeviceClass: "old"}, {ID: "a", DeviceClass: "new"}}
	got := held(has, wants)
	if got.SPDK.CoreMask != "0x2" || len(got.Drives) != 2 || got.Drives[0].DeviceClass != "new" || got.Drives[1].DeviceClass != "old" {
		t.Errorf("held: %s, %+v", got.SPDK.CoreMask, got.Drives)
	}
}
