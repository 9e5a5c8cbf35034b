// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

const (
	// mostPause between two deletions, however long the first of them took.
	mostPause = 5 * time.Second
	// lookPatience with a target, for which all other calls wait.
	lookPatience = time.Minute
	// examinePatience with drives that SPDK has not examined yet, for which all other calls wait, too.
	examinePatience = 2 * time.Second
)

var _ engine.Clearer = (*Engine)(nil)

// clearing of one pool.
type clearing struct {
	// running lets one Clear run at a time.
	running sync.Mutex
	// due says that something may be left to clear which nobody has looked at yet.
	due atomic.Bool
}

// clearingOf a pool, by its device.
func (e *Engine) clearingOf(device string) *clearing {
	c, _ := e.clearings.LoadOrStore(device, &clearing{})
	return c.(*clearing)
}

// mayClear says that something of a pool may be left to clear.
func (e *Engine) mayClear(p *pool) { e.clearingOf(p.Device).due.Store(true) }

// lookForGarbage that Clear is not at already, and for pools that may get their mark. Of one that is not clean, and
// that this process has not looked at, nobody knows.
func (s *session) lookForGarbage(st *store) {
	garbage := st.garbage()
	due := map[*pool]bool{}
	for _, i := range independent(garbage, s.cutOff) {
		due[garbage[i].pool] = true
	}
	for _, p := range st.pools {
		unknown := s.life.trust[p.Device] == nil && !p.clean()
		if p.Err == nil && s.leaving[p.Device] == 0 && (due[p] || unknown || s.mayCertify(p) || s.isUndecided(p)) {
			s.mayClear(p)
		}
	}
}

// Clear implements engine.Clearer, by one call for each lvol. Making a volume smaller step by step would bound what
// SPDK sends to the drive at once, and must not be done: SPDK 26.05 writes empty extent pages before the volume's own
// page (blob_persist_write_extent_pages), and loads no lvstore that was cut off in between. And it maps clusters of a
// snapshot that is deleted later beyond the end of such a volume (delete_snapshot_update_extent_pages).
func (e *Engine) Clear(ctx context.Context, device string) (cleared bool, err error) {
	c := e.clearingOf(device)
	c.running.Lock()
	defer c.running.Unlock()
	for c.due.Swap(false) {
		done, err := e.clearOnce(ctx, c, device)
		cleared = cleared || done
		if err != nil {
			return cleared, err
		}
		if done {
			c.due.Store(true) // it may have made room for more: a snapshot goes after its clones
		}
	}
	return cleared, nil
}

// clearOnce what can be cleared of a pool now. The engine is locked only while it looks: a drive may answer nothing.
func (e *Engine) clearOnce(ctx context.Context, c *clearing, device string) (cleared bool, err error) {
	s, p, chosen, err := e.choose(ctx, device)
	if err != nil || p == nil {
		return false, err
	}
	if len(chosen) == 0 {
		defer s.release(p)
		return false, s.certify(p)
	}
	if err := s.mark(p); err != nil {
		s.letGo(chosen)
		return false, err
	}
	var errs []error
	for i, l := range chosen {
		begun := time.Now()
		done, err := s.clear(l) //nolint:contextcheck // hosts that wait are woken, also when the call's time is over
		cleared = cleared || done
		if err != nil {
			errs = append(errs, fmt.Errorf("clear %s: %w", l.alias(), mapError(err)))
		}
		if s.isOpen(p) {
			s.pause(begun)
		}
		if c.due.Load() || err != nil && l.merges() && !errors.Is(err, errNotBegun) { // a snapshot may be among it, and comes first
			s.letGo(chosen[i+1:])
			break
		}
	}
	return cleared, errors.Join(errs...)
}

// choose what is cleared next of a pool: held clusters, for which hosts may wait, then a snapshot, whose neighbours
// have to wait for it, then what is condemned, which stays in its user's sight until it is gone, and then all volumes.
// A pool of which nothing is chosen may be clean, and then counts as one that is being cleared, until release. The pool
// is nil when there is nothing to do.
func (e *Engine) choose(ctx context.Context, device string) (*session, *pool, []*lvol, error) {
	look, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	s, end, err := e.begin(look)
	defer end()
	if err != nil {
		return nil, nil, nil, err
	}
	if s.life.trust[device] == nil {
		// Before anything is deleted: a pool that was clean until then is known to be. All other calls wait meanwhile,
		// so it does not wait for long; it is asked to clear again soon.
		brief, cancel := context.WithTimeout(look, examinePatience)
		defer cancel()
		if err := s.awaitExamined(brief); err != nil {
			return nil, nil, nil, err
		}
		if err := s.lookAtExamined(device); err != nil {
			return nil, nil, nil, err
		}
	}
	st, err := s.readFinishedStore()
	if err != nil {
		return nil, nil, nil, err
	}
	s.admitCleared(st)
	at := slices.IndexFunc(st.pools, func(p *pool) bool { return p.Device == device && p.Err == nil })
	if at < 0 {
		return nil, nil, nil, nil
	}
	p := st.pools[at]
	var held, snapshots, condemned, volumes []*lvol
	var noPages error
	garbage := st.garbage()
	for _, i := range independent(garbage, s.cutOff) {
		l := garbage[i]
		switch {
		case l.pool != p || l.unfinished():
		case l.kind == freeLvol:
			held = append(held, l)
		case l.condemned:
			if !l.claimed { // SPDK would delete it under its export
				condemned = append(condemned, l)
			}
		case l.kind == deletedLvol:
			volumes = append(volumes, l)
		default:
			if err := l.roomToMerge(); err != nil {
				noPages = err
				continue
			}
			snapshots = append(snapshots, l)
		}
	}
	s.life.noPages[p.lvstore] = noPages
	slices.SortFunc(held, func(a, b *lvol) int { return strings.Compare(a.name, b.name) }) // as they were made
	// What interrupted clones left first: those are asked for again.
	if at := slices.IndexFunc(snapshots, func(l *lvol) bool { return l.kind == cloneLvol }); at > 0 {
		snapshots = snapshots[at:]
	}
	chosen := slices.Concat(held, snapshots[:min(1, len(snapshots))], condemned, volumes)
	s.judgeMerges(p, false)
	if err := p.deletes(); err != nil || p.merging {
		if len(held) == 0 && len(chosen) > 0 {
			return nil, nil, nil, err
		}
		chosen = held
	}
	if len(chosen) == 0 {
		if !s.mayCertify(p) {
			return nil, nil, nil, nil
		}
		e.leaving[device]++
	}
	for _, l := range chosen {
		e.leaving[device]++
		for _, name := range l.changes() {
			e.busy[name] = true
		}
	}
	return &session{Engine: e, ctx: ctx, conn: s.conn}, p, chosen, nil
}

// mark a pool from which something is going to be deleted. One of which nothing is known gets no mark, which would say
// that somebody knows.
func (s *session) mark(p *pool) error {
	known := s.knows(p)
	if !known && !p.clean() {
		return nil
	}
	err := s.soil(p)
	if err == nil && known {
		s.sign(p)
	}
	return err
}

// release a pool that was looked at.
func (s *session) release(p *pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving[p.Device]--
}

// changes are the aliases of all lvols that SPDK changes when it deletes this one.
func (l *lvol) changes() []string {
	all := []string{l.alias()}
	if l.cleared() {
		return all // SPDK changes no more than that itself
	}
	for _, name := range l.clones {
		all = append(all, l.pool.lvstore+"/"+name)
	}
	if l.base != "" {
		all = append(all, l.pool.lvstore+"/"+l.base)
	}
	return all
}

// idle fails with engine.ErrBusy while a Clear has SPDK change one of these: an operation on what another works at is
// refused by SPDK, and a deletion that is refused forgets what it was to delete.
func (e *Engine) idle(lvols ...*lvol) error {
	for _, l := range lvols {
		if l == nil {
			continue
		}
		if e.busy[l.alias()] {
			return fmt.Errorf("%w: a snapshot of it or beside it is being deleted", engine.ErrBusy)
		}
		if err := errors.Join(e.unchanging(l), e.whole(l)); err != nil {
			return err
		}
	}
	return nil
}

// delete an lvol that is merged into nothing that hosts could write.
func (s *session) delete(l *lvol) error {
	if l.merges() {
		if err := s.beginMerge(l); err != nil {
			return err
		}
	}
	_, noted := s.under(context.WithoutCancel(s.ctx)).startDeletion(l)
	select {
	case err := <-noted:
		return err
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// startDeletion of an lvol. How a merge ended is noted also when nobody waits any more, after the answer has come.
func (s *session) startDeletion(l *lvol) (answered <-chan struct{}, noted <-chan error) {
	answer, done := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolDelete{Name: l.bdev})
		close(answer)
		if l.merges() {
			s.endMerge(l, err)
		}
		done <- err
	}()
	return answer, done
}

// clear an lvol that was chosen. One that is condemned and not found, SPDK may only have forgotten.
func (s *session) clear(l *lvol) (done bool, err error) {
	defer func() { s.tried(l, err) }()
	if into := l.mergesInto(); into != nil {
		var busy error
		if busy, err = s.merge(l, into); busy != nil {
			logr.FromContextOrDiscard(s.ctx).Info("A deleted snapshot is merged later", "snapshot", l.id, "volume", into.id, "reason", busy.Error())
			return false, nil
		}
	} else {
		err = s.delete(l)
	}
	switch {
	case errors.Is(err, spdkrpc.ErrNotFound) && !l.condemned:
		return false, nil
	case err == nil && l.kind == snapshotLvol && !l.condemned:
		_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolDelete{Name: l.pool.lvols[markName(l.id)].bdev})
	}
	return err == nil, err
}

// tried to clear an lvol; err is why SPDK did not.
func (s *session) tried(l *lvol, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(l)
	if s.life.conn != s.conn {
		return
	}
	if errors.Is(err, errNotBegun) {
		return
	}
	if err != nil {
		s.life.uncleared[l.pool.Device] = true
	}
	s.life.condemned.tried(l, err)
}

// letGo of lvols that were chosen, and were not tried.
func (s *session) letGo(lvols []*lvol) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range lvols {
		s.leave(l)
	}
}

// leave an lvol that was chosen to others. The caller holds mu.
func (e *Engine) leave(l *lvol) {
	e.leaving[l.pool.Device]--
	for _, name := range l.changes() {
		delete(e.busy, name)
	}
}

// isOpen says whether hosts use a pool.
func (s *session) isOpen(p *pool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.life.trust[p.Device]
	return t == nil || t.open
}

// knows whether all free clusters of a pool were looked at.
func (s *session) knows(p *pool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.life.trust[p.Device]
	return t != nil && t.known
}

// pause for as long as something took that was begun then, and mostPause at most: hosts keep half of the drive's time
// from what is cleared in up to that long. Within one lvol there is no pause: SPDK clears all of it as fast as the
// drive takes it.
func (s *session) pause(begun time.Time) {
	select {
	case <-s.ctx.Done():
	case <-time.After(min(time.Since(begun), mostPause)):
	}
}

// clearingBytes of a pool are all that is allocated and that nobody needs: also what SPDK lists no more, because it is
// clearing it, or has forgotten it. Hosts write meanwhile; so nothing is said of a pool in which nothing was deleted.
func (st *store) clearingBytes(p *pool, unlisted bool) int64 {
	if !unlisted && !slices.ContainsFunc(st.garbage(), func(l *lvol) bool { return l.pool == p && len(l.clones) < 2 }) {
		return 0
	}
	needed := int64(0)
	for _, l := range p.lvols {
		going := len(slices.DeleteFunc(l.clonesOf(), func(of *lvol) bool { return of.kind != deletedLvol }))
		nobodys := l.cleared() || len(l.clones)-going < 2 && (l.kind == cloneLvol || l.kind == snapshotLvol && l.marked())
		if !nobodys {
			needed += l.ownBytes
		}
	}
	return max(0, p.TotalBytes-p.FreeBytes-needed)
}
