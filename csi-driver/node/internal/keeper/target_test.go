// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"maps"
	"slices"

	"github.com/weft-storage/weft/csi-driver/mirror"
)

// regions of a volume. A region is what one bit of the bitmap covers, and what one write writes. A pod has one write
// of a region at a time under way, and so as many as there are regions when a leg hangs.
const regions = 40

// superblock is MD's on one replica.
type superblock struct {
	valid  bool
	array  int
	events int
	disks  int // that the array has places for
	dirty  bool
	// faulty, active and copying members, as the kernel that wrote this saw them.
	faulty, active, copying map[string]bool
}

// disk is what is durable of a replica.
type disk struct {
	data    [regions]int // sequence number of the write
	super   superblock
	bitmap  [regions]bool
	cleared int // events up to which nothing is missing
	header  mirror.Header
}

// blank tells whether nothing was ever written.
func (d *disk) blank() bool {
	return d.header.Mark == mirror.NoMark && !d.super.valid && d.data == [regions]int{}
}

// command is what a host sent to a target.
type command struct {
	identity string
	apply    func(*disk)
	// done is called with the answer, unless the connection went before. It is the host's.
	done func(ok bool)
	// orphan: the connection it came by is gone.
	orphan bool
}

// target serves one replica.
type target struct {
	w        *world
	name     string
	uid      string
	disk     disk
	powered  bool
	admitted map[string]bool
	inFlight []*command
	// failing: so many of the next commands are answered with an error.
	failing int
	wrote   bool // the present host has written
	errors  bool // it returned some to the present host
	// before: it returned some to the host before, and no other has written since.
	before bool
	// seen is the highest version of the API that the agent acted on; latched: it found an older one.
	seen    int
	latched bool
	// kept: it found one once. What leaves the volume then is not deleted.
	kept bool
}

// erred tells whether it returned errors to the host that wrote last. One that was admitted and never wrote changes
// nothing of that. No agent knows it.
func (t *target) erred() bool { return t.errors || !t.wrote && t.before }

// execute one command that is in flight.
func (t *target) execute(i int) {
	c := t.inFlight[i]
	t.inFlight = slices.Delete(t.inFlight, i, i+1)
	if t.failing > 0 && !c.orphan {
		t.failing--
		t.errors, t.w.erroring = true, true
		c.done(false)
		t.w.erroring = false
		return
	}
	c.apply(&t.disk)
	t.wrote = true
	if !c.orphan {
		c.done(true)
	}
}

// drain what a host has in flight: each command is carried out or not.
func (t *target) drain(which func(*command) bool) {
	rest := t.inFlight[:0]
	for _, c := range t.inFlight {
		switch {
		case !which(c):
			rest = append(rest, c)
		case t.w.chance(50):
			c.apply(&t.disk)
		}
	}
	clear(t.inFlight[len(rest):])
	t.inFlight = rest
}

// crash of the target: it loses what is in flight.
func (t *target) crash() {
	t.powered = false
	t.drain(func(*command) bool { return true })
}

// agent does what the replica's object says: the host that it names may connect, once every other one is off.
func (t *target) agent() {
	api := t.w.api
	r, ok := api.replicas[t.name]
	if !ok || !t.w.linked("api", t.name) || r.uid != t.uid {
		return
	}
	if r.version < t.seen && !t.w.faults.trustsStale {
		t.latched, t.kept = true, true
	}
	if t.latched {
		r.past = true
		return
	}
	t.seen = r.version
	if !t.powered {
		return
	}
	if r.wanted != "" && !t.admitted[r.wanted] {
		if t.w.faults.forgetsFormer {
			t.admitted[r.wanted] = true
		} else {
			t.admitted = map[string]bool{}
			t.w.refresh()
			t.drain(func(*command) bool { return true })
			t.before = t.erred()
			t.errors, t.wrote = false, false
			t.admitted[r.wanted] = true
			r.blank = t.disk.blank()
		}
		t.w.refresh()
	}
	r.admitted = r.wanted
	r.past = false
}

// leg is a connection, in a host's kernel.
type leg struct {
	n        *node
	replica  string
	identity string
	live     bool
	// deleting: its controllers are being deleted, which takes a while, whatever becomes of who asked for it.
	deleting bool
	// queue of commands that wait to be sent, and sent ones that were not answered.
	queue, sent []*command
}

func (l *leg) send(apply func(*disk), done func(ok bool)) {
	l.queue = append(l.queue, &command{identity: l.identity, apply: apply, done: done})
}

// reachable tells whether the target would let the leg connect.
func (l *leg) reachable() bool {
	t := l.n.w.targets[l.replica]
	return t.powered && t.admitted[l.identity] && l.n.w.linked(l.n.name, l.replica)
}

// refresh notices what connects and what does not.
func (l *leg) refresh() {
	live := l.reachable()
	if live == l.live || l.deleting {
		return
	}
	l.live = live
	t := l.n.w.targets[l.replica]
	if live {
		// A target lets a host connect again only when nothing of its former connection is in flight.
		t.drain(func(c *command) bool { return c.orphan && c.identity == l.identity })
		return
	}
	// The kernel sends again what was not answered; what is in flight may be carried out, too.
	for _, c := range l.sent {
		again := *c
		c.orphan = true
		l.queue = append(l.queue, &again)
	}
	l.sent = nil
}

func (l *leg) deliver() {
	i := l.n.w.rng.IntN(len(l.queue))
	c := l.queue[i]
	l.queue = slices.Delete(l.queue, i, i+1)
	done := c.done
	c.done = func(ok bool) {
		l.sent = slices.DeleteFunc(l.sent, func(o *command) bool { return o == c })
		c.done = done
		done(ok)
	}
	l.sent = append(l.sent, c)
	t := l.n.w.targets[l.replica]
	t.inFlight = append(t.inFlight, c)
}

// begin to delete the controllers: nothing is sent any more, and what was sent may still be answered.
func (l *leg) begin() { l.deleting, l.live = true, false }

// fade is one moment of the deletion: a command fails, which may be carried out if it was sent. When none is left, the
// controllers go.
func (l *leg) fade() {
	if n := len(l.queue) + len(l.sent); n == 0 {
		l.delete()
	} else if i := l.n.w.rng.IntN(n); i < len(l.queue) {
		c := l.queue[i]
		l.queue = slices.Delete(l.queue, i, i+1)
		c.done(false)
	} else {
		c := l.sent[i-len(l.queue)]
		c.orphan = true
		c.done(false)
	}
}

// delete the controllers at once: everything that waits fails, what is in flight may be carried out.
func (l *leg) delete() {
	all := append(slices.Clone(l.queue), l.sent...)
	for _, c := range l.sent {
		c.orphan = true
	}
	l.queue, l.sent, l.live = nil, nil, false
	delete(l.n.legs, l.replica)
	for _, c := range all {
		c.done(false)
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
