// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

// Fail implements md.Mirrors.
func (f mirrors) Fail(ctx context.Context, a md.Array, s md.Slice) error {
	return f.on(ctx, a, func(k *Kernel, m *mirror) error {
		member := m.member(s)
		switch {
		case member == nil:
			return fmt.Errorf("%s in %s: %w", s.Name, a.Name, md.ErrNotFound)
		case member.faulty:
			return nil
		case member.inSync && len(m.inSync()) == 1:
			return fmt.Errorf("%s in %s: %w", s.Name, a.Name, md.ErrLast)
		}
		member.faulty = true
		k.store(m, true)
		return nil
	})
}

// Remove implements md.Mirrors.
func (f mirrors) Remove(ctx context.Context, a md.Array, s md.Slice) error {
	return f.on(ctx, a, func(k *Kernel, m *mirror) error {
		member := m.member(s)
		if member == nil {
			return nil
		}
		if member.inSync && !member.faulty {
			return fmt.Errorf("%s in %s is in sync: %w", s.Name, a.Name, md.ErrState)
		}
		m.members = slices.DeleteFunc(m.members, func(other *mirrorMember) bool { return other == member })
		k.store(m, true)
		return k.letGo(m, member)
	})
}

// Fits implements md.Mirrors, by what this kernel's sysfs says.
func (f mirrors) Fits(a md.Array, s md.Slice) error {
	return (&md.Host{Root: f.kernel.Root}).Fits(a, s)
}

// ReAdd implements md.Mirrors.
func (f mirrors) ReAdd(ctx context.Context, a md.Array, s md.Slice) error {
	return f.join(ctx, a, s, func(k *Kernel, m *mirror, h *head) (*mirrorMember, error) {
		kept := k.metadata[h.nguid]
		if kept == nil {
			return nil, fmt.Errorf("%s: %w: %w", s.Name, md.ErrFullCopy, md.ErrNoSuperblock)
		}
		if err := md.Returns(a.Volume, kept.super, md.Superblock{Events: m.events}, m.inSync()); err != nil {
			return nil, err
		}
		if kept.super.Events < m.cleared {
			return nil, fmt.Errorf("the kernel does not know what it has missed: %w", md.ErrFullCopy)
		}
		for region := range kept.missed {
			m.missed[region] = true
		}
		return &mirrorMember{role: kept.super.Role, device: kept.super.Device}, nil
	})
}

// Add implements md.Mirrors.
func (f mirrors) Add(ctx context.Context, a md.Array, s md.Slice) error {
	return f.join(ctx, a, s, func(k *Kernel, m *mirror, h *head) (*mirrorMember, error) {
		if k.metadata[h.nguid] != nil {
			return nil, fmt.Errorf("%s has a superblock: %w", s.Name, md.ErrState)
		}
		return &mirrorMember{role: m.freeRole(), device: uuid.NewString(), whole: true}, nil
	})
}

// freeRole in a mirror, or none.
func (m *mirror) freeRole() md.Role {
	for role := range md.Role(m.disks) {
		if !slices.ContainsFunc(m.members, func(other *mirrorMember) bool { return other.role == role && !other.faulty }) {
			return role
		}
	}
	return md.Spare
}

// join makes a slice a member, and copies to it.
func (f mirrors) join(ctx context.Context, a md.Array, s md.Slice, as func(k *Kernel, m *mirror, h *head) (*mirrorMember, error)) error {
	return f.on(ctx, a, func(k *Kernel, m *mirror) error {
		h := k.on(s.Name)
		switch {
		case m.member(s) != nil || m.broken || len(m.inSync()) == 0:
			return fmt.Errorf("add %s to %s: %w", s.Name, a.Name, md.ErrState)
		case h == nil || k.mapped[s.Name].number != s.Number:
			return fmt.Errorf("%s: %w", s.Name, md.ErrNotFound)
		case k.mapped[s.Name].live.sectors*sectorBytes < inSlice+m.dataBytes:
			return fmt.Errorf("%s is too small: %w", s.Name, md.ErrState)
		}
		member, err := as(k, m, h)
		if err != nil {
			return err
		}
		member.Slice, member.uuid, member.nguid = s, k.mapped[s.Name].uuid, h.nguid
		m.members = append(m.members, member)
		k.store(m, true)
		go k.fill(m, member)
		return k.hold(m, member)
	})
}

// fill a member with what it has not got, until it has everything or is no member any more.
func (k *Kernel) fill(m *mirror, member *mirrorMember) {
	for {
		k.mu.Lock()
		if k.mirrors[m.name] != m || m.member(member.Slice) != member || !member.copied() {
			k.mu.Unlock()
			return
		}
		from, until := k.read(m), k.copyUntil(m)
		if from != nil && !k.hangs(m) && (m.maximum == 0 || m.maximum > slowBytes) && (member.done < until || until == m.dataBytes) {
			missing := func(region int64) bool {
				return region*RegionBytes < until && (member.whole || m.missed[region])
			}
			if err := k.copy(from.nguid, member.nguid, m.dataBytes, missing); err == nil {
				for region := range m.dataBytes / RegionBytes {
					if region*RegionBytes >= member.done && missing(region) {
						k.written[member.Name] += RegionBytes
					}
				}
				// What was copied before has got all writes since. Those to the file behind the device are copied
				// again.
				member.done = until
				member.inSync = until == m.dataBytes
			} else {
				member.faulty = true
			}
			if member.inSync || member.faulty {
				k.store(m, true)
			}
			k.change()
			k.mu.Unlock()
			continue
		}
		changed := k.changed
		k.mu.Unlock()
		<-changed
	}
}

// copyUntil is where the copies of a mirror stop, a number of whole regions.
func (k *Kernel) copyUntil(m *mirror) int64 {
	if k.syncMax < 0 {
		return m.dataBytes
	}
	return min(k.syncMax/RegionBytes*RegionBytes, m.dataBytes)
}

// SyncMax lets all copies wait once they have got so far into a volume's data, in bytes, as md/sync_max does; below 0,
// they go on to the end, as they do at first.
func (k *Kernel) SyncMax(bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.syncMax = bytes
	k.change()
}

// SetDisks implements md.Mirrors.
func (f mirrors) SetDisks(ctx context.Context, a md.Array, disks int) error {
	return f.on(ctx, a, func(k *Kernel, m *mirror) error {
		placed := slices.DeleteFunc(slices.Clone(m.members), func(member *mirrorMember) bool { return member.role < 0 || member.faulty })
		if disks < max(1, len(placed)) {
			return fmt.Errorf("%s has %d members: %w", a.Name, len(placed), syscall.EBUSY)
		}
		m.disks = disks
		for _, member := range m.members {
			if member.role < 0 && !member.faulty {
				member.role = m.freeRole()
				go k.fill(m, member)
			}
		}
		k.store(m, true)
		return nil
	})
}

// Grow implements md.Mirrors.
func (f mirrors) Grow(ctx context.Context, a md.Array, dataBytes int64) (md.Array, error) {
	grown := a
	err := f.on(ctx, a, func(k *Kernel, m *mirror) error {
		if m.dataBytes >= dataBytes {
			return nil
		}
		if len(m.inSync()) < m.disks || m.broken {
			return fmt.Errorf("grow %s: %w", a.Name, md.ErrState)
		}
		for _, member := range m.members {
			if k.mapped[member.Name].live.sectors*sectorBytes < inSlice+dataBytes {
				return fmt.Errorf("%s is too small: %w", member.Name, syscall.EINVAL)
			}
		}
		m.dataBytes = dataBytes
		k.store(m, true)
		grown = m.array(k)
		return k.sized(m)
	})
	return grown, err
}

// Stop implements md.Mirrors.
func (f mirrors) Stop(ctx context.Context, a md.Array) error {
	err := f.on(ctx, a, func(k *Kernel, m *mirror) error {
		for _, top := range k.mapped {
			if top.live != nil && top.live.name == m.name && top.live.number == m.number {
				return fmt.Errorf("%s is in use by %s: %w", m.name, top.name, syscall.EBUSY)
			}
		}
		if k.users(m.name) {
			return fmt.Errorf("%s is in use: %w", m.name, syscall.EBUSY)
		}
		k.store(m, false)
		delete(k.mirrors, m.name)
		var errs []error
		for _, member := range m.members {
			errs = append(errs, k.letGo(m, member))
		}
		errs = append(errs, k.delete(filepath.Join("sys/class/block", m.name)), k.delete(filepath.Join("sys/dev/block", m.number)), k.delete(filepath.Join(mappedDir, m.name)))
		k.onGone(m.name)
		return errors.Join(errs...)
	})
	if errors.Is(err, md.ErrNotFound) {
		return nil
	}
	return err
}

// SetSpeed implements md.Mirrors.
func (f mirrors) SetSpeed(a md.Array, _, maximum int64) error {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	m, err := f.kernel.mirrorOf(a)
	if err == nil {
		m.maximum = maximum
		f.kernel.change()
	}
	return err
}

// Watch implements md.Mirrors.
func (f mirrors) Watch(ctx context.Context, a md.Array, changed func(md.State)) error {
	var last *md.State
	for {
		f.kernel.mu.Lock()
		next := f.kernel.changed
		f.kernel.mu.Unlock()
		s, err := f.State(a)
		if err != nil {
			return err
		}
		if last == nil || !reflect.DeepEqual(*last, s) {
			last = &s
			changed(s)
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		}
	}
}

// Wait implements md.Mirrors.
func (f mirrors) Wait(ctx context.Context, a md.Array, until func(md.State) bool) (md.State, error) {
	return md.Wait(ctx, f, a, until)
}

// Clean implements md.Mirrors. The making of an array is never cut off here.
func (mirrors) Clean(context.Context) error { return nil }
