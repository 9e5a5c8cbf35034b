// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/cpus"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// Link speed that one core carries, in Mbit/s, for the default number of cores.
	// TCP: 8 cores for 100 Gb/s, as published for SPDK's NVMe/TCP target on
	// Arm servers (Linaro Connect, 2021). RDMA: 4 cores held 184.8 of 2 x 100 Gb/s of 128 KiB
	// random reads (the published measurement of I/O pacing).
	tcpMbpsPerCore  = 12_500
	rdmaMbpsPerCore = 50_000
	// usualCPUs are those that DPDK can use as it is usually built (RTE_MAX_LCORE).
	usualCPUs = 128
	// manyCores: more than that many times as many as the links need are worth a warning.
	manyCores = 4
	// defaultCores is the number where no link says its speed.
	defaultCores = 2
	// ownRPCCoreFrom so many cores on, the first one serves no connections where the others are enough.
	ownRPCCoreFrom = 3
)

// A cpu of the node, and what counts when cores are chosen.
type cpu struct {
	id     int
	near   uint8 // 0 on a NUMA node of the NICs, 1 of the drives, 2 elsewhere
	thread uint8 // 0 for the first hardware thread of a physical core, 1 for its sibling, and so on
	numa   int32
	rank   uint64
}

// corePlan is which CPUs run what.
type corePlan struct {
	cores      cpuset.CPUSet
	pollGroups cpuset.CPUSet // all of cores, or some
}

// topology is what the inventory tells of the node's CPUs.
type topology struct {
	cpus       []cpu // best first
	all        cpuset.CPUSet
	interrupts cpuset.CPUSet // CPUs that take those of the NICs
	tuned      bool          // spec.tuning says so; else it is what drivers usually do
}

// topologyOf orders the node's CPUs: near the NICs, then near the drives; one hardware thread of each
// physical core first, siblings last; those without interrupts of the NICs
// first; and by turns from NUMA nodes that are equally near.
func topologyOf(inv *v1alpha1.Inventory, l links, driveNodes map[int32]bool, tuning *v1alpha1.Tuning) topology {
	t := topology{cpus: make([]cpu, 0, 128)}
	given, tuned := givenInterrupts(inv, tuning, l)
	t.tuned = tuned
	var all, interrupted []int
	for i := range inv.NUMANodes {
		node := &inv.NUMANodes[i]
		near := uint8(2)
		switch {
		case l.numa[node.ID]:
			near = 0
		case driveNodes[node.ID]:
			near = 1
		}
		// Drivers spread the interrupts of their queues over the CPUs of the NIC's NUMA node, from the first on.
		queues := l.tcpQueues[node.ID]
		ids := cpus.List(node.CPUs)
		threads := threadsOf(node, ids)
		var alike [256][2]uint64 // CPUs of this NUMA node so far, by thread and interrupts
		nth := int64(0)
		for _, id := range ids {
			thread, interrupts := threads[id], 0
			if !tuned && nth < queues || tuned && given.Contains(id) {
				interrupts = 1
				interrupted = append(interrupted, id)
			}
			nth++
			rank := uint64(near)<<40 | uint64(thread)<<32 | uint64(interrupts)<<31 | alike[thread][interrupts]<<16 | uint64(id)
			alike[thread][interrupts]++
			t.cpus = append(t.cpus, cpu{id: id, near: near, thread: thread, numa: node.ID, rank: rank})
		}
		all = append(all, ids...)
	}
	t.all, t.interrupts = cpuset.New(all...), cpuset.New(interrupted...)
	slices.SortFunc(t.cpus, func(a, b cpu) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.numa, b.numa)) })
	// A CPU that two NUMA nodes claim counts once.
	var seen [cpus.Max]bool
	t.cpus = slices.DeleteFunc(t.cpus, func(c cpu) bool {
		again := seen[c.id]
		seen[c.id] = true
		return again
	})
	return t
}

// threadsOf tells for each CPU of a node, of which ids are all in rising order, which hardware thread of its physical
// core it is.
func threadsOf(node *v1alpha1.NUMANode, ids []int) *[cpus.Max]uint8 {
	var threads [cpus.Max]uint8
	for _, core := range node.Cores {
		thread := uint8(0)
		for _, id := range cpus.List(core) {
			if _, its := slices.BinarySearch(ids, id); !its {
				continue
			}
			threads[id] = max(thread, threads[id])
			if thread < 255 {
				thread++
			}
		}
	}
	return &threads
}

// physical counts the physical cores, without that of CPU 0 where there are others.
func (t topology) physical() int {
	n := 0
	for _, c := range t.cpus {
		if c.thread == 0 && c.id != 0 {
			n++
		}
	}
	return max(n, 1)
}

// numaOf lists the NUMA nodes of the CPUs, with how many of the CPUs each has.
func (t topology) numaOf(s cpuset.CPUSet) map[int32]int64 {
	nodes := map[int32]int64{}
	for _, c := range t.cpus {
		if s.Contains(c.id) {
			nodes[c.numa]++
		}
	}
	return nodes
}

// planCores chooses the CPUs of the target, and which of them serve connections. taken answers which of its cores take
// the NIC's interrupts beside those that the topology knows.
func planCores(node Node, spec *v1alpha1.Cores, t topology, l links, taken func(cpuset.CPUSet) cpuset.CPUSet, why *explanation) (corePlan, *Reason) {
	if len(t.cpus) == 0 {
		return corePlan{}, new(reasonf(v1alpha1.ReasonNoInventory,
			"the inventory of node %s lists no CPUs; check that its weft-agent has this version and is Ready", node.Name))
	}
	var plan corePlan
	var reason *Reason
	if spec != nil && spec.Mask != "" {
		plan.cores, reason = givenCores(node, spec.Mask, t, l, why)
	} else {
		plan.cores, reason = countedCores(node, spec, t, l, why)
	}
	if reason != nil {
		return corePlan{}, reason
	}
	if a := node.Allocatable; a != nil && int64(plan.cores.Size()) > a.CPUs {
		return corePlan{}, new(reasonf(v1alpha1.ReasonNotEnoughCPUs,
			"the target needs %d whole CPUs (%s), but the kubelet of node %s can allocate %d; use cores.count %d or less, or reserve fewer CPUs for the system",
			plan.cores.Size(), plan.cores, node.Name, a.CPUs, a.CPUs))
	}
	main := v1alpha1.MainCore("")
	if spec != nil {
		main = spec.MainCore
	}
	if main == v1alpha1.MainCoreDedicated && plan.cores.Size() == 1 {
		return corePlan{}, new(reasonf(v1alpha1.ReasonInvalidSetting,
			"cores.mainCore is Dedicated, but the target has only CPU %s, so that none would serve connections; use two cores or more, or Shared", plan.cores))
	}
	plan.pollGroups = pollGroups(plan.cores, main, t, l, taken, why)
	return plan, nil
}

// pollGroups are the cores that serve connections: all, or those that do nothing else, where these are enough for the
// links. The first core answers RPCs: SPDK's main thread stays on it. Where it serves no connections, the agent keeps
// the dynamic scheduler from using it.
func pollGroups(cores cpuset.CPUSet, main v1alpha1.MainCore, t topology, l links, taken func(cpuset.CPUSet) cpuset.CPUSet, why *explanation) cpuset.CPUSet {
	groups, first := cores, cpuset.New(cores.List()[0])
	source, enough := v1alpha1.SourceComputed, l.coresNeeded()
	var because []string
	if main == v1alpha1.MainCoreDedicated {
		groups, source = groups.Difference(first), v1alpha1.SourceGiven
		because = append(because, fmt.Sprintf("CPU %s answers RPCs, set by cores.mainCore", first))
	}
	if quiet := groups.Difference(t.interrupts).Difference(taken(cores)); !quiet.Equals(groups) && enough > 0 && quiet.Size() >= enough {
		words := "CPUs %s probably handle the NIC's interrupts (its queues start at the first CPU of its NUMA node)"
		if t.tuned {
			words = "CPUs %s handle the NIC's interrupts (tuning.interrupts)"
		}
		because = append(because, fmt.Sprintf(words, groups.Difference(quiet)))
		groups = quiet
	}
	if rest := groups.Difference(first); main == "" && cores.Size() >= ownRPCCoreFrom && !rest.Equals(groups) && rest.Size() >= enough {
		because = append(because, fmt.Sprintf("CPU %s answers RPCs, and hosts would wait meanwhile (7 ms for a list of 1,000 volumes, measured)", first))
		groups = rest
	}
	if len(because) > 0 {
		left := "%s left for connections"
		if enough > 0 && groups.Size() >= enough {
			left += ", which is enough for the links"
		}
		why.add(source, "pollGroupMask", cpus.Mask(groups), strings.Join(append(because, fmt.Sprintf(left, text.Plural(groups.Size(), "CPU"))), "; "))
	}
	return groups
}

func givenCores(node Node, mask string, t topology, l links, why *explanation) (cpuset.CPUSet, *Reason) {
	cores, err := cpus.ParseMask(strings.ToLower(mask))
	if err != nil || !strings.HasPrefix(strings.ToLower(mask), "0x") {
		return cores, new(reasonf(v1alpha1.ReasonInvalidSetting,
			"cores.mask %.80q is not a mask of CPUs 0 to %d; use a mask such as 0xf0 for CPUs 4 to 7", mask, cpus.Max-1))
	}
	if outside := cores.Difference(t.all); outside.Size() > 0 {
		return cores, new(reasonf(v1alpha1.ReasonNotEnoughCPUs,
			"cores.mask %s contains CPUs that the node does not have (%.120s); use a mask of its CPUs, %.120s, or cores.count",
			cpus.Mask(cores), outside, t.all))
	}
	var warnings []string
	if cores.Contains(0) {
		warnings = append(warnings, "CPU 0 is included, but Linux uses it for its own work; exclude it unless the node is tuned for this")
	}
	farther := 0
	for _, c := range t.cpus {
		if len(l.numa) > 0 && c.near > 0 && cores.Contains(c.id) {
			farther++
		}
	}
	if farther > 0 {
		warnings = append(warnings, fmt.Sprintf("%d of them are on another NUMA node than the NIC", farther))
	}
	warnings = append(warnings, crowded(sharing(node.Inventory, cores)), idle(cores.Size(), l), beyondDPDK(cores))
	why.given("coreMask", cpus.Mask(cores), fmt.Sprintf("CPUs %s, set by cores.mask", cores), warnings...)
	return cores, nil
}

// sharing counts the CPUs that are siblings of another one of the set.
func sharing(inv *v1alpha1.Inventory, cores cpuset.CPUSet) int {
	n := 0
	for i := range inv.NUMANodes {
		for _, core := range inv.NUMANodes[i].Cores {
			n += max(cpus.ParseList(core).Intersection(cores).Size()-1, 0)
		}
	}
	return n
}

// crowded warns of siblings.
func crowded(siblings int) string {
	if siblings == 0 {
		return ""
	}
	return fmt.Sprintf("%d of them share a physical core with another one, which makes them slower", siblings)
}

// idle warns of many more cores than the links need.
func idle(count int, l links) string {
	need := l.coresNeeded()
	if need == 0 || count <= manyCores*need {
		return ""
	}
	return fmt.Sprintf("links of %s need %d, so that most of the %d cores have little or nothing to do, but with mode Static each of them polls", l.speeds(), need, count)
}

// beyondDPDK warns of CPUs that SPDK can use only when it was built for as many.
func beyondDPDK(cores cpuset.CPUSet) string {
	if highest := slices.Max(cores.UnsortedList()); highest >= usualCPUs {
		return fmt.Sprintf("CPU %d is included, but DPDK is usually built for CPUs 0 to %d; check that your SPDK was configured with --max-lcores=%d or more", highest, usualCPUs-1, highest+1)
	}
	return ""
}

// countedCores takes the first CPUs of the order that topologyOf made, but never CPU 0.
func countedCores(node Node, spec *v1alpha1.Cores, t topology, l links, why *explanation) (cpuset.CPUSet, *Reason) {
	free := slices.DeleteFunc(slices.Clone(t.cpus), func(c cpu) bool { return c.id == 0 })
	count, source, because := defaultCount(node, t, l)
	if spec != nil && spec.Count != nil {
		count, source, because = int(*spec.Count), v1alpha1.SourceGiven, fmt.Sprintf("set by cores.count (%d)", *spec.Count)
	}
	if len(free) == 0 {
		return cpuset.CPUSet{}, new(reasonf(v1alpha1.ReasonNotEnoughCPUs,
			"%s, but node %s has only CPU 0, which is reserved for Linux; to share it with Linux, set cores.mask to 0x1", because, node.Name))
	}
	if count < 1 || count > len(free) {
		use := "1"
		if len(free) > 1 {
			use = fmt.Sprintf("from 1 to %d", len(free))
		}
		return cpuset.CPUSet{}, new(reasonf(v1alpha1.ReasonNotEnoughCPUs,
			"%s, but node %s has %s besides CPU 0, which is reserved for Linux; use cores.count %s, or choose CPUs with cores.mask",
			because, node.Name, text.Plural(len(free), "CPU"), use))
	}
	var ids []int
	farther, siblings := 0, 0
	for _, c := range free[:count] {
		ids = append(ids, c.id)
		if c.near > free[0].near {
			farther++
		}
		if c.thread > 0 {
			siblings++
		}
	}
	cores := cpuset.New(ids...)
	var warnings []string
	if farther > 0 {
		warnings = append(warnings, fmt.Sprintf("%d of them are on another NUMA node, because the first one has no more CPUs", farther))
	}
	warnings = append(warnings, crowded(siblings))
	if source == v1alpha1.SourceGiven {
		warnings = append(warnings, idle(count, l))
	}
	warnings = append(warnings, beyondDPDK(cores))
	where := [...]string{"on the NIC's NUMA node", "on the drives' NUMA node", "on any NUMA node, because those of the NIC and the drives are unknown"}[free[0].near]
	why.add(source, "coreMask", cpus.Mask(cores), fmt.Sprintf("%s: CPUs %s, %s, one hardware thread of a physical core first, without CPU 0", because, cores, where), warnings...)
	return cores, nil
}

// defaultCount is the number of cores when nothing is given.
func defaultCount(node Node, t topology, l links) (int, v1alpha1.ChoiceSource, string) {
	half := max(t.physical()/2, 1)
	need := l.coresNeeded()
	if need == 0 {
		n := min(defaultCores, half)
		return n, v1alpha1.SourceDefault, fmt.Sprintf("no link speed is known, so %s (at most half of the physical cores)", text.Plural(n, "core"))
	}
	n := min(need, half)
	because := fmt.Sprintf("%s for links of %s (one for each %.1f Gb/s of TCP or %d Gb/s of RDMA, as published measurements of SPDK show)",
		text.Plural(n, "core"), l.speeds(), tcpMbpsPerCore/1000.0, rdmaMbpsPerCore/1000)
	if a := node.Allocatable; need+1 >= ownRPCCoreFrom && need < half && (a == nil || int64(need) < a.CPUs) {
		n = need + 1
		because += ", and one that answers RPCs"
	}
	if n < need {
		because = fmt.Sprintf("half of the physical cores, %d, though links of %s could keep %d busy", n, l.speeds(), need)
	}
	return n, v1alpha1.SourceComputed, because
}
