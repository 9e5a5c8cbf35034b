// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// defaultSRQDepth is SPDK's (max_srq_depth): as much as is taken from a device whose limits are not known.
	defaultSRQDepth = 4096
	// kernelAdminDepth is the depth of the kernel initiator's admin queue (NVME_AQ_DEPTH).
	kernelAdminDepth = 32
)

// rdmaLimits are what all RDMA devices of a node can do: SPDK opens every one that it can see.
type rdmaLimits struct {
	devices  int64
	maxSRQ   int64 // 0 is unknown
	maxSRQWR int64 // 0 is unknown
	fewest   string
}

func rdmaLimitsOf(inv *v1alpha1.Inventory) rdmaLimits {
	l := rdmaLimits{devices: int64(len(inv.RDMADevices))}
	for i, d := range inv.RDMADevices {
		// Not known of one is not known of all.
		if i == 0 {
			l.maxSRQ, l.maxSRQWR, l.fewest = max(d.MaxSRQ, 0), max(d.MaxSRQWR, 0), d.Name
			continue
		}
		if d.MaxSRQ < l.maxSRQ || d.MaxSRQ == l.maxSRQ && d.Name < l.fewest {
			l.maxSRQ, l.fewest = max(d.MaxSRQ, 0), d.Name
		}
		l.maxSRQWR = min(l.maxSRQWR, max(d.MaxSRQWR, 0))
	}
	return l
}

// srqChoice is what became of the shared receive queues.
type srqChoice struct {
	depth    int64 // 0 without SRQs
	source   v1alpha1.ChoiceSource
	why      string
	warnings []string
}

// planSRQ sizes the shared receive queues of an RDMA transport: one for each poll group and device.
// Auto takes what costs less memory, those or a receive queue for each queue pair.
func planSRQ(t *transport, l *load, limits rdmaLimits, m memoryModel) (srqChoice, *Reason) {
	if t.srq.Mode == v1alpha1.SRQDisabled {
		return srqChoice{source: v1alpha1.SourceGiven, why: "srq.mode is Disabled: each queue pair has a receive queue of its own"}, nil
	}
	c, why := srqDepth(t, l, limits)
	if why != nil {
		return c, why
	}
	auto := t.srq.Mode == v1alpha1.SRQAuto
	if limits.maxSRQ > 0 && limits.maxSRQ < l.pollGroups {
		if auto {
			return srqChoice{source: v1alpha1.SourceComputed, why: l.sprintf(
				"%s has %d shared receive queues and each of the %d poll groups needs one, so each queue pair has a receive queue of its own",
				limits.fewest, limits.maxSRQ, l.pollGroups)}, nil
		}
		return c, new(reasonf(v1alpha1.ReasonInvalidSetting,
			"transports[%d].srq.mode is Enabled, but %s has %d shared receive queues and each of the %d poll groups needs one (SPDK would leave the rest without); use mode Auto, or cores.count %d or less",
			t.index, limits.fewest, limits.maxSRQ, l.pollGroups, limits.maxSRQ))
	}
	shared := m.sharedQueues(l.pollGroups, max(limits.devices, 1), c.depth, t.inCapsule)
	own := m.ownQueues(l.receiveSlots(*t), t.inCapsule)
	compared := ""
	if !l.quiet {
		compared = fmt.Sprintf("shared receive queues cost %s (%d poll groups x %d devices x %d), own ones %s", mib(shared), l.pollGroups, max(limits.devices, 1), c.depth, mib(own))
	}
	if auto && own <= shared {
		return srqChoice{source: v1alpha1.SourceComputed, why: l.sprintf("each queue pair has a receive queue of its own, which is cheaper: %s", compared)}, nil
	}
	if l.quiet {
		return c, nil
	}
	if auto {
		compared += "; Auto takes the cheaper"
	}
	c.why += "; " + compared
	if limits.maxSRQ == 0 || limits.maxSRQWR == 0 {
		c.warnings = append(c.warnings, "the limits of the RDMA device (max_srq, max_srq_wr) are not known; look at ibv_devinfo -v on the node: "+
			"SPDK cuts a larger depth down, and leaves poll groups without an SRQ when the device has no more")
	}
	return c, nil
}

// srqDepth takes the given depth, or what all expected queues can have outstanding, spread evenly over the poll groups, within
// what the device and SPDK can keep.
func srqDepth(t *transport, l *load, limits rdmaLimits) (srqChoice, *Reason) {
	queues := l.attachments * t.portals * t.ioQueues(l.ioQueues)
	need := ceilDiv(queues, l.pollGroups) * t.queueDepth
	if t.srq.Depth != nil {
		depth := int64(*t.srq.Depth)
		if limits.maxSRQWR > 0 && depth > limits.maxSRQWR {
			return srqChoice{}, new(reasonf(v1alpha1.ReasonInvalidSetting,
				"transports[%d].srq.depth is %d, over the %d work requests that a shared receive queue of the node's RDMA devices holds; use %d or less",
				t.index, depth, limits.maxSRQWR, limits.maxSRQWR))
		}
		c := srqChoice{depth: depth, source: v1alpha1.SourceGiven, why: "srq.depth asks for it"}
		if depth < need && !l.quiet {
			c.warnings = append(c.warnings, fmt.Sprintf("%d queues over %d poll groups x depth %d can have %d commands outstanding: with all of them full, hosts are told to try again (receiver not ready); a larger depth, fewer attachments or a smaller queueDepth avoid it",
				queues, l.pollGroups, t.queueDepth, need))
		}
		return c, nil
	}
	bound, of := int64(v1alpha1.MaxSRQDepth), "SPDK keeps it in 16 bits"
	switch {
	case limits.maxSRQWR == 0 && need > defaultSRQDepth:
		bound, of = defaultSRQDepth, "SPDK's default, as the device's max_srq_wr is not known"
	case limits.maxSRQWR > 0 && limits.maxSRQWR < bound:
		bound, of = limits.maxSRQWR, "the device's max_srq_wr"
	}
	c := srqChoice{depth: max(min(need, bound), v1alpha1.MinSRQDepth), source: v1alpha1.SourceComputed}
	if l.quiet {
		return c, nil
	}
	c.why = fmt.Sprintf("%d queues over %d poll groups x depth %d is %d", queues, l.pollGroups, t.queueDepth, need)
	if need > bound {
		c.why += fmt.Sprintf(", within %d: %s", bound, of)
		c.warnings = append(c.warnings, fmt.Sprintf("with all %d queues full, hosts are told to try again (receiver not ready); fewer attachments, a smaller queueDepth or more cores avoid it", queues))
	}
	return c, nil
}

func (c srqChoice) explain(t transport, why *explanation) {
	value := "none"
	if c.depth > 0 {
		value = strconv.FormatInt(c.depth, 10)
	}
	why.add(c.source, t.setting("srqDepth"), value, c.why, c.warnings...)
}
