// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "fmt"

// Promisable bytes of a pool of this size: the most that its volumes, with their headers, and its snapshots may use
// together. Who places volumes, who makes them and who reports on them all reckon by it.
func (p *Plan) Promisable(totalBytes int64) int64 {
	percent := int64(NoOverProvisioning)
	if p != nil {
		percent = max(percent, int64(p.OverProvisioningPercent))
	}
	return totalBytes/100*percent + totalBytes%100*percent/100
}

// AttachmentLimit is how many places for attachments the node has; see Attachments.Places. It is its plan's, and less
// while its target still runs by an earlier one. False when nothing limits them: the memory of the kernel's target is
// the node's own, and plans of earlier versions do not say what theirs was planned for.
func (n *NvmfNode) AttachmentLimit() (int64, bool) {
	a := n.Spec.Plan.attachments()
	if a == nil {
		return 0, false
	}
	limit := int64(a.Expected)
	if s := n.Status.Attachments; s != nil && s.Possible != nil {
		limit = min(limit, *s.Possible)
	}
	return limit, true
}

// MoreAttachments says how a node of which so many are possible gets places for more.
func (n *NvmfNode) MoreAttachments(possible int64) string {
	if a := n.Spec.Plan.attachments(); a != nil && int64(a.Expected) > possible {
		return fmt.Sprintf("the plan allows %d after the next restart of pod %s%s", a.Expected, TargetPodPrefix, n.Name)
	}
	return "raise attachments.expected of NvmfTarget " + n.Spec.Target
}

// AttachmentPlaces are how many of the node's places for attachments each one takes of a volume with such a connection.
func (n *NvmfNode) AttachmentPlaces(c Connection) int64 {
	if a := n.Spec.Plan.attachments(); a != nil {
		return a.Places(c)
	}
	return 1
}

// attachments that the plan's memory was planned for; nil when it does not say.
func (p *Plan) attachments() *Attachments {
	if p == nil || p.SPDK == nil {
		return nil
	}
	return p.SPDK.Attachments
}

// Places that an attachment of a volume takes among those expected: one, or more where it opens more queues than
// ioQueues, since each queue pair takes as much memory, the admin one too.
func (a Attachments) Places(c Connection) int64 {
	planned, opens := int64(max(a.IOQueues, 1))+1, int64(max(c.IOQueues, 1))+1
	return max((opens+planned-1)/planned, 1)
}

// TakesNothingNew tells whether so little of a pool is free that it takes no new volumes, snapshots or growth.
func (s PoolStatus) TakesNothingNew() bool {
	return s.Reason == ReasonPoolNearlyFull || s.Reason == ReasonPoolFull
}

// VolumeLimit is how many volumes a node can have that follows the plan: each has a subsystem, connected or not, and
// one of the target's is kept free for a volume whose subsystem is being exchanged. False when nothing limits them: the
// kernel's target makes subsystems as long as there is memory.
func (p *Plan) VolumeLimit() (int64, bool) {
	if p == nil || p.SPDK == nil {
		return 0, false
	}
	return int64(max(p.SPDK.MaxSubsystems-1, 1)), true
}

// What XFS takes of itself, measured on Linux 6.18 with what mkfs.xfs makes here: 32 MiB that it reserves for
// its own transactions, 0.7 % for the trees that it may need for reflinks and inodes, and 0.5 % for the extents of a
// file that was written in 4 KiB blocks in random order.
const (
	xfsReserveBytes = 32 << 20
	xfsShare        = 64 // one part in so many, 1.6 %
)

// FillableXFS is how much of an XFS of that size volumes can be filled with. That is the pool's size: were it the
// filesystem's, writes to volumes that are promised all of it would fail before they are full.
func FillableXFS(filesystemBytes int64) int64 {
	return max(0, filesystemBytes-xfsReserveBytes-filesystemBytes/xfsShare)
}
