// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

const (
	page2Mi = 2 << 20
	page1Gi = 1 << 30
)

// bigServer is a storage node for SPDK: two sockets of 16 cores with two threads each, a NIC of 100 Gb/s and four
// drives on the second one, and 8 GiB of hugepages of each size on each.
func bigServer(edits ...func(*sizing.Node)) sizing.Node {
	inv := &v1alpha1.Inventory{
		KernelVersion: "6.12.0",
		Modules:       []string{"nvmet", "nvmet_rdma", "nvmet_tcp", "uio_pci_generic", "vfio_pci", "xfs"},
		NICs: []v1alpha1.NIC{
			{Name: "eno1", Addresses: []string{"192.0.2.5/24"}, Up: true, SpeedMbps: 10_000, NUMANode: new(int32(0)), RxQueues: 8},
			{Name: "ens1f0", Addresses: []string{"10.20.0.5/16"}, Up: true, SpeedMbps: 100_000, NUMANode: new(int32(1)), RxQueues: 64},
			{Name: "ens2f0", Addresses: []string{"10.21.0.5/16"}, Up: true, NUMANode: new(int32(1))},
		},
		RDMADevices: []v1alpha1.RDMADevice{{Name: "mlx5_0", Netdev: "ens1f0", Active: true, NUMANode: new(int32(1)), MaxSRQ: 1 << 16, MaxSRQWR: 32767}},
	}
	for node := range int32(2) {
		n := v1alpha1.NUMANode{
			ID: node, CPUs: fmt.Sprintf("%d-%d,%d-%d", node*16, node*16+15, node*16+32, node*16+47), LLCBytes: 48 << 20, MemoryBytes: 128 * gib,
			Hugepages: []v1alpha1.HugepagePool{{SizeBytes: page2Mi, Total: 4096, Free: 4096}, {SizeBytes: page1Gi, Total: 8, Free: 8}},
		}
		for core := range int32(16) {
			n.Cores = append(n.Cores, fmt.Sprintf("%d,%d", node*16+core, node*16+core+32))
		}
		inv.NUMANodes = append(inv.NUMANodes, n)
	}
	for i := range 4 {
		inv.Drives = append(inv.Drives, v1alpha1.Drive{
			ID: fmt.Sprintf("eui.%d", i), Name: fmt.Sprintf("nvme%dn1", i), NVMe: true, Model: "SAMSUNG PM9A3", Serial: fmt.Sprintf("S%d", i), SizeBytes: 1920 * gib,
			NUMANode: new(int32(1)), PCIAddress: fmt.Sprintf("0000:d%d:00.0", i), Content: v1alpha1.ContentBlank, ByID: []string{fmt.Sprintf("nvme-eui.%d", i)},
		})
	}
	node := sizing.Node{Name: "storage-1", InternalIPs: []string{"192.0.2.5"}, Inventory: inv}
	for _, edit := range edits {
		edit(&node)
	}
	return node
}

type edit = func(*v1alpha1.NvmfTargetSpec)

// spdk is a target of SPDK over TCP on the fast NIC, changed by edits.
func spdk(edits ...edit) v1alpha1.NvmfTargetSpec {
	return spec(append([]edit{func(s *v1alpha1.NvmfTargetSpec) { s.Engine = v1alpha1.EngineSPDK }, transports(tcp(4420, iface("ens1f0")))}, edits...)...)
}

// count of cores, and mask of them, all of which serve connections.
func count(n int32) edit {
	return func(s *v1alpha1.NvmfTargetSpec) {
		s.Cores = &v1alpha1.Cores{Count: new(n), MainCore: v1alpha1.MainCoreShared}
	}
}
func mask(m string) edit {
	return func(s *v1alpha1.NvmfTargetSpec) {
		s.Cores = &v1alpha1.Cores{Mask: m, MainCore: v1alpha1.MainCoreShared}
	}
}

// mainCore of cores that were chosen before.
func mainCore(use v1alpha1.MainCore) edit {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Cores.MainCore = use }
}
func coreMode(m v1alpha1.CoreMode) edit {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Cores = &v1alpha1.Cores{Count: new(int32(4)), Mode: m} }
}
func limit(q string) edit {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Memory = &v1alpha1.Memory{Limit: new(resource.MustParse(q))} }
}
func hugepages(h v1alpha1.Hugepages) edit {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Memory = &v1alpha1.Memory{Hugepages: h} }
}
func attachments(expected, queues int32) edit {
	return func(s *v1alpha1.NvmfTargetSpec) {
		s.Attachments = v1alpha1.Attachments{Expected: expected, IOQueues: queues}
	}
}
func driver(d v1alpha1.DriveDriver) edit {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Devices.Driver = d }
}

// planned is the plan of a node that can serve.
func planned(t *testing.T, node sizing.Node, s v1alpha1.NvmfTargetSpec) *v1alpha1.Plan {
	t.Helper()
	p, reasons := sizing.Plan(node, s)
	if p == nil {
		t.Fatalf("no plan: %v", reasons)
	}
	checkSPDK(t, p)
	return p
}

// choice is the explanation of one number.
func choice(t *testing.T, p *v1alpha1.Plan, setting string) v1alpha1.Choice {
	t.Helper()
	i := slices.IndexFunc(p.Choices, func(c v1alpha1.Choice) bool { return c.Setting == setting })
	if i < 0 {
		t.Fatalf("no choice of %s", setting)
	}
	return p.Choices[i]
}

// says fails unless a text has all the words.
func says(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s: %q does not say %q", what, text, word)
		}
	}
}

func TestPlanOfSPDK(t *testing.T) {
	p := planned(t, bigServer(), spdk())
	got := *p.SPDK
	want := v1alpha1.SPDKPlan{
		// 8 cores for 100 Gb/s of TCP, on the NIC's NUMA node, and one for RPCs.
		CoreMask: "0x1ff0000", PollGroupMask: "0x1fe0000", Mode: v1alpha1.CoresDynamic,
		Scheduler: &v1alpha1.PlannedScheduler{PeriodMicroseconds: 1_000_000, LoadLimit: 20, CoreLimit: 80, CoreBusy: 95},
		Hugepages: v1alpha1.Hugepages2Mi, MemoryBytes: got.MemoryBytes, PodMemoryBytes: got.PodMemoryBytes,
		// 128 volumes x 2 queues x 128 commands x 2, and 256 for each of 8 + 2 threads, would be more than SPDK's
		// default.
		BdevIOPoolSize: 65535,
		// 12.5 GB/s x 335 us x 1.5 is 6.28 MB: 48 of 128 KiB and 1536 of 4 KiB, and what bdev and accel keep on 9
		// threads.
		SmallBuffers: 1536 + 2*9*128, LargeBuffers: 48 + 2*9*16, MaxSubsystems: 4097, Attachments: &v1alpha1.Attachments{Expected: v1alpha1.DefaultAttachments, IOQueues: v1alpha1.DefaultAttachmentIOQueues},
		Transports: []v1alpha1.PlannedTransport{{Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072, SmallCache: 192, LargeCache: 6, C2HSuccess: v1alpha1.SwitchEnabled}},
		Placement:  v1alpha1.PlacementNone, Driver: v1alpha1.DriverKernel,
		Sockets: &v1alpha1.PlannedSockets{ZeroCopySend: v1alpha1.SwitchEnabled, ReceivePipe: v1alpha1.SwitchDisabled, QuickAck: v1alpha1.SwitchDisabled, SendBufferSize: 2 << 20, ReceiveBufferSize: 2 << 20},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"eui.0", "eui.1", "eui.2", "eui.3"}, driveIDs(p)); diff != "" {
		t.Errorf("drives (-want +got):\n%s", diff)
	}
	// Nothing was given but what has no default.
	for _, c := range p.Choices {
		if c.Source == v1alpha1.SourceGiven {
			t.Errorf("%s was not given", c.Setting)
		}
		if c.Warning != "" {
			t.Errorf("%s: unexpected warning %q", c.Setting, c.Warning)
		}
	}
}

func TestPlanOfSPDKChoosesCores(t *testing.T) {
	nic := func(edit func(*v1alpha1.NIC)) func(*sizing.Node) {
		return func(n *sizing.Node) { edit(&n.Inventory.NICs[1]) }
	}
	withoutNUMA := func(n *sizing.Node) {
		for i := range n.Inventory.NICs {
			n.Inventory.NICs[i].NUMANode = nil
		}
	}
	drivesNowhere := func(n *sizing.Node) {
		withoutNUMA(n)
		for i := range n.Inventory.Drives {
			n.Inventory.Drives[i].NUMANode = nil
		}
	}
	for name, test := range map[string]struct {
		node   func(*sizing.Node)
		edits  []edit
		want   string
		groups string
		why    []string
		warns  []string
	}{
		"a count, on the NIC's NUMA node":         {edits: []edit{count(4)}, want: "0xf0000", why: []string{"set by cores.count (4)", "CPUs 16-19", "NIC's NUMA node"}},
		"on the drives' when the NIC's is unsaid": {node: withoutNUMA, edits: []edit{count(4)}, want: "0xf0000", why: []string{"drives' NUMA node"}},
		"by turns when both are unsaid":           {node: drivesNowhere, edits: []edit{count(4)}, want: "0x30006", why: []string{"are unknown"}},
		"never CPU 0":                             {edits: []edit{count(3), transports(tcp(4420, nil))}, want: "0x700", why: []string{"without CPU 0"}},
		"all physical cores of the NIC's node":    {edits: []edit{count(16)}, want: "0xffff0000"},
		"siblings after physical cores":           {edits: []edit{count(18)}, want: "0x30000ffff0000", warns: []string{"2 of them share a physical core"}},
		"another NUMA node last":                  {edits: []edit{count(33)}, want: "0xffff0000ffff0002", warns: []string{"1 of them are on another NUMA node"}},
		"by RDMA's need":                          {edits: []edit{transports(rdma(4420, iface("ens1f0")))}, want: "0x70000", groups: "0x60000", why: []string{"2 cores for links of ens1f0 100 Gb/s", "50 Gb/s of RDMA", "and one that answers RPCs"}},
		"by TCP's need where both share a link":   {edits: []edit{transports(rdma(4420, iface("ens1f0")), tcp(4420, iface("ens1f0")))}, want: "0x1ff0000", groups: "0x1fe0000"},
		"a VLAN has its interface's link, and no more": {node: func(n *sizing.Node) {
			n.Inventory.NICs = append(n.Inventory.NICs, v1alpha1.NIC{Name: "ens1f0.7", Addresses: []string{"10.27.0.5/16"}, Up: true, SpeedMbps: 100_000, Lower: []string{"ens1f0"}})
		}, edits: []edit{transports(tcp(4420, iface("ens1f0")), tcp(4421, iface("ens1f0.7")))}, want: "0x1ff0000", groups: "0x1fe0000", why: []string{"8 cores for links of ens1f0 100 Gb/s"}},
		"two where no link says its speed": {edits: []edit{transports(tcp(4420, iface("ens2f0")))}, want: "0x30000", why: []string{"no link speed is known", "2 cores"}},
		"half of the machine at most":      {node: nic(func(n *v1alpha1.NIC) { n.SpeedMbps = 800_000 }), want: "0x7fff0000", why: []string{"half of the physical cores, 15", "64 busy"}},
		"away from the NIC's interrupts": {
			node: nic(func(n *v1alpha1.NIC) { n.RxQueues = 8 }), want: "0xff010000", groups: "0xff000000",
		},
		"a mask":                               {edits: []edit{mask("0xF00000")}, want: "0xf00000", why: []string{"cores.mask"}},
		"a mask far from the NIC":              {edits: []edit{mask("0x1000F0")}, want: "0x1000f0", warns: []string{"4 of them are on another NUMA node than the NIC"}},
		"a mask, and nobody knows what is far": {node: withoutNUMA, edits: []edit{mask("0xF0")}, want: "0xf0"},
		"a mask with siblings":                 {edits: []edit{mask("0x3000000030000")}, want: "0x3000000030000", warns: []string{"2 of them share a physical core"}},
		"a mask of many more than links need":  {edits: []edit{mask("0xfffffffffffffffe")}, want: "0xfffffffffffffffe", groups: "0xffff0000fffe", warns: []string{"links of ens1f0 100 Gb/s need 8"}},
		"a mask with CPU 0": {
			edits: []edit{mask("0x3")}, want: "0x3", warns: []string{"CPU 0 is included"},
		},
		"CPUs that DPDK may not know": {
			node:  func(n *sizing.Node) { n.Inventory.NUMANodes[0].CPUs = "0-15,128-159" },
			edits: []edit{mask("0x100000000000000000000000000000002")}, want: "0x100000000000000000000000000000002", warns: []string{"CPU 128", "--max-lcores=129"},
		},
		"poll groups apart from interrupts, where enough are left": {
			node: nic(func(n *v1alpha1.NIC) { n.RxQueues = 4 }), edits: []edit{mask("0xfff0000")},
			want: "0xfff0000", groups: "0xff00000",
		},
		"poll groups everywhere, where too few are left": {
			node: nic(func(n *v1alpha1.NIC) { n.RxQueues = 8 }), edits: []edit{mask("0xfff0000")},
			want: "0xfff0000",
		},
		"RDMA has no interrupts to be away from": {
			node: nic(func(n *v1alpha1.NIC) { n.RxQueues = 4 }), edits: []edit{transports(rdma(4420, iface("ens1f0"))), mask("0xff0000")},
			want: "0xff0000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := bigServer()
			if test.node != nil {
				test.node(&node)
			}
			p := planned(t, node, spdk(test.edits...))
			if p.SPDK.CoreMask != test.want || p.SPDK.PollGroupMask != test.groups {
				t.Errorf("got cores %s and poll groups %q, want %s and %q", p.SPDK.CoreMask, p.SPDK.PollGroupMask, test.want, test.groups)
			}
			c := choice(t, p, "coreMask")
			says(t, "why", c.Why, test.why...)
			says(t, "warning", c.Warning, test.warns...)
			if len(test.warns) == 0 && c.Warning != "" {
				t.Errorf("unexpected warning: %s", c.Warning)
			}
		})
	}
}

func TestPlanOfSPDKKeepsACoreForRPCs(t *testing.T) {
	unknown := transports(tcp(4420, iface("ens2f0")))
	fewQueues := func(n *sizing.Node) { n.Inventory.NICs[1].RxQueues = 4 }
	for name, test := range map[string]struct {
		node  func(*sizing.Node)
		edits []edit
		want  string // mask of the poll groups; "" for all cores
		why   []string
	}{
		"from three cores on": {edits: []edit{unknown, count(3), mainCore("")}, want: "0x60000", why: []string{"CPU 16 answers RPCs", "2 CPUs left for connections"}},
		"not of two":          {edits: []edit{unknown, count(2), mainCore("")}},
		"where the others are enough for the link": {edits: []edit{count(9), mainCore("")}, want: "0x1fe0000", why: []string{"8 CPUs left for connections, which is enough for the links"}},
		"not where the link needs all":             {edits: []edit{count(8), mainCore("")}},
		"apart from the NIC's interrupts": {node: fewQueues, edits: []edit{mask("0x1fff8000"), mainCore("")}, want: "0x1ff00000",
			why: []string{"CPUs 16-19 probably handle", "CPU 15 answers RPCs"}},
		"one that takes interrupts too": {node: fewQueues, edits: []edit{mask("0xfff0000"), mainCore("")}, want: "0xff00000", why: []string{"CPUs 16-19 probably handle"}},
		"as asked":                      {edits: []edit{count(2), mainCore(v1alpha1.MainCoreDedicated)}, want: "0x20000", why: []string{"CPU 16 answers RPCs, set by cores.mainCore", "1 CPU left for connections"}},
		"as asked, and apart from the NIC's interrupts": {node: fewQueues, edits: []edit{mask("0x1fff8000"), mainCore(v1alpha1.MainCoreDedicated)}, want: "0x1ff00000"},
		"not where all are to serve":                    {edits: []edit{unknown, count(16)}},
		"no more than the kubelet has": {node: func(n *sizing.Node) {
			n.Allocatable = &sizing.Allocatable{CPUs: 8, HugepageBytes: map[int64]int64{2 << 20: 16 << 30}, MemoryBytes: 64 << 30}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			node := bigServer()
			if test.node != nil {
				test.node(&node)
			}
			p := planned(t, node, spdk(test.edits...))
			if p.SPDK.PollGroupMask != test.want {
				t.Errorf("got poll groups %q of cores %s, want %q", p.SPDK.PollGroupMask, p.SPDK.CoreMask, test.want)
			}
			if test.want != "" {
				says(t, "why", choice(t, p, "pollGroupMask").Why, test.why...)
			}
		})
	}
}

func TestPlanOfSPDKChoosesAMode(t *testing.T) {
	p := planned(t, bigServer(), spdk(coreMode(v1alpha1.CoresStatic)))
	if p.SPDK.Mode != v1alpha1.CoresStatic || p.SPDK.Scheduler != nil {
		t.Errorf("got mode %s with %v", p.SPDK.Mode, p.SPDK.Scheduler)
	}
	p = planned(t, bigServer(), spdk(coreMode(v1alpha1.CoresInterrupt), driver(v1alpha1.DriverVFIO)))
	if p.SPDK.Mode != v1alpha1.CoresInterrupt || p.SPDK.Scheduler != nil {
		t.Errorf("got mode %s with %v", p.SPDK.Mode, p.SPDK.Scheduler)
	}
	p = planned(t, bigServer(), spdk(func(s *v1alpha1.NvmfTargetSpec) {
		s.Cores = &v1alpha1.Cores{Count: new(int32(4)), Mode: v1alpha1.CoresDynamic, Dynamic: &v1alpha1.DynamicCores{Period: &metav1.Duration{Duration: 50 * time.Millisecond}, LoadLimit: 10, CoreLimit: 98}}
	}))
	if diff := cmp.Diff(&v1alpha1.PlannedScheduler{PeriodMicroseconds: 50_000, LoadLimit: 10, CoreLimit: 98, CoreBusy: 95}, p.SPDK.Scheduler); diff != "" {
		t.Errorf("scheduler (-want +got):\n%s", diff)
	}
	if c := choice(t, p, "scheduler.periodMicroseconds"); c.Source != v1alpha1.SourceGiven || c.Value != "50000" {
		t.Errorf("period: got %+v", c)
	}
	says(t, "coreLimit", choice(t, p, "scheduler.coreLimit").Warning, "greater than coreBusy (95)")
}

// All portals of a type have one transport; a type with two portals has two controllers for each volume.
func TestPlanOfSPDKMergesTransports(t *testing.T) {
	p := planned(t, bigServer(), spdk(transports(rdma(4420, iface("ens1f0")), tcp(4421, iface("ens1f0")), tcp(4421, iface("eno1")))))
	var got []v1alpha1.TransportType
	for _, planned := range p.SPDK.Transports {
		got = append(got, planned.Type)
	}
	if !slices.Equal(got, []v1alpha1.TransportType{v1alpha1.TransportRDMA, v1alpha1.TransportTCP}) || len(p.Portals) != 3 {
		t.Errorf("got transports %v and %d portals", got, len(p.Portals))
	}
	one := memoryOf(t, planned(t, bigServer(), spdk()), "TCP queue pairs")
	if two := memoryOf(t, p, "TCP queue pairs"); two != 2*one {
		t.Errorf("queue pairs on two portals take %d bytes, on one %d", two, one)
	}
}

func memoryOf(t *testing.T, p *v1alpha1.Plan, use string) int64 {
	t.Helper()
	i := slices.IndexFunc(p.Memory, func(m v1alpha1.MemoryUse) bool { return m.Use == use })
	if i < 0 {
		t.Fatalf("no memory for %s in %v", use, p.Memory)
	}
	return p.Memory[i].Bytes
}

func TestPlanOfSPDKWarnsOfTransports(t *testing.T) {
	small := rdma(4420, iface("ens1f0"))
	small.InCapsuleDataSize = new(resource.MustParse("0"))
	p := planned(t, bigServer(), spdk(transports(small), attachments(8, 16)))
	if got := p.SPDK.Transports[0].InCapsuleDataSize; got != 256 {
		t.Errorf("got %d bytes in capsule, want SPDK's least", got)
	}
	says(t, "in-capsule", choice(t, p, "transports[RDMA].inCapsuleDataSize").Warning, "0 bytes were requested", "256")
	says(t, "queues", choice(t, p, "transports[RDMA].maxIOQueues").Warning, "requests 16", "gets only 8")
}

func TestPlanOfSPDKSizesMemory(t *testing.T) {
	for _, h := range []v1alpha1.Hugepages{v1alpha1.Hugepages2Mi, v1alpha1.Hugepages1Gi, v1alpha1.HugepagesDisabled} {
		t.Run(string(h), func(t *testing.T) {
			p := planned(t, bigServer(), spdk(hugepages(h)))
			headroom, heap := memoryOf(t, p, "headroom"), int64(0)
			for _, m := range p.Memory {
				if !strings.HasPrefix(m.Use, "pod: ") && m.Use != "headroom" {
					heap += m.Bytes
				}
			}
			if least := heap / 10; headroom < least {
				t.Errorf("headroom of %d bytes on %d is under 10 %%", headroom, heap)
			}
			if heap+headroom != p.SPDK.MemoryBytes {
				t.Errorf("lines add up to %d, the plan has %d", heap+headroom, p.SPDK.MemoryBytes)
			}
		})
	}
	// A queue pair of depth 128 with 4 KiB in capsule takes 804,165 bytes: see the measurements.
	before, after := planned(t, bigServer(), spdk(attachments(64, 1))), planned(t, bigServer(), spdk(attachments(64, 2)))
	if got := (memoryOf(t, after, "TCP queue pairs") - memoryOf(t, before, "TCP queue pairs")) / 64; got < 804_150 || got > 812_000 {
		t.Errorf("a queue pair takes %d bytes", got)
	}
}

func TestPlanOfSPDKHasMemoryForHistograms(t *testing.T) {
	histograms := func(s v1alpha1.Switch) edit {
		return func(spec *v1alpha1.NvmfTargetSpec) { spec.LatencyHistograms = &s }
	}
	without, with := planned(t, bigServer(), spdk()), planned(t, bigServer(), spdk(histograms(v1alpha1.SwitchEnabled)))
	if with.SPDK.LatencyHistograms != v1alpha1.SwitchEnabled || without.SPDK.LatencyHistograms != "" {
		t.Errorf("histograms are %q, and %q where they are not asked for", with.SPDK.LatencyHistograms, without.SPDK.LatencyHistograms)
	}
	if c := choice(t, with, "latencyHistograms"); c.Source != v1alpha1.SourceGiven || c.Value != "Enabled" {
		t.Errorf("the choice: %+v", c)
	}
	if with.SPDK.CoreMask != "0x1ff0000" || with.SPDK.PollGroupMask != "0x1fe0000" {
		t.Fatalf("poll groups are %q of %s", with.SPDK.PollGroupMask, with.SPDK.CoreMask)
	}
	const want = v1alpha1.DefaultAttachments * 8 * 59_500
	if got := memoryOf(t, with, "pod: latency histograms"); got != want {
		t.Errorf("histograms take %d bytes, want %d", got, want)
	}
	if more := with.SPDK.PodMemoryBytes - without.SPDK.PodMemoryBytes; more < want {
		t.Errorf("the pod has %d bytes more, want %d", more, want)
	}
	off := planned(t, bigServer(), spdk(histograms(v1alpha1.SwitchDisabled)))
	if off.SPDK.PodMemoryBytes != without.SPDK.PodMemoryBytes {
		t.Errorf("a pod without histograms has %d bytes, want %d", off.SPDK.PodMemoryBytes, without.SPDK.PodMemoryBytes)
	}
	refused(t, bigServer(), spdk(histograms("On")), []refusal{{v1alpha1.ReasonInvalidSetting, []string{`latencyHistograms is "On"; use Enabled or Disabled`}}})
}

func TestPlanOfSPDKCountsHugepages(t *testing.T) {
	need := planned(t, bigServer(), spdk()).SPDK.MemoryBytes / page2Mi
	free := func(on0, on1 int64) func(*sizing.Node) {
		return func(n *sizing.Node) {
			n.Inventory.NUMANodes[0].Hugepages[0].Free = on0
			n.Inventory.NUMANodes[1].Hugepages[0].Free = on1
		}
	}
	current := func(n *sizing.Node) {
		n.Current = &v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, Drives: []v1alpha1.PlannedDrive{{ID: "eui.0"}},
			SPDK: &v1alpha1.SPDKPlan{CoreMask: "0xf0000", Hugepages: v1alpha1.Hugepages2Mi, MemoryBytes: need * page2Mi}}
	}
	t.Run("enough on the right NUMA node", func(t *testing.T) {
		if c := choice(t, planned(t, bigServer(free(0, need)), spdk()), "memoryBytes"); c.Warning != "" {
			t.Errorf("unexpected warning: %s", c.Warning)
		}
	})
	t.Run("enough, but elsewhere", func(t *testing.T) {
		p := planned(t, bigServer(free(need, 10)), spdk())
		says(t, "warning", choice(t, p, "memoryBytes").Warning, fmt.Sprintf("of its %d hugepages, only 10 are free", need),
			fmt.Sprintf("echo %d > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", 4096+need-10))
	})
	t.Run("held by the current plan", func(t *testing.T) { planned(t, bigServer(free(0, 0), current), spdk()) })
	t.Run("held where they belong, and free elsewhere", func(t *testing.T) {
		if c := choice(t, planned(t, bigServer(free(need, 0), current), spdk()), "memoryBytes"); c.Warning != "" {
			t.Errorf("unexpected warning: %s", c.Warning)
		}
	})
	for name, test := range map[string]struct {
		node func(*sizing.Node)
		edit edit
		want []string
	}{
		"too few": {free(1, 2), spdkEdit(), []string{
			fmt.Sprintf("%d hugepages of 2.0 MiB", need), "has 3 free", fmt.Sprintf("%d too few", need-3),
			fmt.Sprintf("echo %d > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", 4096+need-3), "even one attachment",
		}},
		"one NUMA node": {func(n *sizing.Node) {
			free(0, 0)(n)
			n.Inventory.NUMANodes = n.Inventory.NUMANodes[1:]
		}, spdkEdit(), []string{"> /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"}},
		"of no such size": {func(n *sizing.Node) {
			for i := range n.Inventory.NUMANodes {
				n.Inventory.NUMANodes[i].Hugepages = n.Inventory.NUMANodes[i].Hugepages[:1]
			}
		}, hugepages(v1alpha1.Hugepages1Gi), []string{"has no hugepages of 1024 MiB", "Disabled"}},
		"not yet counted by the kubelet": {func(n *sizing.Node) { n.Allocatable = &sizing.Allocatable{CPUs: 60} }, spdkEdit(), []string{
			fmt.Sprintf("%d hugepages of 2.0 MiB", need), "can allocate 0", fmt.Sprintf("%d too few", need), "systemctl restart kubelet",
		}},
		"not all counted by the kubelet": {func(n *sizing.Node) {
			n.Allocatable = &sizing.Allocatable{CPUs: 60, HugepageBytes: map[int64]int64{page2Mi: 7 * page2Mi}}
		}, spdkEdit(), []string{"can allocate 7", fmt.Sprintf("%d too few", need-7)}},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, bigServer(test.node), spdk(test.edit), []refusal{{v1alpha1.ReasonHugepagesMissing, test.want}})
		})
	}
}

func spdkEdit() edit { return func(*v1alpha1.NvmfTargetSpec) {} }

func refused(t *testing.T, node sizing.Node, s v1alpha1.NvmfTargetSpec, want []refusal) {
	t.Helper()
	expectReasons(t, func(n *sizing.Node) { *n = node }, func(have *v1alpha1.NvmfTargetSpec) { *have = s }, want)
}

// What does not fit the memory allowed comes with what would, and by how much: each of those does fit.
func TestPlanOfSPDKSaysWhatWouldFit(t *testing.T) {
	_, reasons := sizing.Plan(bigServer(), spdk(attachments(64, 2), limit("460Mi")))
	if len(reasons) != 1 || reasons[0].Reason != v1alpha1.ReasonMemoryExceeded {
		t.Fatalf("got %v", reasons)
	}
	says(t, "reason", reasons[0].Message, "624 MiB", "164 MiB over memory.limit (460 MiB)", "attachments.expected 21 (", "transports[].queueDepth 43 (", "to spare")
	_, capsule := sizing.Plan(bigServer(), spdk(attachments(64, 2), limit("580Mi")))
	_, offer, _ := strings.Cut(capsule[0].Message, "transports[].inCapsuleDataSize ")
	offer, _, _ = strings.Cut(offer, " ")
	if bytes, err := strconv.Atoi(offer); err != nil || bytes%16 != 0 {
		t.Errorf("a size in steps of 16 bytes is wanted, not %q: %v, in %s", offer, err, capsule[0].Message)
	}
	shallow := tcp(4420, iface("ens1f0"))
	shallow.QueueDepth = 43
	for name, fits := range map[string][]edit{"attachments.expected 21": {attachments(21, 2)}, "queueDepth 43": {attachments(64, 2), transports(shallow)}} {
		planned(t, bigServer(), spdk(append(fits, limit("460Mi"))...))
		t.Log(name, "fits")
	}
	deeper := shallow
	deeper.QueueDepth = 44
	for name, over := range map[string][]edit{"attachments.expected 22": {attachments(22, 2)}, "queueDepth 44": {attachments(64, 2), transports(deeper)}} {
		if p, _ := sizing.Plan(bigServer(), spdk(append(over, limit("460Mi"))...)); p != nil {
			t.Errorf("%s fits too: the message should have said it", name)
		}
	}
	_, reasons = sizing.Plan(bigServer(), spdk(limit("64Mi")))
	says(t, "reason", reasons[0].Message, "even one attachment with one queue on one core needs 160 MiB")
}

// The same holds for the pod's ordinary memory, and without hugepages for both together: what the message offers fits,
// and one more does not.
func TestPlanOfSPDKSaysWhatWouldFitThePod(t *testing.T) {
	for _, pages := range []v1alpha1.Hugepages{v1alpha1.Hugepages2Mi, v1alpha1.HugepagesDisabled} {
		t.Run(string(pages), func(t *testing.T) {
			needs := planned(t, bigServer(), spdk(hugepages(pages))).SPDK.PodMemoryBytes
			node := bigServer()
			node.Allocatable = &sizing.Allocatable{CPUs: 60, HugepageBytes: map[int64]int64{page2Mi: 16 * gib}, MemoryBytes: needs - 20<<20}
			_, reasons := sizing.Plan(node, spdk(hugepages(pages)))
			if len(reasons) != 1 || reasons[0].Reason != v1alpha1.ReasonMemoryExceeded {
				t.Fatalf("got %v", reasons)
			}
			says(t, "reason", reasons[0].Message, "20.0 MiB too little", "attachments.expected ", "transports[].queueDepth ", "to spare")
			for name, with := range map[string]func(int32) edit{
				"attachments.expected ": func(n int32) edit { return attachments(n, 2) },
				"transports[].queueDepth ": func(n int32) edit {
					tr := tcp(4420, iface("ens1f0"))
					tr.QueueDepth = n
					return transports(tr)
				},
			} {
				_, offer, _ := strings.Cut(reasons[0].Message, name)
				offer, _, _ = strings.Cut(offer, " ")
				n, err := strconv.ParseInt(offer, 10, 32)
				if err != nil {
					t.Fatal(err)
				}
				planned(t, node, spdk(hugepages(pages), with(int32(n))))
				if p, _ := sizing.Plan(node, spdk(hugepages(pages), with(int32(n+1)))); p != nil {
					t.Errorf("%s%d fits too: the message should have said it", name, n+1)
				}
			}
		})
	}
}

// The plan has memory for copies of the largest clusters that the node's pools have, or had, whatever new ones get.
func TestPlanOfSPDKHasMemoryForCopies(t *testing.T) {
	clusters := func(size string) edit {
		return func(s *v1alpha1.NvmfTargetSpec) { s.Devices.ClusterSize = new(resource.MustParse(size)) }
	}
	for name, test := range map[string]struct {
		node func(*sizing.Node)
		size string
		want int64
	}{
		"as asked for":                {func(*sizing.Node) {}, "1Mi", 1 << 20},
		"as a pool has":               {func(n *sizing.Node) { n.ClusterBytes = 8 << 20 }, "1Mi", 8 << 20},
		"as a pool is made now":       {func(n *sizing.Node) { n.Current = &v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, ClusterBytes: 16 << 20} }, "2Mi", 16 << 20},
		"larger than those there are": {func(n *sizing.Node) { n.ClusterBytes = 4 << 20 }, "16Mi", 16 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			p := planned(t, bigServer(test.node), spdk(clusters(test.size)))
			if size := resource.MustParse(test.size); p.ClusterBytes != size.Value() {
				t.Errorf("new pools get clusters of %d bytes", p.ClusterBytes)
			}
			at := slices.IndexFunc(p.Memory, func(m v1alpha1.MemoryUse) bool { return m.Use == "copies on write" })
			if at < 0 || !strings.Contains(p.Memory[at].How, fmt.Sprintf("a cluster of %d", test.want)) {
				t.Errorf("memory: %+v", p.Memory)
			}
		})
	}
	refused(t, bigServer(), spdk(clusters("3Mi")), []refusal{{v1alpha1.ReasonInvalidSetting, []string{"devices.clusterSize is 3Mi", "use 1Mi, 2Mi, 4Mi, 8Mi or 16Mi"}}})
}
