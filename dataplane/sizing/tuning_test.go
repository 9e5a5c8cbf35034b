// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

func tuned(t v1alpha1.Tuning) edit {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Tuning = &t }
}

func interrupts(i v1alpha1.NICInterrupts) edit { return tuned(v1alpha1.Tuning{Interrupts: &i}) }

// settings of a plan, as setting=value.
func settings(p *v1alpha1.Plan) []string {
	var all []string
	for _, s := range p.Tuning {
		all = append(all, s.Setting+"="+s.Value)
	}
	return all
}

func TestTuningIsOffUnlessAskedFor(t *testing.T) {
	for _, s := range []v1alpha1.NvmfTargetSpec{spdk(), spec(), spec(tuned(v1alpha1.Tuning{}))} {
		p, reasons := sizing.Plan(bigServer(), s)
		if p == nil || len(p.Tuning) > 0 {
			t.Errorf("%v %v", p, reasons)
		}
	}
}

func TestTuningValueByValue(t *testing.T) {
	one, on, off := new(int32(1)), v1alpha1.SwitchEnabled, v1alpha1.SwitchDisabled
	everything := v1alpha1.Tuning{
		Sysctls: &v1alpha1.TuningSysctls{
			RmemMax: new(int32(16 << 20)), WmemMax: one, RmemDefault: one, WmemDefault: one, OptmemMax: one,
			TCPRmem: &v1alpha1.TCPBuffers{Min: 4096, Default: 131072, Max: 16 << 20}, TCPWmem: &v1alpha1.TCPBuffers{Min: 1, Default: 2, Max: 3},
			NetdevBudget: one, NetdevBudgetUsecs: one, NetdevMaxBacklog: one, DevWeight: one, BusyPoll: one, BusyRead: one, Somaxconn: one,
			DefaultQdisc: "fq", TCPCongestionControl: "dctcp", TCPSlowStartAfterIdle: off,
		},
		Rings:      &v1alpha1.NICRings{RX: new(int32(4096)), TX: one},
		Channels:   &v1alpha1.NICChannels{RX: one, TX: one, Combined: new(int32(4))},
		Coalescing: &v1alpha1.NICCoalescing{RXUsecs: new(int32(16)), RXFrames: one, AdaptiveTX: on},
		Offloads:   &v1alpha1.NICOffloads{TSO: on, GSO: on, GRO: on, LRO: off},
		Interrupts: &v1alpha1.NICInterrupts{CPUs: "16-19"},
	}
	want := strings.Split(`ens1f0/channels.combined=4
ens1f0/channels.rx=1
ens1f0/channels.tx=1
ens1f0/coalescing.adaptiveRX=off
ens1f0/coalescing.adaptiveTX=on
ens1f0/coalescing.rxFrames=1
ens1f0/coalescing.rxUsecs=16
ens1f0/interrupts=16-19
ens1f0/offloads.rx-gro=on
ens1f0/offloads.rx-lro=off
ens1f0/offloads.tx-generic-segmentation=on
ens1f0/offloads.tx-tcp-segmentation=on
ens1f0/offloads.tx-tcp6-segmentation=on
ens1f0/rings.rx=4096
ens1f0/rings.tx=1
net.core.busy_poll=1
net.core.busy_read=1
net.core.default_qdisc=fq
net.core.dev_weight=1
net.core.netdev_budget=1
net.core.netdev_budget_usecs=1
net.core.netdev_max_backlog=1
net.core.optmem_max=1
net.core.rmem_default=1
net.core.rmem_max=16777216
net.core.somaxconn=1
net.core.wmem_default=1
net.core.wmem_max=1
net.ipv4.tcp_congestion_control=dctcp
net.ipv4.tcp_rmem=4096 131072 16777216
net.ipv4.tcp_slow_start_after_idle=0
net.ipv4.tcp_wmem=1 2 3`, "\n")
	p := planned(t, bigServer(), spdk(tuned(everything)))
	if diff := cmp.Diff(want, settings(p)); diff != "" {
		t.Errorf("of SPDK (-want +got):\n%s", diff)
	}
	c := choice(t, p, "tuning.coalescing.adaptiveRX")
	if c.Source != v1alpha1.SourceComputed {
		t.Errorf("adaptiveRX: %+v", c)
	}
	kernel, reasons := sizing.Plan(bigServer(), spec(transports(tcp(4420, iface("ens1f0"))), tuned(everything)))
	if kernel == nil {
		t.Fatal(reasons)
	}
	checkNvmet(t, kernel)
	if diff := cmp.Diff(want, settings(kernel)); diff != "" {
		t.Errorf("of the kernel's target (-want +got):\n%s", diff)
	}
}

func TestTunedNICs(t *testing.T) {
	rings := tuned(v1alpha1.Tuning{Rings: &v1alpha1.NICRings{RX: new(int32(64))}})
	for name, test := range map[string]struct {
		node sizing.Node
		spec v1alpha1.NvmfTargetSpec
		want []string
	}{
		"two portals on one NIC":     {server(), spec(transports(tcp(4420, cidr("10.20.0.0/16")), tcp(4421, iface("ens1f0"))), rings), []string{"ens1f0/rings.rx=64"}},
		"two NICs":                   {server(), spec(transports(tcp(4420, iface("ens1f0")), tcp(4421, iface("eno1"))), rings), []string{"eno1/rings.rx=64", "ens1f0/rings.rx=64"}},
		"a VLAN is tuned below":      {server(), spec(transports(tcp(4420, iface("ens1f0.7"))), rings), []string{"ens1f0/rings.rx=64"}},
		"RDMA is tuned as TCP is":    {server(), spec(transports(rdma(4420, iface("ens1f0"))), rings), []string{"ens1f0/rings.rx=64"}},
		"an address that no NIC has": {bridged(), spec(rings), nil},
	} {
		t.Run(name, func(t *testing.T) {
			p, reasons := sizing.Plan(test.node, test.spec)
			if p == nil {
				t.Fatal(reasons)
			}
			checkNvmet(t, p)
			if diff := cmp.Diff(test.want, settings(p)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if test.want == nil {
				says(t, "warning", choice(t, p, "tuning.nics").Warning, "192.0.2.77 is not an address of a NIC", "transports[].network")
			}
		})
	}
}

func bridged() sizing.Node {
	n := server()
	n.InternalIPs = []string{"192.0.2.77"}
	return n
}

func TestInterrupts(t *testing.T) {
	for name, test := range map[string]struct {
		spec   v1alpha1.NvmfTargetSpec
		want   string
		groups string // mask of the poll groups; "" for all cores
		warns  string
	}{
		"a count, apart from the target's cores": {spec: spdk(count(4), interrupts(v1alpha1.NICInterrupts{Count: new(int32(4))})), want: "20-23"},
		"a count for the kernel's target":        {spec: spec(transports(tcp(4420, iface("ens1f0"))), interrupts(v1alpha1.NICInterrupts{Count: new(int32(4))})), want: "16-19"},
		"a count that takes siblings":            {spec: spdk(count(4), interrupts(v1alpha1.NICInterrupts{Count: new(int32(14))})), want: "20-31,48-49"},
		"CPU 0 last":                             {spec: spec(transports(tcp(4420, iface("eno1"))), interrupts(v1alpha1.NICInterrupts{Count: new(int32(15))})), want: "1-15"},
		"a count beyond what is free":            {spec: spdk(count(4), interrupts(v1alpha1.NICInterrupts{Count: new(int32(64))})), want: "0-63", warns: "CPUs 16-19 also serve the target's connections"},
		"a count that takes cores of the target's, of which enough are left": {spec: spdk(mask("0xfffffffffffffffe"), interrupts(v1alpha1.NICInterrupts{Count: new(int32(4))})), want: "0,16-18", groups: "0xfffffffffff8fffe"},
		"CPUs": {spec: spdk(mask("0xf0000"), interrupts(v1alpha1.NICInterrupts{CPUs: "16,18"})), want: "16,18", warns: "CPUs 16,18 also serve"},
		"many CPUs of many cores that leave enough": {spec: spdk(mask("0xfffffffffffffffe"), interrupts(v1alpha1.NICInterrupts{CPUs: "9-63"})), want: "9-63", groups: "0x1fe"},
		"CPUs that leave enough":                    {spec: spdk(mask("0x3ff0000"), interrupts(v1alpha1.NICInterrupts{CPUs: "16-17"})), want: "16-17", groups: "0x3fc0000"},
		"cores go around them":                      {spec: spdk(count(8), interrupts(v1alpha1.NICInterrupts{CPUs: "16-19"})), want: "16-19"},
		"all but some":                              {spec: spdk(mask("0xf0000"), interrupts(v1alpha1.NICInterrupts{Avoid: "16-19,48-63"})), want: "20-31"},
		"all of the NUMA node avoided":              {spec: spec(transports(tcp(4420, iface("ens1f0"))), interrupts(v1alpha1.NICInterrupts{Avoid: "16-31,48-63"})), want: "0-15,32-47"},
	} {
		t.Run(name, func(t *testing.T) {
			p, reasons := sizing.Plan(bigServer(), test.spec)
			if p == nil {
				t.Fatal(reasons)
			}
			checkPlan(t, bigServer(), p)
			last := p.Tuning[len(p.Tuning)-1]
			if last.Value != test.want {
				t.Errorf("%s goes to %s, want %s", last.Setting, last.Value, test.want)
			}
			c := choice(t, p, "tuning."+last.Setting)
			if says(t, "warning", c.Warning, test.warns); test.warns == "" && c.Warning != "" {
				t.Errorf("warns: %s", c.Warning)
			}
			if p.SPDK != nil && p.SPDK.PollGroupMask != test.groups {
				t.Errorf("poll groups %q of cores %s, want %q", p.SPDK.PollGroupMask, p.SPDK.CoreMask, test.groups)
			}
		})
	}
}

func TestInterruptsRefused(t *testing.T) {
	all := "0-63"
	for name, test := range map[string]struct {
		interrupts v1alpha1.NICInterrupts
		reason     string
		words      []string
	}{
		"CPUs that are not there": {v1alpha1.NICInterrupts{CPUs: "62-65"}, v1alpha1.ReasonNotEnoughCPUs, []string{"does not have (64-65)", "it has 0-63"}},
		"none left":               {v1alpha1.NICInterrupts{Avoid: all}, v1alpha1.ReasonNotEnoughCPUs, []string{"contains all CPUs of node storage-1", "remove some"}},
		"more than there are":     {v1alpha1.NICInterrupts{Count: new(int32(65))}, v1alpha1.ReasonNotEnoughCPUs, []string{"is 65", "64 CPUs", "use 1 to 64"}},
		"CPUs that no node has":   {v1alpha1.NICInterrupts{CPUs: "4000"}, v1alpha1.ReasonInvalidSetting, []string{"no CPU from 0 to 1023"}},
		"nothing":                 {v1alpha1.NICInterrupts{}, v1alpha1.ReasonInvalidSetting, []string{"set cpus or avoid, such as 0-3,8, or a count"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, reasons := sizing.Plan(bigServer(), spdk(interrupts(test.interrupts)))
			if p != nil || len(reasons) != 1 || reasons[0].Reason != test.reason {
				t.Fatalf("%v %v", p, reasons)
			}
			says(t, "reason", reasons[0].Message, test.words...)
		})
	}
}
