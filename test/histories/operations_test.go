// SPDX-License-Identifier: Apache-2.0

package histories

import "slices"

// operation that a sequence may do next.
type operation struct {
	// weight among the others.
	weight int
	name   string
	// can it be done now?
	can bool
	do  func()
}

// operations, of which one is drawn.
func (w *world) operations() []operation {
	h, larger := w.hosts[w.rng.IntN(len(w.hosts))], growth*w.rng.Int64N(3)
	use, free := w.any((*volume).attached), w.any(func(v *volume) bool { return v.idle() && v.whole() })
	more := w.any(func(v *volume) bool { return v.takes(h) })
	copied := w.any((*volume).copyable)
	kept := w.any(func(v *volume) bool { return v.whole() })
	one := w.any(func(v *volume) bool { return v.whole() && len(v.hosts) == 1 })
	some := w.any(func(v *volume) bool { return v.whole() && v.size < maxSize })
	room := len(w.volumes) < most
	return []operation{
		{18, "attach", more != nil, func() { w.attach(more, h) }},
		{16, "write", use != nil, func() {
			w.write(use)
			w.write(use)
			w.read(use)
		}},
		{12, "detach", use != nil, func() { w.detach(use, use.hosts[w.rng.IntN(len(use.hosts))]) }},
		{10, "snapshot", copied != nil && len(w.snapshots) < most, func() { w.snap(copied) }},
		{8, "volume from a snapshot", len(w.snapshots) > 0 && room, func() {
			s := w.snapshots[w.rng.IntN(len(w.snapshots))]
			w.create(s.size+larger, s.use, fromSnapshot(s), s.words)
		}},
		{6, "volume from a volume", copied != nil && room, func() { w.create(copied.size+larger, copied.use, fromVolume(copied), copied.words) }},
		{5, "expand", some != nil, func() { w.expand(some) }},
		{6, "race", true, func() { w.race(free) }},
		{5, "delete a volume", free != nil, func() { w.dropVolume(free) }},
		{4, "delete a snapshot", len(w.snapshots) > 0, w.dropSnapshot},
		{5, "refusals", one != nil, func() { w.refusals(one) }},
		{3, "take away", use != nil, func() { w.takeAway(use) }},
		{2, "list", true, w.list},
		{8, "reboot", true, func() {
			if use != nil {
				h = use.hosts[0]
			}
			w.reboot(h, w.any(func(v *volume) bool { return v.takes(h) }))
		}},
		{6, "limits", kept != nil, func() { w.modify(kept) }},
		{6, "paths", true, func() {
			w.await("all paths", func() bool { return h.mend() == nil })
			w.must(h.turnRDMA(!h.noRDMA, w.rng.IntN(2) == 0))
		}},
		{14, "mistake", kept != nil || len(w.snapshots) > 0, func() { w.mistake(kept) }},
		{8, "orphan", len(w.orphans) > 0, w.endOrphan},
		{12, "power loss", use != nil, func() { w.powerLoss(use) }},
		{7, "volume", room, func() { w.create(smallest+larger, w.anyUse(), nil, nil) }},
		// Instead of what cannot be done: at first that is most of it.
		{0, "volume instead", room, func() { w.create(smallest+larger, w.anyUse(), nil, nil) }},
		{0, "attach instead", more != nil, func() { w.attach(more, h) }},
		{0, "list instead", true, w.list},
	}
}

// operate once, at random.
func (w *world) operate() {
	all, sum := w.operations(), 0
	for _, o := range all {
		sum += o.weight
	}
	drawn := w.rng.IntN(sum)
	i := slices.IndexFunc(all, func(o operation) bool {
		drawn -= o.weight
		return drawn < 0
	})
	if !all[i].can {
		i = slices.IndexFunc(all, func(o operation) bool { return o.weight == 0 && o.can })
	}
	w.tell("operation: %s", all[i].name)
	all[i].do()
	w.settleMistakes()
}
