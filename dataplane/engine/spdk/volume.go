// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

const mib = 1 << 20

// creation of a volume: what is left to be done, in this order.
type creation struct {
	want engine.VolumeSpec
	pool *pool
	// freeze is the volume to take the snapshot base of first.
	freeze *lvol
	// base is the name of the snapshot to clone, in pool, of that size; empty for a blank volume.
	base      string
	baseBytes int64
	// alone: nothing depends on the base.
	alone bool
	// made: the volume is there, but an interrupted call left it as small as its source.
	made bool
	// grow to the size that is wanted: clones are made as large as their source.
	grow bool
}

// CreateVolumes implements engine.Engine. Clones of one volume in one call share a snapshot.
func (e *Engine) CreateVolumes(ctx context.Context, volumes []engine.VolumeSpec) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(volumes), err)
	}
	st, err := s.readStoreFor(volumes)
	if err != nil {
		return failAll(len(volumes), err)
	}
	errs := make([]error, len(volumes))
	todo := make([]*creation, len(volumes))
	var freeze, create, clone, grow []int
	frozen := map[*lvol]int{}
	for i, want := range volumes {
		c, err := st.plan(want)
		if c != nil {
			if err = errors.Join(e.idle(c.touches()...), s.unmerged(c)); err != nil {
				c = nil
			}
		}
		todo[i], errs[i] = c, err
		if c == nil {
			continue
		}
		if c.freeze != nil {
			if first, shared := frozen[c.freeze]; shared {
				c.base = todo[first].base
			} else {
				frozen[c.freeze] = i
				freeze = append(freeze, i)
			}
		}
		switch {
		case c.base == "":
			create = append(create, i)
		case !c.made:
			clone = append(clone, i)
		}
		if c.grow {
			grow = append(grow, i)
		}
	}
	what := func(i int) ongoing { return ongoing{Makes: todo[i].base} }
	s.quietly(freeze, func(i int) *lvol { return todo[i].freeze }, what, errs, func(s *session, items []int, errs []error) { //nolint:contextcheck // hosts that wait are woken, also when the call's time is over
		call(s, items, errs, func(i int) spdkrpc.Request[string] {
			return spdkrpc.BdevLvolSnapshot{Volume: todo[i].freeze.alias(), Name: todo[i].base}
		})
	})
	for i, c := range todo {
		if c != nil && c.freeze != nil && errs[i] == nil {
			errs[i] = errs[frozen[c.freeze]]
		}
	}
	call(s, create, errs, func(i int) spdkrpc.Request[string] {
		return blank(todo[i].pool, string(todo[i].want.ID), todo[i].want.SizeBytes)
	})
	s.clone(todo, clone, errs)
	call(s, grow, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
		return resize(todo[i].pool, todo[i].want.ID, todo[i].want.SizeBytes)
	})
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("volume %s: %w", volumes[i].ID, err)
		}
	}
	return errs
}

func blank(p *pool, name string, sizeBytes int64) spdkrpc.BdevLvolCreate {
	return spdkrpc.BdevLvolCreate{LvstoreName: p.lvstore, Name: name, SizeMiB: uint64(sizeBytes / mib), Thin: true, Clear: spdkrpc.ClearWriteZeroes}
}

// clone snapshots. bdev_lvol_clone would make lvols that are not cleared when they are deleted; so each is made blank,
// is given its parent, and has a volume's name only then.
func (s *session) clone(todo []*creation, items []int, errs []error) {
	var hold []int
	held := map[string]int{}
	for _, i := range items {
		base := todo[i].alias(todo[i].base)
		if _, shared := held[base]; todo[i].alone && !shared {
			held[base] = i
			hold = append(hold, i)
		}
	}
	// A target that was started anew takes a snapshot without clones for a volume, and nothing's parent. A clone of it,
	// never written, tells it better.
	call(s, hold, errs, func(i int) spdkrpc.Request[string] {
		return spdkrpc.BdevLvolClone{Snapshot: todo[i].alias(todo[i].base), Name: holdName(todo[i].want.ID)}
	})
	for _, i := range items {
		if errs[i] == nil && todo[i].alone {
			errs[i] = errs[held[todo[i].alias(todo[i].base)]]
		}
	}
	call(s, items, errs, func(i int) spdkrpc.Request[string] {
		return blank(todo[i].pool, newName(todo[i].want.ID), todo[i].baseBytes)
	})
	call(s, items, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
		return spdkrpc.BdevLvolSetParent{Name: todo[i].alias(newName(todo[i].want.ID)), Parent: todo[i].alias(todo[i].base)}
	})
	// One that stays for now is removed by another call.
	call(s, hold, make([]error, len(errs)), func(i int) spdkrpc.Request[spdkrpc.Done] {
		return spdkrpc.BdevLvolDelete{Name: todo[i].alias(holdName(todo[i].want.ID))}
	})
	call(s, items, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
		return spdkrpc.BdevLvolRename{Name: todo[i].alias(newName(todo[i].want.ID)), NewName: string(todo[i].want.ID)}
	})
}

// unmerged fails with engine.ErrBusy where a target may have ended while it merged what an interrupted call left for
// this clone: the merge comes first (see cutOff), and then the clone is made of the volume as it is.
func (s *session) unmerged(c *creation) error {
	left := c.pool.lvols[c.base]
	if left == nil || left.kind != cloneLvol || c.made || len(left.clones) != 1 || !s.cutOff(c.pool) {
		return nil
	}
	s.mayClear(c.pool)
	return fmt.Errorf("%w: what an interrupted call left of it is removed first", engine.ErrBusy)
}

// touches are the lvols that SPDK changes with the creation, as far as they are there.
func (c *creation) touches() []*lvol {
	return []*lvol{c.freeze, c.pool.lvols[c.base], c.pool.lvols[string(c.want.ID)]}
}

// alias by which SPDK knows an lvol of the creation's pool.
func (c *creation) alias(name string) string { return c.pool.lvstore + "/" + name }

// readStoreFor new volumes. Blank ones depend on nothing that hosts write. So for them a glance is enough, which also
// sees what a process before this one had asked for in another pool, and is done.
func (s *session) readStoreFor(volumes []engine.VolumeSpec) (*store, error) {
	if !slices.ContainsFunc(volumes, func(v engine.VolumeSpec) bool { return v.Source != engine.Source{} }) {
		s.recount()
		st, _, err := s.glance()
		if err != nil {
			return nil, err
		}
		if st != nil && !slices.ContainsFunc(st.rest, (*lvol).unfinished) {
			return st, nil
		}
	}
	return s.readFinishedStore()
}

// readFinishedStore removes what interrupted clones left, which are made anew.
func (s *session) readFinishedStore() (*store, error) {
	st, err := s.readStore()
	if err != nil {
		return nil, err
	}
	var left []int
	for i, l := range st.rest {
		if l.unfinished() {
			left = append(left, i)
		}
	}
	if len(left) == 0 {
		return st, nil
	}
	// What cannot be removed is in the way of its own clone only, which says so.
	s.remove(left, st.rest, make([]error, len(st.rest)))
	return s.readStore()
}

func resize(p *pool, id engine.ID, sizeBytes int64) spdkrpc.BdevLvolResize {
	return spdkrpc.BdevLvolResize{Name: p.lvstore + "/" + string(id), SizeMiB: uint64(sizeBytes / mib)}
}

// plan what a volume needs; nil when it is there.
func (st *store) plan(want engine.VolumeSpec) (*creation, error) {
	if err := want.Validate(); err != nil {
		return nil, err
	}
	if found := st.volumes[want.ID]; len(found) > 0 {
		return st.planExisting(want, found[0])
	}
	if err := st.condemned.refusal(want.ID); err != nil {
		return nil, err
	}
	for _, p := range st.pools {
		if p.lvols[deletedName(want.ID)] != nil {
			return nil, fmt.Errorf("%w: one of that ID is being cleared", engine.ErrBusy)
		}
	}
	c := &creation{want: want}
	if want.Source != (engine.Source{}) {
		source, err := st.source(want.Source)
		if err != nil {
			return nil, fmt.Errorf("its source: %w", err)
		}
		if want.Pool == "" {
			want.Pool = source.pool.Device
		}
		if want.Pool != source.pool.Device {
			return nil, fmt.Errorf("%w: in pool %s it cannot share data with its source in pool %s", engine.ErrInvalid, want.Pool, source.pool.Device)
		}
		if want.SizeBytes < source.sizeBytes {
			return nil, fmt.Errorf("%w: %d bytes is smaller than its source of %d", engine.ErrInvalid, want.SizeBytes, source.sizeBytes)
		}
		c.grow = want.SizeBytes > source.sizeBytes
		c.base, c.baseBytes, c.alone = source.name, source.sizeBytes, len(source.clones) == 0
		if source.kind == volumeLvol {
			if err := source.pool.deletes(); err != nil { // what lies between them could not be deleted, and may be what was not merged
				return nil, err
			}
			c.base, c.alone = cloneName(want.ID), false
			// One is there already when an earlier call was interrupted.
			if is := source.pool.lvols[c.base]; is != nil {
				c.baseBytes, c.alone = is.sizeBytes, len(is.clones) == 0
				c.grow = want.SizeBytes > is.sizeBytes
			} else {
				c.freeze = source
				if err := source.pool.reserveSnapshot(source); err != nil {
					return nil, err
				}
			}
		}
	}
	p, err := st.pool(want.Pool)
	if err != nil {
		return nil, err
	}
	c.pool = p
	if err := p.CheckSize(want.SizeBytes); err != nil {
		return nil, err
	}
	if want.SizeBytes > p.TotalBytes {
		return nil, fmt.Errorf("%w: %d bytes in pool %s of %d", engine.ErrNoSpace, want.SizeBytes, p.Device, p.TotalBytes)
	}
	return c, nil
}

// planExisting finishes a clone that an interrupted call left as small as its source. Any other size is another
// volume's.
func (st *store) planExisting(want engine.VolumeSpec, is *lvol) (*creation, error) {
	if is.sizeBytes == want.SizeBytes {
		return nil, nil
	}
	base := is.pool.lvols[is.base]
	if want.Source != (engine.Source{}) && base != nil && base.sizeBytes == is.sizeBytes && want.SizeBytes > is.sizeBytes && want.SizeBytes <= is.pool.TotalBytes {
		return &creation{want: want, pool: is.pool, base: is.base, made: true, grow: true}, nil
	}
	return nil, fmt.Errorf("%w: it has %d bytes, not %d", engine.ErrExists, is.sizeBytes, want.SizeBytes)
}

func (st *store) source(source engine.Source) (*lvol, error) {
	if source.Snapshot != "" {
		return st.find(st.snapshots, source.Snapshot)
	}
	return st.find(st.volumes, source.Volume)
}

// GrowVolumes implements engine.Engine. SPDK cuts data off before it fails, so nothing
// smaller than what is there is ever sent, whatever order the calls are carried out in: one for each volume.
func (e *Engine) GrowVolumes(ctx context.Context, sizes []engine.VolumeSize) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(sizes), err)
	}
	ids := make([]engine.ID, len(sizes))
	for i, want := range sizes {
		ids[i] = want.ID
	}
	st, err := s.finishStore(s.startVolumes(ids, s.listBdevs))
	if err != nil {
		return failAll(len(sizes), err)
	}
	errs := make([]error, len(sizes))
	last := map[*lvol]int{}
	found := make([]*lvol, len(sizes))
	for i, want := range sizes {
		l, err := st.planGrowth(want)
		if l != nil {
			if err = e.idle(l); err != nil {
				l = nil
			}
		}
		if errs[i] = err; l != nil {
			l.sizeBytes = want.SizeBytes
			found[i], last[l] = l, i
		}
	}
	var grow []int
	for _, i := range last {
		grow = append(grow, i)
	}
	// SPDK does not order its own write of the last extent page with that of a host's first write to a cluster there.
	s.quietly(grow, func(i int) *lvol { return found[i] }, func(i int) ongoing { return growing(sizes[i].SizeBytes) }, errs, func(s *session, items []int, errs []error) { //nolint:contextcheck // hosts that wait are woken, also when the call's time is over
		call(s, items, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
			return resize(found[i].pool, sizes[i].ID, sizes[i].SizeBytes)
		})
	})
	for i, want := range sizes {
		if found[i] != nil {
			errs[i] = errs[last[found[i]]]
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("volume %s: %w", want.ID, errs[i])
		}
	}
	return errs
}

// planGrowth finds the volume to grow; nil when it has the size.
func (st *store) planGrowth(want engine.VolumeSize) (*lvol, error) {
	if err := want.Validate(); err != nil {
		return nil, err
	}
	is, err := st.find(st.volumes, want.ID)
	switch {
	case err != nil:
		return nil, err
	case is.pool.CheckSize(want.SizeBytes) != nil:
		return nil, is.pool.CheckSize(want.SizeBytes)
	case want.SizeBytes < is.sizeBytes:
		return nil, fmt.Errorf("%w: from %d to %d bytes", engine.ErrShrink, is.sizeBytes, want.SizeBytes)
	case want.SizeBytes > is.pool.TotalBytes:
		return nil, fmt.Errorf("%w: %d bytes in pool %s of %d", engine.ErrNoSpace, want.SizeBytes, is.pool.Device, is.pool.TotalBytes)
	case want.SizeBytes == is.sizeBytes:
		return nil, nil
	}
	return is, nil
}

// DeleteVolumes implements engine.Engine. It gives them a name that no volume has, and leaves the rest to Clear. SPDK
// deletes an lvol under its export, so it looks before.
func (e *Engine) DeleteVolumes(ctx context.Context, ids []engine.ID) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(ids), err)
	}
	st, n, err := s.finish(s.startNames(), s.startSubsystems())
	if err != nil {
		return failAll(len(ids), err)
	}
	errs := make([]error, len(ids))
	found := make([]*lvol, len(ids))
	exported := n.exported()
	var rename []int
	for i, id := range ids {
		l, err := st.findToDelete(st.volumes, id)
		switch {
		case err != nil:
			errs[i] = err
		case l == nil:
		case exported[l.bdev] != "":
			errs[i] = fmt.Errorf("volume %s is exported as %s: %w", id, exported[l.bdev], engine.ErrInUse)
		case slices.Contains(found[:i], l): // the same one twice
		case e.idle(l) != nil:
			errs[i] = fmt.Errorf("volume %s: %w", id, e.idle(l))
		default:
			found[i] = l
			rename = append(rename, i)
		}
	}
	call(s, rename, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
		return spdkrpc.BdevLvolRename{Name: found[i].alias(), NewName: deletedName(ids[i])}
	})
	var unnamed []int
	for _, i := range rename {
		var unanswered *spdkrpc.UnansweredError
		switch {
		case errs[i] == nil:
			e.mayClear(found[i].pool)
		case errors.As(errs[i], &unanswered) && !unanswered.MaybeDone:
			errs[i] = fmt.Errorf("volume %s: %w", ids[i], errs[i])
		default:
			// SPDK may show the new name, and the drive still have the old one. A large volume needs metadata pages for
			// another name, and none to be deleted.
			unnamed = append(unnamed, i)
			errs[i] = s.condemn(found[i], errs[i])
		}
	}
	s.unname(unnamed, found) //nolint:contextcheck // also when this ends
	return errs
}

// findToDelete answers nil when it is certain that there is none.
func (st *store) findToDelete(in map[engine.ID][]*lvol, id engine.ID) (*lvol, error) {
	if err := errors.Join(id.Validate(), st.condemned.refusal(id)); err != nil {
		return nil, err
	}
	l, err := st.find(in, id)
	if errors.Is(err, engine.ErrNotFound) {
		return nil, nil
	}
	return l, err
}

// remove lvols that nothing exports.
func (s *session) remove(items []int, found []*lvol, errs []error) {
	call(s, items, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
		return spdkrpc.BdevLvolDelete{Name: found[i].alias()}
	})
	for _, i := range items {
		switch {
		case errors.Is(errs[i], spdkrpc.ErrNotFound):
			errs[i] = nil
		case errs[i] != nil:
			errs[i] = fmt.Errorf("%s: %w", found[i].alias(), errs[i])
		}
	}
}
