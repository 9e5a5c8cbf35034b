// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// When SPDK 26.05 cannot write the metadata of a volume into which it merges a snapshot, it has given the volume the
// snapshot's clusters and pages of extents, and taken its parent away (delete_snapshot_sync_clone_cpl of
// lib/blob/blobstore.c). It goes on so in memory, lists the snapshot no more, and writes that state with the volume's
// next change. Hosts of the volume wait until its next start (blob_unfreeze_io). Whatever is deleted then, of the two
// and of what was made of them, takes something from what stays. And when it cannot write a page of extents, it does
// not even answer with an error (delete_snapshot_update_extent_pages).
//
// So each merge is on record on the node before it begins. The record goes when SPDK has answered, and its drive has
// failed no I/O meanwhile; or when the volume is listed as based on the snapshot, as if the merge had never begun; or
// when the pool was opened again with all that has clusters, and the snapshot is gone. Until then nothing is deleted
// from the pool, also by another process, and the volume is not changed while the snapshot is not listed: else what the
// drive has still might be the volume as it was.

// merge of a snapshot, as it is on record.
type merge struct {
	// Into is the volume, by the name of its bdev; empty when SPDK did not list it.
	Into string `json:"into"`
	// Target that was to do it, and IOErrors of the drive before, as that target counts them.
	Target   string `json:"target,omitempty"`
	IOErrors uint64 `json:"ioErrors,omitempty"`
	// Failed: SPDK answered with an error.
	Failed bool `json:"failed,omitempty"`
}

// unmerged is a snapshot of which it is not known that it was merged.
type unmerged struct {
	// name of the snapshot.
	name string
	merge
}

// merges on record, by the aliases of snapshots.
func (e *Engine) merges() records {
	return records{e.path(e.config.StateDir, "spdk/merges")}
}

// readMerges that have not succeeded, of all pools. Those that this process waits for are none of them.
func (s *session) readMerges(st *store) error {
	aliases, err := s.merges().of()
	if err != nil {
		return fmt.Errorf("list merges: %w", err)
	}
	for _, alias := range aliases {
		lvstore, name, _ := strings.Cut(alias, "/")
		at := slices.IndexFunc(st.pools, func(p *pool) bool { return p.lvstore == lvstore })
		if at < 0 {
			continue
		}
		if _, merging := s.life.merging[alias]; merging {
			st.pools[at].merging = true
			continue
		}
		of := unmerged{name: name}
		if err := s.merges().read(alias, &of.merge); err != nil {
			return fmt.Errorf("read the record of a merge: %w", err)
		}
		of.Failed = of.Failed || s.life.failed[alias]
		if st.pools[at].unmerged = append(st.pools[at].unmerged, of); s.life.kept[alias] {
			st.pools[at].KeepsDeleted = of.refusal(st.pools[at])
		}
	}
	for _, p := range st.pools {
		if p.KeepsDeleted == nil {
			p.KeepsDeleted = s.life.noPages[p.lvstore]
		}
	}
	return nil
}

// Why nothing may be deleted from a pool.
var (
	errMergeFailed = errors.New("SPDK failed to delete it, so nothing is deleted from its pool, and I/O of the volume that it belongs to may wait. Restart the target; if this is said again, move the volumes to other drives, and erase this one")
	errNotMerged   = errors.New("SPDK is still deleting it, or its drive failed I/O meanwhile, so nothing is deleted from its pool. If this is said for longer than an hour, move the volumes to other drives, and then restart the target")
)

func (of unmerged) refusal(p *pool) error {
	if of.Failed {
		return fmt.Errorf("pool %s, snapshot %s: %w", p.Device, of.name, errMergeFailed)
	}
	return fmt.Errorf("pool %s, snapshot %s: %w", p.Device, of.name, errNotMerged)
}

// deletes fails where nothing may be deleted from a pool.
func (p *pool) deletes() error {
	if len(p.unmerged) == 0 {
		return nil
	}
	return p.unmerged[0].refusal(p)
}

// whole fails for a volume that may have what a snapshot still has, which SPDK does not list, and with engine.ErrBusy
// while it is unknown.
func (e *Engine) whole(l *lvol) error {
	for _, into := range e.life.merging {
		if into == l.bdev {
			return fmt.Errorf("%w: a snapshot of it is being deleted", engine.ErrBusy)
		}
	}
	for _, of := range l.pool.unmerged {
		if of.Into == l.bdev && !e.life.relisted[l.pool.lvstore+"/"+of.name] {
			return of.refusal(l.pool)
		}
	}
	return nil
}

// isUndecided says whether it may show by itself how a merge ended that another process began.
func (s *session) isUndecided(p *pool) bool {
	return slices.ContainsFunc(p.unmerged, func(of unmerged) bool { return !s.life.kept[p.lvstore+"/"+of.name] })
}

// merges says whether SPDK merges an lvol into another when it is deleted.
func (l *lvol) merges() bool { return !l.cleared() && l.clones != nil }

// errNotBegun: SPDK was not asked to merge a snapshot.
var errNotBegun = errors.New("it is not deleted yet")

// beginMerge records a merge that is about to begin. It fails with errNotBegun. The caller does not hold mu.
func (s *session) beginMerge(l *lvol) error {
	into := ""
	for _, c := range l.clonesOf() {
		into = c.bdev
	}
	speaks, err := s.mergingInto(l, into)
	if err == nil {
		err = s.recordMerge(l, merge{Into: into}, speaks)
	}
	if err != nil {
		s.notMerging(l)
		return fmt.Errorf("%w: record the merge of snapshot %s: %w", errNotBegun, l.id, err)
	}
	return nil
}

// mergingInto a volume goes on from now on. It answers the target's dialect.
func (s *session) mergingInto(l *lvol, into string) (dialect, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.conn != s.conn {
		return dialect{}, engine.ErrUnavailable
	}
	s.life.merging[l.alias()] = into
	delete(s.life.relisted, l.alias())
	delete(s.life.kept, l.alias())
	return s.dialect()
}

// notMerging any more. The caller does not hold mu.
func (s *session) notMerging(l *lvol) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.conn == s.conn {
		delete(s.life.merging, l.alias())
	}
}

func (s *session) recordMerge(l *lvol, of merge, speaks dialect) (err error) {
	if of.Target, err = s.target(); err != nil {
		return err
	}
	if of.IOErrors, err = s.ioErrors(l.pool, speaks); err != nil {
		return err
	}
	return s.merges().writeDurably(l.alias(), of)
}

// endMerge with SPDK's answer, or because it was not asked. What has succeeded is judged like what nobody waited for,
// by the drive's errors. The caller does not hold mu.
func (s *session) endMerge(l *lvol, answer error) {
	defer s.notMerging(l)
	kept, err := s.noteMerge(l, answer)
	s.mu.Lock()
	defer s.mu.Unlock()
	var said *spdkrpc.Error
	if s.life.conn == s.conn {
		s.life.failed[l.alias()] = kept && errors.As(answer, &said)
		s.life.kept[l.alias()] = kept
	}
	if err != nil {
		logr.FromContextOrDiscard(s.ctx).Error(err, "Cannot note how SPDK merged a snapshot; nothing is deleted from its pool until that is known", "snapshot", l.id, "device", l.pool.Device)
	}
}

// noteMerge on record; kept says that it stays there until the target's next start.
func (s *session) noteMerge(l *lvol, answer error) (kept bool, err error) {
	var is merge
	var said *spdkrpc.Error
	switch {
	case errors.Is(answer, spdkrpc.ErrBusy), errors.Is(answer, spdkrpc.ErrNotFound): // which are said before anything is written
		return false, s.merges().remove(l.alias())
	case errors.As(answer, &said):
		if err = s.merges().read(l.alias(), &is); err == nil {
			is.Failed = true
			err = s.merges().writeDurably(l.alias(), is)
		}
		return true, err
	case answer == nil:
		return s.noteMerged(l)
	}
	return false, nil // the connection was lost instead
}

// noteMerged is noteMerge of a deletion that SPDK says has succeeded.
func (s *session) noteMerged(l *lvol) (kept bool, err error) {
	var is merge
	if err := s.merges().read(l.alias(), &is); err != nil {
		return false, err
	}
	s.mu.Lock()
	speaks, err := s.dialect()
	s.mu.Unlock()
	if err != nil {
		return false, err
	}
	now, err := s.ioErrors(l.pool, speaks)
	switch {
	case err != nil:
		return false, err
	case now == is.IOErrors:
		return false, s.merges().remove(l.alias())
	}
	logr.FromContextOrDiscard(s.ctx).Info("The drive failed I/O while SPDK merged a snapshot, which may be merged in part: move the volumes to other drives before you restart the target", "snapshot", l.id, "device", l.pool.Device)
	return true, nil
}

// ioErrors that a pool's drive has answered with, as the target counts them.
func (s *session) ioErrors(p *pool, speaks dialect) (uint64, error) {
	answer, err := spdkrpc.Call(s.ctx, s.conn, speaks.iostat(p.base.Name))
	if err != nil {
		return 0, mapError(err)
	}
	sum := uint64(0)
	for _, b := range answer.Bdevs {
		for _, n := range b.Errors {
			sum += uint64(n)
		}
	}
	return sum, nil
}

// judgeMerges on record of a pool, all of whose lvols SPDK lists. If it is fresh, there is nothing else in it. What
// cannot be judged stays on record. The caller holds mu.
func (s *session) judgeMerges(p *pool, fresh bool) {
	p.unmerged = slices.DeleteFunc(p.unmerged, func(of unmerged) bool {
		alias := p.lvstore + "/" + of.name
		s.life.relisted[alias] = p.lvols[of.name] != nil
		verdict, err := s.judgeMerge(p, of, fresh)
		if err == nil && verdict == mergeOver {
			err = s.merges().remove(alias)
		}
		if err != nil {
			logr.FromContextOrDiscard(s.ctx).Error(err, "Cannot judge a merge", "snapshot", of.name, "device", p.Device)
			return false
		}
		s.life.kept[alias] = verdict == mergeKept
		s.life.failed[alias] = s.life.failed[alias] && verdict != mergeOver
		return verdict == mergeOver
	})
}

// mergeVerdict is what is known of a merge on record.
type mergeVerdict int

const (
	// mergeUndecided: it may still go on.
	mergeUndecided mergeVerdict = iota
	// mergeOver: the pool is as before it, or after it.
	mergeOver
	// mergeKept: the target has to start again before anything can be said.
	mergeKept
)

func (s *session) judgeMerge(p *pool, of unmerged, fresh bool) (mergeVerdict, error) {
	if l := p.lvols[of.name]; l != nil {
		if slices.ContainsFunc(l.clonesOf(), func(c *lvol) bool { return c.bdev == of.Into && c.base == of.name }) {
			return mergeOver, nil
		}
		return mergeKept, nil
	}
	target, err := s.target()
	if err != nil {
		return mergeUndecided, err
	}
	select {
	case <-s.conn.Lost():
		return mergeUndecided, engine.ErrUnavailable // this may be the next target
	default:
	}
	reopened := fresh || of.Target != "" && of.Target != target
	switch {
	case reopened && p.complete():
		return mergeOver, nil
	case fresh || reopened && s.life.kept[p.lvstore+"/"+of.name]:
		return mergeKept, nil
	case reopened:
		return mergeUndecided, nil // hosts may have been given clusters while they were counted
	case of.Failed || p.lvols[soiledName] == nil:
		return mergeKept, nil
	}
	// Another process began it. SPDK keeps the name until it has deleted the snapshot, or failed to.
	if ended, err := s.refused(p.lvols[soiledName].alias(), of.name); err != nil || !ended {
		return mergeUndecided, err
	}
	speaks, err := s.dialect()
	if err != nil {
		return mergeUndecided, err
	}
	now, err := s.ioErrors(p, speaks)
	switch {
	case err != nil:
		return mergeUndecided, err
	case now == of.IOErrors:
		return mergeOver, nil
	}
	return mergeKept, nil
}

// forgetMerges of an lvstore that was there before. What cannot be forgotten is judged like any other.
func (s *session) forgetMerges(lvstore string) {
	aliases, err := s.merges().of()
	for _, alias := range aliases {
		if strings.HasPrefix(alias, lvstore+"/") {
			err = errors.Join(err, s.merges().remove(alias))
		}
	}
	if err != nil {
		logr.FromContextOrDiscard(s.ctx).Error(err, "Cannot forget merges in a former pool", "lvstore", lvstore)
	}
}
