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
// when the pool was opened again, and the snapshot is gone. Until then nothing is deleted from the pool, also by
// another process, and the volume is not changed while the snapshot is not listed: else what the drive has still might
// be the volume as it was.

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
		if s.life.merging[alias] {
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

// whole fails for a volume that may have what a snapshot still has, which SPDK does not list.
func (e *Engine) whole(l *lvol) error {
	for _, of := range l.pool.unmerged {
		if of.Into == l.bdev && !e.life.relisted[l.pool.lvstore+"/"+of.name] {
			return of.refusal(l.pool)
		}
	}
	return nil
}

// merges says whether SPDK merges an lvol into another when it is deleted.
func (l *lvol) merges() bool { return !l.cleared() && l.clones != nil }

// beginMerge records a merge that is about to begin. The caller does not hold mu.
func (s *session) beginMerge(l *lvol) error {
	target, err := s.target()
	if err != nil {
		return err
	}
	begins := merge{Target: target}
	for _, into := range l.clonesOf() {
		begins.Into = into.bdev
	}
	if begins.IOErrors, err = s.ioErrors(l.pool); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.conn != s.conn {
		return engine.ErrUnavailable
	}
	if err := s.merges().writeDurably(l.alias(), begins); err != nil {
		return fmt.Errorf("record the merge of snapshot %s: %w", l.id, err)
	}
	s.life.merging[l.alias()] = true
	return nil
}

// endMerge with SPDK's answer, or because it was not asked. What has succeeded is judged like what nobody waited for,
// by the drive's errors. The caller does not hold mu.
func (s *session) endMerge(l *lvol, err error) {
	log := logr.FromContextOrDiscard(s.ctx).WithValues("snapshot", l.id)
	var said *spdkrpc.Error
	never := errors.Is(err, spdkrpc.ErrBusy) || errors.Is(err, spdkrpc.ErrNotFound) // which are said before anything is written
	var now uint64
	var uncounted error
	if err == nil {
		now, uncounted = s.ioErrors(l.pool)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.conn == s.conn {
		delete(s.life.merging, l.alias())
		s.life.kept[l.alias()] = true // if it stays on record
	}
	is := merge{}
	if readErr := s.merges().read(l.alias(), &is); readErr != nil {
		log.Error(readErr, "Cannot read the record of a merge")
		return
	}
	switch {
	case never:
		err = s.merges().remove(l.alias())
	case errors.As(err, &said):
		if s.life.conn == s.conn {
			s.life.failed[l.alias()] = true
		}
		is.Failed = true
		err = s.merges().writeDurably(l.alias(), is)
	case err != nil: // it has no answer
		return
	case uncounted != nil:
		err = uncounted
	case now == is.IOErrors:
		err = s.merges().remove(l.alias())
	default:
		log.Info("The drive failed I/O while SPDK merged a snapshot, which may be merged in part: move the volumes to other drives before you restart the target", "device", l.pool.Device)
	}
	if err != nil {
		log.Error(err, "Cannot note how SPDK merged a snapshot; nothing is deleted from its pool until that is known", "device", l.pool.Device)
	}
}

// ioErrors that a pool's drive has answered with, as the target counts them.
func (s *session) ioErrors(p *pool) (uint64, error) {
	answer, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevGetIostat{Names: []string{p.base.Name}})
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
		if p.lvols[of.name] != nil {
			s.life.relisted[alias] = true
		}
		over, err := s.isOver(p, of, fresh)
		if err == nil && over {
			err = s.merges().remove(alias)
		}
		if err != nil {
			logr.FromContextOrDiscard(s.ctx).Error(err, "Cannot judge a merge", "snapshot", of.name, "device", p.Device)
		}
		over = over && err == nil
		s.life.kept[alias] = !over
		s.life.failed[alias] = s.life.failed[alias] && !over
		return over
	})
}

// isOver says whether the pool is as before a merge, or after it.
func (s *session) isOver(p *pool, of unmerged, fresh bool) (bool, error) {
	if l := p.lvols[of.name]; l != nil {
		return slices.ContainsFunc(l.clonesOf(), func(c *lvol) bool { return c.bdev == of.Into && c.base == of.name }), nil
	}
	target, err := s.target()
	switch {
	case err != nil:
		return false, err
	case fresh || of.Target != "" && of.Target != target:
		return true, nil
	case of.Failed || p.lvols[soiledName] == nil:
		return false, nil
	}
	// Another process began it. SPDK keeps the name until it has deleted the snapshot, or failed to.
	if ended, err := s.refused(p.lvols[soiledName].alias(), of.name); err != nil || !ended {
		return false, err
	}
	now, err := s.ioErrors(p)
	return err == nil && now == of.IOErrors, err
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
