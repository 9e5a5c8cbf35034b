// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

func sockets(s v1alpha1.Sockets) edit {
	return func(spec *v1alpha1.NvmfTargetSpec) { spec.Sockets = &s }
}

func quantity(s string) *resource.Quantity { return new(resource.MustParse(s)) }

func onTransport(change func(*v1alpha1.Transport)) edit {
	return func(s *v1alpha1.NvmfTargetSpec) {
		for i := range s.Transports {
			change(&s.Transports[i])
		}
	}
}

func TestPlanOfSPDKTakesSocketOptions(t *testing.T) {
	given := v1alpha1.Sockets{
		ZeroCopySend: new(v1alpha1.SwitchDisabled), ZeroCopyThreshold: quantity("4Ki"), ReceivePipe: new(v1alpha1.SwitchDisabled), QuickAck: new(v1alpha1.SwitchEnabled),
		SendBufferSize: quantity("64Ki"), ReceiveBufferSize: quantity("4Mi"), Priority: new(int32(5)),
	}
	p := planned(t, bigServer(), spdk(sockets(given), onTransport(func(t *v1alpha1.Transport) { t.C2HSuccess = new(v1alpha1.SwitchDisabled) })))
	want := &v1alpha1.PlannedSockets{ZeroCopySend: v1alpha1.SwitchDisabled, ZeroCopyThreshold: 4096, ReceivePipe: v1alpha1.SwitchDisabled,
		QuickAck: v1alpha1.SwitchEnabled, SendBufferSize: 64 << 10, ReceiveBufferSize: 4 << 20}
	if diff := cmp.Diff(want, p.SPDK.Sockets); diff != "" {
		t.Errorf("sockets (-want +got):\n%s", diff)
	}
	if tr := p.SPDK.Transports[0]; tr.C2HSuccess != v1alpha1.SwitchDisabled || tr.SocketPriority != 5 {
		t.Errorf("transport: %+v", tr)
	}
	for _, setting := range []string{"sockets.zeroCopySend", "sockets.receivePipe", "sockets.sendBufferSize", "transports[TCP].c2hSuccess", "transports[TCP].socketPriority"} {
		if c := choice(t, p, setting); c.Source != v1alpha1.SourceGiven {
			t.Errorf("%s: source %s", setting, c.Source)
		}
	}
	says(t, "receive buffer", choice(t, p, "sockets.receiveBufferSize").Warning, "net.core.rmem_max", "212992")
	if w := choice(t, p, "sockets.sendBufferSize").Warning; w != "" {
		t.Errorf("a small buffer: %s", w)
	}
	usual := planned(t, bigServer(), spdk())
	if c := choice(t, usual, "sockets.receivePipe"); c.Value != string(v1alpha1.SwitchDisabled) || c.Source != v1alpha1.SourceDefault || c.Warning != "" {
		t.Errorf("the usual receive pipe: %+v", c)
	}
	const use = "pod: TCP socket buffers"
	pairs := memoryOf(t, usual, use) / (2 * 212_992)
	if got := memoryOf(t, p, use); got != pairs*(64<<10+4<<20) {
		t.Errorf("socket buffers of %d queue pairs take %d bytes", pairs, got)
	}
	const queues = "pod: TCP queue pairs"
	if got, want := memoryOf(t, p, queues), memoryOf(t, usual, queues); got != want {
		t.Errorf("%d queue pairs without receive pipes take %d bytes, and %d by default", pairs, got, want)
	}
}

func TestPlanOfSPDKRefusesSocketOptions(t *testing.T) {
	for name, test := range map[string]struct {
		edit edit
		want []string
	}{
		"a switch":       {sockets(v1alpha1.Sockets{QuickAck: new(v1alpha1.Switch("on"))}), []string{`quickAck is "on"; use Enabled or Disabled`}},
		"a receive pipe": {sockets(v1alpha1.Sockets{ReceivePipe: new(v1alpha1.SwitchEnabled)}), []string{"receivePipe is Enabled", "anybody who reaches the portal", "remove it, or use Disabled"}},
		"a small buffer": {sockets(v1alpha1.Sockets{SendBufferSize: quantity("1Ki")}), []string{"sendBufferSize is 1024 bytes; use 4096 to 67108864"}},
		"a priority":     {sockets(v1alpha1.Sockets{Priority: new(int32(16))}), []string{"sockets.priority is 16; use 0 to 15"}},
		"the kernel's":   {sockets(v1alpha1.Sockets{IdlePollPeriod: &metav1.Duration{Duration: time.Millisecond}}), []string{"cores.mode controls polling"}},
		"a transport's":  {onTransport(func(t *v1alpha1.Transport) { t.C2HSuccess = new(v1alpha1.Switch("on")) }), []string{`transports[0].c2hSuccess is "on"`}},
		"without TCP": {func(s *v1alpha1.NvmfTargetSpec) {
			s.Transports, s.Sockets = []v1alpha1.Transport{rdma(4420, iface("ens1f0"))}, &v1alpha1.Sockets{}
		}, []string{"only TCP connections"}},
		"two that differ":    {transports(tcp(4420, iface("ens1f0")), c2h(tcp(4421, iface("ens1f0")))), []string{"differ in c2hSuccess"}},
		"a zero copy border": {sockets(v1alpha1.Sockets{ZeroCopyThreshold: quantity("2Mi")}), []string{"zeroCopyThreshold is 2097152 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, bigServer(), spdk(test.edit), []refusal{{v1alpha1.ReasonInvalidSetting, test.want}})
		})
	}
}

func c2h(t v1alpha1.Transport) v1alpha1.Transport {
	t.C2HSuccess = new(v1alpha1.SwitchDisabled)
	return t
}

func nvmetPlan(t *testing.T, node sizing.Node, edits ...edit) *v1alpha1.Plan {
	t.Helper()
	p, reasons := sizing.Plan(node, spec(edits...))
	if p == nil {
		t.Fatalf("no plan: %v", reasons)
	}
	checkNvmet(t, p)
	return p
}

func srq(mode v1alpha1.SRQMode, depth *int32) edit {
	return func(s *v1alpha1.NvmfTargetSpec) {
		tr := rdma(4420, iface("ens1f0"))
		tr.SRQ = &v1alpha1.SRQ{Mode: mode, Depth: depth}
		s.Transports = []v1alpha1.Transport{tr}
	}
}

// The kernel's target is told what it has a parameter for, and what the kernel does by itself where nothing is asked.
func TestPlanOfNvmetTellsItsModules(t *testing.T) {
	few := func(cpus string) sizing.Node {
		node := server()
		node.Inventory.NUMANodes = []v1alpha1.NUMANode{{CPUs: cpus}}
		return node
	}
	for name, test := range map[string]struct {
		node  sizing.Node
		edits []edit
		want  v1alpha1.NvmetPlan
	}{
		"nothing asked": {server(), nil, v1alpha1.NvmetPlan{TCP: &v1alpha1.NvmetTCP{}}},
		"sockets": {server(), []edit{sockets(v1alpha1.Sockets{Priority: new(int32(6)), IdlePollPeriod: &metav1.Duration{Duration: 50 * time.Microsecond}})},
			v1alpha1.NvmetPlan{TCP: &v1alpha1.NvmetTCP{IdlePollPeriodMicroseconds: 50, SocketPriority: 6}}},
		"both transports": {server(), []edit{transports(tcp(4421, nil), rdma(4420, iface("ens1f0")))}, v1alpha1.NvmetPlan{TCP: &v1alpha1.NvmetTCP{}, RDMA: &v1alpha1.NvmetRDMA{}}},
		// 128 volumes x 2 queues x 128 commands over 4 CPUs.
		"SRQ asked for":     {few("0-3"), []edit{srq(v1alpha1.SRQEnabled, nil)}, v1alpha1.NvmetPlan{RDMA: &v1alpha1.NvmetRDMA{SRQDepth: new(int32(8192))}}},
		"SRQ, many CPUs":    {few("0-127"), []edit{srq(v1alpha1.SRQEnabled, nil)}, v1alpha1.NvmetPlan{RDMA: &v1alpha1.NvmetRDMA{SRQDepth: new(int32(256))}}},
		"SRQ off":           {few("0-3"), []edit{srq(v1alpha1.SRQDisabled, nil)}, v1alpha1.NvmetPlan{RDMA: &v1alpha1.NvmetRDMA{}}},
		"SRQ as it costs":   {few("0-3"), []edit{srq(v1alpha1.SRQAuto, nil)}, v1alpha1.NvmetPlan{RDMA: &v1alpha1.NvmetRDMA{}}},
		"a depth that pays": {few("0-3"), []edit{srq(v1alpha1.SRQAuto, new(int32(1024)))}, v1alpha1.NvmetPlan{RDMA: &v1alpha1.NvmetRDMA{SRQDepth: new(int32(1024))}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := nvmetPlan(t, test.node, test.edits...)
			if diff := cmp.Diff(&test.want, p.Nvmet); diff != "" {
				t.Errorf("modules (-want +got):\n%s", diff)
			}
		})
	}
	says(t, "a shallow queue", choice(t, nvmetPlan(t, few("0-3"), srq(v1alpha1.SRQEnabled, new(int32(1024)))), "nvmet.rdma.srqDepth").Warning, "256 queues full", "retry")
	bounded := few("0-3")
	bounded.Inventory.RDMADevices[0].MaxSRQ, bounded.Inventory.RDMADevices[0].MaxSRQWR = 2, 1000
	bounded.Inventory.RDMADevices[1].MaxSRQ, bounded.Inventory.RDMADevices[1].MaxSRQWR = 2, 1000
	if p := nvmetPlan(t, bounded, srq(v1alpha1.SRQEnabled, nil)); *p.Nvmet.RDMA.SRQDepth != 1000 {
		t.Errorf("on a small device: %d", *p.Nvmet.RDMA.SRQDepth)
	}
	says(t, "on a small device", choice(t, nvmetPlan(t, bounded, srq(v1alpha1.SRQEnabled, nil)), "nvmet.rdma.srqDepth").Why, "2 shared receive queues (one for each completion vector")
	if c := choice(t, nvmetPlan(t, few("0-3"), srq(v1alpha1.SRQDisabled, nil)), "nvmet.rdma.srqDepth"); c.Source != v1alpha1.SourceGiven {
		t.Errorf("SRQs were turned off by the user: %+v", c)
	}
	expectReasons(t, func(n *sizing.Node) { *n = bounded }, srq(v1alpha1.SRQEnabled, new(int32(1024))), []refusal{{v1alpha1.ReasonInvalidSetting, []string{"srq.depth is 1024, but a shared receive queue", "use 1000 or less"}}})
}

// What the kernel has no counterpart for is refused, with what to do.
func TestPlanOfNvmetRefusesWhatTheKernelHasNot(t *testing.T) {
	for name, test := range map[string]struct {
		edit edit
		want string
	}{
		"maxIOSize":        {onTransport(func(t *v1alpha1.Transport) { t.MaxIOSize = quantity("128Ki") }), "transports[0].maxIOSize: the kernel's target has no such limit; remove it, or use engine: SPDK"},
		"placement":        {onTransport(func(t *v1alpha1.Transport) { t.Placement = new(v1alpha1.PlacementCPU) }), "follow the incoming CPU automatically"},
		"c2hSuccess":       {onTransport(func(t *v1alpha1.Transport) { t.C2HSuccess = new(v1alpha1.SwitchEnabled) }), "the host controls it"},
		"zero copy":        {sockets(v1alpha1.Sockets{ZeroCopySend: new(v1alpha1.SwitchEnabled)}), "never copies what it sends"},
		"a pipe":           {sockets(v1alpha1.Sockets{ReceivePipe: new(v1alpha1.SwitchEnabled)}), "inside the kernel"},
		"buffers":          {sockets(v1alpha1.Sockets{SendBufferSize: quantity("1Mi")}), "net.ipv4.tcp_wmem"},
		"an idle day":      {sockets(v1alpha1.Sockets{IdlePollPeriod: &metav1.Duration{Duration: time.Hour}}), "use 0s to 100ms"},
		"a priority":       {sockets(v1alpha1.Sockets{Priority: new(int32(-1))}), "use 0 to 15"},
		"a short SRQ":      {srq(v1alpha1.SRQEnabled, new(int32(64))), "requires at least 256"},
		"an SRQ mode":      {srq("x", nil), "use Auto, Enabled or Disabled"},
		"sockets for RDMA": {func(s *v1alpha1.NvmfTargetSpec) { srq("", nil)(s); s.Sockets = &v1alpha1.Sockets{} }, "only TCP connections"},
		"attachments":      {attachments(5000, 1), "attachments.expected is 5000"},
	} {
		t.Run(name, func(t *testing.T) {
			expectReasons(t, func(*sizing.Node) {}, test.edit, []refusal{{v1alpha1.ReasonInvalidSetting, []string{test.want}}})
		})
	}
}

func TestPlanOfSPDKWarnsOfIdleCores(t *testing.T) {
	says(t, "48 cores for 100 Gb/s", choice(t, planned(t, bigServer(), spdk(count(48))), "coreMask").Warning, "links of ens1f0 100 Gb/s need 8", "little or nothing to do")
	says(t, "12 cores for 4 queues", choice(t, planned(t, bigServer(), spdk(count(12), attachments(4, 1))), "coreMask").Warning, "open 4 I/O queues", "8 of 12 poll groups have no connection")
	if w := choice(t, planned(t, bigServer(), spdk(count(12))), "coreMask").Warning; w != "" {
		t.Errorf("12 cores for 100 Gb/s: %s", w)
	}
}
