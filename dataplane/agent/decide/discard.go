// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// mayDiscard says whether hosts may discard in a pool: what they discard is given to other volumes as it is. A drive
// that the plan takes at its word must give it again, to the target that uses it now.
func (d *decider) mayDiscard(p *pool) bool {
	plan := d.Node.Spec.Plan
	if plan.Engine == v1alpha1.EngineNvmet {
		return true
	}
	if !p.readable() || !d.Target.State.Discard || plan.SPDK == nil || plan.SPDK.Discard != v1alpha1.SwitchEnabled {
		return false
	}
	at := slices.IndexFunc(plan.Drives, func(drive v1alpha1.PlannedDrive) bool { return drive.ID == p.device.ID })
	switch {
	case at < 0:
		return false
	case plan.Drives[at].Discard == v1alpha1.TrustVouched:
		return true
	default:
		return plan.Drives[at].Discard == v1alpha1.TrustGuaranteed && p.held.Deallocated == v1alpha1.DeallocatedZeroes
	}
}

// discardStatus of a pool that can be read.
func (d *decider) discardStatus(p *pool) v1alpha1.Switch {
	if d.mayDiscard(p) {
		return v1alpha1.SwitchEnabled
	}
	return v1alpha1.SwitchDisabled
}

// roomFrom is how a full pool gets room.
func (d *decider) roomFrom(p *pool) string {
	words := "delete volumes or snapshots of it"
	if d.mayDiscard(p) {
		words += ", or discard in its volumes what they do not need (fstrim)"
	}
	if p.device.FileBytes > 0 {
		return words + ", or enlarge its file (devices.file.size)"
	}
	return words + "; another drive does not help it, for each volume lies whole on one"
}
