// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/weft-storage/weft/dataplane/balance"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the simulations; 0 for another one each time")

const windowTicks = 1_000_000

// machine that is simulated: what each thread would do if it had a core for itself, and what it gets.
type machine struct {
	cores  []balance.CoreSample
	at     []int // core of each thread
	counts []balance.ThreadSample
}

func newMachine(cores, threads int) *machine {
	m := &machine{}
	for i := range cores {
		m.cores = append(m.cores, balance.CoreSample{ID: i, Physical: i})
	}
	m.counts = append(m.counts, balance.ThreadSample{ID: 1}) // the application's own
	for i := range threads {
		m.at = append(m.at, i%cores)
		m.counts = append(m.counts, balance.ThreadSample{ID: uint64(i + 2), Movable: true})
	}
	return m
}

// run a window: threads of a core that is asked for more than it has share it. It answers how much of the busiest core
// was asked for.
func (m *machine) run(demand []float64) float64 {
	asked := make([]float64, len(m.cores))
	for i, core := range m.at {
		asked[core] += demand[i]
	}
	busiest := 0.0
	idle := make([]float64, len(m.cores))
	members := make([]int, len(m.cores))
	for i := range m.at {
		members[m.at[i]]++
	}
	members[0]++ // the application's
	for c := range m.cores {
		capacity := 1 - m.cores[c].Interrupts
		for other := range m.cores {
			if other != c && m.cores[other].Physical == m.cores[c].Physical {
				capacity *= 1 - 0.35*min(asked[other], 1)
			}
		}
		busiest = max(busiest, asked[c]/capacity)
		idle[c] = max(0, 1-asked[c]/capacity) / float64(max(members[c], 1))
	}
	for i := range m.counts {
		core, share := 0, 0.0
		if i > 0 {
			core = m.at[i-1]
			if asked[core] > 0 {
				capacity := 1 - idle[core]*float64(members[core])
				share = demand[i-1] / asked[core] * capacity
			}
		}
		m.counts[i].Core = core
		m.counts[i].Busy += uint64(share * windowTicks)
		m.counts[i].Idle += uint64(idle[core] * windowTicks)
	}
	return busiest
}

func (m *machine) sample() balance.Sample {
	return balance.Sample{Cores: append([]balance.CoreSample{}, m.cores...), Threads: append([]balance.ThreadSample{}, m.counts...)}
}

// outcome of a simulation.
type outcome struct {
	moves     int
	lastMove  int
	perThread map[uint64]int
	busiest   float64 // in the mean
}

// As the balancer's defaults: what a step must be worth, and how long a thread that moved stays where it is.
const threshold, rest = 0.15, 30

// simulate with a balancer, or without. It fails when a thread moves while it should rest, or goes back to where it
// came from for less than twice the threshold.
func simulate(t *testing.T, m *machine, windows int, balanced bool, demand func(window int) []float64) outcome {
	t.Helper()
	b := balance.New(balance.Options{Rest: rest})
	o := outcome{perThread: map[uint64]int{}, lastMove: -1}
	moved, from := map[uint64]int{}, map[uint64]int{}
	for w := range windows {
		o.busiest += m.run(demand(w)) / float64(windows)
		if !balanced {
			continue
		}
		step, ok := b.Observe(m.sample())
		if !ok {
			continue
		}
		for _, move := range step.Moves {
			if last, before := moved[move.Thread]; before && w-last < rest {
				t.Fatalf("window %d: thread %d moves again after %d windows", w, move.Thread, w-last)
			}
			if last, before := moved[move.Thread]; before && move.To == from[move.Thread] && w-last < 4*rest && step.Before-step.After < 2*threshold-1e-9 {
				t.Fatalf("window %d: thread %d goes back to core %d after %d windows, to relieve a core from %.2f to %.2f", w, move.Thread, move.To, w-last, step.Before, step.After)
			}
			if m.at[move.Thread-2] != move.From {
				t.Fatalf("window %d: thread %d is on core %d, not %d", w, move.Thread, m.at[move.Thread-2], move.From)
			}
			moved[move.Thread], from[move.Thread] = w, move.From
			m.at[move.Thread-2] = move.To
			o.perThread[move.Thread]++
			o.moves++
			o.lastMove = w
		}
	}
	return o
}

func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d; repeat with: go test -run '%s' ./dataplane/balance -seed %d", seed, t.Name(), seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// both runs of the same machine and loads, without and with a balancer.
func both(t *testing.T, windows int, begin func() *machine, demand func(int) []float64) (without, with outcome) {
	t.Helper()
	without, with = simulate(t, begin(), windows, false, demand), simulate(t, begin(), windows, true, demand)
	t.Logf("%d windows: busiest core in the mean %.2f without and %.2f with a balancer, %d moves, the last in window %d", windows, without.busiest, with.busiest, with.moves, with.lastMove)
	return without, with
}

// TestConstantLoads come to rest, and never worse than they began.
func TestConstantLoads(t *testing.T) {
	r := seeded(t)
	for range 60 {
		n, threads := 2+r.IntN(7), 1+r.IntN(12)
		loads := make([]float64, threads)
		for i := range loads {
			loads[i] = r.Float64()
		}
		interrupts, siblings := r.Float64()*0.5, r.IntN(2) == 0
		machine := func() *machine {
			m := newMachine(n, threads)
			m.cores[0].Interrupts = interrupts
			if siblings {
				m.cores[1].Physical = 0
			}
			return m
		}
		const windows = 400
		without := simulate(t, machine(), windows, false, func(int) []float64 { return loads })
		with := simulate(t, machine(), windows, true, func(int) []float64 { return loads })
		if with.busiest > without.busiest+0.15 {
			t.Errorf("%d cores, loads %.2f: busiest %.2f with, %.2f without", n, loads, with.busiest, without.busiest)
		}
		if with.lastMove > windows/2 || with.moves > 3*threads+2 {
			t.Errorf("%d cores, loads %.2f: %d moves, the last in window %d of loads that never change", n, loads, with.moves, with.lastMove)
		}
	}
}

// TestUnequalLoads are made equal.
func TestUnequalLoads(t *testing.T) {
	without, with := both(t, 300, func() *machine {
		m := newMachine(4, 4)
		m.at = []int{0, 0, 1, 1} // as after a core was added
		m.cores[0].Interrupts = 0.2
		return m
	}, func(int) []float64 { return []float64{0.7, 0.5, 0.6, 0.5} })
	if with.busiest > 0.85*without.busiest || with.moves == 0 || with.lastMove > 100 {
		t.Errorf("with %+v, without %+v", with, without)
	}
}

// TestRandomLoads of three kinds move few threads, however they change.
func TestRandomLoads(t *testing.T) {
	const windows, cores, threads = 3000, 4, 6
	walk := make([]float64, threads)
	for name, next := range map[string]func(r *rand.Rand, w int) []float64{
		"noise": func(r *rand.Rand, _ int) []float64 {
			loads := make([]float64, threads)
			for i := range loads {
				loads[i] = r.Float64()
			}
			return loads
		},
		"a walk": func(r *rand.Rand, w int) []float64 {
			for i := range walk {
				if w == 0 {
					walk[i] = 0.5
				}
				walk[i] = min(max(walk[i]+(r.Float64()-0.5)*0.05, 0), 1)
			}
			return append([]float64{}, walk...)
		},
		"bursts that change sides": func(_ *rand.Rand, w int) []float64 {
			loads := make([]float64, threads)
			for i := range loads {
				loads[i] = 0.05
				if w/5%2 == i%2 {
					loads[i] = 0.9
				}
			}
			return loads
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := seeded(t)
			var recorded [][]float64
			for w := range windows {
				recorded = append(recorded, next(r, w))
			}
			without, with := both(t, windows, func() *machine { return newMachine(cores, threads) }, func(w int) []float64 { return recorded[w] })
			if with.moves > threads*windows/rest/3 {
				t.Errorf("%d moves in %d windows", with.moves, windows)
			}
			if with.busiest > without.busiest+0.15 {
				t.Errorf("it does harm: %.2f instead of %.2f", with.busiest, without.busiest)
			}
		})
	}
}

// TestRecordedLoads replays what a real target's poll groups did under load.
func TestRecordedLoads(t *testing.T) {
	data, err := os.ReadFile("testdata/loads-26.05.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Loads [][]float64 `json:"loads"`
	}
	if err := json.Unmarshal(data, &recorded); err != nil {
		t.Fatal(err)
	}
	n := len(recorded.Loads)
	threads := len(recorded.Loads[0])
	for name, c := range map[string]struct {
		at    []int
		times float64
	}{
		"one core each": {nil, 1}, "all on one core": {make([]int, threads), 1}, "all on one core, four times as much": {make([]int, threads), 4},
	} {
		t.Run(name, func(t *testing.T) {
			at := c.at
			demand := func(w int) []float64 {
				loads := append([]float64{}, recorded.Loads[w%n]...)
				for i := range loads {
					loads[i] *= c.times
				}
				return loads
			}
			without, with := both(t, 20*n, func() *machine {
				m := newMachine(2, threads)
				if at != nil {
					m.at = append([]int{}, at...)
				}
				return m
			}, demand)
			if with.busiest > without.busiest+0.05 || with.moves > threads*20*n/rest/3+threads {
				t.Errorf("with %+v, without %+v", with, without)
			}
		})
	}
}

// pinned is a machine of two cores with a thread on each that does not move, and one that does.
type pinned struct {
	at      int
	threads [3]balance.ThreadSample
}

// window in which the threads do so much, on cores that are whole.
func (p *pinned) window(loads [3]float64) balance.Sample {
	on := [3]int{0, p.at, 1}
	idle, members := [2]float64{1, 1}, [2]float64{}
	for i, core := range on {
		idle[core] -= loads[i]
		members[core]++
	}
	for i, core := range on {
		t := &p.threads[i]
		t.ID, t.Core, t.Movable = uint64(i+1), core, i == 1
		t.Busy += uint64(loads[i] * windowTicks)
		t.Idle += uint64(idle[core] / members[core] * windowTicks)
	}
	return balance.Sample{Cores: []balance.CoreSample{{ID: 0, Physical: 0}, {ID: 1, Physical: 1}}, Threads: append([]balance.ThreadSample{}, p.threads[:]...)}
}

// A thread goes away from the load of one that stays, and comes back for twice the threshold, or for the threshold
// after a long while.
func TestTheWayBack(t *testing.T) {
	const longWhile = 4 * rest
	for name, c := range map[string]struct {
		then [3]float64
		back int // after at least so many windows; 0 for never
	}{
		"worth twice as much":  {[3]float64{0.2, 0.3, 0.6}, rest},
		"worth the threshold":  {[3]float64{0.4, 0.2, 0.6}, longWhile},
		"worth less than that": {[3]float64{0.5, 0.2, 0.55}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, p := balance.New(balance.Options{Rest: rest}), &pinned{}
			p.threads = [3]balance.ThreadSample{}
			moved, back := -1, -1
			for w := 0; w < 2*longWhile && back < 0; w++ {
				loads := [3]float64{0.5, 0.5, 0}
				if moved >= 0 {
					loads = c.then
				}
				step, ok := b.Observe(p.window(loads))
				switch {
				case ok && moved < 0:
					moved, p.at = w, step.Moves[0].To
				case ok:
					back = w - moved
				}
			}
			if moved < 0 {
				t.Fatal("it never went away")
			}
			if c.back == 0 && back >= 0 || c.back > 0 && (back < c.back || back > c.back+2) {
				t.Errorf("it came back after %d windows, want %d", back, c.back)
			}
		})
	}
}

// Between two samples somebody else moved a thread: what it did where cannot be told.
func TestMovedBySomebodyElse(t *testing.T) {
	b, p := balance.New(balance.Options{Windows: 3}), &pinned{}
	for range 3 {
		if _, ok := b.Observe(p.window([3]float64{0.5, 0.5, 0})); ok {
			t.Fatal("three samples are two windows")
		}
	}
	p.at = 1
	if _, ok := b.Observe(p.window([3]float64{0, 0.5, 0.5})); ok || b.Loads() != nil {
		t.Error("it went on from where the thread was")
	}
}

func TestSamplesThatCannotBeCompared(t *testing.T) {
	b := balance.New(balance.Options{Windows: 3})
	m := newMachine(2, 2)
	m.at = []int{0, 0}
	loads := []float64{0.5, 0.5}
	step := func() bool {
		m.run(loads)
		_, ok := b.Observe(m.sample())
		return ok
	}
	for range 3 {
		if step() {
			t.Fatal("three samples are two windows")
		}
	}
	for i := range m.counts { // another life of the target
		m.counts[i].Busy, m.counts[i].Idle = 0, 0
	}
	for range 3 {
		if step() {
			t.Fatal("it went on from another life's samples")
		}
	}
	if !step() {
		t.Fatal("three windows are enough")
	}
	if b.Loads() != nil {
		t.Error("what was measured before a move says nothing of after it")
	}
}
