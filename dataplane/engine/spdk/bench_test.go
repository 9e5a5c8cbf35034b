// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/engine/spdk"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

const (
	mib = 1 << 20
	// many volumes at once.
	many = 1000
	// few are sent one at a time: each call takes two polls of the socket, 8 ms.
	few = 25
	// benchPoolBytes holds many volumes.
	benchPoolBytes = 8 << 30
)

// stopwatch takes the time of each kind of work, done in each way, several times.
type stopwatch struct {
	// perItem seconds of each time.
	perItem map[string][]float64
}

func newStopwatch() *stopwatch { return &stopwatch{perItem: map[string][]float64{}} }

// measure n items of a kind of work, done in one way.
func (w *stopwatch) measure(work, way string, n int, do func()) {
	runtime.GC() // what others left is not this one's
	start := time.Now()
	do()
	w.perItem[work+way] = append(w.perItem[work+way], time.Since(start).Seconds()/float64(n))
}

// perSecond is the median: other work on the machine disturbs the mean.
func (w *stopwatch) perSecond(work, way string) float64 {
	all := slices.Sorted(slices.Values(w.perItem[work+way]))
	return 1 / all[len(all)/2]
}

// Ways of doing the same.
const (
	byEngine = " by the engine"
	raw      = " raw and pipelined"
	blind    = " raw, pipelined, without a look"
	single   = " one at a time"
)

// sum several kinds of work into one: the whole life of a volume.
func (w *stopwatch) sum(life string, works ...string) {
	for _, way := range []string{byEngine, raw, blind, single} {
		all := make([]float64, len(w.perItem[works[0]+way]))
		for _, work := range works {
			for i, seconds := range w.perItem[work+way] {
				all[i] += seconds
			}
		}
		w.perItem[life+way] = all
	}
}

// report the engine's speed, and how many times that of the other ways it is.
func (w *stopwatch) report(b *testing.B, works ...string) {
	for _, work := range works {
		engine := w.perSecond(work, byEngine)
		b.ReportMetric(engine, work+"/s")
		b.ReportMetric(engine/w.perSecond(work, single), work+"-x-single")
		b.ReportMetric(engine/w.perSecond(work, raw), work+"-x-raw")
		b.Logf("%-8s %7.0f/s by the engine, %7.0f/s raw and pipelined, %7.0f/s without a look, %5.0f/s one at a time: %4.0f times that, and %.2f of raw; raw itself is %.0f times",
			work, engine, w.perSecond(work, raw), w.perSecond(work, blind), w.perSecond(work, single),
			engine/w.perSecond(work, single), engine/w.perSecond(work, raw), w.perSecond(work, raw)/w.perSecond(work, single))
	}
	b.ReportMetric(0, "ns/op") // the sum of all of it says nothing
}

// bench is a target with an open pool and portal.
type bench struct {
	*machine
	testing.TB
	ctx    context.Context
	engine *spdk.Engine
	conn   *spdkrpc.Conn
	device engine.Device
}

func newBench(b testing.TB) *bench {
	m := newMachine(b)
	m.plan = planOf(v1alpha1.TransportTCP)
	return newBenchOn(b, m)
}

// newBenchOn a machine that was not started.
func newBenchOn(b testing.TB, m *machine) *bench {
	m.plan.SPDK.MaxSubsystems = 2 * many
	m.fake.PollInterval = spdktest.DefaultPollInterval
	x := &bench{machine: m, TB: b, ctx: b.Context(), device: m.file(benchPoolBytes)}
	x.restarted()
	x.all(x.engine.OpenPools(x.ctx, []engine.Device{x.device}))
	x.all(x.engine.OpenPortals(x.ctx, m.portals()))
	return x
}

// restarted target, with its settings.
func (x *bench) restarted() {
	x.restart(x)
	x.connect()
}

func (x *bench) connect() {
	x.engine = x.machine.engine(x)
	client, err := spdkrpc.New(x.socket(), spdkrpc.Options{})
	check(x, err)
	x.Cleanup(client.Close)
	x.conn, err = client.Connect(x.ctx)
	check(x, err)
}

func (x *bench) all(errs []error) {
	x.Helper()
	check(x, errors.Join(errs...))
}

// lvstore of the pool, by the name that the engine gave it.
func (x *bench) lvstore() string {
	lvstores, err := spdkrpc.Call(x.ctx, x.conn, spdkrpc.BdevLvolGetLvstores{})
	check(x, err)
	return lvstores[0].Name
}

// things to make: volumes, and an export of each with a host.
type things struct {
	volumes []engine.VolumeSpec
	ids     []engine.ID
	exports []engine.Export
	nqns    []string
}

func (x *bench) things(n int) things {
	var t things
	for range n {
		id := engine.ID(uuid.NewString())
		nqn := v1alpha1.NQNPrefix + "pvc-" + string(id)
		t.ids = append(t.ids, id)
		t.volumes = append(t.volumes, engine.VolumeSpec{ID: id, Pool: x.device.ID, SizeBytes: 4 * engine.SizeUnit})
		t.nqns = append(t.nqns, nqn)
		t.exports = append(t.exports, engine.Export{
			NQN: nqn, Serial: id.NGUID()[:20], Model: "weft", MaxIOQueues: 2,
			Namespaces: []engine.Namespace{{NSID: 1, Volume: id}},
			Hosts:      []string{v1alpha1.HostNQNPrefix + uuid.NewString()},
		})
	}
	return t
}

// sender sends what the engine sends: pipelined, without waiting for one answer before the next call, or one at a time.
type sender struct {
	x     *bench
	alone bool
	// blind: without the looks that the engine takes before it acts, and after.
	blind bool
	waits []func()
}

// ways that calls are sent in without the engine. One at a time there are no looks: with each of them around each
// volume it would be slower still.
func (x *bench) ways() map[string]*sender {
	return map[string]*sender{raw: {x: x}, blind: {x: x, blind: true}, single: {x: x, alone: true, blind: true}}
}

// look at what there is, as the engine does.
func (s *sender) look(at ...spdkLook) {
	if s.blind {
		return
	}
	for _, l := range at {
		l(s)
	}
}

type spdkLook func(*sender)

func lvstores(s *sender)   { send(s, spdkrpc.BdevLvolGetLvstores{}) }
func bdevs(s *sender)      { send(s, spdkrpc.BdevGetBdevs{}) }
func lvols(s *sender)      { send(s, spdkrpc.BdevLvolGetLvols{}) }
func subsystems(s *sender) { send(s, spdkrpc.NvmfGetSubsystems{}) }

func send[R any](s *sender, req spdkrpc.Request[R]) {
	pending := spdkrpc.Start(s.x.ctx, s.x.conn, req)
	wait := func() {
		_, err := pending.Wait()
		check(s.x, err)
	}
	if s.alone {
		wait()
		return
	}
	s.waits = append(s.waits, wait)
}

func (s *sender) wait() {
	for _, wait := range s.waits {
		wait()
	}
	s.waits = nil
}

func (s *sender) create(t things, lvstore string) {
	s.look(lvstores, bdevs)
	for _, id := range t.ids {
		send(s, spdkrpc.BdevLvolCreate{LvstoreName: lvstore, Name: string(id), SizeMiB: 4 * engine.SizeUnit >> 20, Thin: true, Clear: spdkrpc.ClearWriteZeroes})
	}
	s.wait()
}

func (s *sender) export(t things, lvstore string) {
	portal := s.x.portals()[0]
	address := spdkrpc.Address{Transport: spdkrpc.TransportTCP, Family: spdkrpc.FamilyIPv4, Address: portal.Address, Port: fmt.Sprint(portal.Port)}
	s.look(lvstores, lvols, subsystems)
	for i, e := range t.exports {
		send(s, spdkrpc.NvmfCreateSubsystem{NQN: e.NQN, Serial: e.Serial, Model: e.Model, MaxNamespaces: 1, ANAReporting: true})
		send(s, spdkrpc.NvmfSubsystemAddNs{NQN: e.NQN, Namespace: spdkrpc.Namespace{
			NSID: 1, Bdev: lvstore + "/" + string(t.ids[i]), UUID: string(t.ids[i]), NGUID: strings.ToUpper(t.ids[i].NGUID()),
		}})
		send(s, spdkrpc.NvmfSubsystemAddHost{NQN: e.NQN, Host: e.Hosts[0]})
		send(s, spdkrpc.NvmfSubsystemAddListener{NQN: e.NQN, Address: address})
	}
	s.wait()
}

func (s *sender) unexport(t things) {
	s.look(subsystems)
	for _, nqn := range t.nqns {
		send(s, spdkrpc.NvmfDeleteSubsystem{NQN: nqn})
	}
	s.look(subsystems)
	s.wait()
}

func (s *sender) remove(t things, lvstore string) {
	s.look(lvstores, lvols, subsystems)
	for _, id := range t.ids {
		send(s, spdkrpc.BdevLvolRename{Name: lvstore + "/" + string(id), NewName: "x-" + string(id)})
	}
	s.wait()
}

// BenchmarkVolumes makes, exports, unexports and deletes volumes: through the
// engine, with the same calls raw and pipelined (TestRawIsTheSame), without the looks, and one at a time, in one run.
// Where SPDK's own rate is under a hundred times single calls, as that of a real target but for exports, no engine can
// be over it: the output tells both (docs/design/spdk-speed.md).
func BenchmarkVolumes(b *testing.B) {
	x := newBench(b)
	lvstore := x.lvstore()
	watch := newStopwatch()
	for b.Loop() {
		for way, s := range x.ways() {
			n := many
			if s.alone {
				n = few
			}
			t := x.things(n)
			watch.measure("create", way, n, func() { s.create(t, lvstore) })
			watch.measure("export", way, n, func() { s.export(t, lvstore) })
			watch.measure("unexport", way, n, func() { s.unexport(t) })
			watch.measure("delete", way, n, func() { s.remove(t, lvstore) })
			x.clear()
		}
		t := x.things(many)
		watch.measure("create", byEngine, many, func() { x.all(x.engine.CreateVolumes(x.ctx, t.volumes)) })
		watch.measure("export", byEngine, many, func() { x.all(x.engine.Export(x.ctx, t.exports)) })
		watch.measure("unexport", byEngine, many, func() { x.all(x.engine.Unexport(x.ctx, t.nqns)) })
		watch.measure("delete", byEngine, many, func() { x.all(x.engine.DeleteVolumes(x.ctx, t.ids)) })
		x.clear()
	}
	watch.sum("life", "create", "export", "unexport", "delete")
	watch.report(b, "create", "export", "unexport", "delete", "life")
}

// BenchmarkRefill kills the target, and fills it again: 1,000 exported volumes,
// from the moment at which it listens on its socket again. The real target needs most of that
// to load an lvstore that was not closed, which is in all ways of doing it.
func BenchmarkRefill(b *testing.B) {
	x := newBench(b)
	lvstore := x.lvstore()
	watch := newStopwatch()
	t := x.things(many)
	x.all(x.engine.CreateVolumes(x.ctx, t.volumes))
	filled := 0.0
	for b.Loop() {
		x.relaunch()
		watch.measure("refill", byEngine, many, func() { filled += x.refill(t).Seconds() })
		for way, s := range x.ways() {
			n := many
			if s.alone {
				n = few
			}
			x.relaunch()
			part := things{ids: t.ids[:n], exports: t.exports[:n]}
			watch.measure("refill", way, n, func() {
				check(x, x.engine.Start(x.ctx, x.plan))
				x.all(x.engine.OpenPools(x.ctx, []engine.Device{x.device}))
				s.export(part, lvstore)
			})
		}
	}
	watch.report(b, "refill")
	b.ReportMetric(filled/float64(b.N), "s/refill")
}

// relaunch the target, which has lost everything and waits for its settings.
func (x *bench) relaunch() {
	x.target.Kill()
	x.launch(x)
	x.connect()
}

// clear what was deleted, which no benchmark of deletions waits for.
func (x *bench) clear() { check(x, enginetest.Clear(x.ctx, x.engine)) }

// refill a target that has lost everything.
func (x *bench) refill(t things) time.Duration {
	x.Helper()
	start := time.Now()
	check(x, x.engine.Start(x.ctx, x.plan))
	started := time.Since(start)
	x.all(x.engine.OpenPools(x.ctx, []engine.Device{x.device}))
	opened := time.Since(start)
	x.all(x.engine.Export(x.ctx, t.exports))
	exported := time.Since(start)
	x.all(x.engine.OpenPortals(x.ctx, x.portals()))
	took := time.Since(start)
	x.Logf("%d exports again after %v: settings %v, pool %v, exports %v, listeners %v", len(t.exports),
		took.Round(time.Millisecond), started.Round(time.Millisecond), (opened - started).Round(time.Millisecond),
		(exported - opened).Round(time.Millisecond), (took - exported).Round(time.Millisecond))
	return took
}

// TestRawIsTheSame: the calls that the benchmark holds the engine against are the engine's own, by method and count.
func TestRawIsTheSame(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	x := newBench(t)
	fake := x.target.(*spdktest.Target)
	lvstore := x.lvstore()
	s := &sender{x: x}
	check(x, x.engine.Start(x.ctx, x.plan)) // which asks for the release, once a connection
	const n = 40                            // so many that nothing is asked for by name, as in the benchmark
	calls := func(do func()) map[string]int {
		before := fake.Calls()
		do()
		made := fake.Calls()
		for method, count := range before {
			if made[method] -= count; made[method] == 0 {
				delete(made, method)
			}
		}
		return made
	}
	ours, its := x.things(n), x.things(n)
	for _, work := range []struct {
		name        string
		raw, engine func()
	}{
		{"create", func() { s.create(ours, lvstore) }, func() { x.all(x.engine.CreateVolumes(x.ctx, its.volumes)) }},
		{"export", func() { s.export(ours, lvstore) }, func() { x.all(x.engine.Export(x.ctx, its.exports)) }},
		{"unexport", func() { s.unexport(ours) }, func() { x.all(x.engine.Unexport(x.ctx, its.nqns)) }},
		{"delete", func() { s.remove(ours, lvstore) }, func() { x.all(x.engine.DeleteVolumes(x.ctx, its.ids)) }},
	} {
		NewWithT(t).Expect(calls(work.engine)).To(Equal(calls(work.raw)), work.name)
	}
}
