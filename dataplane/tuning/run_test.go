// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package tuning_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/tuning"
)

// wanted settings, written setting=value.
func wanted(settings ...string) []v1alpha1.PlannedSetting {
	var all []v1alpha1.PlannedSetting
	for _, s := range settings {
		setting, value, _ := strings.Cut(s, "=")
		all = append(all, v1alpha1.PlannedSetting{Setting: setting, Value: value})
	}
	return all
}

// everything that a plan may say, in a wrong order.
var everything = wanted(
	"eth0/interrupts=0-1", "eth0/offloads.rx-gro=off", "eth0/offloads.tx-tcp-segmentation=off", "eth0/coalescing.adaptiveRX=off",
	"eth0/coalescing.rxUsecs=16", "eth0/rings.rx=1024", "eth0/rings.tx=512", "eth0/channels.combined=2",
	"net.core.rmem_max=16777216", "net.core.netdev_budget=600", "net.ipv4.tcp_rmem=4096 131072 16777216",
)

// store is the API server: what it keeps outlives its callers.
type store struct{ record v1alpha1.TuningStatus }

func (s *store) put(_ context.Context, record v1alpha1.TuningStatus) error {
	s.record = *record.DeepCopy()
	return nil
}

// run to the end, and store the result, as the agent does.
func (s *store) run(t *testing.T, h tuning.Host, want []v1alpha1.PlannedSetting) tuning.Result {
	t.Helper()
	result, err := tuning.Run(t.Context(), h, want, s.record, s.put)
	if err != nil {
		t.Fatal(err)
	}
	s.record = result.Record
	return result
}

func (s *store) states() map[string]string {
	all := map[string]string{}
	for _, t := range s.record.Settings {
		all[t.Setting] = fmt.Sprintf("%s %s->%s", t.State, t.Former, t.Value)
	}
	return all
}

func TestAppliedAndPutBack(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	before := h.Everything()

	g.Expect(s.run(t, h, nil).Writes).To(BeZero())
	g.Expect(s.record).To(Equal(v1alpha1.TuningStatus{}), "nothing was asked for")

	result := s.run(t, h, everything)
	g.Expect(result.Problems).To(BeEmpty())
	g.Expect(result.Drifted).To(BeEmpty())
	g.Expect(s.states()).To(Equal(map[string]string{
		"net.core.rmem_max":      "Applied 212992->16777216",
		"net.core.netdev_budget": "Applied 300->600",
		"net.ipv4.tcp_rmem":      "Applied 4096 131072 6291456->4096 131072 16777216",
		"eth0/channels.combined": "Applied 4->2",
		"eth0/rings.rx":          "Applied 256->1024", "eth0/rings.tx": "Applied 256->512",
		"eth0/coalescing.adaptiveRX": "Applied on->off", "eth0/coalescing.rxUsecs": "Applied 8->16",
		"eth0/offloads.rx-gro": "Applied on->off", "eth0/offloads.tx-tcp-segmentation": "Applied on->off",
		"eth0/interrupts.44": "Applied 0-7->0", "eth0/interrupts.45": "Applied 0-7->1",
	}))
	g.Expect(s.record.BootID).To(Equal("boot-1"))
	g.Expect(s.record.NICs).To(Equal([]v1alpha1.TunedNIC{{Name: "eth0", Index: 2}}))

	made := h.Writes()
	g.Expect(s.run(t, h, everything).Writes).To(BeZero())
	g.Expect(h.Writes()).To(Equal(made), "nothing is written that is as it should be")

	result = s.run(t, h, nil)
	g.Expect(result.Problems).To(BeEmpty())
	g.Expect(s.record).To(Equal(v1alpha1.TuningStatus{}))
	after := h.Everything()
	g.Expect(irqs(after)).To(ConsistOf("0-7", "0-7", "0-7", "0-7"), "four new ones")
	g.Expect(withoutIRQs(after)).To(Equal(withoutIRQs(before)))
}

func irqs(all map[string]string) []string {
	var cpus []string
	for setting, value := range all {
		if strings.Contains(setting, "/interrupts.") {
			cpus = append(cpus, value)
		}
	}
	return cpus
}

func withoutIRQs(all map[string]string) map[string]string {
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(setting, _ string) bool { return strings.Contains(setting, "/interrupts.") })
	return all
}

func TestAFieldTakenAway(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	s.run(t, h, wanted("net.core.rmem_max=16777216", "eth0/rings.rx=1024", "eth0/rings.tx=1024"))
	s.run(t, h, wanted("net.core.rmem_max=33554432", "eth0/rings.rx=1024"))
	g.Expect(s.states()).To(Equal(map[string]string{
		"net.core.rmem_max": "Applied 212992->33554432", "eth0/rings.rx": "Applied 256->1024",
	}), "and what was before is not what weft itself wrote")
	g.Expect(h.Everything()).To(HaveKeyWithValue("eth0/rings.tx", "256"))
}

var errKilled = errors.New("killed")

// TestKilledAnywhere ends the agent before each of its steps in turn, while it sets and while it puts back; its
// successor has the same result, and what was before is never lost.
func TestKilledAnywhere(t *testing.T) {
	for _, phase := range []string{"set", "put back"} {
		for step := 1; ; step++ {
			g := NewWithT(t)
			h, s := enginetest.NewMachine(), &store{}
			before := h.Everything()
			want := everything
			if phase == "put back" {
				s.run(t, h, everything)
				want = nil
			}
			steps := 0
			alive := func(string) error {
				if steps++; steps >= step {
					return errKilled
				}
				return nil
			}
			h.Before = alive
			result, err := tuning.Run(t.Context(), h, want, s.record, func(ctx context.Context, r v1alpha1.TuningStatus) error {
				if err := alive("store"); err != nil {
					return err
				}
				return errors.Join(s.put(ctx, r), alive("stored"))
			})
			if err == nil && steps < step {
				g.Expect(s.put(t.Context(), result.Record)).To(Succeed())
			}
			h.Before = nil
			s.run(t, h, want)
			g.Expect(s.run(t, h, want).Writes).To(BeZero(), "%s, step %d", phase, step)
			s.run(t, h, nil)
			g.Expect(withoutIRQs(h.Everything())).To(Equal(withoutIRQs(before)), "%s, killed at step %d", phase, step)
			g.Expect(irqs(h.Everything())).To(HaveEach("0-7"), "%s, killed at step %d", phase, step)
			g.Expect(s.record).To(Equal(v1alpha1.TuningStatus{}))
			if steps < step {
				g.Expect(step).To(BeNumerically(">", 10), "it was killed more than a few times")
				break
			}
		}
	}
}

func TestNothingIsWrittenWithoutARecord(t *testing.T) {
	g := NewWithT(t)
	h := enginetest.NewMachine()
	_, err := tuning.Run(t.Context(), h, everything, v1alpha1.TuningStatus{}, func(context.Context, v1alpha1.TuningStatus) error { return errKilled })
	g.Expect(err).To(MatchError(errKilled))
	g.Expect(h.Writes()).To(BeEmpty())
}

func TestDriftIsPutRight(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	want := wanted("net.core.rmem_max=16777216", "eth0/interrupts=0")
	s.run(t, h, want)
	h.Kernel["net.core.rmem_max"] = "1048576"
	h.Interfaces["eth0"].IRQs["41"] = "5"
	result := s.run(t, h, want)
	g.Expect(result.Drifted).To(ConsistOf(
		"net.core.rmem_max (was 16777216, had become 1048576)", "eth0/interrupts.41 (was 0, had become 5)"))
	g.Expect(s.states()).To(HaveKeyWithValue("net.core.rmem_max", "Applied 212992->16777216"))
	g.Expect(s.run(t, h, want).Drifted).To(BeEmpty())
}

// A driver that restarts with other channels gives its interrupts back to all CPUs, under the numbers that they had.
// That is nobody else's doing.
func TestResetByAnotherSetting(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	s.run(t, h, wanted("eth0/interrupts=3"))
	h.Interfaces["eth0"].NextIRQ = 40
	result := s.run(t, h, wanted("eth0/interrupts=3", "eth0/channels.combined=2"))
	g.Expect(result.Drifted).To(BeEmpty())
	g.Expect(h.Interfaces["eth0"].IRQs).To(Equal(map[string]string{"40": "3", "41": "3"}))
	g.Expect(s.states()).To(Equal(map[string]string{
		"eth0/channels.combined": "Applied 4->2", "eth0/interrupts.40": "Applied 0-7->3", "eth0/interrupts.41": "Applied 0-7->3",
	}))
}

func TestRefusedAndClamped(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	before := h.Everything()
	refused := map[string]int{}
	h.Refuse = func(p tuning.Place, name, value string) error {
		refused[name]++
		switch name {
		case "net.core.default_qdisc":
			return &wrapped{"write /proc/sys/net/core/default_qdisc", syscall.ENOENT}
		case "rxFrames":
			return syscall.EOPNOTSUPP
		}
		return nil
	}
	h.Clamp = func(p tuning.Place, name, value string) string {
		if name == "tx" && value == "1000" {
			return "1024"
		}
		return value
	}
	want := wanted("net.core.default_qdisc=nonsense", "net.core.netdev_budget=600", "eth0/rings.rx=9999", "eth0/rings.tx=1000",
		"eth0/coalescing.rxFrames=1", "eth0/coalescing.adaptiveRX=off", "eth0/channels.rx=2", "eth7/rings.rx=2", "net.core.unknown=1", "eth0/speed.mbps=1")
	result := s.run(t, h, want)
	g.Expect(refused).To(And(HaveKeyWithValue("net.core.default_qdisc", BeNumerically("<=", 2)), HaveKeyWithValue("rxFrames", BeNumerically("<=", 2))),
		"with its group, and by itself; not again in the rounds that follow")
	g.Expect(s.states()).To(Equal(map[string]string{
		"net.core.default_qdisc": "Refused pfifo_fast->pfifo_fast", "net.core.netdev_budget": "Applied 300->600",
		"eth0/rings.rx": "Refused 256->256", "eth0/rings.tx": "Clamped 256->1024",
		"eth0/coalescing.rxFrames": "Refused 128->128", "eth0/coalescing.adaptiveRX": "Applied on->off",
	}), "what is refused stops nothing else")
	g.Expect(messages(s)).To(Equal(map[string]string{
		"net.core.default_qdisc":   "requested nonsense, but the kernel answered: write /proc/sys/net/core/default_qdisc: no such file or directory; it is pfifo_fast; load the kernel module that provides it, or choose another value",
		"eth0/rings.rx":            "requested 9999, but the kernel answered: invalid argument; it is 256; use at most 4096, the maximum of the driver",
		"eth0/rings.tx":            "requested 1000, but the kernel set 1024; use 1024 (the maximum of the driver is 4096)",
		"eth0/coalescing.rxFrames": "requested 1, but the kernel answered: operation not supported; it is 128; the driver does not support it: remove it from spec.tuning",
	}))
	g.Expect(result.Problems).To(ConsistOf(
		"eth0/channels.rx: the driver of eth0 has no such setting; remove it from spec.tuning",
		"eth7/rings.rx: the node has no interface eth7",
		"net.core.unknown: the node's kernel has no such parameter; remove it from spec.tuning",
		"setting eth0/speed.mbps is unknown to this agent; update the agent",
	))

	made, record := len(h.Writes()), s.record
	s.run(t, h, want)
	g.Expect(h.Writes()).To(HaveLen(made), "a clamped value is not written again, and refused ones were refused again")
	g.Expect(s.record).To(Equal(record), "nothing new, so nothing to write into the status")

	h.Refuse = nil
	s.run(t, h, nil)
	g.Expect(h.Everything()).To(Equal(before))
}

type wrapped struct {
	what string
	error
}

func (w *wrapped) Error() string { return w.what + ": " + w.error.Error() }
func (w *wrapped) Unwrap() error { return w.error }

func messages(s *store) map[string]string {
	all := map[string]string{}
	for _, t := range s.record.Settings {
		if t.Message != "" {
			all[t.Setting] = t.Message
		}
	}
	return all
}

func TestNotPutBack(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	s.run(t, h, wanted("net.core.rmem_max=16777216", "net.core.netdev_budget=600"))
	h.Refuse = func(_ tuning.Place, name, _ string) error {
		if name == "net.core.rmem_max" {
			return syscall.EPERM
		}
		return nil
	}
	s.run(t, h, nil)
	g.Expect(s.states()).To(Equal(map[string]string{"net.core.rmem_max": "NotPutBack 212992->16777216"}))
	g.Expect(messages(s)["net.core.rmem_max"]).To(HavePrefix("its previous value 212992 could not be restored: requested 212992, but the kernel answered: operation not permitted"))
	h.Refuse = nil
	s.run(t, h, nil)
	g.Expect(s.record.Settings).To(BeEmpty())
	g.Expect(h.Kernel["net.core.rmem_max"]).To(Equal("212992"))
}

func TestANICThatCannotBeReadIsNotGone(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	s.run(t, h, wanted("eth0/rings.rx=1024", "net.core.rmem_max=16777216"))
	h.Before = func(call string) error {
		if strings.Contains(call, "rings") {
			return syscall.EBUSY
		}
		return nil
	}
	result := s.run(t, h, nil)
	g.Expect(result.Problems).To(ConsistOf("eth0/rings.rx should be restored to 256, but could not be read: device or resource busy"))
	g.Expect(s.states()).To(Equal(map[string]string{"eth0/rings.rx": "Applied 256->1024"}))
	h.Before = nil
	s.run(t, h, nil)
	g.Expect(h.Everything()).To(HaveKeyWithValue("eth0/rings.rx", "256"))
}

func TestWhatARecordIsGoodFor(t *testing.T) {
	want := wanted("net.core.rmem_max=16777216", "eth0/rings.rx=1024")
	for name, test := range map[string]struct {
		change func(h *enginetest.Machine)
		want   []v1alpha1.PlannedSetting
		states map[string]string
		writes []string
	}{
		"another boot, still wanted": {
			change: func(h *enginetest.Machine) {
				h.Reboot("boot-2")
				h.Kernel["net.core.rmem_max"] = "425984"
			},
			want:   want,
			states: map[string]string{"net.core.rmem_max": "Applied 425984->16777216", "eth0/rings.rx": "Applied 256->1024"},
			writes: []string{"/sysctls.net.core.rmem_max=16777216", "eth0/rings.rx=1024"},
		},
		"another boot, not wanted any more": {
			change: func(h *enginetest.Machine) {
				h.Reboot("boot-2")
				h.Kernel["net.core.rmem_max"] = "425984"
			},
			states: map[string]string{},
		},
		"a NIC that went": {
			change: func(h *enginetest.Machine) { delete(h.Interfaces, "eth0") },
			states: map[string]string{},
			writes: []string{"/sysctls.net.core.rmem_max=212992"},
		},
		"a NIC that went and came": {
			change: func(h *enginetest.Machine) {
				h.Interfaces["eth0"] = enginetest.NewNIC(9)
				h.Interfaces["eth0"].Settings[tuning.Rings]["rx"] = "512"
			},
			want:   want,
			states: map[string]string{"net.core.rmem_max": "Applied 212992->16777216", "eth0/rings.rx": "Applied 512->1024"},
			writes: []string{"eth0/rings.rx=1024"},
		},
		"a NIC that came back and is not wanted": {
			change: func(h *enginetest.Machine) {
				h.Interfaces["eth0"] = enginetest.NewNIC(9)
				h.Interfaces["eth0"].Settings[tuning.Rings]["rx"] = "512"
			},
			states: map[string]string{},
			writes: []string{"/sysctls.net.core.rmem_max=212992"},
		},
		"a NIC with another name": {
			change: func(h *enginetest.Machine) {
				h.Interfaces["storage0"] = h.Interfaces["eth0"]
				delete(h.Interfaces, "eth0")
			},
			states: map[string]string{},
			writes: []string{"/sysctls.net.core.rmem_max=212992", "storage0/rings.rx=256"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			h, s := enginetest.NewMachine(), &store{}
			s.run(t, h, want)
			made := len(h.Writes())
			test.change(h)
			if len(h.Writes()) < made {
				made = 0
			}
			s.run(t, h, test.want)
			g.Expect(s.states()).To(Equal(test.states))
			g.Expect(h.Writes()[made:]).To(ConsistOf(test.writes))
		})
	}
}

// An adaptive NIC chooses its times by itself, so only that it is adaptive again can be put back.
func TestAdaptiveCoalescing(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	s.run(t, h, wanted("eth0/coalescing.adaptiveRX=off", "eth0/coalescing.rxUsecs=16"))
	h.Clamp = func(_ tuning.Place, name, value string) string {
		if name == "rxUsecs" {
			return "57"
		}
		return value
	}
	s.run(t, h, nil)
	g.Expect(s.record.Settings).To(BeEmpty())
	g.Expect(h.Everything()).To(HaveKeyWithValue("eth0/coalescing.adaptiveRX", "on"))
}

func TestMoreInterruptsThanARecordHolds(t *testing.T) {
	g := NewWithT(t)
	h, s := enginetest.NewMachine(), &store{}
	nic := h.Interfaces["eth0"]
	for i := range 3000 {
		nic.IRQs[fmt.Sprint(100+i)] = "0-7"
	}
	result := s.run(t, h, wanted("eth0/interrupts=3"))
	g.Expect(s.record.Settings).To(HaveLen(2048))
	g.Expect(result.Problems).To(ContainElement(ContainSubstring("weft can record no more than 2048 settings")))
	g.Expect(slices.Compact(slices.Sorted(maps.Values(nic.IRQs)))).To(Equal([]string{"0-7", "3"}))
	s.run(t, h, nil)
	g.Expect(slices.Compact(slices.Sorted(maps.Values(nic.IRQs)))).To(Equal([]string{"0-7"}))
}
