// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Promisable bytes of a pool of this size: the most that its volumes, with their headers, and its snapshots may use
// together. Who places volumes, who makes them and who reports on them all reckon by it.
func (p *Plan) Promisable(totalBytes int64) int64 {
	percent := int64(NoOverProvisioning)
	if p != nil {
		percent = max(percent, int64(p.OverProvisioningPercent))
	}
	return totalBytes/100*percent + totalBytes%100*percent/100
}

// TakesNothingNew tells whether so little of a pool is free that it takes no new volumes, snapshots or growth.
func (s PoolStatus) TakesNothingNew() bool {
	return s.Reason == ReasonPoolNearlyFull || s.Reason == ReasonPoolFull
}

// VolumeLimit is how many volumes a node can have that follows the plan: each has a subsystem, connected or not, and one
// of the target's is kept free for a volume whose subsystem is being exchanged. False when nothing limits them: the
// kernel's target makes subsystems as long as there is memory.
func (p *Plan) VolumeLimit() (int64, bool) {
	if p == nil || p.SPDK == nil {
		return 0, false
	}
	return int64(max(p.SPDK.MaxSubsystems-1, 1)), true
}
