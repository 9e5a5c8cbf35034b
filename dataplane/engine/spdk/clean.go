// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	"github.com/google/uuid"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

const (
	// copiesInFlight bounds the clusters that a killed target may have been copying: one for each of its threads on an
	// lvstore (need_cluster_alloc of lib/blob/blobstore.c). SPDK has a thread for each core, of which DPDK takes 128 at
	// most, and one more.
	copiesInFlight = 256
	// signedIOPS is the limit that the mark of a soiled pool gets, in IOPS, once all free clusters were looked at.
	// Nobody reads or writes the mark, and a target forgets limits when it ends.
	signedIOPS = 1000
	// holdBytes of an lvol that holds free clusters: how much is cleared between two pauses.
	holdBytes = 16 << 30
)

// trust in the free clusters of a pool, in one life of its target.
type trust struct {
	// known: all of them are zeroes, but for those that are held.
	known bool
	// open: hosts may be given volumes of it.
	open bool
	// inherited: an agent before this one may have had SPDK delete what it lists no more. Until the pool is clean.
	inherited bool
	// free and needed bytes, while it is not.
	free, needed int64
	// err is why nothing is known, and nothing is held.
	err error
}

// distrust free clusters of pools that this life of the target has just brought, or that this process sees for the
// first time. What SPDK freed when it was killed may hold data: it writes the metadata of a deletion before it clears,
// and copies a cluster for a clone before it enters that in the metadata. So a pool has a mark, clean, once all of its
// free clusters are zeroes, and another one, soiled, from before anything is deleted until all is cleared. Where it is
// not clean all free clusters are held by lvols, which Clear deletes like any other. Where it is, only copies were cut
// off: SPDK takes the lowest free cluster, and none was freed meanwhile, so they are among the first that are free.
//
// A pool whose mark is signed was looked at by an agent before this one in this life of the target. Since then all that
// was freed by deletions was cleared, and what could not be cleared SPDK does not free
// (blob_persist_clear_clusters_cpl). So this one goes on where that was. Of a pool that hosts use, nothing is held,
// which could take what they still write; nothing is known of it unless it is clean or signed.
//
// A target that was killed while it took a snapshot may count clusters twice that both have, and so fewer free ones
// than there are (bs_load_replay_md_parse_page). Then the highest are not held. They are the last that SPDK gives out,
// and count as space that is to be cleared, which is not promised to anybody.
func (s *session) distrust(st *store, devices ...string) {
	for _, p := range st.pools {
		if len(devices) > 0 && !slices.Contains(devices, p.Device) {
			continue
		}
		was := s.life.trust[p.Device]
		if p.Err != nil || was != nil && was.err == nil || s.leaving[p.Device] > 0 {
			continue
		}
		clean := p.clean()
		t := &trust{known: clean || p.signed(), open: true, inherited: !clean}
		if !p.served() && !p.signed() {
			clean = clean && p.complete()
			t.inherited = t.inherited || p.TotalBytes-p.FreeBytes < p.ownBytes() // some have the same clusters
			if !clean || p.has(func(l *lvol) bool { return l.base != "" }) {
				t.err = s.hold(p, clean)
				t.known, t.open = t.err == nil, false
				if t.known {
					s.sign(p)
				}
			}
		}
		s.life.trust[p.Device] = t
		s.judgeMerges(p, s.life.fresh[p.Device])
		if s.life.fresh[p.Device] {
			if p.complete() {
				s.sweepMarks(st, p)
			}
			delete(s.life.fresh, p.Device)
		}
	}
	s.admitCleared(st)
}

// sweepMarks of snapshots that are gone from a fresh pool: an agent was killed after SPDK had deleted the snapshot.
// What cannot be swept stays until the target's next start.
func (s *session) sweepMarks(st *store, p *pool) {
	for _, l := range p.lvols {
		if l.kind != markLvol || slices.ContainsFunc(st.snapshots[l.id], func(of *lvol) bool { return of.pool == p }) {
			continue
		}
		if _, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolDelete{Name: l.bdev}); err != nil {
			logr.FromContextOrDiscard(s.ctx).Error(mapError(err), "The mark of a deleted snapshot stays", "snapshot", l.id, "device", p.Device)
		}
	}
}

// unlearn what was known of a pool: its drive may go and come again in one life of the target.
func (s *session) unlearn(device string) {
	delete(s.life.trust, device)
	delete(s.life.fresh, device)
	delete(s.life.uncleared, device)
	delete(s.life.asked, device)
	s.life.condemned.forget(device)
}

// clean: its marks say that all free clusters are zeroes.
func (p *pool) clean() bool { return p.lvols[cleanName] != nil && p.lvols[soiledName] == nil }

// ownBytes of all its lvols.
func (p *pool) ownBytes() int64 {
	sum := int64(0)
	for _, l := range p.lvols {
		sum += l.ownBytes
	}
	return sum
}

// complete: every allocated cluster is that of an lvol. When SPDK opens a pool, it leaves out lvols that it cannot read
// at that moment, and they keep theirs. Hosts may be given clusters while they are counted.
func (p *pool) complete() bool { return p.TotalBytes-p.FreeBytes == p.ownBytes() }

// served: an agent has given hosts volumes of it in this life of the target, and saw to its free space before.
func (p *pool) served() bool {
	return p.has(func(l *lvol) bool { return l.claimed })
}

// signed: an agent has looked at its free space in this life of the target.
func (p *pool) signed() bool {
	l := p.lvols[soiledName]
	return l != nil && l.limits.RWIOPS == signedIOPS
}

// sign the mark of a pool, which is soiled, and all free clusters of which are zeroes, or held, or being cleared.
// Without that another agent that finds no hosts there holds all of them again.
func (s *session) sign(p *pool) {
	if l := p.lvols[soiledName]; l == nil || p.signed() {
		return
	}
	limit := uint64(signedIOPS)
	if _, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevSetQosLimit{Name: p.lvstore + "/" + soiledName, RWIOPS: &limit}); err != nil {
		logr.FromContextOrDiscard(s.ctx).Info("Another agent would clear all free space of the pool", "device", p.Device, "reason", err.Error())
	}
}

func (p *pool) has(such func(*lvol) bool) bool {
	for _, l := range p.lvols {
		if such(l) {
			return true
		}
	}
	return false
}

// hold free clusters: of a clean pool those that copies may have been made to, else all. Those that the volumes may
// need are held by the first lvols, which are cleared first.
func (s *session) hold(p *pool, clean bool) error {
	free := p.FreeBytes
	if free < 0 || free > p.TotalBytes {
		return fmt.Errorf("SPDK counts %d free bytes of %d: some clusters belong to two volumes until a deleted snapshot is merged and the target restarts", free, p.TotalBytes)
	}
	first := p.unwritten()
	if err := s.soil(p); err != nil {
		return err
	}
	if clean {
		free = min(free, copiesInFlight*p.ClusterBytes)
		first = free
	}
	var sizes []int64
	var names []string
	var items []int
	for held := int64(0); held < free; held += sizes[len(sizes)-1] {
		size := min(free-held, holdBytes)
		if held < first {
			size = min(size, first-held)
		}
		id, err := uuid.NewV7() // in the order in which they are made
		if err != nil {
			return err
		}
		items, sizes, names = append(items, len(items)), append(sizes, size), append(names, freeName(engine.ID(id.String())))
	}
	errs := make([]error, len(sizes))
	create := func(items []int) {
		call(s, items, errs, func(i int) spdkrpc.Request[string] {
			return spdkrpc.BdevLvolCreate{LvstoreName: p.lvstore, Name: names[i], SizeMiB: uint64(sizes[i] / mib), Clear: spdkrpc.ClearWriteZeroes}
		})
	}
	// The first one alone: on a drive that answers nothing, each would keep one of the places that calls have.
	if create(items[:min(1, len(items))]); errors.Join(errs...) == nil {
		create(items[min(1, len(items)):])
	}
	for i, size := range sizes {
		if errs[i] == nil {
			p.FreeBytes -= size
			p.lvols[names[i]] = &lvol{pool: p, kind: freeLvol, name: names[i], sizeBytes: size, ownBytes: size}
		}
	}
	return errors.Join(errs...)
}

// unwritten bytes of its volumes: what hosts may still have allocated.
func (p *pool) unwritten() int64 {
	sum := int64(0)
	for _, l := range p.lvols {
		if l.kind == volumeLvol {
			sum += max(0, l.sizeBytes-l.ownBytes)
		}
	}
	return sum
}

// hasRoom for all that hosts may write, or as much as it ever had.
func (p *pool) hasRoom() bool {
	return !p.has(func(l *lvol) bool { return l.kind == freeLvol }) || p.FreeBytes >= p.unwritten()
}

// admitCleared pools, where enough is. What is open stays so; what cannot be read is judged again when it is back.
func (s *session) admitCleared(st *store) {
	for _, p := range st.pools {
		if p.Err != nil {
			s.unlearn(p.Device)
		}
		t := s.life.trust[p.Device]
		if t == nil || t.err != nil {
			continue
		}
		t.inherited = t.inherited && !p.clean()
		t.open = t.open || p.hasRoom()
		t.free, t.needed = p.FreeBytes, p.unwritten()
	}
}

// serves says why hosts cannot be given volumes of a pool yet: they would be refused space that is only being cleared.
func (s *session) serves(p *pool) error {
	t := s.life.trust[p.Device]
	switch {
	case p.Err != nil:
		return p.Err
	case t == nil:
		return fmt.Errorf("%w: the free space of pool %s has not been checked", engine.ErrBusy, p.Device)
	case t.err != nil:
		return fmt.Errorf("the free space of pool %s may contain old data and could not be reserved: %w", p.Device, t.err)
	case !t.open:
		return fmt.Errorf("%w: the free space of pool %s may contain old data since its target ended and is cleared first: %d MiB are clear, and hosts may write %d",
			engine.ErrBusy, p.Device, t.free/mib, t.needed/mib)
	}
	return nil
}

// soil says, before anything in the pool is deleted, that free clusters may not be zeroes. It makes a mark rather than
// take one away, because SPDK lists an lvol no more whose deletion it refused, and has it again with its next start.
// Only where there is no metadata page for it does the other mark go.
func (s *session) soil(p *pool) error {
	if p.lvols[soiledName] != nil {
		return nil
	}
	_, err := spdkrpc.Call(s.ctx, s.conn, markOf(p.lvstore, soiledName))
	if err == nil {
		p.lvols[soiledName] = &lvol{pool: p, kind: soiledLvol, name: soiledName}
		return nil
	}
	if errors.Is(err, spdkrpc.ErrNoSpace) || errors.Is(err, spdkrpc.ErrNoMemory) {
		if p.lvols[cleanName] == nil {
			return nil // nothing says that it is clean
		}
		_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolDelete{Name: p.lvstore + "/" + cleanName})
	}
	if err != nil {
		return fmt.Errorf("record in pool %s that its free space is not clean: %w", p.Device, mapError(err))
	}
	delete(p.lvols, cleanName)
	return nil
}

// hasUnlisted says whether a pool may hold what SPDK does not list, because it deletes or has forgotten it.
func (s *session) hasUnlisted(p *pool) bool {
	return s.leaving[p.Device] > 0 || s.life.uncleared[p.Device] || s.cutOff(p)
}

// mayCertify says whether a pool may get its mark again.
func (s *session) mayCertify(p *pool) bool {
	t := s.life.trust[p.Device]
	return p.Err == nil && t != nil && t.known && !p.clean() && s.leaving[p.Device] == 0 && !s.life.uncleared[p.Device] &&
		p.deletes() == nil && !p.merging
}

// certify a pool from which nothing is being deleted: it is clean when every allocated cluster is that of an lvol. Then
// SPDK neither clears one, as it may after a deletion that an agent before this one asked for, nor copies one. The
// clusters of the lvols were counted before and are not fewer now, so the difference is exact where it is nothing.
func (s *session) certify(p *pool) error {
	lvstores, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolGetLvstores{})
	if err != nil {
		return mapError(err)
	}
	at := slices.IndexFunc(lvstores, func(l spdkrpc.Lvstore) bool { return l.Name == p.lvstore })
	if at < 0 || int64(lvstores[at].TotalClusters-lvstores[at].FreeClusters)*p.ClusterBytes != p.ownBytes() {
		return nil
	}
	if p.lvols[cleanName] == nil {
		_, err = spdkrpc.Call(s.ctx, s.conn, markOf(p.lvstore, cleanName))
	}
	if err == nil && p.lvols[soiledName] != nil {
		_, err = spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolDelete{Name: p.lvstore + "/" + soiledName})
	}
	return mapError(err)
}

// markOf an lvstore: an lvol that is there for its name.
func markOf(lvstore, name string) spdkrpc.BdevLvolCreate {
	return spdkrpc.BdevLvolCreate{LvstoreName: lvstore, Name: name, SizeMiB: engine.SizeUnit / mib, Thin: true}
}

// look at the free clusters of some pools, by their devices, or of all when none is given. SPDK lists an lvstore before
// all that is in it.
func (s *session) look(devices ...string) error {
	if err := s.awaitExamined(s.ctx); err != nil {
		return err
	}
	return s.lookAtExamined(devices...)
}

// lookAtExamined is look once SPDK knows what is on its bdevs.
func (s *session) lookAtExamined(devices ...string) error {
	st, err := s.readStore()
	if err == nil {
		s.distrust(st, devices...)
	}
	return err
}

// lookAtOpened pools.
func (s *session) lookAtOpened(open []*opening, errs []error) error {
	var unseen []string
	for i, o := range open {
		if errs[i] == nil && s.life.trust[o.ID] == nil {
			unseen = append(unseen, o.ID)
		}
	}
	if len(unseen) == 0 {
		return nil
	}
	return s.look(unseen...)
}

// lookAtFree clusters of the pools that volumes of st are in, unless they are open.
func (s *session) lookAtFree(st *store) error {
	closed := map[string]bool{}
	for _, found := range st.volumes {
		for _, l := range found {
			if t := s.life.trust[l.pool.Device]; t == nil || !t.open {
				closed[l.pool.Device] = true
			}
		}
	}
	if len(closed) == 0 {
		return nil
	}
	// No other pools: a drive that answers nothing would be asked again for each export.
	return s.look(slices.Collect(maps.Keys(closed))...)
}
