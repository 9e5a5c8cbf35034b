// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-storage/weft/csi-driver/mirror"
)

// node is a machine that runs pods: its kernel survives the end of the node plugin, and not a loss of power.
type node struct {
	w     *world
	name  string
	legs  map[string]*leg
	array *array
	top   topState
	pod   *pod

	plugin *Keeper
	tasks  []func()
	// attachment that the kubelet staged, or is staging; stopping: it unstages.
	attachment string
	stopping   bool
	ready      bool
	// restages: the kubelet unstages the attachment, although it is to stay here, and stages it again.
	restages bool
	// mover: no pod uses the attachment.
	mover bool
	said  []string
	// needsPerson: the keeper says so.
	needsPerson bool
	// alone: the keeper says that a kernel went on with a member alone, which therefore does not return.
	alone bool
}

type topState struct{ exists, blocked, failing, bypasses bool }

// pod writes to the volume, one write of a region at a time, and many regions at once.
type pod struct {
	n           *node
	attachment  string
	killed      bool
	outstanding map[int]int // region: sequence number
	waiting     map[int]int // what the blocked device holds
}

// write of a pod that the array has.
type write struct {
	region, seq int
	phase       phase
	pending     map[string]bool
	ok, failed  bool
	// by whom it was carried out; errored: a target answered an error.
	by      map[string]bool
	errored bool
}

type phase int

const (
	beforeSuperblock phase = iota
	bitmapPhase
	dataPhase
	ended
)

// array is MD's RAID 1. It acknowledges a write when every member that it has not dropped has it, and at least one
// that is in sync; it drops a member that answers an error, but the last, and writes that to the others' superblocks
// before it acknowledges anything else. A member that does not answer makes it wait.
type array struct {
	n         *node
	id        int
	events    int
	cleared   int
	members   map[string]MemberState
	disks     int
	bitmap    [regions]bool
	durable   [regions]bool // the bit is on all members
	needed    [regions]bool // a write failed: the bit stays
	writes    []*write
	making    bool // by a call that has not ended
	resyncing bool
	resyncAt  int
	source    string // of the resync
	cursor    map[string]int
	whole     map[string]bool // copied without the bitmap
	changed   bool            // a superblock has to be written
	writing   map[string]bool // superblocks that are being written
	written   map[string]bool // members in sync by the superblocks that were written
}

func (a *array) inSync() []string {
	var names []string
	for _, name := range sorted(a.members) {
		if a.members[name] == MemberInSync {
			names = append(names, name)
		}
	}
	return names
}

func (a *array) active() []string {
	var names []string
	for _, name := range sorted(a.members) {
		if s := a.members[name]; s == MemberInSync || s == MemberCopying {
			names = append(names, name)
		}
	}
	return names
}

func (a *array) degraded() bool { return len(a.inSync()) < a.disks }

func (a *array) superblock() superblock {
	s := superblock{valid: true, array: a.id, events: a.events, disks: a.disks, dirty: true, faulty: map[string]bool{}, active: map[string]bool{}, copying: map[string]bool{}}
	for name, state := range a.members {
		s.faulty[name] = state == MemberFaulty
		s.active[name] = state == MemberInSync
		s.copying[name] = state == MemberCopying
	}
	return s
}

// change writes superblocks; until they are written, no write begins or ends.
func (a *array) change() {
	a.events++
	a.changed = true
	a.flush()
}

func (a *array) flush() {
	if !a.changed || len(a.writing) > 0 {
		return
	}
	a.changed = false
	a.writing = map[string]bool{}
	s, cleared, bitmap := a.superblock(), a.cleared, a.bitmap
	for _, name := range a.active() {
		l := a.n.legs[name]
		if l == nil {
			continue
		}
		a.writing[name] = true
		l.send(func(d *disk) { d.super, d.cleared, d.bitmap = s, cleared, bitmap }, func(ok bool) {
			delete(a.writing, name)
			if !ok {
				a.fail(name)
				a.n.w.lost = a.n.w.lost || a.members[name] == MemberInSync && (a.n.w.restored || a.untold(name))
			}
			a.proceed()
		})
	}
	a.proceed()
}

// untold tells whether the superblock of a member does not say yet that another one was dropped. If the last member in
// sync answers an error to that, too, nothing shows who ran last: two replicas do not survive that.
func (a *array) untold(name string) bool {
	says := a.n.w.targets[name].disk.super
	for other, state := range a.members {
		if state == MemberFaulty && !says.faulty[other] {
			return true
		}
	}
	return false
}

// fail a member, unless it is the last.
func (a *array) fail(name string) {
	switch a.members[name] {
	case MemberInSync:
		if len(a.inSync()) == 1 {
			return
		}
	case MemberCopying:
	default:
		return
	}
	a.members[name] = MemberFaulty
	a.n.w.say("the kernel of %s drops %s: %v", a.n.name, name, a.members)
	a.change()
}

func (a *array) begin(region, seq int) {
	a.writes = append(a.writes, &write{region: region, seq: seq, by: map[string]bool{}})
	a.proceed()
}

// proceed with all writes that can.
func (a *array) proceed() {
	if len(a.writing) == 0 && a.changed {
		a.flush()
		return
	}
	if len(a.writing) == 0 {
		a.written = map[string]bool{}
		for _, name := range a.inSync() {
			a.written[name] = true
		}
	}
	for again := true; again; {
		again = false
		for _, w := range slices.Clone(a.writes) {
			again = a.advance(w) || again
		}
		a.writes = slices.DeleteFunc(a.writes, func(w *write) bool { return w.phase == ended })
	}
}

func (a *array) advance(w *write) bool {
	if len(a.writing) > 0 || a.changed || len(w.pending) > 0 {
		return false
	}
	switch w.phase {
	case beforeSuperblock:
		w.phase = bitmapPhase
		if a.durable[w.region] {
			return true
		}
		a.bitmap[w.region] = true
		bitmap, cleared := a.bitmap, a.cleared
		return a.send(w, func(d *disk) {
			for i, set := range bitmap {
				d.bitmap[i] = d.bitmap[i] || set
			}
			d.cleared = max(d.cleared, cleared)
		}, func(string) {})
	case bitmapPhase:
		w.phase = dataPhase
		a.durable[w.region] = true
		return a.send(w, func(d *disk) { d.data[w.region] = w.seq }, func(name string) {
			w.ok = w.ok || a.members[name] == MemberInSync
			w.by[name] = true
		})
	case dataPhase:
		w.phase = ended
		a.needed[w.region] = a.needed[w.region] || w.failed
		if w.ok && !w.failed && !a.degraded() {
			a.cleared = a.events
		}
		twice := w.errored && slices.ContainsFunc(a.inSync(), func(name string) bool { return !w.by[name] })
		a.n.ended(w.region, w.seq, w.ok, twice)
	}
	return false
}

func (a *array) send(w *write, apply func(*disk), ok func(string)) bool {
	w.pending = map[string]bool{}
	for _, name := range a.active() {
		l := a.n.legs[name]
		if l == nil {
			a.fail(name)
			w.failed = true
			continue
		}
		w.pending[name] = true
		l.send(apply, func(good bool) {
			delete(w.pending, name)
			if good {
				ok(name)
			} else {
				w.failed = true
				w.errored = w.errored || a.n.w.erroring
				a.fail(name)
				// The last member failed to write its bitmap, which therefore misses the write that follows.
				a.n.w.lost = a.n.w.lost || a.n.w.erroring && w.phase == bitmapPhase && a.members[name] == MemberInSync
			}
			a.proceed()
		})
	}
	return true
}

// copy one region to a member, or make one region equal after an unclean end.
func (a *array) copy() {
	if len(a.writing) > 0 || a.changed {
		return
	}
	busy := func(region int) bool {
		return slices.ContainsFunc(a.writes, func(w *write) bool { return w.region == region && w.phase != beforeSuperblock })
	}
	if a.resyncing {
		a.resync(busy)
		return
	}
	for _, name := range sorted(a.members) {
		if a.members[name] != MemberCopying || a.n.legs[name] == nil || !a.n.legs[name].live {
			continue
		}
		region := a.cursor[name]
		if region == regions {
			a.members[name] = MemberInSync
			a.change()
			return
		}
		if busy(region) || !a.copyRegion(a.inSync()[0], name, region, a.whole[name] || a.bitmap[region]) {
			continue
		}
		a.cursor[name]++
		return
	}
	a.clear(busy)
}

func (a *array) copyRegion(from, to string, region int, needed bool) bool {
	for _, name := range []string{from, to} {
		if l := a.n.legs[name]; l == nil || !l.live {
			return false
		}
	}
	if needed {
		a.n.w.targets[to].disk.data[region] = a.n.w.targets[from].disk.data[region]
		a.n.w.copied++
	}
	return true
}

func (a *array) resync(busy func(int) bool) {
	all := a.inSync()
	if len(all) < 2 || a.resyncAt == regions {
		a.resyncing = false
		return
	}
	if !slices.Contains(all, a.source) {
		a.source = all[a.n.w.rng.IntN(len(all))]
	}
	if busy(a.resyncAt) {
		return
	}
	for _, name := range all {
		if name != a.source && !a.copyRegion(a.source, name, a.resyncAt, a.bitmap[a.resyncAt]) {
			return
		}
	}
	a.resyncAt++
}

// clear bits of regions that nobody writes, while nothing is missing anywhere.
func (a *array) clear(busy func(int) bool) {
	if a.degraded() {
		return
	}
	for _, name := range a.active() {
		if l := a.n.legs[name]; l == nil || !l.live {
			return
		}
	}
	if len(a.active()) != len(a.inSync()) {
		return
	}
	for region := range regions {
		waits := slices.ContainsFunc(a.writes, func(w *write) bool { return w.region == region })
		if !a.bitmap[region] || a.needed[region] || busy(region) || waits {
			continue
		}
		a.bitmap[region], a.durable[region], a.cleared = false, false, a.events
		for _, name := range a.active() {
			d := &a.n.w.targets[name].disk
			d.bitmap[region], d.cleared = false, a.events
		}
		return
	}
}

// read a region as a pod would: from any member in sync, from one while members are made equal.
func (a *array) read(region int) (int, bool) {
	var from []string
	for _, name := range a.inSync() {
		if l := a.n.legs[name]; l != nil && l.live {
			from = append(from, name)
		}
	}
	if len(from) == 0 {
		return 0, false
	}
	return a.n.w.targets[from[a.n.w.rng.IntN(len(from))]].disk.data[region], true
}

// What follows is what the keeper sees of the node's kernel.

var errNoArray = errors.New("there is no array")

type kernelArray struct{ n *node }

func (k kernelArray) State() (ArrayState, error) {
	a := k.n.array
	if a == nil {
		return ArrayState{}, nil
	}
	members := maps.Clone(a.members)
	for name, state := range members {
		if state == MemberInSync && !a.written[name] {
			members[name] = MemberCopying
		}
	}
	return ArrayState{Exists: true, Resyncing: a.making || a.resyncing || a.written == nil, Members: members}, nil
}

func (k kernelArray) Compare(_ context.Context, replicas []string) ([]string, error) {
	var kicked []string
	for _, replica := range replicas {
		for _, other := range replicas {
			if err := k.n.reads(other); err != nil {
				return nil, err
			}
			s, o := k.n.w.targets[replica].disk.super, k.n.w.targets[other].disk.super
			left := !s.valid || s.array != o.array || o.faulty[replica] && o.events > s.events
			if o.valid && o.active[other] && left && !slices.Contains(kicked, replica) {
				kicked = append(kicked, replica)
			}
		}
	}
	return kicked, nil
}

func (k kernelArray) Ahead(_ context.Context, replica string) (bool, error) {
	if err := k.n.reads(replica); err != nil {
		return false, err
	}
	if k.n.array == nil {
		return false, errNoArray
	}
	s := k.n.w.targets[replica].disk.super
	return s.valid && slices.ContainsFunc(k.n.array.inSync(), func(name string) bool { return name != replica && !s.active[name] && !s.copying[name] }), nil
}

func (k kernelArray) Assemble(_ context.Context, replicas []string) error {
	w := k.n.w
	if k.n.array != nil && k.n.array.making {
		return k.n.array.made(replicas)
	}
	if k.n.array != nil {
		return errors.New("there is an array already")
	}
	a := &array{n: k.n, members: map[string]MemberState{}, cursor: map[string]int{}, whole: map[string]bool{}}
	var newest superblock
	for _, replica := range replicas {
		if err := k.n.reads(replica); err != nil {
			return err
		}
		if s := w.targets[replica].disk.super; s.valid && (!newest.valid || s.events > newest.events) {
			newest = s
			a.bitmap, a.cleared = w.targets[replica].disk.bitmap, w.targets[replica].disk.cleared
		}
		a.members[replica] = MemberInSync
	}
	for _, replica := range replicas {
		s := w.targets[replica].disk.super
		if s.valid != newest.valid || s.valid && (s.array != newest.array || s.events+1 < newest.events) {
			return fmt.Errorf("the superblock of %s is older", replica)
		}
	}
	a.durable = a.bitmap
	a.id, a.events, a.disks = newest.array, newest.events, max(2, newest.disks, len(replicas))
	if !newest.valid {
		w.arrays++
		a.id = w.arrays
	}
	a.resyncing = newest.valid && newest.dirty && len(replicas) > 1
	a.source = replicas[w.rng.IntN(len(replicas))]
	k.n.array = a
	w.say("the kernel of %s assembles %v, resyncing %v from %s, superblock %+v", k.n.name, replicas, a.resyncing, a.source, newest)
	a.making = w.slow
	a.change()
	return a.made(replicas)
}

// made ends the making of an array when the metadata of its members is written. One that lost a member meanwhile is
// taken down again.
func (a *array) made(replicas []string) error {
	if !a.making {
		return nil
	}
	if len(a.writing) > 0 || a.changed {
		panic(hanging{})
	}
	a.making = false
	if !slices.Equal(a.inSync(), slices.Sorted(slices.Values(replicas))) {
		a.n.array = nil
		return fmt.Errorf("the array has lost a member: %v", a.members)
	}
	return nil
}

func (k kernelArray) Fail(_ context.Context, replica string) error {
	a := k.n.array
	if a == nil {
		return errNoArray
	}
	a.fail(replica)
	if a.members[replica] != MemberFaulty && a.members[replica] != MemberAbsent {
		return errors.New("it is the last")
	}
	return nil
}

func (k kernelArray) Remove(_ context.Context, replica string) error {
	a := k.n.array
	if a == nil {
		return errNoArray
	}
	if s := a.members[replica]; s != MemberFaulty && s != MemberAbsent {
		return errors.New("it is not faulty")
	}
	delete(a.members, replica)
	return nil
}

func (k kernelArray) add(replica string, whole bool) error {
	a := k.n.array
	if a == nil {
		return errNoArray
	}
	if err := k.n.reads(replica); err != nil {
		return err
	}
	if a.members[replica] != MemberAbsent || len(a.writing) > 0 || a.changed {
		return errors.New("device or resource busy")
	}
	d := &k.n.w.targets[replica].disk
	if s := d.super; !whole && (!s.valid || s.array != a.id || s.events < a.cleared) {
		return fmt.Errorf("%w: it has events %d, and the bitmap covers what was after %d", ErrFullCopy, s.events, a.cleared)
	}
	a.members[replica], a.cursor[replica], a.whole[replica] = MemberCopying, 0, whole
	a.disks = max(a.disks, len(a.active()))
	d.bitmap = a.bitmap
	a.durable = [regions]bool{}
	a.change()
	return nil
}

func (k kernelArray) ReAdd(_ context.Context, replica string) error { return k.add(replica, false) }
func (k kernelArray) Add(_ context.Context, replica string) error   { return k.add(replica, true) }

func (k kernelArray) SetSpeed(context.Context, int64) error { return nil }

func (k kernelArray) Stop(context.Context) error {
	a := k.n.array
	switch {
	case a == nil:
		return nil
	case k.n.top.exists && !k.n.top.failing:
		return errors.New("device or resource busy")
	case len(a.writes) > 0 || len(a.writing) > 0 || a.changed:
		return errors.New("writes are under way")
	case a.making:
		return errors.New("it is being made")
	}
	for _, name := range a.active() {
		if l := k.n.legs[name]; l != nil && l.live {
			d := &k.n.w.targets[name].disk
			d.super, d.bitmap, d.cleared = a.superblock(), a.bitmap, a.cleared
			d.super.dirty = a.resyncing
		}
	}
	k.n.array = nil
	return nil
}

type kernelTop struct{ n *node }

func (k kernelTop) Exists() (bool, error) { return k.n.top.exists && !k.n.top.failing, nil }

func (k kernelTop) Bypasses() (bool, error) {
	k.n.meanwhile()
	return k.n.top.bypasses, nil
}

func (k kernelTop) Block(context.Context) error {
	k.n.top.blocked = true
	return nil
}

func (k kernelTop) Fail(context.Context) error {
	if k.n.array != nil && len(k.n.array.writes) > 0 {
		return errors.New("writes are under way")
	}
	k.n.top.failing = true
	return nil
}

type kernelUsers struct{ n *node }

// Kill the users: they end when nothing of theirs is under way, but run no more once they were killed.
func (k kernelUsers) Kill() (int, error) {
	p := k.n.pod
	if p == nil {
		return 0, nil
	}
	if k.n.w.faults.releasesFenced {
		return 0, nil
	}
	left := 0
	if !p.killed {
		p.killed, left = true, 1
	}
	if len(p.outstanding) <= len(p.waiting) {
		k.n.pod = nil
	}
	return left, nil
}

type kernelLegs struct{ n *node }

func (k kernelLegs) All() (map[string]Leg, error) {
	all := map[string]Leg{}
	for name, l := range k.n.legs {
		state := LegHanging
		if l.live {
			state = LegLive
		}
		all[name] = Leg{State: state, Identity: l.identity}
	}
	return all, nil
}

func (k kernelLegs) Connect(_ context.Context, replica, identity string) error {
	if k.n.legs[replica] != nil {
		return fmt.Errorf("there is a controller of %s already", replica)
	}
	l := &leg{n: k.n, replica: replica, identity: identity}
	if !l.reachable() {
		return fmt.Errorf("%s does not answer", replica)
	}
	k.n.legs[replica] = l
	l.refresh()
	return nil
}

func (k kernelLegs) Delete(_ context.Context, replica string) error {
	l := k.n.legs[replica]
	if l == nil {
		return nil
	}
	if !k.n.w.slow || !l.deleting && k.n.w.chance(30) {
		l.delete()
		return nil
	}
	l.begin()
	panic(hanging{})
}

type kernelHeaders struct{ n *node }

// hanging ends a task that waits in the kernel. It begins again later.
type hanging struct{}

// meanwhile a task may end: between what a step has looked at and what it makes of that.
func (n *node) meanwhile() {
	if len(n.tasks) == 0 || n.w.calm || !n.w.chance(20) {
		return
	}
	i := n.w.rng.IntN(len(n.tasks))
	do := n.tasks[i]
	n.tasks = slices.Delete(n.tasks, i, i+1)
	do()
}

// patiently run a task, which may hang.
func (n *node) patiently(f func()) func() {
	return func() {
		defer func() {
			switch r := recover(); r {
			case nil:
			case hanging{}:
				n.tasks = append(n.tasks, n.patiently(f))
			default:
				panic(r)
			}
		}()
		f()
	}
}

// reads something of a replica. That fails if it is not connected to, and hangs while its leg does.
func (n *node) reads(replica string) error {
	l := n.legs[replica]
	if l == nil {
		return fmt.Errorf("%s is not connected", replica)
	}
	if !l.live {
		panic(hanging{})
	}
	return nil
}

// Read a header.
func (k kernelHeaders) Read(_ context.Context, replica string) (mirror.Header, error) {
	if err := k.n.reads(replica); err != nil {
		return mirror.Header{}, err
	}
	h := k.n.w.targets[replica].disk.header
	if k.n.w.faults.trustsStale && k.n.w.restored {
		h.Epoch = 0
		if m, ok := mirror.Get(k.n.w.api.mirror.Record, replica); ok {
			h.Mark = lastMark(m)
		}
	}
	return h, nil
}

func (k kernelHeaders) Write(_ context.Context, replica string, h mirror.Header) error {
	if err := k.n.reads(replica); err != nil {
		return err
	}
	k.n.w.targets[replica].disk.header = h
	k.n.w.targets[replica].wrote = true
	k.n.w.say("%s writes the header of %s: %s", k.n.name, replica, h.Mark)
	if k.n.w.chance(5) {
		return errors.New("the answer was lost")
	}
	return nil
}
