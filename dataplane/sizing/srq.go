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

// srqRecord is what became of the shared receive queues, and what that follows from; explain says it in words.
type srqRecord struct {
	depth        int64 // in the plan; 0 without SRQs
	sized        int64 // what each has, or would have if there were any
	queues, need int64 // I/O queues, and how many commands those of one poll group can have outstanding
	bound        int64 // of a depth that is not given
	boundBy      string
	shared, own  int64 // bytes of shared receive queues, and of one for each queue pair
	limits       rdmaLimits
}

// planSRQ sizes the shared receive queues of an RDMA transport: one for each poll group and device.
// Auto takes what costs less memory, those or a receive queue for each queue pair.
func planSRQ(t *transport, l *load, limits rdmaLimits, m memoryModel) (srqRecord, *Reason) {
	if t.srq.Mode == v1alpha1.SRQDisabled {
		return srqRecord{}, nil
	}
	r, why := srqDepth(t, l, limits)
	if why != nil {
		return r, why
	}
	auto := t.srq.Mode == v1alpha1.SRQAuto
	if limits.tooFewFor(*l) {
		if auto {
			return r, nil
		}
		return r, new(reasonf(v1alpha1.ReasonInvalidSetting,
			"transports[%d].srq.mode is Enabled, but %s has %d shared receive queues and each of the %d poll groups needs one (SPDK would leave the rest without); use mode Auto, or cores.count %d or less",
			t.index, limits.fewest, limits.maxSRQ, l.pollGroups, limits.maxSRQ))
	}
	r.shared = m.sharedQueues(l.pollGroups, max(limits.devices, 1), r.sized, t.inCapsule)
	r.own = m.ownQueues(l.receiveSlots(*t), t.inCapsule)
	if !auto || r.shared < r.own {
		r.depth = r.sized
	}
	return r, nil
}

// tooFewFor tells whether a device is known to have less than one shared receive queue for each poll group.
func (r rdmaLimits) tooFewFor(l load) bool { return r.maxSRQ > 0 && r.maxSRQ < l.pollGroups }

// srqDepth takes the given depth, or what all expected queues can have outstanding, spread evenly over the poll groups,
// within what the device and SPDK can keep.
func srqDepth(t *transport, l *load, limits rdmaLimits) (srqRecord, *Reason) {
	r := srqRecord{queues: l.attachments * t.portals * t.ioQueues(l.ioQueues), limits: limits}
	r.need = ceilDiv(r.queues, l.pollGroups) * t.queueDepth
	if t.srq.Depth != nil {
		r.sized = int64(*t.srq.Depth)
		if limits.maxSRQWR > 0 && r.sized > limits.maxSRQWR {
			return r, new(reasonf(v1alpha1.ReasonInvalidSetting,
				"transports[%d].srq.depth is %d, but a shared receive queue of the node's RDMA devices holds only %d work requests; use %d or less",
				t.index, r.sized, limits.maxSRQWR, limits.maxSRQWR))
		}
		return r, nil
	}
	r.bound, r.boundBy = v1alpha1.MaxSRQDepth, "SPDK keeps it in 16 bits"
	switch {
	case limits.maxSRQWR == 0 && r.need > defaultSRQDepth:
		r.bound, r.boundBy = defaultSRQDepth, "SPDK's default, because the device's max_srq_wr is unknown"
	case limits.maxSRQWR > 0 && limits.maxSRQWR < r.bound:
		r.bound, r.boundBy = limits.maxSRQWR, "the device's max_srq_wr"
	}
	r.sized = max(min(r.need, r.bound), v1alpha1.MinSRQDepth)
	return r, nil
}

func (r srqRecord) explain(t transport, l load, why *explanation) {
	const each = "each queue pair has its own receive queue"
	setting := t.setting("srqDepth")
	compared := fmt.Sprintf("shared receive queues need %s (%d poll groups x %d devices x %d), separate ones %s",
		mib(r.shared), l.pollGroups, max(r.limits.devices, 1), r.sized, mib(r.own))
	switch {
	case t.srq.Mode == v1alpha1.SRQDisabled:
		why.given(setting, "none", "srq.mode is Disabled: "+each)
	case r.limits.tooFewFor(l):
		why.computed(setting, "none", fmt.Sprintf("%s has %d shared receive queues and each of the %d poll groups needs one, so %s",
			r.limits.fewest, r.limits.maxSRQ, l.pollGroups, each))
	case r.depth == 0:
		why.computed(setting, "none", each+", which is cheaper: "+compared)
	default:
		if t.srq.Mode == v1alpha1.SRQAuto {
			compared += "; Auto uses the cheaper one"
		}
		r.explainDepth(t, l, compared, why)
	}
}

func (r srqRecord) explainDepth(t transport, l load, compared string, why *explanation) {
	source, words, warning := v1alpha1.SourceGiven, "set by srq.depth", ""
	switch {
	case t.srq.Depth == nil:
		source, words = v1alpha1.SourceComputed, fmt.Sprintf("%d queues over %d poll groups x depth %d is %d", r.queues, l.pollGroups, t.queueDepth, r.need)
		if r.need > r.bound {
			words += fmt.Sprintf(", within %d: %s", r.bound, r.boundBy)
			warning = fmt.Sprintf("with all %d queues full, hosts have to retry (receiver not ready); fewer attachments, a smaller queueDepth or more cores avoid it", r.queues)
		}
	case r.depth < r.need:
		warning = fmt.Sprintf("%d queues over %d poll groups x depth %d can have %d commands outstanding: with all of them full, hosts have to retry (receiver not ready); a larger depth, fewer attachments or a smaller queueDepth avoid it",
			r.queues, l.pollGroups, t.queueDepth, r.need)
	}
	var unknown string
	if r.limits.maxSRQ == 0 || r.limits.maxSRQWR == 0 {
		unknown = "the limits of the RDMA device (max_srq, max_srq_wr) are unknown; run ibv_devinfo -v on the node: " +
			"SPDK lowers a depth above the limit, and leaves poll groups without an SRQ if the device has no more"
	}
	why.add(source, t.setting("srqDepth"), strconv.FormatInt(r.depth, 10), words+"; "+compared, warning, unknown)
}
