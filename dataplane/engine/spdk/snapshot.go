// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// CreateSnapshots implements engine.Engine. It refuses one whose volume could not be written any more for want of
// metadata pages.
func (e *Engine) CreateSnapshots(ctx context.Context, snapshots []engine.SnapshotSpec) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(snapshots), err)
	}
	st, err := s.readStore()
	if err != nil {
		return failAll(len(snapshots), err)
	}
	errs := make([]error, len(snapshots))
	sources := make([]*lvol, len(snapshots))
	planned := map[engine.ID]bool{}
	var create []int
	for i, want := range snapshots {
		source, err := st.planSnapshot(want)
		if err == nil && source != nil && !planned[want.ID] {
			err = source.pool.reserveSnapshot(source)
		}
		if err != nil {
			errs[i] = fmt.Errorf("snapshot %s: %w", want.ID, err)
			continue
		}
		if source != nil && !planned[want.ID] {
			sources[i], planned[want.ID] = source, true
			create = append(create, i)
		}
	}
	now := e.config.Now()
	// One of a volume at a time: SPDK freezes it meanwhile.
	for len(create) > 0 {
		var round, later []int
		frozen := map[*lvol]bool{}
		for _, i := range create {
			if frozen[sources[i]] {
				later = append(later, i)
				continue
			}
			frozen[sources[i]] = true
			round = append(round, i)
		}
		call(s, round, errs, func(i int) spdkrpc.Request[string] {
			return spdkrpc.BdevLvolSnapshot{Volume: sources[i].alias(), Name: snapshotName(snapshots[i].ID, now)}
		})
		create = later
	}
	return errs
}

// planSnapshot finds the volume to freeze; nil when the snapshot is there.
func (st *store) planSnapshot(want engine.SnapshotSpec) (*lvol, error) {
	if err := want.Validate(); err != nil {
		return nil, err
	}
	if len(st.snapshots[want.ID]) > 0 {
		return nil, nil
	}
	source, err := st.find(st.volumes, want.Volume)
	if err != nil {
		return nil, fmt.Errorf("its volume: %w", err)
	}
	return source, nil
}

// DeleteSnapshots implements engine.Engine. A snapshot that several lvols depend on is marked,
// which is all that its user sees, and goes once it can.
func (e *Engine) DeleteSnapshots(ctx context.Context, ids []engine.ID) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(ids), err)
	}
	st, err := s.readStore()
	if err != nil {
		return failAll(len(ids), err)
	}
	errs := make([]error, len(ids))
	found := make([]*lvol, len(ids))
	var mark []int
	for i, id := range ids {
		l, err := st.findToDelete(st.snapshots, id)
		if errs[i] = err; l == nil {
			continue
		}
		found[i] = l
		if len(l.clones) > 1 {
			mark = append(mark, i)
		}
	}
	remove := independent(found)
	// What must wait for another of this call is marked too, so that an interruption loses nothing.
	chosen := map[int]bool{}
	for _, i := range remove {
		chosen[i] = true
	}
	for i, l := range found {
		if l != nil && len(l.clones) <= 1 && !chosen[i] {
			mark = append(mark, i)
		}
	}
	call(s, mark, errs, func(i int) spdkrpc.Request[string] {
		return spdkrpc.BdevLvolCreate{LvstoreName: found[i].pool.lvstore, Name: markName(ids[i]), SizeMiB: engine.SizeUnit / mib, Thin: true}
	})
	s.remove(remove, found, errs)
	if len(remove)+len(mark) == 0 && len(st.rest) == 0 {
		return errs
	}
	if st, err = s.finishStore(s.startNames()); err != nil {
		for _, i := range append(remove, mark...) {
			errs[i] = errors.Join(errs[i], err)
		}
		return errs
	}
	for i, l := range found {
		if l == nil {
			continue
		}
		is, err := st.findToDelete(st.snapshots, ids[i])
		switch {
		case err == nil && is == nil:
			errs[i] = nil
		case errs[i] == nil:
			errs[i] = fmt.Errorf("snapshot %s is still there: %w", ids[i], engine.ErrBusy)
		}
	}
	if len(st.rest) > 0 {
		s.collect()
	}
	return errs
}

// independent picks, by index, those that can be deleted at the same time: at most one lvol depends on each, and none
// of them touches another's neighbours. SPDK changes a snapshot's base and its clone when it deletes it. What an
// interrupted clone left goes before what it depends on: it must never take data over.
func independent(all []*lvol) []int {
	var picked []int
	touched := map[string]bool{}
	for i, l := range all {
		if l == nil || len(l.clones) > 1 {
			continue
		}
		names := append([]string{l.name}, l.clones...)
		if l.base != "" {
			names = append(names, l.base)
		}
		free := !slices.ContainsFunc(l.clones, func(name string) bool { of := l.pool.lvols[name]; return of != nil && of.unfinished() })
		for _, name := range names {
			free = free && !touched[l.pool.lvstore+"/"+name]
		}
		if !free {
			continue
		}
		for _, name := range names {
			touched[l.pool.lvstore+"/"+name] = true
		}
		picked = append(picked, i)
	}
	return picked
}

// collect what nobody needs any more: snapshots between clones and their sources, marked
// ones, and what interrupted clones left. What cannot go yet waits for another call; that is no failure of this one.
func (s *session) collect() {
	for {
		st, err := s.readStore()
		if err != nil {
			logr.FromContextOrDiscard(s.ctx).Info("Snapshots that nobody needs stay for now", "reason", err.Error())
			return
		}
		garbage := st.garbage()
		items := independent(garbage)
		if len(items) == 0 {
			return
		}
		errs := make([]error, len(garbage))
		s.remove(items, garbage, errs)
		done := 0
		for _, i := range items {
			if errs[i] == nil {
				done++
				continue
			}
			logr.FromContextOrDiscard(s.ctx).Info("A snapshot that nobody needs stays for now", "snapshot", garbage[i].alias(), "reason", errs[i].Error())
		}
		if done == 0 {
			return
		}
	}
}

// garbage that could go now or later.
func (st *store) garbage() []*lvol {
	var all []*lvol
	for _, l := range st.rest {
		if l.kind == cloneLvol || l.unfinished() {
			all = append(all, l)
			continue
		}
		snapshots := 0
		for _, marked := range st.snapshots[l.id] {
			if marked.pool == l.pool {
				all = append(all, marked)
				snapshots++
			}
		}
		if snapshots == 0 {
			all = append(all, l)
		}
	}
	return all
}
