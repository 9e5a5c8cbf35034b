// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var maskOfAPI = regexp.MustCompile(`^0x[0-9a-f]+$`)

// checkSPDK holds a plan of SPDK to what the API takes, to what SPDK takes, and to its own explanation.
func checkSPDK(t *testing.T, plan *v1alpha1.Plan) {
	t.Helper()
	p := plan.SPDK
	if p == nil {
		t.Fatal("no plan for SPDK's target")
	}
	cores, groups := checkMasks(t, p)
	page := map[v1alpha1.Hugepages]int64{v1alpha1.Hugepages2Mi: 2 << 20, v1alpha1.Hugepages1Gi: 1 << 30, v1alpha1.HugepagesDisabled: 1 << 20}[p.Hugepages]
	if page == 0 || p.MemoryBytes < 64<<20 || p.MemoryBytes%page != 0 {
		t.Errorf("memory of %d bytes in pages of %s", p.MemoryBytes, p.Hugepages)
	}
	checkBuffers(t, p, cores, groups)
	if p.BdevIOPoolSize < int32(256*(groups+2)) {
		t.Errorf("a bdev_io pool of %d is under the caches of %d threads", p.BdevIOPoolSize, groups+1)
	}
	if p.MaxSubsystems < 4097 {
		t.Errorf("only %d subsystems", p.MaxSubsystems)
	}
	if (p.Mode == v1alpha1.CoresDynamic) != (p.Scheduler != nil) {
		t.Errorf("mode %s with scheduler %v", p.Mode, p.Scheduler)
	}
	checkMemory(t, plan)
	checkChoices(t, plan)
}

func checkMasks(t *testing.T, p *v1alpha1.SPDKPlan) (cores, groups int) {
	t.Helper()
	ones := func(mask string) (n int) {
		if !maskOfAPI.MatchString(mask) || len(mask) > 258 {
			t.Errorf("mask %q", mask)
		}
		for _, digit := range mask[2:] {
			v, err := strconv.ParseUint(string(digit), 16, 8)
			if err != nil {
				t.Errorf("mask %q: %v", mask, err)
			}
			n += bits.OnesCount64(v)
		}
		return n
	}
	cores = ones(p.CoreMask)
	groups = cores
	if p.PollGroupMask != "" {
		groups = ones(p.PollGroupMask)
	}
	if groups < 1 || groups > cores {
		t.Errorf("%d poll groups on %d cores", groups, cores)
	}
	return cores, groups
}

// checkBuffers: each thread of a poll group, and the application's, fills a cache of bdev and one of accel; each
// transport one on each poll group. What is missing then fails when the target starts.
func checkBuffers(t *testing.T, p *v1alpha1.SPDKPlan, cores, groups int) {
	t.Helper()
	if len(p.Transports) < 1 || len(p.Transports) > 2 {
		t.Errorf("%d transports", len(p.Transports))
	}
	small, large := 2*128*(groups+1), 2*16*(groups+1)
	for _, tr := range p.Transports {
		if tr.SmallCache < 1 || tr.LargeCache < 1 {
			t.Errorf("%s has caches of %d and %d buffers", tr.Type, tr.SmallCache, tr.LargeCache)
		}
		if int(tr.SmallCache)*cores > int(p.SmallBuffers) || int(tr.LargeCache)*cores > int(p.LargeBuffers) {
			t.Errorf("SPDK would cut the caches of %s", tr.Type)
		}
		if tr.SRQDepth != nil && (tr.Type == v1alpha1.TransportTCP || *tr.SRQDepth < 16 || *tr.SRQDepth > 65535) {
			t.Errorf("%s has an SRQ of %d", tr.Type, *tr.SRQDepth)
		}
		small += groups * int(tr.SmallCache)
		large += groups * int(tr.LargeCache)
	}
	if int(p.SmallBuffers) < small || int(p.LargeBuffers) < large {
		t.Errorf("%d small and %d large buffers, caches take %d and %d", p.SmallBuffers, p.LargeBuffers, small, large)
	}
}

func checkMemory(t *testing.T, plan *v1alpha1.Plan) {
	t.Helper()
	var sum int64
	seen := map[string]bool{}
	for _, m := range plan.Memory {
		sum += m.Bytes
		if seen[m.Use] || m.Use == "" || len(m.Use) > 63 || m.Bytes < 0 || m.How == "" || len(m.How) > 255 {
			t.Errorf("line of memory %+v", m)
		}
		seen[m.Use] = true
	}
	want := plan.SPDK.MemoryBytes + plan.SPDK.PodMemoryBytes
	if plan.SPDK.Hugepages == v1alpha1.HugepagesDisabled {
		want = plan.SPDK.PodMemoryBytes
	}
	if sum != want || len(plan.Memory) > 64 {
		t.Errorf("%d lines of memory add up to %d, want %d", len(plan.Memory), sum, want)
	}
}

// checkChoices: each number of the plan is explained, with the value that it has.
func checkChoices(t *testing.T, plan *v1alpha1.Plan) {
	t.Helper()
	p := plan.SPDK
	n := func(i int64) string { return strconv.FormatInt(i, 10) }
	want := map[string]string{
		"coreMask": p.CoreMask, "mode": string(p.Mode), "hugepages": string(p.Hugepages), "memoryBytes": n(p.MemoryBytes), "podMemoryBytes": n(p.PodMemoryBytes),
		"bdevIOPoolSize": n(int64(p.BdevIOPoolSize)), "smallBuffers": n(int64(p.SmallBuffers)), "largeBuffers": n(int64(p.LargeBuffers)),
		"maxSubsystems": n(int64(p.MaxSubsystems)), "driver": string(p.Driver), "clusterBytes": n(plan.ClusterBytes),
		"attachments.expected": n(int64(p.Attachments.Expected)), "attachments.ioQueues": n(int64(p.Attachments.IOQueues)),
	}
	if p.PollGroupMask != "" {
		want["pollGroupMask"] = p.PollGroupMask
	}
	if p.LatencyHistograms != "" {
		want["latencyHistograms"] = string(p.LatencyHistograms)
	}
	if p.Placement != "" {
		want["placement"] = string(p.Placement)
	}
	if s := p.Scheduler; s != nil {
		want["scheduler.periodMicroseconds"], want["scheduler.loadLimit"] = n(s.PeriodMicroseconds), n(int64(s.LoadLimit))
		want["scheduler.coreLimit"], want["scheduler.coreBusy"] = n(int64(s.CoreLimit)), n(int64(s.CoreBusy))
	}
	if s := p.Sockets; s != nil {
		want["sockets.zeroCopySend"], want["sockets.zeroCopyThreshold"] = string(s.ZeroCopySend), n(s.ZeroCopyThreshold)
		want["sockets.receivePipe"], want["sockets.quickAck"] = string(s.ReceivePipe), string(s.QuickAck)
		want["sockets.sendBufferSize"], want["sockets.receiveBufferSize"] = n(s.SendBufferSize), n(s.ReceiveBufferSize)
	}
	for _, tr := range p.Transports {
		of := "transports[" + string(tr.Type) + "]."
		want[of+"queueDepth"], want[of+"maxIOQueues"] = n(int64(tr.QueueDepth)), n(int64(tr.MaxIOQueues))
		want[of+"inCapsuleDataSize"], want[of+"maxIOSize"] = n(tr.InCapsuleDataSize), n(tr.MaxIOSize)
		want[of+"smallCache"], want[of+"largeCache"] = n(int64(tr.SmallCache)), n(int64(tr.LargeCache))
		if tr.Type == v1alpha1.TransportTCP {
			want[of+"c2hSuccess"], want[of+"socketPriority"] = string(tr.C2HSuccess), n(int64(tr.SocketPriority))
		}
		if tr.Type == v1alpha1.TransportRDMA {
			want[of+"srqDepth"] = "none"
			if tr.SRQDepth != nil {
				want[of+"srqDepth"] = n(int64(*tr.SRQDepth))
			}
		}
	}
	checkExplained(t, plan, want)
}

// checkNvmet holds a plan of the kernel's target to the API, and to its own explanation.
func checkNvmet(t *testing.T, plan *v1alpha1.Plan) {
	t.Helper()
	n := func(i int64) string { return strconv.FormatInt(i, 10) }
	want := map[string]string{}
	for _, p := range plan.Portals {
		if p.Transport == v1alpha1.TransportTCP && plan.Nvmet.TCP == nil || p.Transport == v1alpha1.TransportRDMA && plan.Nvmet.RDMA == nil {
			t.Errorf("nothing is told to the module of %s", p.Transport)
		}
	}
	if tcp := plan.Nvmet.TCP; tcp != nil {
		want["nvmet.tcp.idlePollPeriodMicroseconds"], want["nvmet.tcp.socketPriority"] = n(tcp.IdlePollPeriodMicroseconds), n(int64(tcp.SocketPriority))
		if tcp.IdlePollPeriodMicroseconds < 0 || tcp.SocketPriority < 0 || tcp.SocketPriority > 15 {
			t.Errorf("TCP: %+v", tcp)
		}
	}
	if rdma := plan.Nvmet.RDMA; rdma != nil {
		want["nvmet.rdma.srqDepth"] = "none"
		if rdma.SRQDepth != nil {
			want["nvmet.rdma.srqDepth"] = n(int64(*rdma.SRQDepth))
			if *rdma.SRQDepth < 256 || *rdma.SRQDepth > 65535 {
				t.Errorf("an SRQ of %d", *rdma.SRQDepth)
			}
		}
	}
	checkExplained(t, plan, want)
}

func checkExplained(t *testing.T, plan *v1alpha1.Plan, want map[string]string) {
	t.Helper()
	if len(plan.Choices) > 128 {
		t.Errorf("%d choices", len(plan.Choices))
	}
	for setting, value := range checkTuning(t, plan) {
		want[setting] = value
	}
	if a := plan.Authentication; a != nil {
		want["authentication.mode"], want["authentication.dhGroup"] = string(a.Mode), string(a.DHGroup)
	}
	for _, c := range plan.Choices {
		value, ok := want[c.Setting]
		if !ok || c.Value != value {
			t.Errorf("choice of %s is %q, want %q", c.Setting, c.Value, value)
		}
		delete(want, c.Setting)
		known := c.Source == v1alpha1.SourceGiven || c.Source == v1alpha1.SourceDefault || c.Source == v1alpha1.SourceComputed
		if !known || c.Why == "" || len(c.Why) > 1024 || len(c.Warning) > 1024 || len(c.Setting) > 63 || strings.Contains(c.Why, "%!") {
			t.Errorf("choice %+v", c)
		}
	}
	for setting := range want {
		t.Errorf("%s is not explained", setting)
	}
}

// checkTuning holds a plan's tuning to the API, and answers what its explanation says.
func checkTuning(t *testing.T, plan *v1alpha1.Plan) map[string]string {
	t.Helper()
	want := map[string]string{}
	var nics []string
	seen := map[string]bool{}
	for _, s := range plan.Tuning {
		if seen[s.Setting] || s.Setting == "" || len(s.Setting) > 63 || s.Value == "" || len(s.Value) > 4096 {
			t.Errorf("planned setting %+v", s)
		}
		seen[s.Setting] = true
		nic, name, ofNIC := strings.Cut(s.Setting, "/")
		switch {
		case !ofNIC:
			want["tuning."+s.Setting] = s.Value
			continue
		case name == "interrupts":
			want["tuning."+s.Setting] = s.Value
			if len(s.Value) > 258 {
				want["tuning."+s.Setting] = s.Value[:255] + "..."
			}
		default:
			want["tuning."+name] = s.Value
		}
		if !slices.Contains(nics, nic) {
			nics = append(nics, nic)
		}
	}
	for _, c := range plan.Choices {
		name, ofTuning := strings.CutPrefix(c.Setting, "tuning.")
		if name == "nics" {
			slices.Sort(nics)
			want[c.Setting] = "none"
			if len(nics) > 0 {
				want[c.Setting] = c.Value // long lists are cut
			}
		} else if _, known := want[c.Setting]; ofTuning && !known && len(nics) == 0 {
			want[c.Setting] = c.Value // asked for, of NICs that no portal is on
		}
	}
	return want
}
