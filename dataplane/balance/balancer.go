// SPDX-License-Identifier: Apache-2.0

package balance

// Sample is one measurement of a target.
type Sample struct {
	Cores   []CoreSample
	Threads []ThreadSample
}

// CoreSample is a core at one moment.
type CoreSample struct {
	ID, Physical int
	// Interrupts is the share of its time that interrupts took since the last sample, 0 to 1.
	Interrupts float64
}

// ThreadSample is a thread at one moment. Its counters only grow.
type ThreadSample struct {
	ID   uint64
	Core int
	// Movable: it serves connections, and nothing else.
	Movable    bool
	Busy, Idle uint64
}

// Balancer of one target's life. It is not safe for concurrent use.
type Balancer struct {
	options Options
	last    *Sample
	// windows are the measurements since threads last moved, oldest first.
	windows []window
	// moved: of each thread, how many measurements ago it moved, and from where.
	moved map[uint64]trip
}

type trip struct{ ago, from int }

// window between two samples.
type window struct {
	cores   []Core
	threads []Thread
}

// New balancer, which knows nothing yet.
func New(o Options) *Balancer { return &Balancer{options: o.complete(), moved: map[uint64]trip{}} }

// Observe a sample, and answer the step that it leads to; false for none. What it answers counts as done: the next
// samples tell where the threads really are.
func (b *Balancer) Observe(s Sample) (Step, bool) {
	w, ok := between(b.last, s)
	b.last = &s
	for id, t := range b.moved {
		t.ago++
		b.moved[id] = t
	}
	if !ok || len(b.windows) > 0 && !sameShape(b.windows[0], w) {
		b.windows = nil
	}
	if !ok {
		return Step{}, false
	}
	b.windows = append(b.windows, w)
	if len(b.windows) > b.options.Windows {
		b.windows = b.windows[1:]
	}
	if len(b.windows) < b.options.Windows {
		return Step{}, false
	}
	cores, threads := mean(b.windows)
	for i, t := range threads {
		trip, moved := b.moved[t.ID]
		threads[i].Resting = moved && trip.ago < b.options.Rest
		threads[i].Came = -1
		if moved && trip.ago < 4*b.options.Rest {
			threads[i].Came = trip.from
		}
	}
	step, ok := Decide(cores, threads, b.options)
	if !ok || !b.always(step) {
		return Step{}, false
	}
	for _, m := range step.Moves {
		b.moved[m.Thread] = trip{from: m.From}
	}
	b.windows = nil
	return step, true
}

// always: the step would have been worth something in each of the windows, not only in their mean.
func (b *Balancer) always(step Step) bool {
	for _, w := range b.windows {
		measured := workOf(w.cores, w.threads)
		was, is := busiest(measured.utilisation(nil), measured.utilisation(step.Moves))
		if was-is < b.options.Threshold/2 {
			return false
		}
	}
	return true
}

// Loads are how busy each core was in the last window, by its ID; nil when that is not known.
func (b *Balancer) Loads() map[int]float64 {
	if len(b.windows) == 0 {
		return nil
	}
	w := b.windows[len(b.windows)-1]
	loads := make(map[int]float64, len(w.cores))
	for i, used := range workOf(w.cores, w.threads).utilisation(nil) {
		loads[w.cores[i].ID] = used
	}
	return loads
}

// between two samples; false when they do not tell what each thread did where: counters of another life, threads that
// came, went or moved.
func between(last *Sample, s Sample) (window, bool) {
	if last == nil || len(last.Threads) != len(s.Threads) || len(last.Cores) != len(s.Cores) {
		return window{}, false
	}
	was := make(map[uint64]ThreadSample, len(last.Threads))
	for _, t := range last.Threads {
		was[t.ID] = t
	}
	busy, total := make([]uint64, len(s.Threads)), map[int]uint64{}
	for i, t := range s.Threads {
		before, there := was[t.ID]
		if !there || before.Core != t.Core || t.Busy < before.Busy || t.Idle < before.Idle {
			return window{}, false
		}
		busy[i] = t.Busy - before.Busy
		// A reactor's threads share its time: what they were busy and idle together is all of it.
		total[t.Core] += busy[i] + t.Idle - before.Idle
	}
	var w window
	fixed := map[int]float64{}
	for i, t := range s.Threads {
		load := 0.0
		if total[t.Core] > 0 {
			load = float64(busy[i]) / float64(total[t.Core])
		}
		if t.Movable {
			w.threads = append(w.threads, Thread{ID: t.ID, Core: t.Core, Load: load, Came: -1})
		} else {
			fixed[t.Core] += load
		}
	}
	for _, c := range s.Cores {
		w.cores = append(w.cores, Core{ID: c.ID, Physical: c.Physical, Interrupts: c.Interrupts, Fixed: fixed[c.ID]})
	}
	return w, true
}

func sameShape(a, b window) bool {
	if len(a.cores) != len(b.cores) || len(a.threads) != len(b.threads) {
		return false
	}
	for i := range a.threads {
		if a.threads[i].ID != b.threads[i].ID || a.threads[i].Core != b.threads[i].Core {
			return false
		}
	}
	for i := range a.cores {
		if a.cores[i].ID != b.cores[i].ID {
			return false
		}
	}
	return true
}

// mean of windows of one shape.
func mean(windows []window) ([]Core, []Thread) {
	n := float64(len(windows))
	cores, threads := append([]Core{}, windows[0].cores...), append([]Thread{}, windows[0].threads...)
	for i := range cores {
		cores[i].Interrupts, cores[i].Fixed = 0, 0
		for _, w := range windows {
			cores[i].Interrupts += w.cores[i].Interrupts / n
			cores[i].Fixed += w.cores[i].Fixed / n
		}
	}
	for i := range threads {
		threads[i].Load = 0
		for _, w := range windows {
			threads[i].Load += w.threads[i].Load / n
		}
	}
	return cores, threads
}
