// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"regexp"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// pciAddress as the API takes it.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// ownDriver tells whether SPDK drives the drives itself.
func ownDriver(spec v1alpha1.NvmfTargetSpec) bool {
	return spec.Engine == v1alpha1.EngineSPDK && (spec.Devices.Driver == v1alpha1.DriverVFIO || spec.Devices.Driver == v1alpha1.DriverUIO)
}

// checkDriver refuses drivers that cannot be had with the rest of the spec.
func checkDriver(spec v1alpha1.NvmfTargetSpec) *Reason {
	switch driver := spec.Devices.Driver; driver {
	case "", v1alpha1.DriverKernel:
	case v1alpha1.DriverVFIO, v1alpha1.DriverUIO:
		if spec.Devices.File != nil {
			return new(reasonf(v1alpha1.ReasonInvalidSetting, "devices.driver is %s, but a file has no drive to take from the kernel; remove driver, or choose drives with selector or paths", driver))
		}
		if driver == v1alpha1.DriverUIO && spec.Cores != nil && spec.Cores.Mode == v1alpha1.CoresInterrupt {
			return new(reasonf(v1alpha1.ReasonInvalidSetting, "cores.mode Interrupt requires an interrupt for each queue of a drive, which devices.driver UIO does not provide; use driver VFIO or Kernel, or mode Dynamic"))
		}
		if driver == v1alpha1.DriverUIO && spec.Memory != nil && spec.Memory.Hugepages == v1alpha1.HugepagesDisabled {
			return new(reasonf(v1alpha1.ReasonInvalidSetting, "devices.driver UIO uses physical addresses, which are stable only with hugepages; use memory.hugepages 2Mi or 1Gi, or driver VFIO"))
		}
	default:
		return new(reasonf(v1alpha1.ReasonInvalidSetting, "devices.driver is %q; use Kernel, VFIO or UIO", driver))
	}
	return nil
}

// addressDrives gives the drives of a pool the PCI addresses by which SPDK's own driver finds them. One that
// is not in the inventory keeps the address of the current plan: SPDK has it, so the kernel does not know it.
func addressDrives(inv *v1alpha1.Inventory, spec v1alpha1.NvmfTargetSpec, drives []v1alpha1.PlannedDrive) []Reason {
	if !ownDriver(spec) {
		for i := range drives {
			drives[i].PCIAddress = ""
		}
		return nil
	}
	var reasons []Reason
	for i := range drives {
		planned := &drives[i]
		d := driveOf(inv, planned.ID)
		if d == nil {
			if replaced(inv, drives, *planned) {
				planned.PCIAddress = ""
			}
			continue
		}
		if why := notOnPCI(d, spec.Devices.Driver); why != nil {
			reasons = append(reasons, *why)
			continue
		}
		if why := wrongIOMMU(d, spec.Devices.Driver); why != nil {
			reasons = append(reasons, *why)
			continue
		}
		planned.PCIAddress = d.PCIAddress
		if other := sharesController(inv, drives, *planned); other != "" {
			reasons = append(reasons, reasonf(v1alpha1.ReasonDeviceInUse,
				"%s and %s are namespaces of one controller (%s), and devices.driver %s would take both from the kernel; add both to the pool, or use driver Kernel",
				d.Name, other, planned.PCIAddress, spec.Devices.Driver))
		}
	}
	return reasons
}

// replaced: a drive that the inventory does not have is not where it was, for another one of the pool is. Where that
// becomes SPDK's, the address must not lead to both.
func replaced(inv *v1alpha1.Inventory, drives []v1alpha1.PlannedDrive, gone v1alpha1.PlannedDrive) bool {
	return slices.ContainsFunc(drives, func(p v1alpha1.PlannedDrive) bool {
		d := driveOf(inv, p.ID)
		return d != nil && d.PCIAddress == gone.PCIAddress
	})
}

func notOnPCI(d *v1alpha1.Drive, driver v1alpha1.DriveDriver) *Reason {
	if d.NVMe && pciAddress.MatchString(d.PCIAddress) {
		return nil
	}
	return new(reasonf(v1alpha1.ReasonNoDevice, "%s is not an NVMe drive with a PCI address, which devices.driver %s requires; use driver Kernel, or choose other drives", d.Name, driver))
}

// wrongIOMMU says why a driver cannot have a drive behind its IOMMU, or without one. The launcher looks again.
func wrongIOMMU(d *v1alpha1.Drive, driver v1alpha1.DriveDriver) *Reason {
	switch {
	case driver == v1alpha1.DriverVFIO && d.IOMMU == v1alpha1.IOMMUNone:
		return new(reasonf(v1alpha1.ReasonNoIOMMU, "%s (%s) has no IOMMU, which devices.driver VFIO requires; use driver UIO or Kernel, or enable the IOMMU in the firmware and boot with intel_iommu=on", d.Name, d.PCIAddress))
	case driver == v1alpha1.DriverUIO && d.IOMMU == v1alpha1.IOMMUTranslated:
		return new(reasonf(v1alpha1.ReasonDriverNotAvailable, "%s (%s) is behind an IOMMU that allows access only to mapped memory, but devices.driver UIO maps none; use driver VFIO or Kernel, or boot with iommu.passthrough=1", d.Name, d.PCIAddress))
	}
	return nil
}

// sharesController names a drive behind the same PCI address that is not in the pool.
func sharesController(inv *v1alpha1.Inventory, drives []v1alpha1.PlannedDrive, planned v1alpha1.PlannedDrive) string {
	other := ""
	for i := range inv.Drives {
		d := &inv.Drives[i]
		if d.PCIAddress != planned.PCIAddress || slices.ContainsFunc(drives, func(p v1alpha1.PlannedDrive) bool { return p.ID == d.ID }) {
			continue
		}
		if other == "" || d.Name < other {
			other = d.Name
		}
	}
	return other
}

// nvmeOnly tells whether all drives are NVMe; one that is not in the inventory counts as such: the other
// kinds do not leave it while they serve.
func (p pool) nvmeOnly(inv *v1alpha1.Inventory) bool {
	if p.file != nil {
		return false
	}
	return !slices.ContainsFunc(p.drives, func(planned v1alpha1.PlannedDrive) bool {
		d := driveOf(inv, planned.ID)
		return d != nil && !d.NVMe
	})
}

// driveOf is the drive with an ID; nil when the inventory has none.
func driveOf(inv *v1alpha1.Inventory, id string) *v1alpha1.Drive {
	for i := range inv.Drives {
		if inv.Drives[i].ID == id {
			return &inv.Drives[i]
		}
	}
	return nil
}
