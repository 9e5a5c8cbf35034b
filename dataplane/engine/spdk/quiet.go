// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/ptr"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// SPDK 26.05 holds back what hosts send to a volume while it takes a snapshot of it, and does not wait for what is
// under way. A first write to a cluster copies that cluster, and then enters it in an extent page of the volume
// (blob_insert_cluster_msg of lib/blob/blobstore.c). If the snapshot took that page over in between, SPDK writes the
// entry to page 0 of the lvstore instead, which holds its name: no volume of the drive is there after the next start.
// With a host that writes at random it takes one snapshot (TestSnapshotsUnderWrites).
//
// So hosts wait before: each listener of the subsystem becomes inaccessible (ANA), Linux keeps what is sent and what
// comes back with that status, and SPDK ends what is under way before it changes the namespace's ANA group, to the one
// that it has.

const (
	// drainPatience with I/O that is under way: as long as a drive may be slow.
	drainPatience = 5 * time.Second
	// wakePatience with subsystems, for which all other calls wait.
	wakePatience = 2 * time.Second
	// lastPatience with what SPDK is doing when this process is told to end: most of a pod's grace period.
	lastPatience = 20 * time.Second
	// quietAtOnce volumes of a drive are kept waiting at the same time, and so for each other.
	quietAtOnce = 8
)

// served namespace of a subsystem, and its volume.
type served struct {
	nqn       string
	nsid      uint32
	listeners []spdkrpc.Address
	volume    *lvol
}

// quietly has SPDK do something to volumes, by items of errs, while nothing is under way that their hosts have sent.
// It is done at once for the volumes that nobody uses, and for each of the others alone: a drive that hangs keeps no
// other drive's hosts waiting. Where the call's time ends first, SPDK still does it, and hosts wait until it has.
func (s *session) quietly(items []int, volume func(item int) *lvol, what func(item int) ongoing, errs []error, do func(s *session, items []int, errs []error)) {
	used, idle := []int{}, []int{}
	for _, i := range items {
		if volume(i).claimed {
			used = append(used, i)
		} else {
			idle = append(idle, i)
		}
	}
	for _, of := range byDevice(idle, volume) {
		defer s.unused(of, volume, what, errs, do)()
	}
	if len(used) == 0 {
		return
	}
	n, err := s.finishNetwork(s.startSubsystems())
	places := map[string]chan struct{}{}
	kept := map[int]*keeping{}
	for _, i := range used {
		of, known := n.served(volume(i))
		switch {
		case err != nil:
			errs[i] = err
		case !known:
			errs[i] = fmt.Errorf("%w: something else than a subsystem uses it", engine.ErrBusy)
		default:
			device := volume(i).pool.Device
			if places[device] == nil {
				places[device] = make(chan struct{}, quietAtOnce)
			}
			kept[i], errs[i] = s.keep(of, what(i), places[device], func(beyond *session) func() error {
				own := make([]error, len(errs)) // the caller's are its own when its time has ended
				do(beyond, []int{i}, own)
				return func() error { return own[i] }
			})
		}
	}
	for i, k := range kept {
		if k != nil {
			errs[i] = k.wait(s.ctx)
		}
	}
	s.awaitWoken(kept)
}

// byDevice groups items by the device of their volumes: one that hangs holds up no other.
func byDevice(items []int, volume func(item int) *lvol) map[string][]int {
	groups := map[string][]int{}
	for _, i := range items {
		device := volume(i).pool.Device
		groups[device] = append(groups[device], i)
	}
	return groups
}

// unused volumes of one device are changed at once, and get no hosts until they are, also where the call's time ends
// first.
func (s *session) unused(items []int, volume func(item int) *lvol, what func(item int) ongoing, errs []error, do func(s *session, items []int, errs []error)) (wait func()) {
	var begun []int
	for _, i := range items {
		if errs[i] = s.unchanging(volume(i)); errs[i] == nil {
			errs[i] = s.recordChange(volume(i), what(i), "")
		}
		if errs[i] == nil {
			begun = append(begun, i)
		}
	}
	if len(begun) == 0 {
		return func() {}
	}
	own := make([]error, len(errs)) // the caller's are its own when its time has ended
	change := s.ask(s.life.changing, volume(begun[0]).alias(), func(beyond *session) error {
		do(beyond, begun, own)
		var kept []error
		for _, i := range begun {
			kept = append(kept, beyond.changed(volume(i)))
		}
		return errors.Join(kept...)
	})
	for _, i := range begun {
		s.life.changing[volume(i).alias()] = change
	}
	return func() {
		select {
		case <-change.done:
			for _, i := range begun {
				errs[i] = own[i]
			}
		case <-s.ctx.Done():
			for _, i := range begun {
				errs[i] = s.ctx.Err()
			}
		}
	}
}

// unchanging fails with engine.ErrBusy while SPDK changes a volume. The caller holds mu.
func (e *Engine) unchanging(l *lvol) error {
	if err := e.isRecalled(); err != nil {
		return err
	}
	forgetAnswered(e.life.changing)
	if e.life.changing[l.alias()] != nil {
		return fmt.Errorf("%w: SPDK is still changing it", engine.ErrBusy)
	}
	return nil
}

// mayGive says why an export cannot be given more now: hosts would use what it gets at once, while those that are there
// are kept waiting. The caller holds mu.
func (s *session) mayGive(nqn string) error {
	if err := s.isRecalled(); err != nil {
		return err
	}
	s.forgetWoken()
	if s.life.waking[nqn] != nil {
		return fmt.Errorf("%w: its hosts wait until SPDK has changed its volume", engine.ErrBusy)
	}
	return nil
}

// keeping hosts waiting while SPDK does something.
type keeping struct {
	nqn string
	// result of what is done, once.
	result chan error
	// waking ends when they have been woken, or, where there are none, may come.
	waking *asking
}

func (k *keeping) wait(ctx context.Context) error {
	select {
	case err := <-k.result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keep the hosts of a volume waiting until something is done that do begins, and then wake them. do returns as soon as
// they may go on, and what it returns waits for the result. It takes one of places. The caller holds mu. It fails with
// engine.ErrBusy while they are kept waiting already.
func (s *session) keep(of served, what ongoing, places chan struct{}, do func(beyond *session) func() error) (*keeping, error) {
	s.forgetWoken()
	if s.life.waking[of.nqn] != nil {
		return nil, fmt.Errorf("%w: its hosts wait for something else, or are being woken", engine.ErrBusy)
	}
	// What is kept waiting is known to whoever comes after this process.
	if err := s.recordQuiet(of.nqn, nil); err != nil {
		return nil, err
	}
	if err := s.recordChange(of.volume, what, of.nqn); err != nil {
		return nil, err
	}
	k := &keeping{nqn: of.nqn, result: make(chan error, 1)}
	defer func() { s.life.changing[of.volume.alias()] = k.waking }() // its next export may have another NQN
	k.waking = s.ask(s.life.waking, of.nqn, func(beyond *session) error {
		places <- struct{}{}
		defer func() { <-places }()
		wait := func() error { return nil }
		err := beyond.quiet(of)
		if err != nil {
			k.result <- err
		} else {
			wait = do(beyond)
		}
		woken := errors.Join(beyond.wakeOne(of.nqn), beyond.changed(of.volume))
		if err == nil {
			go func() { k.result <- wait() }() // what SPDK still clears holds up nobody
		}
		return woken
	})
	return k, nil
}

// awaitWoken hosts for a moment, so that they are when the call ends. What does not answer is woken when it does.
func (s *session) awaitWoken(kept map[int]*keeping) {
	patience, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), wakePatience)
	defer cancel()
	for _, k := range kept {
		if k == nil {
			continue
		}
		if err := k.waking.wait(patience); err != nil {
			logr.FromContextOrDiscard(s.ctx).Error(err, "Hosts still wait; trying again", "nqn", k.nqn)
		}
	}
	s.forgetWoken()
}

// outlast what SPDK changes now, if that does not take too long: hosts wait until the next process has woken them.
func (e *Engine) outlast(ctx context.Context) {
	patience, cancel := context.WithTimeout(ctx, lastPatience)
	defer cancel()
	e.mu.Lock()
	underWay := slices.AppendSeq(slices.Collect(maps.Values(e.life.waking)), maps.Values(e.life.changing))
	e.mu.Unlock()
	for _, a := range underWay {
		select {
		case <-a.done:
		case <-patience.Done():
			return
		}
	}
}

// forgetWoken hosts. The caller holds mu.
func (s *session) forgetWoken() {
	for nqn, a := range s.life.waking {
		if a.answered() {
			s.life.awake = s.life.awake && a.err == nil
			delete(s.life.waking, nqn)
		}
	}
}

// mergesInto is the volume that gets what a snapshot has when it is deleted; nil if it is merged into nothing that
// hosts could write.
func (l *lvol) mergesInto() *lvol {
	if l.cleared() || len(l.clones) != 1 {
		return nil
	}
	if into := l.pool.lvols[l.clones[0]]; into != nil && into.kind == volumeLvol {
		return into
	}
	return nil
}

// merge a deleted snapshot into a volume. SPDK does not order what it writes of the volume's map then with the entries
// of first writes to clusters either, so hosts wait until that is done, and not for what SPDK clears afterwards. It is
// busy when their I/O does not end; nothing was deleted then. The caller does not hold mu.
func (s *session) merge(l, into *lvol) (busy, err error) {
	if err := s.beginMerge(l); err != nil {
		return nil, err
	}
	began := false
	never := func() { s.under(context.WithoutCancel(s.ctx)).endMerge(l, spdkrpc.ErrBusy) }
	k, busy := s.keepOne(into, ongoing{Merges: l.name}, func(beyond *session) func() error {
		began = true
		answered, noted := beyond.startDeletion(l)
		ctx, cancel := context.WithCancel(beyond.ctx)
		defer cancel()
		merged := make(chan struct{})
		go func() {
			defer close(merged)
			asks := beyond.under(ctx)
			_ = asks.askUntil(func() (bool, error) { return asks.merged(into.alias(), l.name) }) // else the deletion has an answer
		}()
		select {
		case <-answered:
		case <-merged:
		}
		return func() error { return <-noted }
	})
	if busy != nil {
		never()
		return busy, nil
	}
	go func() {
		if <-k.waking.done; !began {
			never()
		}
	}()
	err = k.wait(s.ctx)
	select {
	case <-k.waking.done: // whoever is called next can give the volume to hosts
	case <-s.ctx.Done():
	}
	if err != nil && s.ctx.Err() == nil && !began {
		return err, nil
	}
	return nil, err
}

// keepOne volume's hosts waiting. One that has none gets none until do returns.
func (s *session) keepOne(l *lvol, what ongoing, do func(beyond *session) func() error) (*keeping, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	patience, cancel := context.WithTimeout(s.ctx, lookPatience)
	defer cancel()
	look := s.under(patience)
	n, err := look.finishNetwork(look.startSubsystems())
	if err != nil {
		return nil, err
	}
	if s.life.conn != s.conn {
		return nil, fmt.Errorf("%w: the target has ended", engine.ErrUnavailable)
	}
	if err := s.unchanging(l); err != nil {
		return nil, err
	}
	if of, known := n.served(l); known {
		return s.keep(of, what, make(chan struct{}, 1), do)
	}
	if err := s.recordChange(l, what, ""); err != nil {
		return nil, err
	}
	k := &keeping{result: make(chan error, 1)}
	k.waking = s.ask(s.life.changing, l.alias(), func(beyond *session) error {
		wait := do(beyond)
		go func() { k.result <- wait() }()
		return beyond.changed(l)
	})
	return k, nil
}

// served volume.
func (n *network) served(l *lvol) (of served, known bool) {
	if n == nil {
		return of, false
	}
	for nqn, sub := range n.subsystems {
		for _, ns := range sub.Namespaces {
			if ns.Bdev == l.bdev {
				return served{nqn: nqn, nsid: ns.NSID, listeners: sub.Listeners, volume: l}, true
			}
		}
	}
	return of, false
}

// quiet a namespace. Hosts wait until they are woken, also after an error, and limits of its volume are lifted until
// then: what waits for them is under way, too, and may take longer than drainPatience.
func (s *session) quiet(of served) error {
	patience, cancel := context.WithTimeout(s.ctx, drainPatience)
	defer cancel()
	drain := s.under(patience)
	err := drain.setANA(of.nqn, of.listeners, spdkrpc.ANAInaccessible)
	if err == nil {
		err = drain.lift(of)
	}
	if err == nil {
		_, err = spdkrpc.Call(patience, s.conn, spdkrpc.NvmfSubsystemSetNsAnaGroup{NQN: of.nqn, NSID: of.nsid, Group: of.nsid})
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: I/O of its hosts does not end", engine.ErrBusy)
	}
	return mapError(err)
}

// lift the limits of a volume, which are those that it has now: what was read before may be hours old.
func (s *session) lift(of served) error {
	bdev := of.volume.bdev
	bdevs, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevGetBdevs{Name: bdev})
	if err != nil || len(bdevs) != 1 || bdevs[0].Limits == (spdkrpc.QoS{}) {
		return err
	}
	if err := s.recordQuiet(of.nqn, ptr.To(limit(bdev, bdevs[0].Limits))); err != nil {
		return err
	}
	_, err = spdkrpc.Call(s.ctx, s.conn, limit(bdev, spdkrpc.QoS{}))
	return err
}

// limitAgain the volume of a subsystem whose limits were lifted. Where that fails, whoever compares them with what is
// asked sets them again.
func (s *session) limitAgain(nqn string) {
	patience, cancel := context.WithTimeout(s.ctx, drainPatience)
	defer cancel()
	var lifted *spdkrpc.BdevSetQosLimit
	err := s.quietRecords().read(nqn, &lifted)
	if err == nil && lifted != nil {
		if _, err = spdkrpc.Call(patience, s.conn, *lifted); err == nil {
			err = s.recordQuiet(nqn, nil) // they may be changed from now on, also if hosts cannot be woken yet
		}
	}
	if err != nil {
		logr.FromContextOrDiscard(s.ctx).Error(err, "The limits of a volume were lifted while SPDK changed it, and are missing until they are set again", "nqn", nqn)
	}
}

func (s *session) setANA(nqn string, listeners []spdkrpc.Address, state spdkrpc.ANAState) error {
	changes := make([]spdkrpc.NvmfSubsystemListenerSetAnaState, len(listeners))
	for i, l := range listeners {
		changes[i] = spdkrpc.NvmfSubsystemListenerSetAnaState{NQN: nqn, Address: l, State: state}
	}
	_, errs := spdkrpc.Each(s.ctx, s.conn, changes)
	return mapError(errors.Join(errs...))
}

// wakeOne subsystem's hosts, once the limits of its volume are back.
func (s *session) wakeOne(nqn string) error {
	subsystems, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfGetSubsystems{NQN: nqn})
	if err != nil && !errors.Is(err, spdkrpc.ErrNotFound) {
		return mapError(err)
	}
	s.limitAgain(nqn)
	for _, sub := range subsystems {
		if err := s.setANA(nqn, sub.Listeners, spdkrpc.ANAOptimized); err != nil {
			return err
		}
	}
	return s.quietRecords().remove(nqn)
}

// wakeAll that a process before this one has left waiting, or a call of this one that could not wake them.
func (s *session) wakeAll() error {
	s.forgetWoken()
	if err := s.isRecalled(); err != nil {
		return err
	}
	if s.life.awake {
		return nil
	}
	waiting, err := s.quietRecords().of()
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), wakePatience)
	defer cancel()
	var errs []error
	var woken []*asking
	for _, nqn := range waiting {
		if s.life.waking[nqn] != nil { // which wakes them itself
			continue
		}
		woken = append(woken, s.ask(s.life.waking, nqn, func(beyond *session) error { return beyond.wakeOne(nqn) }))
	}
	for _, a := range woken {
		errs = append(errs, a.wait(patience))
	}
	err = errors.Join(errs...)
	s.life.awake = err == nil
	s.forgetWoken()
	s.life.awake = s.life.awake && len(s.life.waking) == 0
	return err
}

// quietRecords say which subsystems' hosts are kept waiting, and which limits the volume gets before they go on; null
// for none that were lifted.
func (e *Engine) quietRecords() records { return records{e.path(e.config.StateDir, "spdk/quiet")} }

func (e *Engine) recordQuiet(nqn string, lifted *spdkrpc.BdevSetQosLimit) error {
	return e.quietRecords().write(nqn, lifted)
}
