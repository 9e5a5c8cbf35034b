// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// nvmetSRQSaving: shared receive queues are only to be had by loading nvmet_rdma anew, so Auto takes them
	// for no less than a quarter of the memory.
	nvmetSRQSaving = 4
)

// planModules tells the modules of the kernel's target what the spec asks of them, and refuses what the kernel
// has no counterpart for.
func planModules(node Node, spec v1alpha1.NvmfTargetSpec, portals []v1alpha1.PlannedPortal, why *explanation) (*v1alpha1.NvmetPlan, []Reason) {
	reasons := noCounterpart(spec)
	if invalid := checkPriority(spec.Sockets); invalid != nil {
		reasons = append(reasons, *invalid)
	}
	attachments, ioQueues, invalid := attachmentsOf(spec.Attachments)
	if invalid != nil {
		reasons = append(reasons, *invalid)
	}
	idle := time.Duration(0)
	if spec.Sockets != nil && spec.Sockets.IdlePollPeriod != nil {
		idle = spec.Sockets.IdlePollPeriod.Duration
	}
	if idle < 0 || idle > v1alpha1.MaxIdlePollPeriod {
		reasons = append(reasons, reasonf(v1alpha1.ReasonInvalidSetting, "sockets.idlePollPeriod is %s; use 0s to %s", idle, v1alpha1.MaxIdlePollPeriod))
	}
	if len(reasons) > 0 {
		return nil, reasons
	}
	p := &v1alpha1.NvmetPlan{}
	uses := func(kind v1alpha1.TransportType) bool {
		return slices.ContainsFunc(portals, func(p v1alpha1.PlannedPortal) bool { return p.Transport == kind })
	}
	if uses(v1alpha1.TransportTCP) {
		p.TCP = &v1alpha1.NvmetTCP{IdlePollPeriodMicroseconds: idle.Microseconds(), SocketPriority: explainPriority(spec.Sockets, "nvmet.tcp.socketPriority", why)}
		explainIdlePoll(p.TCP.IdlePollPeriodMicroseconds, why)
	} else if spec.Sockets != nil {
		return nil, []Reason{noSockets()}
	}
	if uses(v1alpha1.TransportRDMA) {
		srq, reason := planNvmetSRQ(node, spec, portals, attachments, ioQueues)
		if reason != nil {
			return nil, []Reason{*reason}
		}
		p.RDMA = &v1alpha1.NvmetRDMA{}
		value := "none"
		if srq.depth > 0 {
			p.RDMA.SRQDepth, value = new(int32(srq.depth)), strconv.FormatInt(srq.depth, 10)
		}
		why.add(srq.source, "nvmet.rdma.srqDepth", value, srq.why, srq.warnings...)
	}
	return p, nil
}

func explainIdlePoll(micros int64, why *explanation) {
	value := strconv.FormatInt(micros, 10)
	if micros == 0 {
		why.byDefault("nvmet.tcp.idlePollPeriodMicroseconds", value, "a connection's worker sleeps when it has no work; the kernel's default")
		return
	}
	why.given("nvmet.tcp.idlePollPeriodMicroseconds", value, "a connection's worker polls for more work before it sleeps: lower latency, but more CPU on every active connection")
}

// noCounterpart refuses what only SPDK has: the API server does so too, with the same words.
func noCounterpart(spec v1alpha1.NvmfTargetSpec) []Reason {
	var reasons []Reason
	refuse := func(given bool, format string, args ...any) {
		if given {
			reasons = append(reasons, reasonf(v1alpha1.ReasonInvalidSetting, format+"; remove it, or use engine: SPDK", args...))
		}
	}
	for i, t := range spec.Transports {
		refuse(t.MaxIOSize != nil, "transports[%d].maxIOSize: the kernel's target has no such limit", i)
		refuse(t.Placement != nil, "transports[%d].placement: connections of the kernel's target follow the incoming CPU automatically", i)
		refuse(t.C2HSuccess != nil, "transports[%d].c2hSuccess: with the kernel's target the host controls it (disable_sqflow)", i)
		if t.SRQ != nil && t.SRQ.Depth != nil && *t.SRQ.Depth < v1alpha1.MinNvmetSRQDepth {
			reasons = append(reasons, reasonf(v1alpha1.ReasonInvalidSetting, "transports[%d].srq.depth is %d; the kernel's target requires at least %d", i, *t.SRQ.Depth, v1alpha1.MinNvmetSRQDepth))
		}
		if t.SRQ != nil && t.SRQ.Depth != nil && *t.SRQ.Depth > v1alpha1.MaxSRQDepth {
			reasons = append(reasons, reasonf(v1alpha1.ReasonInvalidSetting, "transports[%d].srq.depth is %d; use %d to %d", i, *t.SRQ.Depth, v1alpha1.MinNvmetSRQDepth, v1alpha1.MaxSRQDepth))
		}
		if t.SRQ != nil && t.SRQ.Mode != "" && !isSRQMode(t.SRQ.Mode) {
			reasons = append(reasons, reasonf(v1alpha1.ReasonInvalidSetting, "transports[%d].srq.mode is %q; use Auto, Enabled or Disabled", i, t.SRQ.Mode))
		}
	}
	if s := spec.Sockets; s != nil {
		refuse(s.ZeroCopySend != nil || s.ZeroCopyThreshold != nil, "sockets.zeroCopySend: the kernel's target never copies what it sends")
		refuse(s.ReceivePipe != nil || s.QuickAck != nil, "sockets.receivePipe and quickAck: the kernel's target reads and acknowledges inside the kernel")
		refuse(s.SendBufferSize != nil || s.ReceiveBufferSize != nil, "sockets.sendBufferSize and receiveBufferSize: the kernel's target uses the buffer sizes of net.ipv4.tcp_wmem and tcp_rmem")
	}
	return reasons
}

// srqChoice is what became of the kernel's shared receive queues.
type srqChoice struct {
	depth    int64 // 0 without SRQs
	source   v1alpha1.ChoiceSource
	why      string
	warnings []string
}

// planNvmetSRQ sizes the kernel's shared receive queues: one for each completion vector of a device, of which it has at
// most one for each CPU. The modules' parameters hold for all ports, so transports of the type must agree.
func planNvmetSRQ(node Node, spec v1alpha1.NvmfTargetSpec, portals []v1alpha1.PlannedPortal, attachments, ioQueues int64) (srqChoice, *Reason) {
	var want v1alpha1.SRQ
	first := -1
	for i, t := range spec.Transports {
		if t.Type != v1alpha1.TransportRDMA {
			continue
		}
		var has v1alpha1.SRQ
		if t.SRQ != nil {
			has = *t.SRQ
		}
		has.Mode = cmp.Or(has.Mode, v1alpha1.SRQAuto)
		if first >= 0 && (has.Mode != want.Mode || depthOf(has) != depthOf(want)) {
			return srqChoice{}, new(reasonf(v1alpha1.ReasonInvalidSetting,
				"transports[%d] and transports[%d] are both RDMA and differ in srq, but the kernel's module has one setting for all portals; set the same srq in both", first, i))
		}
		if first < 0 {
			first, want = i, has
		}
	}
	var slots, queues int64
	for _, p := range portals {
		if p.Transport != v1alpha1.TransportRDMA {
			continue
		}
		n := attachments * min(ioQueues, int64(p.MaxIOQueues))
		queues, slots = queues+n, slots+n*int64(p.QueueDepth)
	}
	limits := rdmaLimitsOf(node.Inventory)
	vectors := sharedQueuesOfKernel(node.Inventory, limits)
	c := nvmetSRQDepth(want, vectors, slots, queues, limits)
	if want.Depth != nil && limits.maxSRQWR > 0 && int64(*want.Depth) > limits.maxSRQWR {
		return c, new(reasonf(v1alpha1.ReasonInvalidSetting,
			"transports[%d].srq.depth is %d, but a shared receive queue of the node's RDMA devices holds only %d work requests; use %d or less", first, *want.Depth, limits.maxSRQWR, limits.maxSRQWR))
	}
	shared := vectors * c.depth
	compared := fmt.Sprintf("%d shared receive queues (one for each completion vector, at most one for each CPU) x %d are %d slots, and %d queues with their own have %d", vectors, c.depth, shared, queues, slots)
	switch {
	case want.Mode == v1alpha1.SRQDisabled:
		return srqChoice{source: v1alpha1.SourceGiven, why: "srq.mode is Disabled: each queue pair has its own receive queue"}, nil
	case want.Mode == v1alpha1.SRQEnabled:
		c.why += "; " + compared
		return c, nil
	case shared > slots-slots/nvmetSRQSaving:
		return srqChoice{source: v1alpha1.SourceComputed, why: compared + "; Auto uses shared queues, for which the module is reloaded, only if they save a quarter of the memory"}, nil
	}
	c.source, c.why = v1alpha1.SourceComputed, compared+"; Auto uses shared queues if they save a quarter of the memory"
	return c, nil
}

func depthOf(s v1alpha1.SRQ) int32 {
	if s.Depth == nil {
		return 0
	}
	return *s.Depth
}

// sharedQueuesOfKernel that nvmet_rdma makes on a device, at most.
func sharedQueuesOfKernel(inv *v1alpha1.Inventory, limits rdmaLimits) int64 {
	vectors := max(int64(cpusOf(inv).Size()), 1)
	if limits.maxSRQ > 0 {
		vectors = min(vectors, limits.maxSRQ)
	}
	return vectors
}

func nvmetSRQDepth(want v1alpha1.SRQ, vectors, slots, queues int64, limits rdmaLimits) srqChoice {
	c := srqChoice{depth: int64(depthOf(want)), source: v1alpha1.SourceGiven, why: "set by srq.depth"}
	bound := int64(v1alpha1.MaxSRQDepth)
	if limits.maxSRQWR > 0 {
		bound = min(bound, limits.maxSRQWR)
	}
	if want.Depth == nil {
		need := ceilDiv(slots, vectors)
		c = srqChoice{depth: max(min(need, bound), v1alpha1.MinNvmetSRQDepth), source: v1alpha1.SourceComputed,
			why: fmt.Sprintf("%d outstanding commands of %d queues over %d shared receive queues", slots, queues, vectors)}
	}
	if c.depth*vectors < slots {
		c.warnings = append(c.warnings, fmt.Sprintf("with all %d queues full, hosts have to retry (receiver not ready)", queues))
	}
	return c
}

func isSRQMode(m v1alpha1.SRQMode) bool {
	return m == v1alpha1.SRQAuto || m == v1alpha1.SRQEnabled || m == v1alpha1.SRQDisabled
}
