// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

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
	// mergePatience with the map of a deleted snapshot, which SPDK merges into that of its volume. What it clears
	// afterwards, hosts need not wait for.
	mergePatience = time.Second
	// quietAtOnce are kept waiting at the same time, and so for each other.
	quietAtOnce = 8
)

// served namespace of a subsystem.
type served struct {
	nqn       string
	nsid      uint32
	listeners []spdkrpc.Address
}

// quietly has SPDK do something to volumes, by items of errs, while nothing is under way that their hosts have sent.
func (s *session) quietly(items []int, volume func(item int) *lvol, errs []error, do func(items []int)) {
	used, idle := []int{}, []int{}
	for _, i := range items {
		if volume(i).claimed {
			used = append(used, i)
		} else {
			idle = append(idle, i)
		}
	}
	do(idle)
	if len(used) == 0 {
		return
	}
	n, err := s.finishNetwork(s.startSubsystems())
	for part := range slices.Chunk(used, quietAtOnce) {
		var all sync.WaitGroup
		var quiet []string
		for _, i := range part {
			of, known := n.served(volume(i))
			switch {
			case err != nil:
				errs[i] = err
			case !known:
				errs[i] = fmt.Errorf("%w: something else than a subsystem uses it", engine.ErrBusy)
			default:
				quiet = append(quiet, of.nqn)
				all.Go(func() { errs[i] = s.quiet(of) })
			}
		}
		all.Wait()
		do(part)
		if err := s.wake(quiet); err != nil {
			logr.FromContextOrDiscard(s.ctx).Error(err, "Hosts still wait; trying again")
		}
	}
}

// mergesInto is the volume of hosts that gets what a snapshot has when it is deleted; nil if it is merged into nothing
// that is written.
func (l *lvol) mergesInto() *lvol {
	if l.cleared() || len(l.clones) != 1 {
		return nil
	}
	if into := l.pool.lvols[l.clones[0]]; into != nil && into.claimed {
		return into
	}
	return nil
}

// merge a deleted snapshot into the volume of hosts. SPDK does not order what it writes of the volume's map then with
// the entries of first writes to clusters either, so hosts wait until it is done, or has had mergePatience. It is busy
// when their I/O does not end; nothing was deleted then. The caller does not hold mu.
func (s *session) merge(l, into *lvol) (busy, err error) {
	nqn, busy := s.quietOne(into)
	if busy != nil {
		s.wakeAfterMerge(nqn)
		return busy, nil
	}
	deletion := spdkrpc.Start(s.ctx, s.conn, spdkrpc.BdevLvolDelete{Name: l.bdev})
	done := make(chan error, 1)
	go func() {
		_, err := deletion.Wait()
		done <- err
	}()
	select {
	case err = <-done:
		s.wakeAfterMerge(nqn)
	case <-time.After(mergePatience):
		s.wakeAfterMerge(nqn)
		err = <-done
	}
	return nil, err
}

func (s *session) wakeAfterMerge(nqn string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if nqn == "" || s.life.conn != s.conn {
		return // nobody was kept waiting, or that target has ended
	}
	delete(s.life.merging, nqn)
	if err := s.wake([]string{nqn}); err != nil {
		logr.FromContextOrDiscard(s.ctx).Error(err, "Hosts still wait; trying again")
	}
}

// quietOne volume, by its subsystem.
func (s *session) quietOne(l *lvol) (nqn string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.finishNetwork(s.startSubsystems())
	if err != nil {
		return "", err
	}
	of, known := n.served(l)
	if !known {
		return "", fmt.Errorf("%w: something else than a subsystem uses it", engine.ErrBusy)
	}
	s.life.merging[of.nqn] = true
	return of.nqn, s.quiet(of)
}

// served volume.
func (n *network) served(l *lvol) (of served, known bool) {
	if n == nil {
		return of, false
	}
	for nqn, sub := range n.subsystems {
		for _, ns := range sub.Namespaces {
			if ns.Bdev == l.bdev {
				return served{nqn: nqn, nsid: ns.NSID, listeners: sub.Listeners}, true
			}
		}
	}
	return of, false
}

// quiet a namespace. Hosts wait until it is woken, also after an error.
func (s *session) quiet(of served) error {
	if a := s.life.waking[of.nqn]; a != nil && !a.answered() {
		return fmt.Errorf("%w: its hosts are being woken", engine.ErrBusy) // which could come after this
	}
	// What is kept waiting is known to whoever comes after this process.
	if err := s.recordQuiet(of.nqn); err != nil {
		return err
	}
	if err := s.setANA(of.nqn, of.listeners, spdkrpc.ANAInaccessible); err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(s.ctx, drainPatience)
	defer cancel()
	_, err := spdkrpc.Call(patience, s.conn, spdkrpc.NvmfSubsystemSetNsAnaGroup{NQN: of.nqn, NSID: of.nsid, Group: of.nsid})
	if errors.Is(err, context.DeadlineExceeded) && s.ctx.Err() == nil {
		return fmt.Errorf("%w: I/O of its hosts does not end", engine.ErrBusy)
	}
	return mapError(err)
}

func (s *session) setANA(nqn string, listeners []spdkrpc.Address, state spdkrpc.ANAState) error {
	changes := make([]spdkrpc.NvmfSubsystemListenerSetAnaState, len(listeners))
	for i, l := range listeners {
		changes[i] = spdkrpc.NvmfSubsystemListenerSetAnaState{NQN: nqn, Address: l, State: state}
	}
	_, errs := spdkrpc.Each(s.ctx, s.conn, changes)
	return mapError(errors.Join(errs...))
}

// wake hosts that wait, of these subsystems. What does not answer is woken when it does.
func (s *session) wake(nqns []string) error {
	patience, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), wakePatience)
	defer cancel()
	errs := make([]error, len(nqns))
	var all sync.WaitGroup
	for i, nqn := range nqns {
		a := s.ask(s.life.waking, nqn, func(beyond *session) error { return beyond.wakeOne(nqn) })
		all.Go(func() {
			if errs[i] = a.wait(patience); errs[i] != nil {
				errs[i] = fmt.Errorf("hosts of %s wait: %w", nqn, errs[i])
			}
		})
	}
	all.Wait()
	forgetAnswered(s.life.waking)
	err := errors.Join(errs...)
	s.life.awake = s.life.awake && err == nil
	return err
}

func (s *session) wakeOne(nqn string) error {
	subsystems, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfGetSubsystems{NQN: nqn})
	if err != nil && !errors.Is(err, spdkrpc.ErrNotFound) {
		return mapError(err)
	}
	for _, sub := range subsystems {
		if err := s.setANA(nqn, sub.Listeners, spdkrpc.ANAOptimized); err != nil {
			return err
		}
	}
	if err := os.Remove(s.quietRecord(nqn)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// wakeAll that a process before this one, or a call that could not, has left waiting.
func (s *session) wakeAll() error {
	if s.life.awake {
		return nil
	}
	entries, err := os.ReadDir(s.quietDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var nqns []string
	for _, e := range entries {
		if nqn, err := url.PathUnescape(e.Name()); err == nil && !s.life.merging[nqn] {
			nqns = append(nqns, nqn)
		}
	}
	s.life.awake = true
	return s.wake(nqns)
}

func (e *Engine) quietDir() string { return e.path(e.config.StateDir, "spdk/quiet") }

func (e *Engine) quietRecord(nqn string) string {
	return filepath.Join(e.quietDir(), url.PathEscape(nqn))
}

func (e *Engine) recordQuiet(nqn string) error {
	if err := os.MkdirAll(e.quietDir(), 0o700); err != nil {
		return err
	}
	return os.WriteFile(e.quietRecord(nqn), nil, 0o600)
}
