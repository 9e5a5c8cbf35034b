// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Page sizes.
const (
	page2Mi = 2 << 20
	page1Gi = 1 << 30
)

const (
	// leastMemory of a target in the API.
	leastMemory = 64 << 20
	// Headroom of the heap, in percent: pools are contiguous, and memory is lost between them. With pages of 1 GiB, or without
	// pages, it is one piece.
	headroomSmallPages = 25
	headroomOnePiece   = 10
	// podHeadroom of ordinary memory, in percent.
	podHeadroom = 25
	// What nvmf_tgt takes outside its heap, before any volume: code, DPDK's own, the RPC server.
	podBase = 128 << 20
	// Ordinary memory of each core: stacks and trace buffers.
	podCore = 4 << 20
	// Of each volume with its subsystem and listener: 18 + 8 kB, measured with 1,000.
	podVolume = 26_000
	// Of each drive: the maps of its volumes, 8 bytes for each cluster of 4 MiB, for 16 TiB of volumes and snapshots.
	podDrive = 32 << 20
	// Of each TCP queue pair: 984 bytes for each slot, 880 more, and a pipe of 4 capsules.
	podTCPSlot, podTCPPair, podTCPCapsules = 984, 880, 4
	// Socket buffers that the kernel grants each way: net.core.rmem_max and wmem_max by default.
	podSocket = 212_992
	// Of each slot of an RDMA queue pair: work queue entries and their bookkeeping.
	podRDMASlot = 1024
)

// planMemory adds the memory up, and checks it against the limit and against what the node has.
func (s sizer) planMemory(p *v1alpha1.SPDKPlan, l load, why *explanation) ([]v1alpha1.MemoryUse, []Reason) {
	p.Hugepages = v1alpha1.Hugepages2Mi
	if s.spec.Memory != nil && s.spec.Memory.Hugepages != "" {
		p.Hugepages = s.spec.Memory.Hugepages
	}
	page, percent, invalid := pagesOf(p.Hugepages)
	if invalid != nil {
		return nil, []Reason{*invalid}
	}
	uses, bytes := withHeadroom(s.model.heap(l), percent, page, "headroom")
	if bytes < leastMemory {
		uses[len(uses)-1].Bytes += leastMemory - bytes
		bytes = leastMemory
	}
	podUses, podBytes := withHeadroom(podMemory(l), podHeadroom, 1<<20, "pod: headroom")
	uses = append(uses, podUses...)
	p.MemoryBytes, p.PodMemoryBytes = bytes, podBytes
	if p.Hugepages == v1alpha1.HugepagesDisabled {
		p.PodMemoryBytes += bytes
	}
	if reason := s.checkLimit(p, l, percent, page); reason != nil {
		return nil, []Reason{*reason}
	}
	var warning string
	var reason *Reason
	if p.Hugepages == v1alpha1.HugepagesDisabled {
		reason = s.checkOrdinary(p)
	} else {
		warning, reason = s.checkHugepages(p, page)
	}
	if reason != nil {
		return nil, []Reason{*reason}
	}
	s.explainMemory(p, percent, page, warning, why)
	return uses, nil
}

func (s sizer) explainMemory(p *v1alpha1.SPDKPlan, percent, page int64, warning string, why *explanation) {
	words := map[v1alpha1.Hugepages]string{
		v1alpha1.Hugepages2Mi:      "pages of 2 MiB, which a node can make while it runs",
		v1alpha1.Hugepages1Gi:      "pages of 1 GiB: fewer misses of the TLB, but the memory is rounded up to whole ones",
		v1alpha1.HugepagesDisabled: "ordinary memory: for trying it out, as it may be swapped and RDMA and SPDK's own drivers need more care",
	}[p.Hugepages]
	if p.Hugepages == v1alpha1.Hugepages2Mi {
		// The API server fills the default in, so that it cannot be told from a given 2Mi.
		why.byDefault("hugepages", string(p.Hugepages), words)
	} else {
		why.given("hugepages", string(p.Hugepages), words)
	}
	why.computed("memoryBytes", strconv.FormatInt(p.MemoryBytes, 10), fmt.Sprintf(
		"the sum of the lines of memory without \"pod:\", with %d %% of headroom, rounded up to %s", percent, mib(page)), warning)
	because := "the sum of the lines of memory with \"pod:\""
	if p.Hugepages == v1alpha1.HugepagesDisabled {
		because = "the sum of all lines of memory, as hugepages are disabled"
	}
	why.computed("podMemoryBytes", strconv.FormatInt(p.PodMemoryBytes, 10), because)
}

// pagesOf tells the size of a page, and the headroom that goes with it in percent.
func pagesOf(h v1alpha1.Hugepages) (page, percent int64, invalid *Reason) {
	switch h {
	case v1alpha1.Hugepages2Mi:
		return page2Mi, headroomSmallPages, nil
	case v1alpha1.Hugepages1Gi:
		return page1Gi, headroomOnePiece, nil
	case v1alpha1.HugepagesDisabled:
		return 1 << 20, headroomOnePiece, nil
	}
	return 0, 0, new(reasonf(v1alpha1.ReasonInvalidSetting, "memory.hugepages is %q; use 2Mi, 1Gi or Disabled", h))
}

// withHeadroom adds a line of so many percent, which also takes what rounding up to the unit adds.
func withHeadroom(uses []v1alpha1.MemoryUse, percent, unit int64, name string) ([]v1alpha1.MemoryUse, int64) {
	sum := total(uses)
	bytes := roundUp(sum+ceilDiv(sum*percent, 100), unit)
	return append(uses, v1alpha1.MemoryUse{Use: name, Bytes: bytes - sum, How: fmt.Sprintf("%d %%, rounded up to %s", percent, mib(unit))}), bytes
}

// podMemory lists the target pod's ordinary memory, outside its heap.
func podMemory(l load) []v1alpha1.MemoryUse {
	uses := []v1alpha1.MemoryUse{
		{Use: "pod: SPDK itself", Bytes: podBase, How: "an allowance"},
		{Use: "pod: cores", Bytes: l.cores * podCore, How: product(l.cores, podCore)},
		{Use: "pod: volumes", Bytes: l.volumes * podVolume, How: product(l.volumes, podVolume)},
		{Use: "pod: drives", Bytes: max(l.drives, 1) * podDrive, How: product(max(l.drives, 1), podDrive)},
	}
	for _, t := range l.transports {
		pairs := l.queuePairs(t)
		if t.kind == v1alpha1.TransportTCP {
			each := t.queueDepth*podTCPSlot + podTCPPair + podTCPCapsules*(t.inCapsule+80)
			uses = append(uses,
				v1alpha1.MemoryUse{Use: "pod: TCP queue pairs", Bytes: pairs * each, How: product(pairs, each)},
				v1alpha1.MemoryUse{Use: "pod: TCP socket buffers", Bytes: pairs * 2 * podSocket, How: product(pairs, 2*podSocket)})
			continue
		}
		each := t.queueDepth * podRDMASlot
		uses = append(uses, v1alpha1.MemoryUse{Use: "pod: RDMA queue pairs", Bytes: pairs * each, How: product(pairs, each)})
	}
	return uses
}

// checkLimit refuses a plan over memory.limit.
func (s sizer) checkLimit(p *v1alpha1.SPDKPlan, l load, percent, page int64) *Reason {
	if s.spec.Memory == nil || s.spec.Memory.Limit == nil {
		return nil
	}
	limit := s.spec.Memory.Limit.Value()
	if p.MemoryBytes <= limit {
		return nil
	}
	return new(reasonf(v1alpha1.ReasonMemoryExceeded, "the plan needs %s, %s over memory.limit (%s); raise the limit", mib(p.MemoryBytes), mib(p.MemoryBytes-limit), mib(limit)))
}

// checkOrdinary refuses a plan without hugepages that is larger than the machine.
func (s sizer) checkOrdinary(p *v1alpha1.SPDKPlan) *Reason {
	var has int64
	for _, n := range s.node.Inventory.NUMANodes {
		has += min(max(n.MemoryBytes, 0), 1<<50)
	}
	if has > 0 && p.PodMemoryBytes > has {
		return new(reasonf(v1alpha1.ReasonMemoryExceeded, "the plan needs %s of ordinary memory, and node %s has %s; expect fewer attachments, or fewer I/O queues or a smaller queueDepth",
			mib(p.PodMemoryBytes), s.node.Name, mib(has)))
	}
	return nil
}

// checkHugepages refuses a plan for which the node lacks pages, counting those that the current plan holds as free.
// It warns when they are there, but not on the NUMA nodes of the cores.
func (s sizer) checkHugepages(p *v1alpha1.SPDKPlan, page int64) (warning string, _ *Reason) {
	need := p.MemoryBytes / page
	var free, supported, all int64
	near := s.topology.numaOf(s.cores.cores)
	var nearFree, nearAll int64
	nearest := int32(-1)
	for _, n := range s.node.Inventory.NUMANodes {
		if near[n.ID] > 0 && (nearest < 0 || near[n.ID] > near[nearest] || near[n.ID] == near[nearest] && n.ID < nearest) {
			nearest = n.ID
		}
		for _, pool := range n.Hugepages {
			if pool.SizeBytes != page {
				continue
			}
			supported++
			has := min(max(pool.Free, 0), 1<<40)
			free += has
			all += min(max(pool.Total, 0), 1<<40)
			if near[n.ID] > 0 {
				nearFree += has
				nearAll += min(max(pool.Total, 0), 1<<40)
			}
		}
	}
	if supported == 0 {
		return "", new(reasonf(v1alpha1.ReasonHugepagesMissing, "the kernel of node %s has no hugepages of %s; use another size for memory.hugepages, or Disabled", s.node.Name, mib(page)))
	}
	held := int64(0)
	if c := s.node.Current; c != nil && c.SPDK != nil && c.SPDK.Hugepages == p.Hugepages {
		held = min(max(c.SPDK.MemoryBytes, 0)/page, 1<<40)
	}
	free = min(free+held, max(all, free))
	if free < need {
		return "", new(reasonf(v1alpha1.ReasonHugepagesMissing,
			"the target needs %d hugepages of %s (%s), and node %s has %d free, %d too few; on the node, run: %s; then restart the kubelet, so that it counts them",
			need, mib(page), mib(p.MemoryBytes), s.node.Name, free, need-free, s.morePages(nearest, page, need-free)))
	}
	nearFree = min(nearFree+held, max(nearAll, nearFree))
	if nearFree < need {
		warning = fmt.Sprintf("only %d of its %d hugepages are free on the NUMA nodes of its cores, and the rest is slower; on the node, run: %s", nearFree, need, s.morePages(nearest, page, need-nearFree))
	}
	return warning, nil
}

// morePages is the command that adds pages on a NUMA node.
func (s sizer) morePages(numa int32, page, more int64) string {
	total := more
	for _, n := range s.node.Inventory.NUMANodes {
		for _, pool := range n.Hugepages {
			if n.ID == numa && pool.SizeBytes == page {
				total += min(max(pool.Total, 0), 1<<40)
			}
		}
	}
	dir := "/sys/kernel/mm/hugepages"
	if len(s.node.Inventory.NUMANodes) > 1 {
		dir = fmt.Sprintf("/sys/devices/system/node/node%d/hugepages", numa)
	}
	return fmt.Sprintf("echo %d > %s/hugepages-%dkB/nr_hugepages", total, dir, page>>10)
}
