// SPDX-License-Identifier: Apache-2.0

//go:build lab

package tuning_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/tuning"
)

// These tests change the machine's kernel and NICs, and put everything back: make test-lab runs them in a virtual
// machine of their own.

func machine(t *testing.T) *tuning.Machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("this test changes the machine's NICs, and needs to be root in a machine of its own: run make test-lab")
	}
	drivers, err := tuning.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drivers.Close)
	return tuning.NewMachine("/", drivers)
}

func planned(settings map[string]string) []v1alpha1.PlannedSetting {
	var all []v1alpha1.PlannedSetting
	for setting, value := range settings {
		all = append(all, v1alpha1.PlannedSetting{Setting: setting, Value: value})
	}
	return all
}

// kept is where the agent keeps its record.
type kept struct{ record v1alpha1.TuningStatus }

func (k *kept) store(_ context.Context, record v1alpha1.TuningStatus) error {
	k.record = *record.DeepCopy()
	return nil
}

func (k *kept) run(t *testing.T, m *tuning.Machine, want map[string]string) tuning.Result {
	t.Helper()
	result, err := tuning.Run(t.Context(), m, planned(want), k.record, k.store)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range result.Record.Settings {
		t.Logf("%-45s %-10s %s -> %s %s", s.Setting, s.State, s.Former, s.Value, s.Message)
	}
	k.record = result.Record
	return result
}

// sh runs a command of the machine, which sees what the kernel has by other ways than ours where there are such.
func sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

func sysctl(t *testing.T, name string) string {
	t.Helper()
	return sh(t, "cat /proc/sys/"+strings.ReplaceAll(name, ".", "/"))
}

// TestSysctls sets all that a target may ask for.
func TestSysctls(t *testing.T) {
	g := NewWithT(t)
	m, k := machine(t), &kept{}
	want := map[string]string{
		"net.core.rmem_max": "16777216", "net.core.wmem_max": "16777217", "net.core.rmem_default": "262144", "net.core.wmem_default": "262145",
		"net.core.optmem_max": "65536", "net.core.netdev_budget": "601", "net.core.netdev_budget_usecs": "12000", "net.core.netdev_max_backlog": "20000",
		"net.core.dev_weight": "128", "net.core.busy_poll": "50", "net.core.busy_read": "51", "net.core.somaxconn": "8192",
		"net.core.default_qdisc": "pfifo", "net.ipv4.tcp_congestion_control": "reno", "net.ipv4.tcp_slow_start_after_idle": "0",
		"net.ipv4.tcp_rmem": "4096 131073 16777216", "net.ipv4.tcp_wmem": "4096 65537 16777216",
	}
	before := map[string]string{}
	for name, value := range want {
		before[name] = sysctl(t, name)
		g.Expect(before[name]).NotTo(Equal(value), "%s: a test that changes nothing shows nothing", name)
	}
	result := k.run(t, m, want)
	g.Expect(result.Problems).To(BeEmpty())
	for name, value := range want {
		g.Expect(sysctl(t, name)).To(Equal(value), name)
	}
	for _, s := range k.record.Settings {
		g.Expect(s.State).To(Equal(v1alpha1.TuningApplied), s.Setting)
		g.Expect(s.Former).To(Equal(before[s.Setting]), s.Setting)
	}
	g.Expect(k.run(t, m, want).Writes).To(BeZero())
	k.run(t, m, nil)
	for name, value := range before {
		g.Expect(sysctl(t, name)).To(Equal(value), name)
	}
	g.Expect(k.record).To(Equal(v1alpha1.TuningStatus{}))
}

// nicOf is the first interface of a driver.
func nicOf(t *testing.T, driver string) string {
	t.Helper()
	return sh(t, `for n in /sys/class/net/*; do [ "$(basename "$(readlink -f $n/device/driver)")" = `+driver+` ] && basename $n && exit 0; done; echo no NIC of `+driver+`; exit 1`)
}

// TestVirtioNIC has a driver with rings that it can change, offloads, and interrupts of its own.
func TestVirtioNIC(t *testing.T) {
	g := NewWithT(t)
	m, k := machine(t), &kept{}
	nic := nicOf(t, "virtio_net")
	irqs := strings.Fields(sh(t, "ls $(readlink -f /sys/class/net/"+nic+"/device/..)/msi_irqs"))
	g.Expect(irqs).NotTo(BeEmpty())
	affinity := func() string {
		return sh(t, "cd /proc/irq && cat "+strings.Join(irqs, "/smp_affinity_list ")+"/smp_affinity_list")
	}
	names := map[tuning.Group][]string{tuning.Rings: {"rx", "tx"}, tuning.Offloads: {"tx-generic-segmentation", "rx-gro"}}
	tso, err := m.Read(t.Context(), tuning.Place{NIC: nic, Group: tuning.Offloads}, []string{"tx-tcp-segmentation", "tx-tcp6-segmentation"})
	g.Expect(err).NotTo(HaveOccurred())
	for name, is := range tso {
		t.Logf("%s: %+v", name, is)
		if !is.Fixed { // as the host's side of the NIC has it
			names[tuning.Offloads] = append(names[tuning.Offloads], name)
		}
	}
	now := func() map[string]string {
		all := map[string]string{"affinity": affinity()}
		for group, of := range names {
			readings, err := m.Read(t.Context(), tuning.Place{NIC: nic, Group: group}, of)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(readings).To(HaveLen(len(of)))
			for name, r := range readings {
				all[string(group)+"."+name] = r.Value
			}
		}
		return all
	}
	before := now()
	want := map[string]string{nic + "/interrupts": "1", nic + "/rings.rx": half(g, before["rings.rx"]), nic + "/rings.tx": half(g, before["rings.tx"])}
	for _, name := range names[tuning.Offloads] {
		want[nic+"/offloads."+name] = map[string]string{"on": "off", "off": "on"}[before["offloads."+name]]
	}
	result := k.run(t, m, want)
	g.Expect(result.Problems).To(BeEmpty())
	is := now()
	for setting, value := range want {
		if name, _ := strings.CutPrefix(setting, nic+"/"); name != "interrupts" {
			g.Expect(is[name]).To(Equal(value), setting)
		}
	}
	g.Expect(strings.Fields(is["affinity"])).To(HaveEach("1"))
	for _, s := range k.record.Settings {
		g.Expect(s.State).To(Equal(v1alpha1.TuningApplied), s.Setting)
	}
	g.Expect(k.run(t, m, want).Writes).To(BeZero())
	g.Expect(k.run(t, m, nil).Problems).To(BeEmpty())
	g.Expect(now()).To(Equal(before))
	g.Expect(k.record).To(Equal(v1alpha1.TuningStatus{}))
}

func half(g *WithT, value string) string {
	n, err := strconv.Atoi(value)
	g.Expect(err).NotTo(HaveOccurred())
	return strconv.Itoa(n / 2)
}

// TestRefusedByTheKernel: what the real kernel and a real driver say no to stops nothing else, and is told with what to
// write.
func TestRefusedByTheKernel(t *testing.T) {
	g := NewWithT(t)
	m, k := machine(t), &kept{}
	nic := nicOf(t, "virtio_net")
	budget := sysctl(t, "net.core.netdev_budget")
	result := k.run(t, m, map[string]string{
		nic + "/rings.rx": "65536", nic + "/offloads.tx-tcp-nonsense": "on", nic + "/coalescing.rxUsecs": "9999", "net.core.default_qdisc": "nonsense",
		"net.core.netdev_budget": "700", "nothere0/rings.rx": "64",
	})
	messages := map[string]string{}
	for _, s := range k.record.Settings {
		messages[s.Setting] = string(s.State) + ": " + s.Message
	}
	g.Expect(messages).To(HaveKeyWithValue("net.core.netdev_budget", "Applied: "))
	g.Expect(messages).To(HaveKeyWithValue("net.core.default_qdisc", And(HavePrefix("Refused"), ContainSubstring("no such file or directory"), ContainSubstring("load the kernel module"))))
	g.Expect(messages).To(HaveKeyWithValue(nic+"/rings.rx", And(HavePrefix("Refused"), ContainSubstring("invalid argument"), ContainSubstring("the maximum of the driver"))))
	g.Expect(messages).To(HaveKeyWithValue(nic+"/coalescing.rxUsecs", And(HavePrefix("Refused"), ContainSubstring("remove it from spec.tuning"))))
	g.Expect(result.Problems).To(ConsistOf(
		nic+"/offloads.tx-tcp-nonsense: the driver of "+nic+" has no such setting; remove it from spec.tuning",
		"nothere0/rings.rx: the node has no interface nothere0"))
	k.run(t, m, nil)
	g.Expect(sysctl(t, "net.core.netdev_budget")).To(Equal(budget))
	g.Expect(k.record).To(Equal(v1alpha1.TuningStatus{}))
}

// TestChannelsAndANICThatGoes: veth has channels to change, and can be taken away and made again.
func TestChannelsAndANICThatGoes(t *testing.T) {
	g := NewWithT(t)
	m, k := machine(t), &kept{}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "weft-t0", NumRxQueues: 4, NumTxQueues: 4, TxQLen: 1000}, PeerName: "weft-t1"}
	g.Expect(netlink.LinkAdd(veth)).To(Succeed())
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("weft-t0"); err == nil {
			g.Expect(netlink.LinkDel(link)).To(Succeed())
		}
	})
	channels := func() string {
		readings, err := m.Read(t.Context(), tuning.Place{NIC: "weft-t0", Group: tuning.Channels}, []string{"rx", "tx", "combined"})
		g.Expect(err).NotTo(HaveOccurred())
		return readings["rx"].Value + " " + readings["tx"].Value
	}
	before := channels()
	want := map[string]string{"weft-t0/channels.rx": "2", "weft-t0/channels.tx": "3", "weft-t0/offloads.rx-gro": "on"}
	g.Expect(k.run(t, m, want).Problems).To(BeEmpty())
	g.Expect(channels()).To(Equal("2 3"))
	g.Expect(k.run(t, m, want).Writes).To(BeZero())
	k.run(t, m, nil)
	g.Expect(channels()).To(Equal(before))

	k.run(t, m, want)
	index := k.record.NICs[0].Index
	g.Expect(netlink.LinkDel(veth)).To(Succeed())
	result := k.run(t, m, want)
	g.Expect(result.Problems).To(HaveLen(3))
	g.Expect(result.Problems).To(HaveEach(ContainSubstring("the node has no interface weft-t0")))
	g.Expect(k.record.Settings).To(BeEmpty(), "it took its settings with it")
	again := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "weft-t0", NumRxQueues: 4, NumTxQueues: 4, TxQLen: 1000}, PeerName: "weft-t1"}
	g.Expect(netlink.LinkAdd(again)).To(Succeed())
	g.Expect(k.run(t, m, want).Problems).To(BeEmpty())
	g.Expect(k.record.NICs[0].Index).NotTo(Equal(index))
	g.Expect(channels()).To(Equal("2 3"))

	// Another name is the same NIC.
	link, err := netlink.LinkByName("weft-t0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(netlink.LinkSetName(link, "weft-t9")).To(Succeed())
	k.run(t, m, nil)
	g.Expect(netlink.LinkSetName(link, "weft-t0")).To(Succeed())
	g.Expect(channels()).To(Equal(before))
	g.Expect(k.record).To(Equal(v1alpha1.TuningStatus{}))
}

// TestCoalescing by a tap, whose driver takes numbers of frames, cuts down those over 64, and has no times.
func TestCoalescing(t *testing.T) {
	g := NewWithT(t)
	m, k := machine(t), &kept{}
	sh(t, "[ -e /dev/net/tun ] || modprobe tun")
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "weft-tap0"}, Mode: netlink.TUNTAP_MODE_TAP}
	g.Expect(netlink.LinkAdd(tap)).To(Succeed())
	t.Cleanup(func() { g.Expect(netlink.LinkDel(tap)).To(Succeed()) })
	frames := func() string {
		readings, err := m.Read(t.Context(), tuning.Place{NIC: "weft-tap0", Group: tuning.Coalescing}, []string{"rxFrames"})
		g.Expect(err).NotTo(HaveOccurred())
		return readings["rxFrames"].Value
	}
	before := frames()
	k.run(t, m, map[string]string{"weft-tap0/coalescing.rxFrames": "16", "weft-tap0/coalescing.rxUsecs": "8"})
	g.Expect(frames()).To(Equal("16"), "though the driver has no rxUsecs")
	k.run(t, m, map[string]string{"weft-tap0/coalescing.rxFrames": "100"})
	g.Expect(frames()).To(Equal("64"))
	g.Expect(k.record.Settings).To(HaveLen(1))
	g.Expect(k.record.Settings[0].State).To(Equal(v1alpha1.TuningClamped))
	g.Expect(k.record.Settings[0].Message).To(Equal("requested 100, but the kernel set 64; use 64"))
	g.Expect(k.run(t, m, map[string]string{"weft-tap0/coalescing.rxFrames": "100"}).Writes).To(BeZero())
	k.run(t, m, nil)
	g.Expect(frames()).To(Equal(before))
	g.Expect(k.record).To(Equal(v1alpha1.TuningStatus{}))
}
