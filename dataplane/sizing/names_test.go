// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// udev makes a drive's names a moment after the drive is there. Until then nobody knows its class.
func TestDriveWithoutNamesKeepsItsClass(t *testing.T) {
	classes := []v1alpha1.DeviceClass{
		{Name: "tlc", Paths: []string{"/dev/disk/by-id/nvme-a"}},
		{Name: "qlc", Selector: &v1alpha1.DeviceSelector{Models: []string{"*"}}},
	}
	blank := v1alpha1.Drive{ID: "eui.a", Name: "nvme0n1", NVMe: true, Model: "M", SizeBytes: 1 << 40, Content: v1alpha1.ContentBlank}
	other := blank
	other.ID, other.Name, other.ByID = "eui.b", "nvme1n1", []string{"nvme-b"}
	inv := &v1alpha1.Inventory{Drives: []v1alpha1.Drive{blank, other}}
	planned := []v1alpha1.PlannedDrive{{ID: "eui.a", DeviceClass: "tlc"}}
	nameClasses(inv, classes, planned)
	if planned[0].DeviceClass != "tlc" {
		t.Errorf("the planned drive has class %q now", planned[0].DeviceClass)
	}
	chosen, reasons := chooseDrives(inv, v1alpha1.EngineNvmet, nil, classes)
	if len(reasons) != 0 || len(chosen) != 1 || chosen[0].ID != "eui.b" {
		t.Errorf("chosen: %v, %v", chosen, reasons)
	}
	inv.Drives[0].ByID = []string{"nvme-a"}
	if chosen, _ = chooseDrives(inv, v1alpha1.EngineNvmet, nil, classes); len(chosen) != 2 {
		t.Errorf("with its name: %v", chosen)
	}
}
