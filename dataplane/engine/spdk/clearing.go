// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

const (
	// mostPause between two deletions, however long the first of them took.
	mostPause = 5 * time.Second
	// lookPatience with a target, for which all other calls wait.
	lookPatience = time.Minute
)

var _ engine.Clearer = (*Engine)(nil)

// Clear implements engine.Clearer, by one call for each lvol. Making a volume smaller step by step would bound what
// SPDK sends to the drive at once, and must not be done: SPDK 26.05 writes empty extent pages before the volume's own
// page (blob_persist_write_extent_pages), and loads no lvstore that was cut off in between. And it maps clusters of a
// snapshot that is deleted later beyond the end of such a volume (delete_snapshot_update_extent_pages).
func (e *Engine) Clear(ctx context.Context) (cleared bool, err error) {
	e.clearing.Lock()
	defer e.clearing.Unlock()
	for e.deleted.Swap(false) {
		done, err := e.clearOnce(ctx)
		cleared = cleared || done
		if err != nil {
			return cleared, err
		}
		if done {
			e.deleted.Store(true) // it may have made room for more: a snapshot goes after its clones
		}
	}
	return cleared, nil
}

// clearOnce what can be cleared now, each pool's by itself. The engine is locked only while it looks.
func (e *Engine) clearOnce(ctx context.Context) (cleared bool, err error) {
	s, chosen, err := e.choose(ctx)
	if s == nil {
		return false, err
	}
	pools := map[*pool][]*lvol{}
	for _, l := range chosen {
		pools[l.pool] = append(pools[l.pool], l)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	errs := []error{err}
	for _, lvols := range pools {
		all.Go(func() {
			for i, l := range lvols {
				begun := time.Now()
				done, err := s.clear(l)
				mu.Lock()
				cleared = cleared || done
				if err != nil {
					errs = append(errs, fmt.Errorf("clear %s: %w", l.alias(), mapError(err)))
				}
				mu.Unlock()
				if s.isOpen(l.pool) {
					s.pause(begun)
				}
				if s.deleted.Load() { // a snapshot may be among it, and comes first
					s.letGo(lvols[i+1:], nil)
					break
				}
			}
		})
	}
	all.Wait()
	return cleared, errors.Join(errs...)
}

// choose what is cleared next: of each pool held clusters, for which hosts may wait, then a snapshot, whose neighbours
// have to wait for it, and then all volumes. Pools of which nothing is chosen may be clean. What fails in one pool
// keeps no other from being cleared.
func (e *Engine) choose(ctx context.Context) (*session, []*lvol, error) {
	look, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	s, end, err := e.begin(look)
	defer end()
	if err != nil {
		return nil, nil, err
	}
	st, err := s.readFinishedStore()
	if err != nil {
		return nil, nil, err
	}
	s.admitCleared(st)
	var chosen, held, volumes []*lvol
	garbage := st.garbage()
	for _, i := range independent(garbage) {
		l := garbage[i]
		switch {
		case l.unfinished():
		case l.kind == freeLvol:
			held = append(held, l)
		case l.kind == deletedLvol:
			volumes = append(volumes, l)
		case !slices.ContainsFunc(chosen, func(other *lvol) bool { return other.pool == l.pool }):
			chosen = append(chosen, l)
		}
	}
	slices.SortFunc(held, func(a, b *lvol) int { return strings.Compare(a.name, b.name) }) // as they were made
	chosen = slices.Concat(held, chosen, volumes)
	certain := slices.DeleteFunc(s.uncertified(st), func(p *pool) bool {
		return slices.ContainsFunc(chosen, func(l *lvol) bool { return l.pool == p })
	})
	errs := []error{s.certify(certain)}
	chosen = slices.DeleteFunc(chosen, func(l *lvol) bool {
		err := s.soil(l.pool)
		errs = append(errs, err)
		return err != nil
	})
	for _, l := range chosen {
		e.leaving[l.pool.Device]++
		for _, name := range l.changes() {
			e.busy[name] = true
		}
	}
	return &session{Engine: e, ctx: ctx, conn: s.conn}, chosen, errors.Join(errs...)
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
		if l != nil && e.busy[l.alias()] {
			return fmt.Errorf("%w: a snapshot of it or beside it is being deleted", engine.ErrBusy)
		}
	}
	return nil
}

// clear an lvol that was chosen.
func (s *session) clear(l *lvol) (done bool, err error) {
	defer func() { s.letGo([]*lvol{l}, err) }()
	_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolDelete{Name: l.bdev})
	switch {
	case errors.Is(err, spdkrpc.ErrNotFound):
		return false, nil
	case err == nil && l.kind == snapshotLvol:
		_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolDelete{Name: l.pool.lvols[markName(l.id)].bdev})
	}
	return err == nil, err
}

// letGo of lvols that were chosen.
func (s *session) letGo(lvols []*lvol, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range lvols {
		s.leaving[l.pool.Device]--
		for _, name := range l.changes() {
			delete(s.busy, name)
		}
		if err != nil && s.life.conn == s.conn {
			s.life.uncleared[l.pool.Device] = true
		}
	}
}

// isOpen says whether hosts use a pool.
func (s *session) isOpen(p *pool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.life.trust[p.Device]
	return t == nil || t.open
}

// pause for as long as something took that was begun then: hosts keep half of the drive's time.
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
