// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// look at the target as each reconciliation of the agent begins.
func (r *rig) look() {
	r.t.Helper()
	check(r.t, r.engine.Start(r.ctx, r.plan))
	_, err := r.engine.Info(r.ctx)
	check(r.t, err)
	_, err = r.engine.Settings(r.ctx, r.plan)
	check(r.t, err)
	_, err = r.engine.BufferWaits(r.ctx)
	check(r.t, err)
	_, err = r.engine.Gather(r.ctx)
	check(r.t, err)
}

// TestCallsOfAnAttach holds how much the target is asked, on a core that serves I/O as well: of one volume that is
// exported with limits, and of the reconciliation that follows as its status was written.
func TestCallsOfAnAttach(t *testing.T) {
	r, fake := newFakeRig(t)
	id := r.create(engine.Source{}, 4*mib)
	for range 20 {
		r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(r.create(engine.Source{}, 4*mib))}))
	}
	r.look()
	before := fake.Calls()

	r.look()
	r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(id)}))
	r.done(r.engine.SetQoS(r.ctx, []engine.VolumeQoS{{ID: id, QoS: engine.QoS{IOPS: 1000}}}))
	_, err := r.engine.Gather(r.ctx)
	check(t, err)
	r.look()

	calls := map[string]int{}
	for method, n := range fake.Calls() {
		if n -= before[method]; n > 0 {
			calls[method] = n
		}
	}
	r.Expect(calls).To(Equal(map[string]int{
		"framework_get_reactors": 6, "framework_get_scheduler": 4, "iobuf_get_stats": 2, "nvmf_get_stats": 2,
		// Six for settings and three to gather; those who export need none.
		"nvmf_get_transports": 9,
		// Three to gather all, and one by name for the export and for the limits.
		"bdev_lvol_get_lvstores": 5, "bdev_get_bdevs": 5,
		// Three to gather all, and by name the subsystem and the anchor.
		"nvmf_get_subsystems":   5,
		"nvmf_create_subsystem": 1, "nvmf_subsystem_add_ns": 1, "nvmf_subsystem_add_host": 1, "nvmf_subsystem_add_listener": 2,
		"bdev_set_qos_limit": 1,
	}))
}

// TestSettingsOfEachLife: what was read of a target is not taken for what the next one runs with.
func TestSettingsOfEachLife(t *testing.T) {
	m := newMachine(t)
	m.plan = planOf(v1alpha1.TransportTCP)
	m.restart(t)
	g := NewWithT(t)
	e := m.engine(t)
	of := func(name string) string {
		settings, err := e.Settings(t.Context(), m.plan)
		check(t, err)
		for _, s := range settings {
			if s.Setting == name {
				return s.Value
			}
		}
		return ""
	}
	g.Expect(of("largeBuffers")).To(Equal("512"))
	g.Expect(of("transports[TCP].queueDepth")).To(Equal("64"))

	m.plan.SPDK.LargeBuffers, m.plan.SPDK.Transports[0].QueueDepth = 600, 128
	m.restart(t)
	g.Eventually(func() error { _, err := e.Info(t.Context()); return err }).Should(Succeed())
	g.Expect(of("largeBuffers")).To(Equal("600"), "the engine is the same, and the target another")
	g.Expect(of("transports[TCP].queueDepth")).To(Equal("128"))

	// What others change while it lives is seen too.
	client, err := spdkrpc.New(m.socket(), spdkrpc.Options{})
	check(t, err)
	t.Cleanup(client.Close)
	_, err = spdkrpc.Call(t.Context(), client, spdkrpc.FrameworkSetScheduler{Name: spdkrpc.SchedulerDynamic, LoadLimit: 33})
	check(t, err)
	g.Expect(of("scheduler.loadLimit")).To(Equal("33"))
}
