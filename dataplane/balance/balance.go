// SPDX-License-Identifier: Apache-2.0

// Package balance decides which poll-group threads of an SPDK target to move to which of its cores.
//
// It is pure: what was measured goes in with its time, and moves come out. A Balancer keeps the last
// few measurements, no more; a new one starts afresh.
//
// It looks at how busy each core is, not at how many threads it has: a core that also takes the NIC's interrupts, or
// whose physical core another busy one shares, has less to give, so that the same thread fills more of it. A move, or
// an exchange of two threads, is made when it relieves the busiest core by more than a threshold, in the mean of
// several measurements and in each of them; then the threads rest. So loads that change faster than that move nothing.
package balance

import (
	"cmp"
	"slices"
)

// Core of a target.
type Core struct {
	ID int
	// Physical core that it is a hardware thread of: equal for siblings.
	Physical int
	// Interrupts is the share of its time that interrupts take, 0 to 1.
	Interrupts float64
	// Fixed load of threads that do not move, as Thread.Load.
	Fixed float64
}

// Thread that may move.
type Thread struct {
	ID   uint64
	Core int
	// Load is the share of a core's time that it is busy, 0 to 1.
	Load float64
	// Resting threads stay where they are.
	Resting bool
	// Came from this core not long ago; -1 for none. To go back there must be worth twice as much.
	Came int
}

// Move of a thread.
type Move struct {
	Thread   uint64
	From, To int
}

// Step is one or two moves that belong together, and how busy the busiest of the cores that they concern is before and,
// it is to be expected, after.
type Step struct {
	Moves         []Move
	Before, After float64
}

// Options of a balancer; the zero value of each takes the default.
type Options struct {
	// Threshold is by how much the busiest of the cores that a step concerns must be relieved, as a share of its time.
	// Default 0.15.
	Threshold float64
	// Busy is the load of that core under which nothing is done: there is no queue to shorten. Default 0.5.
	Busy float64
	// Windows is how many measurements a decision rests on. Default 6.
	Windows int
	// Rest is how many measurements a thread that moved stays where it is. Default 30.
	Rest int
}

func (o Options) complete() Options {
	o.Threshold, o.Busy = cmp.Or(o.Threshold, 0.15), cmp.Or(o.Busy, 0.5)
	o.Windows, o.Rest = cmp.Or(o.Windows, 6), cmp.Or(o.Rest, 30)
	return o
}

const (
	// siblingShare of a core's power is lost when its sibling is busy all the time: two hardware threads of one core do
	// about 1.3 times the work of one.
	siblingShare = 0.35
	// leastCapacity keeps a core that interrupts take whole from being divided by nothing.
	leastCapacity = 0.05
)

// settled is how often the capacities of siblings, which depend on each other's load, are brought up to date.
const settled = 8

// work of a thread is its load in time of a whole, quiet core: what it will ask of another one. A core that is full
// hides how much more its threads would do, so the work of these is at least that.
type work struct {
	cores   []Core
	threads []Thread
	fixed   []float64
	each    []float64
}

// workOf what was measured.
func workOf(cores []Core, threads []Thread) work {
	w := work{cores: cores, threads: threads, fixed: make([]float64, len(cores)), each: make([]float64, len(threads))}
	raw := make([]float64, len(cores))
	for i, c := range cores {
		raw[i] = c.Fixed
		for _, t := range threads {
			if t.Core == c.ID {
				raw[i] += t.Load
			}
		}
	}
	for i, c := range cores {
		capacity := capacityOf(cores, raw, i)
		w.fixed[i] = c.Fixed * capacity
		for j, t := range threads {
			if t.Core == c.ID {
				w.each[j] = t.Load * capacity
			}
		}
	}
	return w
}

// capacityOf a core, beside siblings that are so busy.
func capacityOf(cores []Core, used []float64, i int) float64 {
	capacity := 1 - min(max(cores[i].Interrupts, 0), 1)
	for j, other := range cores {
		if j != i && other.Physical == cores[i].Physical {
			capacity *= 1 - siblingShare*min(used[j], 1)
		}
	}
	return max(capacity, leastCapacity)
}

// utilisation of each core once the moves are made: 1 is all that it has to give.
func (w work) utilisation(moves []Move) []float64 {
	asked := slices.Clone(w.fixed)
	for i, t := range apply(w.threads, moves) {
		for j, c := range w.cores {
			if c.ID == t.Core {
				asked[j] += w.each[i]
			}
		}
	}
	used := slices.Clone(asked)
	for range settled {
		last := slices.Clone(used)
		for i := range used {
			used[i] = asked[i] / capacityOf(w.cores, last, i)
		}
		if slices.Equal(used, last) {
			break
		}
	}
	return used
}

// unequal is how far from equal the cores are, and grows with the busiest most.
func unequal(used []float64) float64 {
	sum := 0.0
	for _, u := range used {
		sum += u * u
	}
	return sum
}

// busiest of the cores whose utilisation the moves change, before and after.
func busiest(before, after []float64) (was, is float64) {
	for i := range before {
		if before[i] != after[i] {
			was, is = max(was, before[i]), max(is, after[i])
		}
	}
	return was, is
}

// Decide on the step that makes the cores most equal, of those that relieve the busiest of the cores that they concern
// by the threshold; false when there is none. Each step makes them more equal, so that loads which stay the same come
// to rest. It is deterministic whatever the order of its lists.
func Decide(cores []Core, threads []Thread, o Options) (Step, bool) {
	o = o.complete()
	cores, threads = slices.Clone(cores), slices.Clone(threads)
	slices.SortFunc(cores, func(a, b Core) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(threads, func(a, b Thread) int { return cmp.Compare(a.ID, b.ID) })
	w := workOf(cores, threads)
	before := w.utilisation(nil)
	best := unequal(before) - 1e-9
	var step Step
	try := func(moves ...Move) {
		after := w.utilisation(moves)
		was, is := busiest(before, after)
		if was >= o.Busy && was-is >= required(threads, moves, o.Threshold) && unequal(after) < best-1e-9 {
			best, step = unequal(after), Step{Moves: moves, Before: was, After: is}
		}
	}
	for i, t := range threads {
		if t.Resting {
			continue
		}
		for _, c := range cores {
			if c.ID != t.Core {
				try(Move{t.ID, t.Core, c.ID})
			}
		}
		for _, other := range threads[i+1:] {
			if !other.Resting && other.Core != t.Core {
				try(Move{t.ID, t.Core, other.Core}, Move{other.ID, other.Core, t.Core})
			}
		}
	}
	return step, len(step.Moves) > 0
}

// required gain: twice as much for a thread that goes back to where it came from.
func required(threads []Thread, moves []Move, threshold float64) float64 {
	for _, m := range moves {
		for _, t := range threads {
			if t.ID == m.Thread && t.Came == m.To {
				return 2 * threshold
			}
		}
	}
	return threshold
}

func apply(threads []Thread, moves []Move) []Thread {
	placed := slices.Clone(threads)
	for _, m := range moves {
		for i := range placed {
			if placed[i].ID == m.Thread {
				placed[i].Core = m.To
			}
		}
	}
	return placed
}
