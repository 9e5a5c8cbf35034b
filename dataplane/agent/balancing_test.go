// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// threaded is a target with two cores and two poll groups, whose load the test sets.
type threaded struct {
	*enginetest.Engine
	loads engine.Loads
	busy  map[uint64]uint64 // of 100, by thread
	moves []engine.ThreadMove
	err   error
}

func newThreaded() *threaded {
	return &threaded{Engine: enginetest.New(), busy: map[uint64]uint64{}, loads: engine.Loads{Cores: []int{1, 2}, Threads: []engine.ThreadLoad{
		{ID: 1, Name: "app_thread", Core: 1, Allowed: []int{1}},
		{ID: 2, Name: "nvmf_tgt_poll_group_000", PollGroup: true, Core: 1, Allowed: []int{1, 2}},
		{ID: 3, Name: "nvmf_tgt_poll_group_001", PollGroup: true, Core: 1, Allowed: []int{1, 2}},
	}}}
}

func (e *threaded) Settings(context.Context, v1alpha1.Plan) ([]v1alpha1.EngineSetting, error) {
	return nil, nil
}
func (e *threaded) BufferWaits(context.Context) ([]engine.BufferWaits, error) { return nil, nil }

func (e *threaded) Loads(context.Context) (engine.Loads, error) {
	for i := range e.loads.Threads {
		t := &e.loads.Threads[i]
		t.BusyTicks += e.busy[t.ID]
		t.IdleTicks += 1
	}
	is := e.loads
	is.Threads = slices.Clone(is.Threads)
	return is, e.err
}

func (e *threaded) MoveThreads(_ context.Context, moves []engine.ThreadMove) []error {
	for _, m := range moves {
		e.moves = append(e.moves, m)
		for i := range e.loads.Threads {
			if t := &e.loads.Threads[i]; t.ID == m.Thread {
				t.Core, t.Allowed = m.Core, m.Allowed
				if len(m.Allowed) == 0 {
					t.Allowed = []int{m.Core}
				}
			}
		}
	}
	return make([]error, len(moves))
}

// hostRoot with two CPUs whose times stand still.
func hostRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(root, "proc"), 0o755),
		os.WriteFile(filepath.Join(root, "proc/stat"), []byte("cpu  1 1 1 1 1 1 1 1 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\ncpu2 1 1 1 1 1 1 1 1 0 0\n"), 0o600),
		os.WriteFile(filepath.Join(root, "proc/interrupts"), []byte("           CPU1       CPU2\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func TestBalancing(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(now)
	recorder := events.NewFakeRecorder(10)
	registry := prometheus.NewRegistry()
	metrics, err := NewMetrics(registry)
	g.Expect(err).NotTo(HaveOccurred())
	measured := func(name string) (value float64) {
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name {
					value = max(value, m.GetCounter().GetValue(), m.GetGauge().GetValue())
				}
			}
		}
		return value
	}
	r := NewReconciler(Config{NodeName: nodeName, Recorder: recorder, Metrics: metrics, Clock: clock, HostRoot: hostRoot(t)})
	e := newThreaded()
	s := decide.Observed{Node: testNode(), Inventory: testInventory()}
	s.Node.Spec.Plan = spdkPlan()
	plan := s.Node.Spec.Plan.SPDK
	plan.CoreMask, plan.Mode = "0x6", v1alpha1.CoresStatic
	look := func(n int) {
		for range n {
			if wait := r.balanceThreads(t.Context(), e, &s); wait > 0 {
				clock.Step(wait)
			}
		}
	}
	e.busy = map[uint64]uint64{2: 1000, 3: 900}

	look(20)
	g.Expect(e.moves).To(BeEmpty(), "it is off by default")
	g.Expect(r.balanceThreads(t.Context(), e, &s)).To(BeZero(), "and asks for nothing")

	plan.Balance = true
	look(12)
	g.Expect(e.moves).To(Equal([]engine.ThreadMove{{Thread: 2, Core: 2}}))
	g.Expect(<-recorder.Events).To(ContainSubstring("ThreadsMoved moved nvmf_tgt_poll_group_000 from core 1 to core 2"))
	look(100)
	g.Expect(e.moves).To(HaveLen(1), "what is equal stays")
	g.Expect(measured("weft_agent_thread_moves_total")).To(BeEquivalentTo(1))
	g.Expect(measured("weft_agent_core_load")).To(BeNumerically(">", 0.9))

	plan.Balance = false
	look(20)
	g.Expect(e.moves[1:]).To(Equal([]engine.ThreadMove{{Thread: 2, Core: 1, Allowed: []int{1, 2}}}))
	g.Expect(<-recorder.Events).To(ContainSubstring("ThreadsAreBack"))
	g.Expect(recorder.Events).To(BeEmpty())

	// Another agent finds a thread that an earlier one moved.
	e.MoveThreads(t.Context(), []engine.ThreadMove{{Thread: 2, Core: 1}})
	e.moves = nil
	r = NewReconciler(Config{NodeName: nodeName, Recorder: recorder, Metrics: metrics, Clock: clock, HostRoot: r.HostRoot})
	look(3)
	g.Expect(e.moves).To(Equal([]engine.ThreadMove{{Thread: 2, Core: 2, Allowed: []int{1, 2}}}), "the core that the other does not have")

	// Nothing is asked of a target that cannot tell loads, or does not answer.
	s.Target.Info.InterruptMode = true
	g.Expect(r.balanceThreads(t.Context(), e, &s)).To(BeZero())
	s.Target.Info.InterruptMode, plan.Balance = false, true
	e.err = engine.ErrUnavailable
	g.Expect(r.balanceThreads(t.Context(), e, &s)).To(Equal(balancePeriod))
	g.Expect(r.balanceThreads(t.Context(), enginetest.New(), &s)).To(BeZero())
}

// TestBalancingStartsAfresh with a target that came back, and with another plan.
func TestBalancingStartsAfresh(t *testing.T) {
	for name, change := range map[string]func(*Reconciler, *v1alpha1.SPDKPlan){
		"another life": func(r *Reconciler, _ *v1alpha1.SPDKPlan) { r.changes++ },
		"another plan": func(_ *Reconciler, p *v1alpha1.SPDKPlan) { p.PollGroupMask = "0x6" },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			metrics, err := NewMetrics(prometheus.NewRegistry())
			g.Expect(err).NotTo(HaveOccurred())
			clock := clocktesting.NewFakeClock(now)
			r := NewReconciler(Config{NodeName: nodeName, Recorder: events.NewFakeRecorder(10), Metrics: metrics, Clock: clock, HostRoot: hostRoot(t)})
			e := newThreaded()
			e.busy = map[uint64]uint64{2: 1000, 3: 900}
			s := decide.Observed{Node: testNode(), Inventory: testInventory()}
			s.Node.Spec.Plan = spdkPlan()
			plan := s.Node.Spec.Plan.SPDK
			plan.CoreMask, plan.Mode, plan.Balance = "0x6", v1alpha1.CoresStatic, true
			for range 6 {
				clock.Step(r.balanceThreads(t.Context(), e, &s))
			}
			change(r, plan)
			for range 6 {
				clock.Step(r.balanceThreads(t.Context(), e, &s))
			}
			g.Expect(e.moves).To(BeEmpty(), "six samples are five windows")
			clock.Step(r.balanceThreads(t.Context(), e, &s))
			g.Expect(e.moves).To(HaveLen(1))
		})
	}
}

func TestInterrupts(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		g.Expect(errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))).To(Succeed())
	}
	write("sys/bus/pci/devices/0000:3b:00.0/msi_irqs/24", "msix\n")
	write("sys/bus/pci/devices/0000:3b:00.0/msi_irqs/25", "msix\n")
	write("proc/stat", "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 0 0 100 0 0 0 0 0 0\ncpu1 100 0 0 100 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0 0 0\nintr 5\n")
	write("proc/interrupts", "            CPU0       CPU1       CPU2\n  24:  10  20  30  IR-PCI-MSIX-0000:3b:00.0  0-edge  eth0-rx-0\n  26: 0 0 5 other\nNMI: 1 1 1 Non-maskable\nERR: 0\n")
	r := interruptReader{root: root}
	nics := []v1alpha1.NIC{{Name: "eth0", PCIAddress: "0000:3b:00.0"}, {Name: "bond0"}, {Name: "gone", PCIAddress: "0000:ff:00.0"}}
	first, err := r.read(nics)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first).To(BeEmpty(), "shares are from one reading to the next")
	write("proc/stat", "cpu0 150 0 0 120 0 10 20 0 0 0\ncpu1 200 0 0 100 0 0 0 0 0 0\ncpu2 100 0 0 0 0 0 0 0 0 0\n")
	write("proc/interrupts", "            CPU0       CPU1       CPU2\n  24:  10  90  30  IR-PCI-MSIX-0000:3b:00.0  0-edge  eth0-rx-0\n  26: 0 0 500 other\n")
	second, err := r.read(nics)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second[0]).To(BeNumerically("~", 0.3, 1e-9), "interrupts took 30 of 100 ticks")
	g.Expect(second[1]).To(Equal(nicShare), "it serves the NIC")
	g.Expect(second[2]).To(BeZero(), "the other device is no NIC")
	g.Expect(os.Remove(filepath.Join(root, "proc/stat"))).To(Succeed())
	_, err = r.read(nics)
	g.Expect(err).To(HaveOccurred())
}

func TestSampleOf(t *testing.T) {
	g := NewWithT(t)
	plan := v1alpha1.SPDKPlan{CoreMask: "0x16", PollGroupMask: "0x6"}
	inventory := &v1alpha1.Inventory{NUMANodes: []v1alpha1.NUMANode{{Cores: []string{"0,3", "1,4"}}, {ID: 1, Cores: []string{"2,5"}}}}
	s := sampleOf(engine.Loads{Cores: []int{1, 2, 4}}, plan, inventory, map[int]float64{1: 0.1, 4: 0.05})
	g.Expect(s.Cores[0].Physical).To(Equal(s.Cores[2].Physical))
	g.Expect(s.Cores[0].Physical).NotTo(Equal(s.Cores[1].Physical))
	g.Expect([]float64{s.Cores[0].Interrupts, s.Cores[1].Interrupts, s.Cores[2].Interrupts}).To(Equal([]float64{0.1, 0, keptFree}))
	unknown := sampleOf(engine.Loads{Cores: []int{1, 2}}, plan, nil, nil)
	g.Expect(unknown.Cores[0].Physical).NotTo(Equal(unknown.Cores[1].Physical))
	threads := []engine.ThreadLoad{{ID: 1, Core: 1}, {ID: 2, PollGroup: true, Core: 2}}
	plan.PollGroupMask = "0x4"
	s = sampleOf(engine.Loads{Cores: []int{1, 2, 4}, Threads: threads}, plan, inventory, nil)
	g.Expect(s.Cores).To(HaveExactElements(HaveField("ID", 2), HaveField("ID", 4)), "nothing moves to the core that answers RPCs")
	g.Expect(s.Threads).To(HaveExactElements(HaveField("ID", uint64(2))))
	threads[1].Core = 1
	s = sampleOf(engine.Loads{Cores: []int{1, 2, 4}, Threads: threads}, plan, inventory, nil)
	g.Expect(s.Cores).To(HaveLen(3), "what is on it moves away")
}

var _ engine.Adjustable = (*threaded)(nil)
