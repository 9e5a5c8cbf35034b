// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// Headroom of the heap, in percent: pools are contiguous, and memory is lost between them. With pages of 1 GiB, or
	// without pages, it is one piece.
	headroomSmallPages = 25
	headroomOnePiece   = 10
)

// planMemory adds the memory up, and checks it against the limit and against what the node has.
func (s sizer) planMemory(p *v1alpha1.SPDKPlan, l load, why *explanation) ([]v1alpha1.MemoryUse, []Reason) {
	p.Hugepages = v1alpha1.Hugepages2Mi
	if s.spec.Memory != nil && s.spec.Memory.Hugepages != "" {
		p.Hugepages = s.spec.Memory.Hugepages
	}
	pages, invalid := pagesOf(p.Hugepages)
	if invalid != nil {
		return nil, []Reason{*invalid}
	}
	uses, bytes := pages.withHeadroom(s.model.heap(l))
	p.MemoryBytes = bytes
	podUses, bytes := ordinary.withHeadroom(podMemory(l))
	uses = append(uses, podUses...)
	p.PodMemoryBytes = bytes
	if p.Hugepages == v1alpha1.HugepagesDisabled {
		p.PodMemoryBytes += p.MemoryBytes
	}
	var reasons []Reason
	if reason := s.checkLimit(p, l, pages); reason != nil {
		reasons = append(reasons, *reason)
	}
	var warning string
	if p.Hugepages != v1alpha1.HugepagesDisabled {
		var reason *Reason
		if warning, reason = s.checkHugepages(p, l, pages); reason != nil {
			reasons = append(reasons, *reason)
		}
	}
	if reason := s.checkOrdinary(p, l, pages); reason != nil {
		reasons = append(reasons, *reason)
	}
	if len(reasons) > 0 {
		return nil, reasons
	}
	s.explainMemory(p, pages, warning, why)
	return uses, nil
}

func (s sizer) explainMemory(p *v1alpha1.SPDKPlan, in pages, warning string, why *explanation) {
	words := map[v1alpha1.Hugepages]string{
		v1alpha1.Hugepages2Mi:      "pages of 2 MiB can be allocated while the node is running",
		v1alpha1.Hugepages1Gi:      "pages of 1 GiB cause fewer TLB misses, but the memory is rounded up to whole pages",
		v1alpha1.HugepagesDisabled: "regular memory, for trying out weft",
	}[p.Hugepages]
	if p.Hugepages == v1alpha1.Hugepages2Mi {
		// The API server fills the default in, so that it cannot be told from a given 2Mi.
		why.byDefault("hugepages", string(p.Hugepages), words)
	} else {
		why.given("hugepages", string(p.Hugepages), words)
	}
	why.computed("memoryBytes", strconv.FormatInt(p.MemoryBytes, 10), fmt.Sprintf(
		"the sum of the lines of memory without \"pod:\", with %d %% of headroom, rounded up to %s", in.headroom, mib(in.bytes)), warning)
	because := "the sum of the lines of memory with \"pod:\""
	if p.Hugepages == v1alpha1.HugepagesDisabled {
		because = "the sum of all lines of memory, because hugepages are disabled"
	}
	why.computed("podMemoryBytes", strconv.FormatInt(p.PodMemoryBytes, 10), because)
}

// pages are what memory is taken in.
type pages struct {
	bytes    int64
	headroom int64 // in percent
	least    int64
	use      string // of the headroom, as a line of memory
}

// ordinary memory of the pod.
var ordinary = pages{bytes: 1 << 20, headroom: podHeadroom, use: "pod: headroom"}

// pagesOf a target's heap.
func pagesOf(h v1alpha1.Hugepages) (pages, *Reason) {
	p := pages{least: v1alpha1.MinMemoryBytes, use: "headroom"}
	switch h {
	case v1alpha1.Hugepages2Mi:
		p.bytes, p.headroom = 2<<20, headroomSmallPages
	case v1alpha1.Hugepages1Gi:
		p.bytes, p.headroom = 1<<30, headroomOnePiece
	case v1alpha1.HugepagesDisabled:
		p.bytes, p.headroom = 1<<20, headroomOnePiece
	default:
		return p, new(reasonf(v1alpha1.ReasonInvalidSetting, "memory.hugepages is %q; use 2Mi, 1Gi or Disabled", h))
	}
	return p, nil
}

// rounded has the headroom, and whole pages.
func (p pages) rounded(sum int64) int64 {
	return max(roundUp(sum+ceilDiv(sum*p.headroom, 100), p.bytes), p.least)
}

// withHeadroom explains the lines, adds that of headroom, which also takes what rounding up adds, and returns the sum.
func (p pages) withHeadroom(lines []line) ([]v1alpha1.MemoryUse, int64) {
	uses := make([]v1alpha1.MemoryUse, 0, 24)
	for i := range lines {
		uses = append(uses, lines[i].explained())
	}
	sum := total(lines)
	bytes := p.rounded(sum)
	return append(uses, v1alpha1.MemoryUse{Use: p.use, Bytes: bytes - sum, How: fmt.Sprintf("%d %%, rounded up to %s", p.headroom, mib(p.bytes))}), bytes
}

// checkLimit refuses a plan over memory.limit.
func (s sizer) checkLimit(p *v1alpha1.SPDKPlan, l load, in pages) *Reason {
	if s.spec.Memory == nil || s.spec.Memory.Limit == nil {
		return nil
	}
	limit := s.spec.Memory.Limit.Value()
	if p.MemoryBytes <= limit {
		return nil
	}
	return new(reasonf(v1alpha1.ReasonMemoryExceeded, "the target needs %s, which is %s over memory.limit (%s); raise the limit, or what would fit: %s",
		mib(p.MemoryBytes), mib(p.MemoryBytes-limit), mib(limit), s.fitting(l, s.heapOf(in), limit)))
}

// heapOf answers what a load takes of such pages.
func (s sizer) heapOf(in pages) func(load) int64 {
	return func(l load) int64 { return in.rounded(total(s.model.heap(l))) }
}

// podOf answers what a load takes of ordinary memory, the heap too where that is of no hugepages.
func (s sizer) podOf(h v1alpha1.Hugepages, in pages) func(load) int64 {
	return func(l load) int64 {
		bytes := ordinary.rounded(total(podMemory(l)))
		if h == v1alpha1.HugepagesDisabled {
			bytes += in.rounded(total(s.model.heap(l)))
		}
		return bytes
	}
}

// checkOrdinary refuses a plan for which the machine has too little ordinary memory.
func (s sizer) checkOrdinary(p *v1alpha1.SPDKPlan, l load, in pages) *Reason {
	var has int64
	for _, n := range s.node.Inventory.NUMANodes {
		has = min(has+max(n.MemoryBytes, 0), 1<<50)
	}
	of := "memory"
	if a := s.node.Allocatable; a != nil && a.MemoryBytes > 0 {
		has, of = a.MemoryBytes, "memory for pods"
	}
	if has == 0 || p.PodMemoryBytes <= has {
		return nil
	}
	return new(reasonf(v1alpha1.ReasonMemoryExceeded, "the target pod needs %s of regular memory, but node %s has %s of %s, %s too little; what would fit: %s",
		mib(p.PodMemoryBytes), s.node.Name, mib(has), of, mib(p.PodMemoryBytes-has), s.fitting(l, s.podOf(p.Hugepages, in), has)))
}

// pagesOn tells the free and all pages of a size on some NUMA nodes.
func (s sizer) pagesOn(size int64, on func(int32) bool) (free, all int64, supported bool) {
	for _, n := range s.node.Inventory.NUMANodes {
		if !on(n.ID) {
			continue
		}
		for _, pool := range n.Hugepages {
			if pool.SizeBytes == size {
				supported = true
				free = min(free+max(pool.Free, 0), 1<<40)
				all = min(all+max(pool.Total, 0), 1<<40)
			}
		}
	}
	return free, all, supported
}

// checkHugepages refuses a plan for which the node lacks pages, counting those that the current plan holds as free.
// It warns when they are there, but not on the NUMA nodes of the cores.
func (s sizer) checkHugepages(p *v1alpha1.SPDKPlan, l load, in pages) (warning string, _ *Reason) {
	need := p.MemoryBytes / in.bytes
	free, all, supported := s.pagesOn(in.bytes, func(int32) bool { return true })
	if !supported {
		return "", new(reasonf(v1alpha1.ReasonHugepagesMissing, "the kernel of node %s has no hugepages of %s; use another size for memory.hugepages, or Disabled", s.node.Name, mib(in.bytes)))
	}
	var held int64
	if c := s.node.Current; c != nil && c.SPDK != nil && c.SPDK.Hugepages == p.Hugepages {
		held = max(c.SPDK.MemoryBytes, 0) / in.bytes
	}
	free = min(free+held, max(all, free))
	near := s.topology.numaOf(s.cores.cores)
	nearest := slices.MaxFunc(slices.Sorted(maps.Keys(near)), func(a, b int32) int { return cmp.Compare(near[a], near[b]) })
	if free < need {
		return "", new(reasonf(v1alpha1.ReasonHugepagesMissing,
			"the target needs %d hugepages of %s (%s), but node %s has %d free, %d too few; on the node, run: %s; then restart its kubelet so that it counts them; or what would fit: %s",
			need, mib(in.bytes), mib(p.MemoryBytes), s.node.Name, free, need-free, s.morePages(nearest, in.bytes, need-free), s.fitting(l, s.heapOf(in), free*in.bytes)))
	}
	if a := s.node.Allocatable; a != nil && a.HugepageBytes[in.bytes] < p.MemoryBytes {
		return "", new(reasonf(v1alpha1.ReasonHugepagesMissing,
			"the target needs %d hugepages of %s (%s), but the kubelet of node %s can allocate %d, %d too few, although the kernel has enough: restart the kubelet so that it counts them; on the node, run: systemctl restart kubelet, or your distribution's equivalent",
			need, mib(in.bytes), mib(p.MemoryBytes), s.node.Name, a.HugepageBytes[in.bytes]/in.bytes, need-a.HugepageBytes[in.bytes]/in.bytes))
	}
	nearFree, nearAll, _ := s.pagesOn(in.bytes, func(id int32) bool { return near[id] > 0 })
	nearFree = min(nearFree+held, max(nearAll, nearFree))
	if nearFree < need {
		warning = fmt.Sprintf("of its %d hugepages, only %d are free on the NUMA nodes of its cores, and other memory is slower; on the node, run: %s", need, nearFree, s.morePages(nearest, in.bytes, need-nearFree))
	}
	return warning, nil
}

// morePages is the command that adds pages on a NUMA node.
func (s sizer) morePages(numa int32, size, more int64) string {
	_, all, _ := s.pagesOn(size, func(id int32) bool { return id == numa })
	dir := "/sys/kernel/mm/hugepages"
	if len(s.node.Inventory.NUMANodes) > 1 {
		dir = fmt.Sprintf("/sys/devices/system/node/node%d/hugepages", numa)
	}
	return fmt.Sprintf("echo %d > %s/hugepages-%dkB/nr_hugepages", all+more, dir, size>>10)
}
