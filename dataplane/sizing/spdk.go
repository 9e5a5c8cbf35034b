// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/cpus"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// volumesOfNode that a plan has room for, connected or not: as many as can be expected to be connected.
	volumesOfNode = v1alpha1.MaxAttachments
	// SPDK's defaults: descriptors of the bdev_io pool, and those that each thread keeps.
	defaultBdevIOPool = 65535
	bdevIOCache       = 256
	// bdevIOsPerCommand: one on the volume, one on the drive below it.
	bdevIOsPerCommand = 2
)

func planSPDK(node Node, spec v1alpha1.NvmfTargetSpec) (*v1alpha1.Plan, []Reason) {
	if node.Inventory == nil {
		return nil, []Reason{noInventory(node)}
	}
	reasons := missingModules(node.Inventory, spec)
	portals, why := planPortals(node, spec.Engine, spec.Transports)
	reasons = append(reasons, why...)
	transports, why := mergeTransports(spec.Transports)
	if len(spec.Transports) > 0 {
		reasons = append(reasons, why...)
	}
	pool, why := planPool(node, spec)
	reasons = append(reasons, why...)
	var invalid *Reason
	if pool.clusterBytes, invalid = clusterSize(spec.Devices); invalid != nil {
		reasons = append(reasons, *invalid)
	}
	if invalid = checkDriver(spec); invalid != nil {
		reasons = append(reasons, *invalid)
	}
	words := explanation{choices: make([]v1alpha1.Choice, 0, 48)}
	p := &v1alpha1.SPDKPlan{}
	tcp := slices.ContainsFunc(spec.Transports, func(t v1alpha1.Transport) bool { return t.Type == v1alpha1.TransportTCP })
	p.Sockets, why = planSockets(spec, tcp, &words)
	reasons = append(reasons, why...)
	if invalid := checkPriority(spec.Sockets); invalid != nil {
		reasons = append(reasons, *invalid)
	}
	reasons = append(reasons, planMode(spec, p, &words)...)
	reasons = append(reasons, planHistograms(spec, p, &words)...)
	attachments, ioQueues, invalid := attachmentsOf(spec.Attachments)
	if invalid != nil {
		reasons = append(reasons, *invalid)
	}

	onLinks := linksOf(node.Inventory, portals)
	cpus := topologyOf(node.Inventory, onLinks, driveNodes(node, pool), spec.Tuning)
	cores, bad := planCores(node, spec.Cores, cpus, onLinks, func(cores cpuset.CPUSet) cpuset.CPUSet {
		return takenByCount(node.Inventory, spec.Tuning, portals, cores)
	}, &words)
	if bad != nil {
		reasons = append(reasons, *bad)
	}
	if len(reasons) > 0 {
		return nil, reasons
	}

	l := load{
		cores: int64(cores.cores.Size()), pollGroups: int64(cores.pollGroups.Size()),
		attachments: attachments, ioQueues: ioQueues, volumes: max(volumesOfNode, attachments),
		transports: transports, devices: max(int64(len(node.Inventory.RDMADevices)), 1),
		stores: max(int64(len(pool.drives)), 1), clusterBytes: largestCluster(node, pool.clusterBytes), ownDriver: ownDriver(spec), podDrives: podDrives(node, pool),
		socketBytes: grantedBuffers(spec.Sockets), receivePipe: p.Sockets != nil && p.Sockets.ReceivePipe == v1alpha1.SwitchEnabled,
		histograms: p.LatencyHistograms == v1alpha1.SwitchEnabled,
	}
	s := sizer{node: node, spec: spec, topology: cpus, cores: cores, model: modelFor(spec), limits: rdmaLimitsOf(node.Inventory)}
	s.pacing = pacingOf(onLinks, lastLevelCache(node.Inventory, cores.cores), pool.nvmeOnly(node.Inventory), transports)
	uses, why := s.fill(p, l, &words)
	if len(why) > 0 {
		return nil, why
	}
	explainClusters(spec.Devices, l, pool.clusterBytes, &words)
	words.sort()
	return &v1alpha1.Plan{Engine: spec.Engine, Portals: portals, Drives: pool.drives, File: pool.file, OverProvisioningPercent: pool.promisePercent, ClusterBytes: pool.clusterBytes, SPDK: p, Choices: words.choices, Memory: uses}, nil
}

// sizer has what the numbers of a plan follow from, once everything else is chosen.
type sizer struct {
	node     Node
	spec     v1alpha1.NvmfTargetSpec
	topology topology
	cores    corePlan
	model    memoryModel
	limits   rdmaLimits
	pacing   pacing
}

// size resolves queues, pools and buffers of a load, in it and in its transports.
func (s sizer) size(l *load) (srqRecord, []Reason) {
	var srq srqRecord
	for i := range l.transports {
		t := &l.transports[i]
		if t.kind != v1alpha1.TransportRDMA {
			continue
		}
		var reason *Reason
		if srq, reason = planSRQ(t, l, s.limits, s.model); reason != nil {
			return srq, []Reason{*reason}
		}
		t.srqDepth = srq.depth
	}
	l.bdevIOPool, _ = bdevIOPool(*l)
	reasons := sizeBuffers(s.spec.Buffers, l, s.pacing)
	return srq, reasons
}

// lastLevelCache of the NUMA nodes that have the target's cores, and so its memory; 0 when it is not known.
func lastLevelCache(inv *v1alpha1.Inventory, cores cpuset.CPUSet) int64 {
	var bytes int64
	for i := range inv.NUMANodes {
		if n := &inv.NUMANodes[i]; slices.ContainsFunc(cpus.List(n.CPUs), cores.Contains) {
			bytes = min(bytes+max(n.LLCBytes, 0), 1<<40)
		}
	}
	return bytes
}

// fill writes the numbers into the plan, and returns the memory that they add up to.
func (s sizer) fill(p *v1alpha1.SPDKPlan, l load, why *explanation) ([]v1alpha1.MemoryUse, []Reason) {
	srq, reasons := s.size(&l)
	if len(reasons) > 0 {
		return nil, reasons
	}
	uses, reasons := s.planMemory(p, l, why)
	if len(reasons) > 0 {
		return nil, reasons
	}
	p.CoreMask = cpus.Mask(s.cores.cores)
	if !s.cores.pollGroups.Equals(s.cores.cores) {
		p.PollGroupMask = cpus.Mask(s.cores.pollGroups)
	}
	if queues := l.ioQueuePairs(); queues < l.pollGroups {
		why.warn("coreMask", fmt.Sprintf("the expected attachments open %s, so that %d of %d poll groups have no connection; use fewer cores, or raise attachments.ioQueues",
			text.Plural(int(queues), "I/O queue"), l.pollGroups-queues, l.pollGroups))
	}
	explainBdevIOPool(l, why)
	explainBuffers(s.spec.Buffers, l, s.pacing, why)
	p.BdevIOPoolSize = int32(l.bdevIOPool)
	p.SmallBuffers, p.LargeBuffers = int32(l.smallBuffers), int32(l.largeBuffers)
	p.MaxSubsystems = int32(l.volumes + 1)
	why.byDefault("maxSubsystems", strconv.Itoa(int(p.MaxSubsystems)), fmt.Sprintf("one for each of %d volumes, connected or not, and one for a volume while its subsystem is replaced; no more volumes are placed on the node", l.volumes))
	p.Attachments = &v1alpha1.Attachments{Expected: int32(l.attachments), IOQueues: int32(l.ioQueues)}
	explainAttachments(*p.Attachments, why)
	p.Driver = cmp.Or(s.spec.Devices.Driver, v1alpha1.DriverKernel)
	explainDriver(s.spec, p.Driver, why)
	for _, t := range l.transports {
		t.explain(why, l.ioQueues)
		planned := v1alpha1.PlannedTransport{
			Type: t.kind, QueueDepth: int32(t.queueDepth), MaxIOQueues: int32(t.maxIOQueues), InCapsuleDataSize: t.inCapsule,
			MaxIOSize: t.maxIO, SmallCache: int32(t.smallCache), LargeCache: int32(t.largeCache),
		}
		if t.kind == v1alpha1.TransportRDMA {
			srq.explain(t, l, why)
		}
		if t.srqDepth > 0 {
			planned.SRQDepth = new(int32(t.srqDepth))
		}
		if t.kind == v1alpha1.TransportTCP {
			planTCP(s.spec, t, &planned, why)
		}
		p.Transports = append(p.Transports, planned)
		if t.kind == v1alpha1.TransportTCP {
			p.Placement = t.placement
			explainPlacement(t, why)
		}
	}
	return uses, nil
}

// explainAttachments: the API server fills the defaults in, so that they cannot be told from what is given.
func explainAttachments(a v1alpha1.Attachments, why *explanation) {
	for _, n := range []struct {
		setting          string
		value, byDefault int32
		words            string
	}{
		{"attachments.expected", a.Expected, v1alpha1.DefaultAttachments, "connected volumes that the memory is planned for; no more are attached"},
		{"attachments.ioQueues", a.IOQueues, v1alpha1.DefaultAttachmentIOQueues, "I/O queues of each on each path; one that opens more counts as several"},
	} {
		source := v1alpha1.SourceGiven
		if n.value == n.byDefault {
			source = v1alpha1.SourceDefault
		}
		why.add(source, n.setting, strconv.Itoa(int(n.value)), n.words)
	}
}

func explainPlacement(t transport, why *explanation) {
	words := map[v1alpha1.Placement]string{
		v1alpha1.PlacementNone: "connections are distributed over poll groups, round robin",
		v1alpha1.PlacementCPU:  "connections with packets that arrive on the same CPU go to the same poll group",
		v1alpha1.PlacementNAPI: "connections of the same receive queue of the NIC go to the same poll group",
	}[t.placement]
	if t.given.Placement == nil {
		why.byDefault("placement", string(t.placement), words)
		return
	}
	why.given("placement", string(t.placement), words, placementWarnings[t.placement])
}

// placementWarnings tell what SPDK 26.05 was seen to do: with enable_placement_id 1 (NAPI) it reset every TCP
// connection over loopback and veth, and none over a virtio NIC; with 2 (CPU) every one whose packets arrived on the
// CPU of its first reactor.
var placementWarnings = map[v1alpha1.Placement]string{
	v1alpha1.PlacementCPU:  "SPDK 26.05 resets connections with packets that arrive on the CPU of its first reactor: keep the NIC's interrupts away from it, or use None",
	v1alpha1.PlacementNAPI: "SPDK 26.05 resets connections without a NAPI ID, as over loopback and veth: test it with the node's NIC first, or use None",
}

func explainDriver(spec v1alpha1.NvmfTargetSpec, driver v1alpha1.DriveDriver, why *explanation) {
	words := "SPDK uses the kernel's block devices (Linux AIO)"
	if driver != v1alpha1.DriverKernel {
		words = "SPDK's own driver uses the NVMe drives; they return to the kernel when the target pod ends"
	}
	if spec.Devices.Driver == "" {
		why.byDefault("driver", string(driver), words)
		return
	}
	why.given("driver", string(driver), words)
}

// attachmentsOf the spec, with the API's defaults.
func attachmentsOf(a v1alpha1.Attachments) (expected, ioQueues int64, invalid *Reason) {
	expected, ioQueues = int64(cmp.Or(a.Expected, v1alpha1.DefaultAttachments)), int64(cmp.Or(a.IOQueues, v1alpha1.DefaultAttachmentIOQueues))
	if expected < 1 || expected > v1alpha1.MaxAttachments {
		return 0, 0, new(reasonf(v1alpha1.ReasonInvalidSetting, "attachments.expected is %d; use 1 to %d", expected, v1alpha1.MaxAttachments))
	}
	if ioQueues < v1alpha1.MinIOQueues || ioQueues > v1alpha1.MaxIOQueues {
		return 0, 0, new(reasonf(v1alpha1.ReasonInvalidSetting, "attachments.ioQueues is %d; use %d to %d", ioQueues, v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues))
	}
	return expected, ioQueues, nil
}

// bdevIOPool has descriptors for all commands that the expected attachments can have outstanding. More than SPDK's
// default is not worth its memory: a command without a descriptor waits for one.
func bdevIOPool(l load) (pool, commands int64) {
	for _, t := range l.transports {
		commands = max(commands, l.controllers(t)*t.ioQueues(l.ioQueues)*t.queueDepth)
	}
	return max(min(commands*bdevIOsPerCommand+l.bdevIOCaches(), defaultBdevIOPool), 2*l.bdevIOCaches()), commands
}

// bdevIOCaches is what threads keep: those of the poll groups, the application's, and one to spare, as SPDK checks it.
func (l load) bdevIOCaches() int64 { return bdevIOCache * (l.pollGroups + 2) }

func explainBdevIOPool(l load, why *explanation) {
	pool, commands := bdevIOPool(l)
	value := strconv.FormatInt(pool, 10)
	if pool == defaultBdevIOPool {
		why.byDefault("bdevIOPoolSize", value, fmt.Sprintf("SPDK's default, although %d commands could be outstanding: a command waits if no descriptor is free", commands))
		return
	}
	because := fmt.Sprintf("%d for each of %d commands that the expected attachments can have outstanding, and %d that threads keep", bdevIOsPerCommand, commands, l.bdevIOCaches())
	if pool == 2*l.bdevIOCaches() {
		because = fmt.Sprintf("twice the %d that the threads keep", l.bdevIOCaches())
	}
	why.computed("bdevIOPoolSize", value, fmt.Sprintf("%s; SPDK's default is %d", because, defaultBdevIOPool))
}

// planHistograms of how long I/Os take.
func planHistograms(spec v1alpha1.NvmfTargetSpec, p *v1alpha1.SPDKPlan, why *explanation) []Reason {
	if spec.LatencyHistograms == nil {
		return nil
	}
	if !isSwitch(*spec.LatencyHistograms) {
		return []Reason{reasonf(v1alpha1.ReasonInvalidSetting, "latencyHistograms is %q; use Enabled or Disabled", *spec.LatencyHistograms)}
	}
	p.LatencyHistograms = *spec.LatencyHistograms
	why.given("latencyHistograms", string(p.LatencyHistograms), "when enabled, the target counts how long the I/Os of each attached volume take")
	return nil
}

// planMode maps cores.mode to the scheduler's knobs.
func planMode(spec v1alpha1.NvmfTargetSpec, p *v1alpha1.SPDKPlan, why *explanation) []Reason {
	p.Mode = v1alpha1.CoresDynamic
	if spec.Cores != nil && spec.Cores.Mode != "" {
		p.Mode = spec.Cores.Mode
	}
	words, ok := map[v1alpha1.CoreMode]string{
		v1alpha1.CoresStatic:    "every core polls all the time: lowest latency, but full power even when idle (1.87 of 2 cores, measured)",
		v1alpha1.CoresDynamic:   "idle threads are gathered on few cores, and the other cores sleep (1.00 of 2 cores when idle, measured)",
		v1alpha1.CoresInterrupt: "cores sleep until there is work: 0.004 of 2 cores when idle, and 48 instead of 17 us for a lone 4 KiB read (measured)",
	}[p.Mode]
	if !ok {
		return []Reason{reasonf(v1alpha1.ReasonInvalidSetting, "cores.mode is %q; use Static, Dynamic or Interrupt", p.Mode)}
	}
	if p.Mode == v1alpha1.CoresDynamic {
		// The API server fills the default in, so that it cannot be told from a given Dynamic.
		why.byDefault("mode", string(p.Mode), words)
	} else {
		why.given("mode", string(p.Mode), words)
	}
	if spec.Cores != nil && spec.Cores.Balance {
		if p.Mode != v1alpha1.CoresStatic {
			return []Reason{reasonf(v1alpha1.ReasonInvalidSetting, "cores.balance requires cores.mode: Static, but it is %s; set mode: Static, or remove balance", p.Mode)}
		}
		p.Balance = true
		why.given("balance", "true", "poll groups are moved between cores according to their load, away from cores that handle the NIC's interrupts")
	}
	if p.Mode != v1alpha1.CoresDynamic {
		return nil
	}
	var knobs v1alpha1.DynamicCores
	if spec.Cores != nil && spec.Cores.Dynamic != nil {
		knobs = *spec.Cores.Dynamic
	}
	return planScheduler(knobs, p, why)
}

func planScheduler(knobs v1alpha1.DynamicCores, p *v1alpha1.SPDKPlan, why *explanation) []Reason {
	period := v1alpha1.DefaultSchedulerPeriod
	if knobs.Period != nil {
		period = knobs.Period.Duration
	}
	s := &v1alpha1.PlannedScheduler{
		PeriodMicroseconds: period.Microseconds(), LoadLimit: cmp.Or(knobs.LoadLimit, v1alpha1.DefaultLoadLimit),
		CoreLimit: cmp.Or(knobs.CoreLimit, v1alpha1.DefaultCoreLimit), CoreBusy: cmp.Or(knobs.CoreBusy, v1alpha1.DefaultCoreBusy),
	}
	var reasons []Reason
	if period < v1alpha1.MinSchedulerPeriod || period > v1alpha1.MaxSchedulerPeriod {
		reasons = append(reasons, reasonf(v1alpha1.ReasonInvalidSetting, "cores.dynamic.period is %s; use 1ms to 1m", period))
	}
	var warning string
	if s.CoreLimit > s.CoreBusy {
		warning = fmt.Sprintf("greater than coreBusy (%d): a core accepts threads up to coreLimit and moves them off above coreBusy, so that threads move back and forth", s.CoreBusy)
	}
	for _, k := range []struct {
		name           string
		value, most    int32
		byDefault      int64
		words, warning string
	}{
		{"loadLimit", s.LoadLimit, v1alpha1.MaxLoadLimit, v1alpha1.DefaultLoadLimit, "load in percent below which a thread counts as idle", ""},
		{"coreLimit", s.CoreLimit, v1alpha1.MaxCoreLimit, v1alpha1.DefaultCoreLimit, "load in percent above which a core accepts no more threads", warning},
		{"coreBusy", s.CoreBusy, v1alpha1.MaxCoreBusy, v1alpha1.DefaultCoreBusy, "load in percent above which threads are moved off a core", ""},
	} {
		if k.value < 1 || k.value > k.most {
			reasons = append(reasons, reasonf(v1alpha1.ReasonInvalidSetting, "cores.dynamic.%s is %d; use 1 to %d percent", k.name, k.value, k.most))
		}
		knob(why, k.name, int64(k.value), k.byDefault, k.words, k.warning)
	}
	knob(why, "periodMicroseconds", s.PeriodMicroseconds, v1alpha1.DefaultSchedulerPeriod.Microseconds(), "time between two decisions of the scheduler", "")
	p.Scheduler = s
	return reasons
}

func knob(why *explanation, name string, value, byDefault int64, words, warning string) {
	source := v1alpha1.SourceGiven
	if value == byDefault {
		source, words = v1alpha1.SourceDefault, words+", SPDK's default"
	}
	why.add(source, "scheduler."+name, strconv.FormatInt(value, 10), words, warning)
}

// driveNodes are the NUMA nodes of the pool's drives. Those that SPDK drives itself are not in the inventory: they
// stay where the current plan put the cores, so that taking them changes nothing.
func driveNodes(node Node, pool pool) map[int32]bool {
	nodes := map[int32]bool{}
	for _, d := range pool.drives {
		if have := driveOf(node.Inventory, d.ID); have != nil {
			if have.NUMANode != nil {
				nodes[*have.NUMANode] = true
			}
			continue
		}
		if node.Current == nil || node.Current.SPDK == nil {
			continue
		}
		cores, _ := cpus.ParseMask(node.Current.SPDK.CoreMask)
		for _, n := range node.Inventory.NUMANodes {
			if slices.ContainsFunc(cpus.List(n.CPUs), cores.Contains) {
				nodes[n.ID] = true
			}
		}
	}
	return nodes
}
