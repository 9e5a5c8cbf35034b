// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

// mirrorArray is the array of a mirrored volume. Its members are the replicas' slices.
type mirrorArray struct {
	*mirrorSlices
	uuid string
	// places of an array that is made.
	places int
}

// State implements keeper.Arrays.
func (a *mirrorArray) State() (keeper.ArrayState, error) {
	_, s, err := a.arrayOf(a.uuid)
	if errors.Is(err, md.ErrNotFound) || err == nil && s.Unfinished {
		return keeper.ArrayState{}, nil
	}
	if err != nil {
		return keeper.ArrayState{}, err
	}
	state := keeper.ArrayState{
		Exists: true, Members: map[string]keeper.MemberState{},
		Resyncing: s.Unequal || s.Action == md.ActionResync || !s.Writable() && s.Array != md.Broken,
	}
	for _, m := range s.Members {
		name, err := a.nameOf(m)
		if err != nil {
			return keeper.ArrayState{}, err
		}
		state.Members[name] = memberState(m)
	}
	return state, nil
}

func memberState(m md.Member) keeper.MemberState {
	switch {
	case m.Faulty:
		return keeper.MemberFaulty
	case m.InSync:
		return keeper.MemberInSync
	default:
		return keeper.MemberCopying
	}
}

// nameOf the replica that a member is a slice of.
func (a *mirrorArray) nameOf(m md.Member) (string, error) {
	if name, ours := a.names.of(m.UUID); ours {
		return name, nil
	}
	return "", fmt.Errorf("%w: the mirror has %s (%s), which is no replica of the volume", errMismatch, m.Name, m.UUID)
}

// member of the running array that is a slice of a replica.
func (a *mirrorArray) member(name string) (md.Array, md.Member, error) {
	array, s, err := a.arrayOf(a.uuid)
	if err != nil {
		return array, md.Member{}, err
	}
	for _, m := range s.Members {
		is, err := a.nameOf(m)
		if err != nil {
			return array, md.Member{}, err
		}
		if is == name {
			return array, m, nil
		}
	}
	return array, md.Member{}, fmt.Errorf("%s in %s: %w", name, array.Name, md.ErrNotFound)
}

// open the slices of replicas, which keeps their numbers until they are closed.
func (a *mirrorArray) open(ctx context.Context, names []string) ([]md.Slice, func(), error) {
	var all []md.Slice
	var opened []io.Closer
	done := func() {
		for _, o := range opened {
			_ = o.Close() // nothing was written through it
		}
	}
	for _, name := range names {
		d, err := a.slice(ctx, name)
		var o io.Closer
		if err == nil {
			o, err = a.Mapper.Open(d)
		}
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("the slice of %s: %w", name, err)
		}
		all, opened = append(all, member(d)), append(opened, o)
	}
	return all, done, nil
}

// metadata of a replica, as far as it has any.
type metadata struct {
	name string
	md.Superblock
	// none: there is no superblock. Without a bitmap, making the mirror was cut off: nothing was written to it yet.
	none bool
}

func (a *mirrorArray) metadata(ctx context.Context, names []string, slices []md.Slice) ([]metadata, error) {
	var all []metadata
	for i, s := range slices {
		super, err := a.Mirrors.Superblock(ctx, s)
		none := errors.Is(err, md.ErrNoSuperblock)
		if err != nil && !none {
			return nil, fmt.Errorf("the metadata of %s: %w", names[i], err)
		}
		all = append(all, metadata{names[i], super, none})
	}
	return all, nil
}

// Compare implements keeper.Arrays.
func (a *mirrorArray) Compare(ctx context.Context, names []string) ([]string, error) {
	open, done, err := a.open(ctx, names)
	if err != nil {
		return nil, err
	}
	defer done()
	all, err := a.metadata(ctx, names, open)
	if err != nil {
		return nil, err
	}
	return kicked(a.uuid, all), nil
}

// kicked are the members that a kernel went on without: another's metadata does not know them, or they are behind it,
// or were being copied to. One on which making the mirror was cut off was left behind by one on which it was not.
func kicked(volume string, all []metadata) []string {
	var most uint64
	for _, m := range all {
		if m.whole(volume) {
			most = max(most, m.Events)
		}
	}
	var names []string
	for _, m := range all {
		if m.none || !m.Bitmap {
			if most > 0 {
				names = append(names, m.name)
			}
			continue
		}
		// One event less is what a write that was cut off leaves; the kernel takes such a member, too.
		behind := most > 0 && (!m.whole(volume) || m.Events+1 < most)
		missed := slices.ContainsFunc(all, func(o metadata) bool {
			return o.name != m.name && o.whole(volume) && m.Role >= 0 && !slices.Contains(o.Roles, m.Role)
		})
		if behind || missed {
			names = append(names, m.name)
		}
	}
	return names
}

// whole tells whether a member can be in sync by its own metadata.
func (m metadata) whole(volume string) bool {
	return !m.none && m.Array == volume && m.Bitmap && m.Role >= 0 && !m.Filling
}

// Ahead implements keeper.Arrays.
func (a *mirrorArray) Ahead(ctx context.Context, name string) (bool, error) {
	_, s, err := a.arrayOf(a.uuid)
	if err != nil {
		return false, err
	}
	open, done, err := a.open(ctx, []string{name})
	if err != nil {
		return false, err
	}
	defer done()
	super, err := a.Mirrors.Superblock(ctx, open[0])
	if errors.Is(err, md.ErrNoSuperblock) || errors.Is(err, md.ErrUnusable) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return super.Array == a.uuid && super.Role >= 0 && slices.ContainsFunc(s.InSync(), func(m md.Member) bool {
		return m.Role != super.Role && !slices.Contains(super.Roles, m.Role)
	}), nil
}

// Assemble implements keeper.Arrays. The array is made where no member has metadata, or making it was cut off, before
// anything was written to it.
func (a *mirrorArray) Assemble(ctx context.Context, names []string) error {
	if err := a.stopUnfinished(ctx); err != nil {
		return err
	}
	open, done, err := a.open(ctx, names)
	if err != nil {
		return err
	}
	defer done()
	all, err := a.metadata(ctx, names, open)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(m metadata) bool { return !m.none && m.Bitmap && (m.Array == a.uuid || len(all) > 1) }) {
		_, err = a.Mirrors.Assemble(ctx, a.uuid, open)
		return err
	}
	for i, m := range all {
		if m.none {
			continue
		}
		// A copy of a mirrored volume begins with its source's metadata. Alone in sync, it is not assembled with
		// others.
		if m.Array != a.uuid && len(all) > 1 {
			return fmt.Errorf("%w: the metadata of %s is that of %s", errMismatch, m.name, m.Array)
		}
		if err := a.Mirrors.Zero(ctx, open[i]); err != nil {
			return err
		}
	}
	members := slices.Clone(open)
	for len(members) < max(2, a.places) {
		members = append(members, md.Missing)
	}
	dataBytes, err := a.dataBytes(ctx, names)
	if err != nil {
		return err
	}
	_, err = a.Mirrors.Create(ctx, md.Spec{Volume: a.uuid, Members: members, DataBytes: dataBytes})
	return err
}

// stopUnfinished stops an array whose making was cut off.
func (a *mirrorArray) stopUnfinished(ctx context.Context) error {
	array, s, err := a.arrayOf(a.uuid)
	if errors.Is(err, md.ErrNotFound) || err == nil && !s.Unfinished {
		return nil
	}
	if err == nil {
		err = a.Mirrors.Stop(ctx, array)
	}
	return err
}

// dataBytes of an array that all these replicas have room for. What their objects say does not count: a volume may have
// grown since. Their trailers are in it, since the host scans the array, too: they are the array's own at its end.
func (a *mirrorArray) dataBytes(ctx context.Context, names []string) (int64, error) {
	var least int64
	for _, name := range names {
		d, err := a.slice(ctx, name)
		if err != nil {
			return 0, fmt.Errorf("the slice of %s: %w", name, err)
		}
		if has := max(0, d.SizeBytes-(v1alpha1.HeaderBytes-md.RecordBytes)); least == 0 || has < least {
			least = has
		}
	}
	return least, nil
}

// Fail implements keeper.Arrays.
func (a *mirrorArray) Fail(ctx context.Context, name string) error {
	array, m, err := a.member(name)
	if err != nil {
		return err
	}
	return a.Mirrors.Fail(ctx, array, m.Slice)
}

// Remove implements keeper.Arrays. What was the replica's slice goes, too.
func (a *mirrorArray) Remove(ctx context.Context, name string) error {
	array, m, err := a.member(name)
	if errors.Is(err, md.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = a.Mirrors.Remove(ctx, array, m.Slice)
	}
	return err
}

// ReAdd implements keeper.Arrays.
func (a *mirrorArray) ReAdd(ctx context.Context, name string) error {
	err := a.with(ctx, name, func(array md.Array, slice md.Slice) error { return a.Mirrors.ReAdd(ctx, array, slice) })
	if errors.Is(err, md.ErrFullCopy) {
		err = fmt.Errorf("%w: %w", keeper.ErrFullCopy, err)
	}
	return err
}

// with the volume's array, and the slice of a replica that fits and is kept open, do something.
func (a *mirrorArray) with(ctx context.Context, name string, do func(md.Array, md.Slice) error) error {
	array, err := a.Mirrors.Of(a.uuid)
	if err != nil {
		return err
	}
	open, done, err := a.open(ctx, []string{name})
	if err != nil {
		return err
	}
	defer done()
	if err := a.Mirrors.Fits(array, open[0]); err != nil {
		return fmt.Errorf("replica %s cannot be part of the mirror: %w", name, err)
	}
	return do(array, open[0])
}

// Add implements keeper.Arrays. A member that takes no other's place gets one of its own.
func (a *mirrorArray) Add(ctx context.Context, name string) error {
	return a.with(ctx, name, func(array md.Array, slice md.Slice) error {
		s, err := a.Mirrors.State(array)
		if err != nil {
			return err
		}
		if taken := len(s.InSync()); s.Degraded == 0 {
			if err := a.Mirrors.SetDisks(ctx, array, taken+1); err != nil {
				return err
			}
		}
		if err := a.Mirrors.Zero(ctx, slice); err != nil {
			return err
		}
		return a.Mirrors.Add(ctx, array, slice)
	})
}

// SetSpeed implements keeper.Arrays.
func (a *mirrorArray) SetSpeed(_ context.Context, bytes int64) error {
	array, err := a.Mirrors.Of(a.uuid)
	if err != nil {
		return err
	}
	return a.Mirrors.SetSpeed(array, 0, bytes)
}

// Stop implements keeper.Arrays.
func (a *mirrorArray) Stop(ctx context.Context) error {
	array, err := a.Mirrors.Of(a.uuid)
	if errors.Is(err, md.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return a.Mirrors.Stop(ctx, array)
}
