// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// latencies of volumes, as an engine that has just looked tells them.
func (r *rig) latencies(e *spdk.Engine, ids ...engine.ID) map[engine.ID][]uint64 {
	r.t.Helper()
	_, err := e.Gather(r.ctx)
	check(r.t, err)
	stats, err := e.Statistics(r.ctx, ids, true)
	check(r.t, err)
	return stats.Latencies
}

// counted by the target: the bdevs of which it counts how long I/Os take.
func (r *rig) counted() []string {
	r.t.Helper()
	config, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.FrameworkGetConfig{Name: "bdev"})
	check(r.t, err)
	on := []string{}
	for _, entry := range config {
		if entry.Method == "bdev_enable_histogram" {
			on = append(on, string(entry.Params))
		}
	}
	return on
}

// took as long as the fake takes, 100 µs.
func took(ops uint64) []uint64 {
	counts := make([]uint64, len(engine.LatencyBounds)+1)
	for i := range counts {
		if i == len(engine.LatencyBounds) || engine.LatencyBounds[i] >= 100*time.Microsecond {
			counts[i] = ops
		}
	}
	return counts
}

// TestLatencies are counted of the volumes that they are asked of, by whichever process asks.
func TestLatencies(t *testing.T) {
	r, fake := newFakeRig(t)
	ids := []engine.ID{r.create(engine.Source{}, 4*mib), r.create(engine.Source{}, 4*mib)}
	write := func() { check(t, fake.WriteWord(string(ids[0]), 0, 1)) }
	x := r.exportOf(ids[0])
	r.done(r.engine.Export(r.ctx, []engine.Export{x, r.exportOf(ids[1])}))
	write()
	r.Expect(r.statistics(ids...).Latencies).To(BeEmpty(), "nobody asked for them")
	r.Expect(r.latencies(r.engine, ids[0])).To(Equal(map[engine.ID][]uint64{ids[0]: took(0)}))
	write()
	r.Expect(r.latencies(r.engine, ids[0])).To(HaveKeyWithValue(ids[0], took(1)))
	r.Expect(r.counted()).To(HaveLen(1))

	another := r.machine.engine(t) // of another process, which knows nothing of it
	write()
	r.Expect(r.latencies(another, ids...)).To(Equal(map[engine.ID][]uint64{ids[0]: took(2), ids[1]: took(0)}))
	r.Expect(r.counted()).To(HaveLen(2))
	r.Expect(r.latencies(another, ids[0], newID())).To(Equal(map[engine.ID][]uint64{ids[0]: took(2)}))
	r.Expect(r.counted()).To(HaveLen(1), "the other volume is not asked of any more")

	r.done(r.engine.Unexport(r.ctx, []string{x.NQN}))
	r.Expect(r.latencies(another, ids[0])).To(HaveKeyWithValue(ids[0], took(0)), "what was counted ends with the export")
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	write()
	r.Expect(r.latencies(another, ids[0])).To(HaveKeyWithValue(ids[0], took(1)))

	bdev := r.lvols()[string(ids[0])].Alias
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevEnableHistogram{Name: bdev})
	check(t, err)
	r.Expect(r.latencies(another, ids[0])).To(BeEmpty(), "a person has turned it off")
	r.Expect(r.latencies(another, ids[0])).To(HaveKeyWithValue(ids[0], took(0)))

	last := r.machine.engine(t) // of a process that did not turn it on
	_, err = last.Gather(r.ctx)
	check(t, err)
	_, err = last.Statistics(r.ctx, ids, false)
	check(t, err)
	r.Expect(r.counted()).To(BeEmpty())

	r.latencies(last, ids[0])
	fake.Inject(spdktest.Fault{Method: "bdev_get_histogram_borders", Do: spdktest.DropConnection})
	_, err = last.Statistics(r.ctx, ids[:1], true)
	r.Expect(err).To(MatchError(engine.ErrUnavailable))
	r.restart(t)
	r.done(last.OpenPools(r.ctx, []engine.Device{r.device}))
	check(t, enginetest.Clear(r.ctx, last))
	r.done(last.Export(r.ctx, []engine.Export{x}))
	r.Expect(r.latencies(last, ids[0])).To(HaveKeyWithValue(ids[0], took(0)), "a target that starts again counts as well")
}

// TestLatenciesOfOlderReleases are not counted, and reported as what the target does not do.
func TestLatenciesOfOlderReleases(t *testing.T) {
	for release, is := range map[string]v1alpha1.EngineSetting{
		"26.01": {Setting: "latencyHistograms", Value: "Disabled", Planned: "Enabled"},
		"26.05": {Setting: "latencyHistograms", Value: "Enabled"},
	} {
		r := rigOf(t, onFake(t, release))
		id := r.create(engine.Source{}, 4*mib)
		r.Expect(r.latencies(r.engine, id)).To(HaveLen(map[bool]int{true: 1}[is.Planned == ""]))
		about := func() []v1alpha1.EngineSetting {
			settings, err := r.engine.Settings(r.ctx, r.plan)
			check(t, err)
			return settings
		}
		r.Expect(about()).NotTo(ContainElement(HaveField("Setting", is.Setting)))
		r.plan.SPDK.LatencyHistograms = v1alpha1.SwitchEnabled
		r.Expect(about()).To(ContainElement(is))
		check(t, r.engine.Start(r.ctx, r.plan)) // which serves with and without
	}
}

// TestLatenciesOfHosts of a real target with two poll groups: they stay when hosts leave and come, and are complete.
func TestLatenciesOfHosts(t *testing.T) {
	spdktest.RealTarget(t)
	m := newMachine(t)
	if m.release < "26.05" {
		t.Skip("it has no such histograms")
	}
	m.interrupts()
	m.flags = append(m.flags, "-m", "0x3")
	m.plan.SPDK.CoreMask = "0x3"
	r := rigOf(t, m)
	id := r.create(engine.Source{}, 64*mib)
	x := r.exportOf(id)
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	const ios = 100
	hosts := func() {
		t.Helper()
		// The first I/O queues of two hosts with two are on different poll groups.
		for range 2 {
			host, err := enginetest.ConnectWire(r.ctx, r.portals()[0].Portal, x.NQN, x.Hosts[0], dhchap.Pair{}, 2)
			check(t, err)
			defer host.Close()
			for at := range int64(ios) {
				_, err := host.WriteAt(make([]byte, enginetest.BlockBytes), at*enginetest.BlockBytes)
				check(t, err)
			}
		}
	}
	var before uint64
	total := func() uint64 {
		t.Helper()
		r.state()
		stats, err := r.engine.Statistics(r.ctx, []engine.ID{id}, true)
		check(t, err)
		counts := stats.Latencies[id]
		r.Expect(counts).To(HaveLen(len(engine.LatencyBounds) + 1))
		for i := range counts[1:] {
			r.Expect(counts[i+1]).To(BeNumerically(">=", counts[i]))
		}
		t.Logf("%d writes took %.3f s: %v", stats.Volumes[id].Write.Count, stats.Volumes[id].Write.Seconds, counts)
		is := counts[len(counts)-1]
		r.Expect(stats.Volumes[id].Write.Count-before).To(Equal(is), "each write that the target counted is one of them")
		return is
	}
	r.Expect(total()).To(BeZero())
	for n := range uint64(3) {
		hosts()
		r.Expect(total()).To(Equal((n+1)*2*ios), "also of hosts that have left")
	}

	r.done(r.engine.Unexport(r.ctx, []string{x.NQN}))
	before += 3 * 2 * ios
	r.Expect(total()).To(BeZero())
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	hosts()
	r.Expect(total()).To(BeEquivalentTo(2*ios), "of channels that are younger than the histogram")
	r.snap(id)
	hosts()
	r.Expect(total()).To(BeEquivalentTo(4 * ios))
	r.statistics(id)
	r.Expect(r.counted()).To(BeEmpty())
}

// BenchmarkLatencies of volumes that are exported, while nobody uses them. What it takes beside BenchmarkStatistics is
// for the histograms.
func BenchmarkLatencies(b *testing.B) {
	for name, n := range map[string]int{"100": 100, "1000": many} {
		b.Run(name, func(b *testing.B) {
			x := newBench(b)
			t := x.things(n)
			x.all(x.engine.CreateVolumes(x.ctx, t.volumes))
			x.all(x.engine.Export(x.ctx, t.exports))
			_, err := x.engine.Gather(x.ctx)
			check(b, err)
			for _, latencies := range []bool{false, true} {
				b.Run(map[bool]string{false: "without", true: "with"}[latencies], func(b *testing.B) {
					_, err := x.engine.Statistics(x.ctx, t.ids, latencies)
					check(b, err)
					for b.Loop() {
						stats, err := x.engine.Statistics(x.ctx, t.ids, latencies)
						check(b, err)
						if latencies != (len(stats.Latencies) == n) {
							b.Fatalf("latencies of %d volumes", len(stats.Latencies))
						}
					}
				})
			}
		})
	}
}
