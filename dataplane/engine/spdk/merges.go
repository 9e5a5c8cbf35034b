// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// When SPDK 26.05 cannot write the metadata of a volume into which it merges a snapshot, it has given the volume the
// snapshot's clusters and pages of extents, and taken its parent away (delete_snapshot_sync_clone_cpl of
// lib/blob/blobstore.c). It goes on so in memory, lists the snapshot no more, and writes that state with the volume's
// next change. Whatever is deleted then, of the two and of what was made of them, takes something from what stays. So
// nothing is deleted from a pool in which a merge has failed. That is on record on the node until the volume is
// listed as based on the snapshot, as if the merge had never begun, or the pool is opened again, and the snapshot is
// gone.

// failedMerge of a snapshot.
type failedMerge struct {
	// Into is the volume, by the name of its bdev.
	Into string `json:"into"`
}

// failedMerges by the aliases of snapshots. A process that is killed while SPDK merges does not learn that it fails,
// and nor does the next one: the snapshot is not listed either way.
func (e *Engine) failedMerges() records {
	return records{e.path(e.config.StateDir, "spdk/failed-merges")}
}

// readFailedMerges of all pools.
func (s *session) readFailedMerges(st *store) error {
	aliases, err := s.failedMerges().of()
	if err != nil {
		return fmt.Errorf("list failed merges: %w", err)
	}
	for _, alias := range aliases {
		lvstore, name, _ := strings.Cut(alias, "/")
		for _, p := range st.pools {
			if p.lvstore == lvstore {
				p.unmerged = append(p.unmerged, name)
			}
		}
	}
	return nil
}

// errUnmerged: nothing may be deleted from a pool.
var errUnmerged = errors.New("SPDK failed to delete a snapshot, so nothing is deleted from its pool. Restart the target; if this is said again, move the volumes to other drives, and erase this one")

// deletes fails with errUnmerged where nothing may be deleted from a pool.
func (p *pool) deletes() error {
	if len(p.unmerged) == 0 {
		return nil
	}
	return fmt.Errorf("pool %s, snapshot %s: %w", p.Device, p.unmerged[0], errUnmerged)
}

// deleted notes how SPDK deleted a snapshot. Where it failed to merge it, it may have begun, and the next process has
// to know that, too. What it has not answered when the call ends, the next process asks for: see ongoing.
func (s *session) deleted(l *lvol, err error) {
	if err == nil || errors.Is(err, spdkrpc.ErrBusy) || errors.Is(err, spdkrpc.ErrNotFound) { // which are said before anything is written
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.conn != s.conn {
		return
	}
	var said *spdkrpc.Error
	for _, into := range l.clonesOf() {
		s.life.halfMerged[into.bdev] = true
		if !errors.As(err, &said) {
			continue
		}
		if err := s.failedMerges().writeDurably(l.alias(), failedMerge{Into: into.bdev}); err != nil {
			logr.FromContextOrDiscard(s.ctx).Error(err, "Only this process knows that SPDK failed to merge a snapshot", "snapshot", l.id)
		}
	}
}

// judgeMerges that failed in a pool. If it is fresh, SPDK lists all that is in it. What cannot be forgotten does no
// harm.
func (s *session) judgeMerges(p *pool, fresh bool) {
	p.unmerged = slices.DeleteFunc(p.unmerged, func(name string) bool {
		undone, err := s.isUndone(p, name, fresh)
		if err == nil && undone {
			err = s.failedMerges().remove(p.lvstore + "/" + name)
		}
		if err != nil {
			logr.FromContextOrDiscard(s.ctx).Error(err, "Cannot judge a merge that failed", "snapshot", name, "device", p.Device)
		}
		return err == nil && undone
	})
}

// isUndone says whether the pool is as before a merge, or after it.
func (s *session) isUndone(p *pool, name string, fresh bool) (bool, error) {
	l := p.lvols[name]
	if l == nil {
		return fresh, nil
	}
	var m failedMerge
	if err := s.failedMerges().read(p.lvstore+"/"+name, &m); err != nil {
		return false, err
	}
	return slices.ContainsFunc(l.clonesOf(), func(of *lvol) bool { return of.bdev == m.Into && of.base == name }), nil
}
