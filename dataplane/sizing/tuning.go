// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/cpus"
	"github.com/weft-storage/weft/internal/text"
)

// A wish is one setting that spec.tuning asks for; one of a NIC has no NIC's name yet.
type wish struct{ setting, value, why string }

// withTuning adds to a plan what spec.tuning comes to on the node: value by value, each NIC's by its name.
func withTuning(node Node, spec v1alpha1.NvmfTargetSpec, plan *v1alpha1.Plan, reasons []Reason) (*v1alpha1.Plan, []Reason) {
	if spec.Tuning == nil || node.Inventory == nil {
		return plan, reasons
	}
	reasons = append(reasons, checkInterrupts(node, spec.Tuning.Interrupts)...)
	if plan == nil || len(reasons) > 0 {
		return nil, reasons
	}
	why := explanation{choices: plan.Choices}
	for _, w := range sysctlWishes(spec.Tuning.Sysctls) {
		plan.Tuning = append(plan.Tuning, v1alpha1.PlannedSetting{Setting: w.setting, Value: w.value})
		why.given("tuning."+w.setting, w.value, w.why)
	}
	wishes := nicWishes(*spec.Tuning, &why)
	if len(wishes) > 0 || spec.Tuning.Interrupts != nil {
		nics, missing := tunedNICs(node.Inventory, plan.Portals)
		var names []string
		for _, nic := range nics {
			names = append(names, nic.Name)
			for _, w := range wishes {
				plan.Tuning = append(plan.Tuning, v1alpha1.PlannedSetting{Setting: nic.Name + "/" + w.setting, Value: w.value})
			}
			if i := spec.Tuning.Interrupts; i != nil {
				plan.Tuning = append(plan.Tuning, planInterrupts(node.Inventory, *i, nic, plan.SPDK, &why))
			}
		}
		why.computed("tuning.nics", text.Clip(list(names), v1alpha1.MaxChoiceValue), "the NICs that carry the target's portals; other NICs are not changed", missing)
	}
	if len(plan.Tuning) > v1alpha1.MaxPlanSettings {
		return nil, []Reason{reasonf(v1alpha1.ReasonInvalidSetting,
			"tuning has %d settings for the node's NICs, but a plan can contain only %d; remove some of them", len(plan.Tuning), v1alpha1.MaxPlanSettings)}
	}
	slices.SortFunc(plan.Tuning, func(a, b v1alpha1.PlannedSetting) int { return cmp.Compare(a.Setting, b.Setting) })
	slices.SortFunc(why.choices, func(a, b v1alpha1.Choice) int { return cmp.Compare(a.Setting, b.Setting) })
	plan.Choices = why.choices
	return plan, nil
}

// tunedNICs are the interfaces with a device that carry the portals, and a warning of portals that are on none.
func tunedNICs(inv *v1alpha1.Inventory, portals []v1alpha1.PlannedPortal) ([]*v1alpha1.NIC, string) {
	all := nicAddresses(inv)
	found := map[string]*v1alpha1.NIC{}
	var missing []string
	for _, p := range portals {
		addr, err := netip.ParseAddr(p.Address)
		i := slices.IndexFunc(all, func(c candidate) bool { return err == nil && c.addr == addr })
		if i < 0 {
			missing = append(missing, p.Address)
			continue
		}
		for _, nic := range lowest(inv, all[i].nic) {
			found[nic.Name] = nic
		}
	}
	var nics []*v1alpha1.NIC
	for _, name := range slices.Sorted(maps.Keys(found)) {
		nics = append(nics, found[name])
	}
	if len(missing) == 0 {
		return nics, ""
	}
	slices.Sort(missing)
	return nics, fmt.Sprintf("%s is not an address of a NIC in the inventory (for example, of a bridge), so only sysctls are set; choose the NIC's own network with transports[].network", list(slices.Compact(missing)))
}

func sysctlWishes(s *v1alpha1.TuningSysctls) []wish {
	if s == nil {
		return nil
	}
	var wishes []wish
	number := func(name string, value *int32, why string) {
		if value != nil {
			wishes = append(wishes, wish{name, strconv.Itoa(int(*value)), why})
		}
	}
	word := func(name, value, why string) {
		if value != "" {
			wishes = append(wishes, wish{name, value, why})
		}
	}
	buffers := func(name string, b *v1alpha1.TCPBuffers, why string) {
		if b != nil {
			wishes = append(wishes, wish{name, fmt.Sprintf("%d %d %d", b.Min, b.Default, b.Max), why})
		}
	}
	number("net.core.rmem_max", s.RmemMax, "the maximum receive buffer that a program can request, in bytes")
	number("net.core.wmem_max", s.WmemMax, "the maximum send buffer that a program can request, in bytes")
	number("net.core.rmem_default", s.RmemDefault, "the default receive buffer of a socket, in bytes")
	number("net.core.wmem_default", s.WmemDefault, "the default send buffer of a socket, in bytes")
	number("net.core.optmem_max", s.OptmemMax, "the maximum ancillary memory of a socket, in bytes; zero-copy send uses it")
	number("net.core.netdev_budget", s.NetdevBudget, "the maximum number of packets that a CPU takes from all NICs in one polling cycle")
	number("net.core.netdev_budget_usecs", s.NetdevBudgetUsecs, "the maximum duration of one polling cycle, in microseconds")
	number("net.core.netdev_max_backlog", s.NetdevMaxBacklog, "the maximum number of packets that wait for a CPU")
	number("net.core.dev_weight", s.DevWeight, "the maximum number of packets that a CPU takes from its backlog in one polling cycle")
	number("net.core.busy_poll", s.BusyPoll, "how long poll and select poll the NIC queue of a socket before they sleep, in microseconds")
	number("net.core.busy_read", s.BusyRead, "how long a read polls the NIC queue of a socket before it sleeps, in microseconds")
	number("net.core.somaxconn", s.Somaxconn, "the maximum number of connections that wait to be accepted")
	word("net.core.default_qdisc", s.DefaultQdisc, "the queueing discipline of interfaces that come up after the change")
	word("net.ipv4.tcp_congestion_control", s.TCPCongestionControl, "how new TCP connections react to loss and delay")
	word("net.ipv4.tcp_slow_start_after_idle", map[v1alpha1.Switch]string{v1alpha1.SwitchEnabled: "1", v1alpha1.SwitchDisabled: "0"}[s.TCPSlowStartAfterIdle],
		"whether an idle connection returns to slow start")
	buffers("net.ipv4.tcp_rmem", s.TCPRmem, "minimum, default and maximum of the receive buffer of a TCP connection, in bytes")
	buffers("net.ipv4.tcp_wmem", s.TCPWmem, "minimum, default and maximum of the send buffer of a TCP connection, in bytes")
	return wishes
}

// nicWishes hold for every NIC alike. Offloads have the kernel's own names.
func nicWishes(t v1alpha1.Tuning, why *explanation) []wish {
	var wishes []wish
	add := func(source v1alpha1.ChoiceSource, setting, value, words string) {
		wishes = append(wishes, wish{setting, value, words})
		why.add(source, "tuning."+setting, value, words)
	}
	number := func(setting string, value *int32, words string) {
		if value != nil {
			add(v1alpha1.SourceGiven, setting, strconv.Itoa(int(*value)), words)
		}
	}
	turn := func(setting string, s v1alpha1.Switch, words string) {
		if value := map[v1alpha1.Switch]string{v1alpha1.SwitchEnabled: "on", v1alpha1.SwitchDisabled: "off"}[s]; value != "" {
			add(v1alpha1.SourceGiven, setting, value, words)
		}
	}
	if r := t.Rings; r != nil {
		number("rings.rx", r.RX, "packets that each receive queue can hold; more packets absorb longer bursts, but use more of the cache")
		number("rings.tx", r.TX, "packets that each transmit queue can hold")
	}
	if c := t.Channels; c != nil {
		number("channels.rx", c.RX, "receive queues, each with its own interrupt")
		number("channels.tx", c.TX, "transmit queues, each with its own interrupt")
		number("channels.combined", c.Combined, "queues for both directions, each with its own interrupt")
	}
	if c := t.Coalescing; c != nil {
		for _, d := range []struct {
			name, of string
			adaptive v1alpha1.Switch
			usecs    *int32
			frames   *int32
		}{{"rx", "RX", c.AdaptiveRX, c.RXUsecs, c.RXFrames}, {"tx", "TX", c.AdaptiveTX, c.TXUsecs, c.TXFrames}} {
			if d.adaptive == "" && (d.usecs != nil || d.frames != nil) {
				add(v1alpha1.SourceComputed, "coalescing.adaptive"+d.of, "off", "fixed times apply only while the driver does not adapt them to the traffic")
			}
			turn("coalescing.adaptive"+d.of, d.adaptive, "whether the driver adapts the times to the traffic")
			number("coalescing."+d.name+"Usecs", d.usecs, "delay of the interrupt in microseconds")
			number("coalescing."+d.name+"Frames", d.frames, "number of packets that raise the interrupt earlier")
		}
	}
	if o := t.Offloads; o != nil {
		turn("offloads.tx-tcp-segmentation", o.TSO, "whether the NIC splits large TCP segments into packets (TSO)")
		turn("offloads.tx-tcp6-segmentation", o.TSO, "the same over IPv6")
		turn("offloads.tx-generic-segmentation", o.GSO, "whether the kernel splits segments as late as possible (GSO)")
		turn("offloads.rx-gro", o.GRO, "whether the kernel merges received packets (GRO)")
		turn("offloads.rx-lro", o.LRO, "whether the NIC merges received packets (LRO)")
	}
	return wishes
}

// checkInterrupts refuses CPUs that the node does not have.
func checkInterrupts(node Node, i *v1alpha1.NICInterrupts) []Reason {
	if i == nil {
		return nil
	}
	all := cpusOf(node.Inventory)
	if all.Size() == 0 {
		return []Reason{reasonf(v1alpha1.ReasonNoInventory, "the inventory of node %s lists no CPUs; check that its weft-agent has this version and is Ready", node.Name)}
	}
	switch given := cpus.ParseList(cmp.Or(i.CPUs, i.Avoid)); {
	case i.Count != nil:
		if n := int(*i.Count); n < 1 || n > all.Size() {
			return []Reason{reasonf(v1alpha1.ReasonNotEnoughCPUs, "tuning.interrupts.count is %d, but node %s has %s; use 1 to %d", n, node.Name, text.Plural(all.Size(), "CPU"), all.Size())}
		}
	case given.Size() == 0:
		return []Reason{reasonf(v1alpha1.ReasonInvalidSetting, "tuning.interrupts contains no CPU from 0 to %d; set cpus or avoid, such as 0-3,8, or a count", cpus.Max-1)}
	case given.Difference(all).Size() > 0 && i.CPUs != "":
		return []Reason{reasonf(v1alpha1.ReasonNotEnoughCPUs, "tuning.interrupts.cpus contains CPUs that node %s does not have (%.120s); it has %.120s", node.Name, given.Difference(all), all)}
	case all.Difference(given).Size() == 0 && i.Avoid != "":
		return []Reason{reasonf(v1alpha1.ReasonNotEnoughCPUs, "tuning.interrupts.avoid contains all CPUs of node %s (%.120s); remove some", node.Name, all)}
	}
	return nil
}

func cpusOf(inv *v1alpha1.Inventory) cpuset.CPUSet {
	var all []int
	for i := range inv.NUMANodes {
		all = append(all, cpus.List(inv.NUMANodes[i].CPUs)...)
	}
	return cpuset.New(all...)
}

// nearCPUs are those of the NIC's NUMA node; all, where the NIC does not say which that is.
func nearCPUs(inv *v1alpha1.Inventory, nic *v1alpha1.NIC) cpuset.CPUSet {
	for i := range inv.NUMANodes {
		if nic.NUMANode != nil && inv.NUMANodes[i].ID == *nic.NUMANode {
			if near := cpus.ParseList(inv.NUMANodes[i].CPUs); near.Size() > 0 {
				return near
			}
		}
	}
	return cpusOf(inv)
}

// planInterrupts chooses the CPUs that take a NIC's interrupts. checkInterrupts found that there are some.
func planInterrupts(inv *v1alpha1.Inventory, i v1alpha1.NICInterrupts, nic *v1alpha1.NIC, target *v1alpha1.SPDKPlan, why *explanation) v1alpha1.PlannedSetting {
	var own, cores cpuset.CPUSet // of the target, and of these those that serve connections
	if target != nil {
		own, _ = cpus.ParseMask(target.CoreMask)
		cores, _ = cpus.ParseMask(cmp.Or(target.PollGroupMask, target.CoreMask))
	}
	var taking cpuset.CPUSet
	source := v1alpha1.SourceComputed
	var words string
	switch {
	case i.CPUs != "":
		source, taking, words = v1alpha1.SourceGiven, cpus.ParseList(i.CPUs), "set by interrupts.cpus; interrupts are distributed over these CPUs, round robin"
	case i.Avoid != "":
		if taking = nearCPUs(inv, nic).Difference(cpus.ParseList(i.Avoid)); taking.Size() > 0 {
			words = "the CPUs of the NIC's NUMA node except interrupts.avoid; interrupts are distributed over these CPUs, round robin"
		} else {
			taking, words = cpusOf(inv).Difference(cpus.ParseList(i.Avoid)), "CPUs of other NUMA nodes, because interrupts.avoid contains all CPUs of the NIC's NUMA node; interrupts are distributed over these CPUs, round robin"
		}
	default:
		taking = countedInterrupts(inv, int(*i.Count), nic, own)
		words = fmt.Sprintf("%s, set by interrupts.count, near the NIC and, if possible, not the target's own; interrupts are distributed over these CPUs, round robin", text.Plural(taking.Size(), "CPU"))
	}
	var warning string
	if both := taking.Intersection(cores); both.Size() > 0 {
		warning = fmt.Sprintf("CPUs %.120s also serve the target's connections and lose time to interrupts; choose other CPUs, or remove some from cores.mask", both)
	}
	value := taking.String()
	why.add(source, "tuning."+nic.Name+"/interrupts", text.Clip(value, v1alpha1.MaxChoiceValue), words, warning)
	return v1alpha1.PlannedSetting{Setting: nic.Name + "/interrupts", Value: value}
}

// countedInterrupts takes CPUs that the target leaves free before its own cores; then those near the NIC, one hardware
// thread of a physical core first, and CPU 0, where Linux does work of its own, last. Which of its cores have a poll
// group does not matter: those that it takes get none, where the others are enough.
func countedInterrupts(inv *v1alpha1.Inventory, count int, nic *v1alpha1.NIC, cores cpuset.CPUSet) cpuset.CPUSet {
	near := nearCPUs(inv, nic)
	is := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	type ranked struct{ id, rank int }
	var all []ranked
	for n := range inv.NUMANodes {
		ids := cpus.List(inv.NUMANodes[n].CPUs)
		threads := threadsOf(&inv.NUMANodes[n], ids)
		for _, id := range ids {
			rank := is(cores.Contains(id))<<11 | is(!near.Contains(id))<<10 | int(threads[id])<<1 | is(id == 0)
			all = append(all, ranked{id, rank})
		}
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.id, b.id)) })
	var chosen []int
	for _, c := range all {
		if !slices.Contains(chosen, c.id) && len(chosen) < count {
			chosen = append(chosen, c.id)
		}
	}
	return cpuset.New(chosen...)
}

// givenInterrupts are the CPUs that spec.tuning sends the interrupts of all NICs to; ok is false when it does not say.
// With a count they are chosen after the target's cores, apart from them as far as there are others: takenByCount.
func givenInterrupts(inv *v1alpha1.Inventory, t *v1alpha1.Tuning, l links) (taking cpuset.CPUSet, ok bool) {
	if t == nil || t.Interrupts == nil {
		return cpuset.CPUSet{}, false
	}
	if t.Interrupts.CPUs != "" {
		return cpus.ParseList(t.Interrupts.CPUs), true
	}
	if t.Interrupts.Avoid == "" {
		return cpuset.CPUSet{}, true
	}
	for i := range inv.NUMANodes {
		if len(l.numa) == 0 || l.numa[inv.NUMANodes[i].ID] {
			taking = taking.Union(cpus.ParseList(inv.NUMANodes[i].CPUs))
		}
	}
	return taking.Difference(cpus.ParseList(t.Interrupts.Avoid)), true
}

// takenByCount are those of the target's cores that take interrupts because tuning.interrupts.count asks for more CPUs
// than the target leaves.
func takenByCount(inv *v1alpha1.Inventory, t *v1alpha1.Tuning, portals []v1alpha1.PlannedPortal, cores cpuset.CPUSet) cpuset.CPUSet {
	var taken cpuset.CPUSet
	if t == nil || t.Interrupts == nil || t.Interrupts.Count == nil {
		return taken
	}
	nics, _ := tunedNICs(inv, portals)
	for _, nic := range nics {
		taken = taken.Union(countedInterrupts(inv, int(*t.Interrupts.Count), nic, cores))
	}
	return taken.Intersection(cores)
}
