// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// newTwoCores is a machine whose target runs on two cores and was started.
func newTwoCores(t *testing.T, mode v1alpha1.CoreMode) (*machine, *spdk.Engine) {
	t.Helper()
	return newTwoCoresOf(t, mode, "")
}

// newTwoCoresOf is newTwoCores of which those of a mask serve connections.
func newTwoCoresOf(t *testing.T, mode v1alpha1.CoreMode, pollGroups string) (*machine, *spdk.Engine) {
	t.Helper()
	m := newMachine(t)
	m.fake.CoreMask, m.flags = "0x3", []string{"-m", "0x3"}
	m.plan.SPDK.CoreMask, m.plan.SPDK.PollGroupMask, m.plan.SPDK.Mode = "0x3", pollGroups, mode
	if mode == v1alpha1.CoresDynamic {
		m.plan.SPDK.Scheduler = &v1alpha1.PlannedScheduler{PeriodMicroseconds: 500000, LoadLimit: 15, CoreLimit: 75, CoreBusy: 90}
	}
	m.restart(t)
	return m, m.engine(t)
}

func schedulerOf(t *testing.T, m *machine) spdkrpc.Scheduler {
	t.Helper()
	client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
	check(t, err)
	defer client.Close()
	is, err := spdkrpc.Call(t.Context(), client, spdkrpc.FrameworkGetScheduler{})
	check(t, err)
	return is
}

// TestSchedulerFollowsThePlan while the target serves.
func TestSchedulerFollowsThePlan(t *testing.T) {
	g := NewWithT(t)
	m, e := newTwoCores(t, v1alpha1.CoresDynamic)
	g.Expect(schedulerOf(t, m)).To(And(HaveField("Name", spdkrpc.SchedulerDynamic), HaveField("LoadLimit", BeEquivalentTo(15)), HaveField("PeriodMicros", BeEquivalentTo(500000))))
	plan := m.plan
	plan.SPDK = plan.SPDK.DeepCopy()
	plan.SPDK.Scheduler.PeriodMicroseconds, plan.SPDK.Scheduler.CoreLimit = 2_000_000, 70
	check(t, e.Start(t.Context(), plan))
	g.Expect(schedulerOf(t, m)).To(And(HaveField("CoreLimit", BeEquivalentTo(70)), HaveField("PeriodMicros", BeEquivalentTo(2_000_000))))
	static := plan
	static.SPDK = plan.SPDK.DeepCopy()
	static.SPDK.Mode, static.SPDK.Scheduler = v1alpha1.CoresStatic, nil
	check(t, e.Start(t.Context(), static))
	g.Expect(schedulerOf(t, m).Name).To(Equal(spdkrpc.SchedulerStatic))
	check(t, e.Start(t.Context(), plan))
	g.Expect(schedulerOf(t, m)).To(And(HaveField("Name", spdkrpc.SchedulerDynamic), HaveField("CoreLimit", BeEquivalentTo(70))))
}

// TestSchedulerOfInterruptMode: a target that was started so must not be asked for the dynamic scheduler.
func TestSchedulerOfInterruptMode(t *testing.T) {
	g := NewWithT(t)
	m := newMachine(t)
	m.fake.InterruptMode, m.flags = true, []string{"--interrupt-mode"}
	m.plan = planOf(v1alpha1.TransportTCP)
	m.plan.SPDK.Mode = v1alpha1.CoresDynamic
	m.launch(t)
	e := m.engine(t)
	var restart *engine.RestartNeededError
	for range 2 {
		err := e.Start(t.Context(), m.plan)
		if err == nil || !errors.As(err, &restart) {
			t.Fatalf("a restart is needed, not %v", err)
		}
		g.Expect(restart.Differences).To(ConsistOf("interrupt mode is on, but should be off"))
		g.Expect(schedulerOf(t, m).Name).NotTo(Equal(spdkrpc.SchedulerDynamic))
	}
	settings, err := e.Settings(t.Context(), m.plan)
	check(t, err)
	g.Expect(settings).To(ContainElement(v1alpha1.EngineSetting{Setting: "mode", Value: "Interrupt", Planned: "Dynamic"}))
}

func TestSettings(t *testing.T) {
	g := NewWithT(t)
	m, e := newTwoCores(t, v1alpha1.CoresDynamic)
	settings, err := e.Settings(t.Context(), m.plan)
	check(t, err)
	for _, s := range settings {
		g.Expect(s.Planned).To(BeEmpty(), s.Setting)
	}
	again, err := e.Settings(t.Context(), m.plan)
	check(t, err)
	g.Expect(again).To(Equal(settings))
	expected := map[string]string{
		"coreMask": "0x3", "pollGroupMask": "0x3", "mode": "Dynamic", "smallBuffers": "4096", "largeBuffers": "512", "bdevIOPoolSize": "8192",
		"maxSubsystems": "1024", "placement": "None", "scheduler.loadLimit": "15", "scheduler.periodMicroseconds": "500000",
		"transports[TCP].queueDepth": "64", "transports[TCP].maxIOQueues": "2", "transports[TCP].largeCache": "32",
		"transports[TCP].smallCache": "256", "transports[TCP].inCapsuleDataSize": "4096", "transports[TCP].maxIOSize": "131072",
	}
	if info, err := e.Info(t.Context()); err != nil || strings.HasPrefix(info.Version, "25.05") { // which has one cache for both pools
		delete(expected, "transports[TCP].largeCache")
		delete(expected, "transports[TCP].smallCache")
	}
	for name, value := range expected {
		g.Expect(settings).To(ContainElement(v1alpha1.EngineSetting{Setting: name, Value: value}))
	}
	other := m.plan
	other.SPDK = m.plan.SPDK.DeepCopy()
	other.SPDK.LargeBuffers, other.SPDK.Transports[0].QueueDepth, other.SPDK.PollGroupMask = 600, 128, "0x2"
	settings, err = e.Settings(t.Context(), other)
	check(t, err)
	g.Expect(settings).To(ContainElements(
		v1alpha1.EngineSetting{Setting: "largeBuffers", Value: "512", Planned: "600"},
		v1alpha1.EngineSetting{Setting: "transports[TCP].queueDepth", Value: "64", Planned: "128"},
		v1alpha1.EngineSetting{Setting: "pollGroupMask", Value: "0x3", Planned: "0x2"},
	))
}

// TestTransportsAndPollGroupsNeedARestart: what was made of the plan is read back, and each difference of another one
// is named.
func TestTransportsAndPollGroupsNeedARestart(t *testing.T) {
	g := NewWithT(t)
	t.Setenv(spdktest.TargetVariable, "") // with an RDMA device, which not every machine has
	m := newMachine(t)
	m.fake.CoreMask = "0x3"
	m.plan.SPDK.CoreMask, m.plan.SPDK.PollGroupMask = "0x3", "0x2"
	m.plan.SPDK.Transports[1].SRQDepth = nil
	m.restart(t)
	e := m.engine(t)
	settings, err := e.Settings(t.Context(), m.plan)
	check(t, err)
	g.Expect(settings).To(ContainElements(v1alpha1.EngineSetting{Setting: "transports[RDMA].srqDepth", Value: "none"}, v1alpha1.EngineSetting{Setting: "pollGroupMask", Value: "0x2"}))
	differences := func(change func(*v1alpha1.SPDKPlan)) []string {
		other := m.plan
		other.SPDK = m.plan.SPDK.DeepCopy()
		change(other.SPDK)
		var restart *engine.RestartNeededError
		err := e.Start(t.Context(), other)
		g.Expect(errors.As(err, &restart)).To(BeTrue(), "%v", err)
		return restart.Differences
	}
	g.Expect(differences(func(p *v1alpha1.SPDKPlan) { p.Transports[1].SRQDepth = new(int32(1024)) })).To(ConsistOf("SRQ depth of transport RDMA is 0, but should be 1024"))
	g.Expect(differences(func(p *v1alpha1.SPDKPlan) { p.Transports = p.Transports[:1] })).To(ConsistOf("transport RDMA is not planned"))
	g.Expect(differences(func(p *v1alpha1.SPDKPlan) { p.PollGroupMask = "0x1" })).To(ConsistOf("connections are served on cores 1, but should be on 0"))
	g.Expect(differences(func(p *v1alpha1.SPDKPlan) { p.PollGroupMask = "" })).To(ConsistOf("connections are served on cores 1, but should be on 0-1"))
}

// TestMainCoreServesNoConnections where the plan leaves it out, though the dynamic scheduler gathers idle threads.
func TestMainCoreServesNoConnections(t *testing.T) {
	for name, groups := range map[string]string{"all cores": "", "the main core too": "0x3", "the other core": "0x2"} {
		t.Run(name, func(t *testing.T) {
			m, _ := newTwoCoresOf(t, v1alpha1.CoresDynamic, groups)
			client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
			check(t, err)
			t.Cleanup(client.Close)
			servesOn := func() (cores []uint32, err error) {
				is, err := spdkrpc.Call(t.Context(), client, spdkrpc.FrameworkGetReactors{})
				for _, r := range is.Reactors {
					if slices.ContainsFunc(r.Threads, func(t spdkrpc.ReactorThread) bool { return strings.HasPrefix(t.Name, "nvmf_tgt_poll_group") }) {
						cores = append(cores, r.Core)
					}
				}
				return cores, err
			}
			want := uint32(0)
			if groups == "0x2" {
				want = 1
			}
			NewWithT(t).Eventually(servesOn).WithTimeout(time.Minute).Should(Equal([]uint32{want}))
			NewWithT(t).Consistently(servesOn).WithTimeout(3 * time.Second).Should(Equal([]uint32{want}))
		})
	}
}

// TestTargetThatWasGivenOnlyItsMainCore serves on it, and says that it has fewer cores than planned.
func TestTargetThatWasGivenOnlyItsMainCore(t *testing.T) {
	m := newMachine(t)
	m.fake.CoreMask = "0x1"
	m.plan = planOf(v1alpha1.TransportTCP)
	m.plan.SPDK.CoreMask, m.plan.SPDK.PollGroupMask = "0x7", "0x6"
	m.launch(t)
	var restart *engine.RestartNeededError
	err := m.engine(t).Start(t.Context(), m.plan)
	NewWithT(t).Expect(errors.As(err, &restart)).To(BeTrue(), "%v", err)
	NewWithT(t).Expect(restart.Differences).To(ConsistOf(HavePrefix("it runs on cores 0, but should run on 0-2")))
}

// TestIdleConnectionsOnTheMainCoreNeedARestart: of a target that an agent initialized that did not isolate the core.
func TestIdleConnectionsOnTheMainCoreNeedARestart(t *testing.T) {
	m, _ := newTwoCoresOf(t, v1alpha1.CoresDynamic, "0x2")
	NewWithT(t).Expect(schedulerOf(t, m)).To(And(HaveField("SchedulingCore", BeEquivalentTo(1)), HaveField("IsolatedCoreMask", "1")))

	m.target.Kill()
	m.launch(t)
	client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
	check(t, err)
	t.Cleanup(client.Close)
	_, err = spdkrpc.Call(t.Context(), client, spdkrpc.BdevSetOptions{AutoExamine: new(false)})
	check(t, err)
	_, err = spdkrpc.Call(t.Context(), client, spdkrpc.NvmfSetConfig{PollGroupsMask: "0x2"})
	check(t, err)
	_, err = spdkrpc.Call(t.Context(), client, spdkrpc.FrameworkStartInit{})
	check(t, err)
	err = m.engine(t).Start(t.Context(), m.plan)
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("idle connections are gathered on core 0, but should be on one of 1")))
}

func TestBufferWaits(t *testing.T) {
	g := NewWithT(t)
	m, e := newTwoCores(t, v1alpha1.CoresStatic)
	waits, err := e.BufferWaits(t.Context())
	check(t, err)
	g.Expect(waits).To(ContainElements(engine.BufferWaits{Module: "accel"}, engine.BufferWaits{Module: "bdev"}, engine.BufferWaits{Module: "nvmf_TCP"}))
	fake, ok := m.target.(*spdktest.Target)
	if !ok {
		return // a real one is not made to starve
	}
	fake.Starve("nvmf_TCP", 2, 3)
	waits, err = e.BufferWaits(t.Context())
	check(t, err)
	g.Expect(waits).To(ContainElements(engine.BufferWaits{Module: "nvmf_TCP", Small: 2, Large: 3}, engine.BufferWaits{Module: "nvmf_RDMA"}))
	fake.StarveRDMA(0, 4)
	fake.StarveRDMA(1, 5)
	waits, err = e.BufferWaits(t.Context())
	check(t, err)
	g.Expect(waits).To(ContainElements(engine.BufferWaits{Module: "nvmf_TCP", Small: 2, Large: 3}, engine.BufferWaits{Module: "nvmf_RDMA", Pending: 9}), "of all poll groups")
}

func TestThreadsMoveAndComeBack(t *testing.T) {
	g := NewWithT(t)
	_, e := newTwoCores(t, v1alpha1.CoresStatic)
	before, err := e.Loads(t.Context())
	check(t, err)
	g.Expect(before.Cores).To(Equal([]int{0, 1}))
	var groups []engine.ThreadLoad
	var app engine.ThreadLoad
	for _, l := range before.Threads {
		switch {
		case l.PollGroup:
			groups = append(groups, l)
		case l.Name == "app_thread":
			app = l
		}
	}
	g.Expect(groups).To(HaveLen(2))
	moved := groups[0]
	there := 1 - moved.Core
	for _, m := range []engine.ThreadMove{
		{Thread: moved.ID, Core: there}, {Thread: moved.ID, Core: moved.Core}, {Thread: moved.ID, Core: there, Allowed: moved.Allowed},
		{Thread: moved.ID, Core: there}, {Thread: moved.ID, Core: moved.Core, Allowed: moved.Allowed},
	} {
		g.Expect(e.MoveThreads(t.Context(), []engine.ThreadMove{m})[0]).To(Succeed())
		is, err := e.Loads(t.Context())
		check(t, err)
		g.Expect(is.On(m)).To(BeTrue(), "%+v", is)
		g.Expect(is.Threads).To(HaveLen(len(before.Threads)))
	}
	errs := e.MoveThreads(t.Context(), []engine.ThreadMove{
		{Thread: app.ID, Core: 1}, {Thread: 4711, Core: 1}, {Thread: moved.ID, Core: 7}, {Thread: moved.ID, Core: 0, Allowed: []int{1}},
	})
	for _, err := range errs {
		g.Expect(err).To(MatchError(engine.ErrInvalid))
	}
	after, err := e.Loads(t.Context())
	check(t, err)
	for i, l := range after.Threads {
		g.Expect([]any{l.ID, l.Core, l.Allowed}).To(Equal([]any{before.Threads[i].ID, before.Threads[i].Core, before.Threads[i].Allowed}))
	}
}
