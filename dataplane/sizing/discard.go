// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// trustDrives notes of each drive why hosts may discard on it, if they may.
func trustDrives(node Node, spec v1alpha1.NvmfTargetSpec, drives []v1alpha1.PlannedDrive) {
	for i := range drives {
		d := &drives[i]
		switch policy := cmp.Or(spec.Devices.Discard, v1alpha1.DiscardGuaranteed); {
		case !ownDriver(spec) || policy == v1alpha1.DiscardDisabled:
			d.Discard = ""
		case policy == v1alpha1.DiscardAssumeZeroes:
			d.Discard = v1alpha1.TrustVouched
		case readsZeroes(node, *d):
			d.Discard = v1alpha1.TrustGuaranteed
		default:
			d.Discard = ""
		}
	}
}

// readsZeroes says whether a drive guarantees that what was deallocated reads as zeroes. One that SPDK has taken is not
// in the inventory: of it the target tells, and until it does, what the current plan says stays.
func readsZeroes(node Node, d v1alpha1.PlannedDrive) bool {
	if have := driveOf(node.Inventory, d.ID); have != nil {
		return have.Deallocated == v1alpha1.DeallocatedZeroes
	}
	at := slices.IndexFunc(node.Pools, func(p v1alpha1.PoolStatus) bool { return p.Device == d.ID && p.Deallocated != "" })
	if at >= 0 {
		return node.Pools[at].Deallocated == v1alpha1.DeallocatedZeroes
	}
	return d.Discard == v1alpha1.TrustGuaranteed
}

// planDiscard lets hosts discard where all drives of the node are trusted: whether they may is a transport's to say,
// for all volumes.
func planDiscard(spec v1alpha1.NvmfTargetSpec, drives []v1alpha1.PlannedDrive, p *v1alpha1.SPDKPlan, why *explanation) {
	const off, lacks = string(v1alpha1.SwitchDisabled), "SPDK would give what hosts discard to other volumes without clearing it"
	var untrusted []string
	for _, d := range drives {
		if d.Discard == "" {
			untrusted = append(untrusted, d.ID)
		}
	}
	switch {
	case spec.Devices.Discard == v1alpha1.DiscardDisabled:
		why.given("discard", off, "hosts cannot discard")
	case !ownDriver(spec):
		why.byDefault("discard", off, "through the kernel's block devices and files "+lacks+"; with devices.driver VFIO or UIO hosts may discard on drives that guarantee zeroes")
	case len(untrusted) > 0:
		why.computed("discard", off, "drives that do not guarantee zeroes after a discard (NVMe's DLFEAT, and no volatile write cache), so that "+lacks+": "+text.Few(untrusted, maxListed, ", ")+
			"; give them to another NvmfTarget, or vouch for them with devices.discard AssumeZeroes")
	case spec.Devices.Discard == v1alpha1.DiscardAssumeZeroes:
		p.Discard = v1alpha1.SwitchEnabled
		why.given("discard", string(p.Discard), "devices.discard vouches for the drives: what hosts discard is given to other volumes as it reads then")
	default:
		p.Discard = v1alpha1.SwitchEnabled
		why.computed("discard", string(p.Discard), "all drives guarantee zeroes after a discard (NVMe's DLFEAT, and no volatile write cache)")
	}
}
