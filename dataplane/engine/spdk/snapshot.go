// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"

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
		if err == nil {
			err = e.idle(source)
		}
		if err == nil && source != nil && !planned[want.ID] {
			if err = source.pool.reserveSnapshot(source); err == nil {
				source.snapped++
			}
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
		name := func(i int) string { return snapshotName(snapshots[i].ID, now) }
		what := func(i int) ongoing { return ongoing{Makes: name(i)} }
		s.quietly(round, func(i int) *lvol { return sources[i] }, what, errs, func(s *session, items []int, errs []error) { //nolint:contextcheck // hosts that wait are woken, also when the call's time is over
			call(s, items, errs, func(i int) spdkrpc.Request[string] {
				return spdkrpc.BdevLvolSnapshot{Volume: sources[i].alias(), Name: name(i)}
			})
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
	if err := st.condemned.refusal(want.ID); err != nil {
		return nil, err
	}
	for _, p := range st.pools {
		if p.lvols[markName(want.ID)] != nil {
			return nil, fmt.Errorf("%w: one of that ID is being deleted", engine.ErrBusy)
		}
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

// DeleteSnapshots implements engine.Engine. A snapshot gets a mark, which is all that its user sees, and Clear deletes
// it as soon as SPDK can. Where there is no room for a mark it is condemned, if it could be deleted now.
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
		if errs[i] = err; l != nil {
			found[i] = l
			mark = append(mark, i)
		}
	}
	call(s, mark, errs, func(i int) spdkrpc.Request[string] {
		return markOf(found[i].pool.lvstore, markName(ids[i]))
	})
	unmarked := make([]*lvol, len(ids))
	for _, i := range mark {
		switch {
		case errors.Is(errs[i], spdkrpc.ErrExists): // the same one twice
			errs[i] = nil
		case errs[i] != nil:
			errs[i] = fmt.Errorf("mark snapshot %s as deleted: %w", ids[i], errs[i])
			unmarked[i] = found[i]
		}
	}
	for _, i := range independent(unmarked, s.cutOff) {
		errs[i] = s.condemn(found[i], errs[i])
	}
	for _, i := range mark {
		e.mayClear(found[i].pool)
	}
	return errs
}

// independent picks, by index, those that can be deleted at the same time: at most one lvol depends on each, and none
// of them touches another's neighbours. SPDK changes a snapshot's base and its clone when it deletes it. What an
// interrupted clone left, and what a deleted volume, goes before what it depends on: it must never take data over. Nor
// must what SPDK does not list. Only in a pool where a merge may have been cut off (see cutOff), a snapshot is merged
// into a deleted volume, and each before what depends on it.
func independent(all []*lvol, cutOff func(*pool) bool) []int {
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
		clones := l.clonesOf()
		maybe := cutOff(l.pool)
		free := l.clones == nil || len(clones) == 1 && !clones[0].unfinished() && (clones[0].kind != deletedLvol || maybe)
		free = free && (!maybe || !l.awaitsMerge())
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

// awaitsMerge says whether an lvol is the only one that depends on garbage, which SPDK would merge into it.
func (l *lvol) awaitsMerge() bool {
	base := l.pool.lvols[l.base]
	return base != nil && len(base.clones) == 1 && (base.kind == cloneLvol || base.kind == snapshotLvol && base.marked())
}

// cutOff says whether a target may have ended while it merged a deleted snapshot of a pool. SPDK 26.05 writes the map
// of the volume, in parts, before that of the snapshot, so both may have a cluster. A merge sets that right: SPDK takes
// from the snapshot what the volume has of it. If the volume went first, its clusters could be given to another, and
// the snapshot would then have them cleared there.
func (s *session) cutOff(p *pool) bool {
	t := s.life.trust[p.Device]
	return (t == nil || t.inherited) && !p.clean()
}

// garbage that could go now or later.
func (st *store) garbage() []*lvol {
	var all []*lvol
	for _, l := range st.rest {
		if l.kind == cloneLvol || l.cleared() || l.unfinished() || l.condemned {
			all = append(all, l)
			continue
		}
		// A mark without its snapshot stays until SPDK's next start: it may only have forgotten that. See sweepMarks.
		for _, marked := range st.snapshots[l.id] {
			if marked.pool == l.pool {
				all = append(all, marked)
			}
		}
	}
	return all
}
