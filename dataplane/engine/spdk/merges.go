// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// When SPDK 26.05 cannot write the metadata of a volume into which it merges a snapshot, it has given the volume the
// snapshot's clusters and taken its parent away (delete_snapshot_sync_clone_cpl of lib/blob/blobstore.c). It goes on so
// in memory, lists the snapshot no more, and writes that state with the volume's next change. So two things must not
// happen:
//
//   - Until the target's next start, the volume is not deleted: its clusters could become another's, and the snapshot
//     has them, too. See life.halfMerged.
//   - After that, the snapshot is listed again. If the volume is not based on it then, it is not deleted: SPDK would
//     clear what the volume needs. See life.severed. Its space is lost.

// failedMerge of a snapshot.
type failedMerge struct {
	// Into is the volume, by the name of its bdev.
	Into string `json:"into"`
	// Target that failed.
	Target string `json:"target"`
}

// failedMerges by the aliases of snapshots. They outlast the target, and the node's next start. A process that is
// killed while SPDK merges does not learn that it fails, and nor does the next one: the snapshot is not listed either
// way.
func (e *Engine) failedMerges() records {
	return records{e.path(e.config.StateDir, "spdk/failed-merges")}
}

// recallFailedMerges of this target and of those before it.
func (s *session) recallFailedMerges() error {
	target, err := s.target()
	if err != nil {
		return err
	}
	snapshots, err := s.failedMerges().of()
	if err != nil {
		return err
	}
	for _, alias := range snapshots {
		var m failedMerge
		var unread *fs.PathError
		if err := s.failedMerges().read(alias, &m); errors.As(err, &unread) {
			return err
		}
		if m.Target == target {
			s.life.halfMerged[m.Into] = true
		} else { // also if it was not written whole: then no volume is known
			s.life.severed[alias] = m.Into
		}
	}
	return nil
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
	for _, into := range l.clonesOf() {
		s.life.halfMerged[into.bdev] = true
		if err := s.recordFailedMerge(into, l, err); err != nil {
			logr.FromContextOrDiscard(s.ctx).Error(err, "Only this process knows that SPDK failed to merge a snapshot", "snapshot", l.id)
		}
	}
}

// recordFailedMerge of a snapshot into a volume, if SPDK has said so.
func (s *session) recordFailedMerge(into, snapshot *lvol, failure error) error {
	var said *spdkrpc.Error
	if !errors.As(failure, &said) {
		return nil
	}
	target, err := s.target()
	if err != nil {
		return err
	}
	return s.failedMerges().write(snapshot.alias(), failedMerge{Into: into.bdev, Target: target})
}

// isSevered says whether a volume may have the clusters of this snapshot, and is not based on it.
func (s *session) isSevered(l *lvol) bool {
	into, failed := s.life.severed[l.alias()]
	return failed && !slices.ContainsFunc(l.clonesOf(), func(of *lvol) bool { return of.bdev == into || into == "" })
}

// forgetMerged snapshots that are gone from a pool: the target has merged them since.
func (s *session) forgetMerged(p *pool) error {
	for alias := range s.life.severed {
		lvstore, name, _ := strings.Cut(alias, "/")
		if lvstore != p.lvstore || p.lvols[name] != nil {
			continue
		}
		if err := s.failedMerges().remove(alias); err != nil {
			return fmt.Errorf("forget that snapshot %s was not merged: %w", alias, err)
		}
		delete(s.life.severed, alias)
	}
	return nil
}
