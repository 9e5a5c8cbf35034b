// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"errors"
	"maps"
	"slices"

	"github.com/weft-storage/weft/csi-driver/mirror"
)

// mostCopies is how many copies, such as snapshots, are made at once.
const mostCopies = 3

// snapshot of a replica, from the moment when it is asked for until it is accepted or discarded.
type snapshot struct {
	mirror.Copy
	uid    string
	frozen bool
	// data that was frozen, and what was allowed to be there at that moment.
	data    [regions]int
	allowed [regions]map[int]bool
}

// snapshots does one step of the CSI controller, or of an agent, with one of the copies that are being made. A call can
// end at any moment, and the next one goes on with what is in the API.
func (w *world) snapshots() {
	if len(w.copies) == 0 || len(w.copies) < mostCopies && w.chance(30) {
		w.beginCopy()
		return
	}
	c := w.copies[w.rng.IntN(len(w.copies))]
	switch {
	case !c.frozen:
		w.freeze(c)
	case c.Request == 0:
		w.requestConfirm(c)
	case !w.calm && w.chance(5):
		c.Request = 0 // by another call
	default:
		proven, err := mirror.Proven(w.read().Record, c.Copy)
		w.judge(c, proven || w.faults.acceptsUnconfirmed, err)
	}
}

// read of the record by the CSI controller, which can be an older one.
func (w *world) read() Version {
	v := w.api.mirror
	if n := len(w.api.history); n > 0 && !w.calm && w.chance(5) {
		v = w.api.history[max(0, n-1-w.rng.IntN(3))]
	}
	return v
}

func (w *world) beginCopy() {
	v := w.read()
	m := v.Members[w.rng.IntN(len(v.Members))]
	c, err := mirror.Copyable(v.Record, m.Replica)
	if err == nil {
		w.copies = append(w.copies, &snapshot{Copy: c, uid: m.ReplicaUID})
	}
}

// freeze is what the replica's agent does. It follows the object that asks for it, whatever the record is by then.
func (w *world) freeze(c *snapshot) {
	t := w.targets[c.Replica]
	switch {
	case t == nil || t.uid != c.uid:
		w.discard(c)
	case t.powered && w.linked("api", t.name):
		c.frozen, c.data = true, t.disk.data
		for i := range w.allowed {
			c.allowed[i] = maps.Clone(w.allowed[i])
		}
	}
}

func (w *world) requestConfirm(c *snapshot) {
	v := w.read()
	if w.faults.acceptsEarlier && v.Confirmed > 0 {
		c.Request = v.Confirmed
		return
	}
	next, asked, err := mirror.RequestConfirm(v.Record, c.Copy)
	switch {
	case err != nil:
		w.judge(c, false, err)
	case w.api.store(v, next) != nil || !w.calm && w.chance(5): // not stored, or the answer was lost
	case w.api.replicas[c.Replica] == nil || w.api.replicas[c.Replica].past: // until a person has recovered the record
	default:
		c.Copy = asked
	}
}

// judge a copy: one that is accepted has every write that was acknowledged before it was frozen, and none that nobody
// sent.
func (w *world) judge(c *snapshot, proven bool, err error) {
	switch {
	case errors.Is(err, mirror.ErrChanged):
		w.tally["copies discarded"]++
		w.discard(c)
	case err != nil:
		w.wrong("a copy of %s: %v", c.Replica, err)
	case proven && w.restored && w.api.mirror.Confirmed < c.Request && !w.faults.acceptsUnconfirmed:
		// No node was asked: only headers would tell that the record is the past, and a copy reads none. A person who
		// restores the API makes no copies before the record is recovered.
		w.tally["copies of a restored record"]++
		w.discard(c)
	case proven:
		w.tally["copies accepted"]++
		if n := w.nodes[w.api.node]; n != nil && n.array != nil {
			w.tally["copies accepted while attached"]++
		}
		for region, value := range c.data {
			if !c.allowed[region][value] {
				w.wrong("a copy of %s in epoch %d has write %d in region %d, where only %v could be when it was frozen", c.Replica, c.Epoch, value, region, sorted2(c.allowed[region]))
			}
		}
		w.discard(c)
	}
}

func (w *world) discard(c *snapshot) {
	w.copies = slices.DeleteFunc(w.copies, func(o *snapshot) bool { return o == c })
}
