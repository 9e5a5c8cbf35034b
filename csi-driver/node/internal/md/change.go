// SPDX-License-Identifier: Apache-2.0

package md

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/retry"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
)

// Superblock implements Mirrors.
func (h *Host) Superblock(ctx context.Context, s Slice) (Superblock, error) {
	block, err := h.read(ctx, s, superAt)
	if err != nil {
		return Superblock{}, err
	}
	super, err := ParseSuperblock(block)
	if err != nil {
		return Superblock{}, fmt.Errorf("%s: %w", s.Name, err)
	}
	return super, nil
}

// read a block of a slice.
func (h *Host) read(ctx context.Context, s Slice, offset int64) ([]byte, error) {
	block := make([]byte, blockBytes)
	err := h.directly(ctx, "reading the metadata of ", s, false, func(d DirectDevice) error {
		_, err := d.ReadAt(block, offset)
		return err
	})
	return block, err
}

func (h *Host) write(ctx context.Context, s Slice, data []byte, offset int64) error {
	return h.directly(ctx, "writing the metadata of ", s, true, func(d DirectDevice) error {
		_, err := d.WriteAt(data, offset)
		return err
	})
}

func (h *Host) directly(ctx context.Context, what string, s Slice, write bool, do func(DirectDevice) error) error {
	defer doing.Begin(ctx, what+s.Name)()
	if _, err := h.sizeOf(s); err != nil {
		return err
	}
	d, err := h.OpenDirect(h.dev(s.Name), write)
	if err != nil {
		return fmt.Errorf("open %s: %w", s.Name, notFound(err))
	}
	if err := errors.Join(do(d), d.Close()); err != nil {
		return fmt.Errorf("%s%s: %w", what, s.Name, err)
	}
	return nil
}

// Zero implements Mirrors.
func (h *Host) Zero(ctx context.Context, s Slice) error {
	holders, err := os.ReadDir(h.sys("class/block", s.Name, "holders"))
	if err == nil && len(holders) > 0 {
		err = fmt.Errorf("%s is in use by %s: %w", s.Name, holders[0].Name(), ErrState)
	}
	if err != nil {
		return notFound(err)
	}
	return h.write(ctx, s, make([]byte, metadataBytes), 0)
}

// Fail implements Mirrors.
func (h *Host) Fail(ctx context.Context, a Array, s Slice) error {
	state, err := h.State(a)
	if err != nil {
		return err
	}
	m, ok := state.Member(s)
	switch {
	case !ok:
		return fmt.Errorf("%s in %s: %w", s.Name, a.Name, ErrNotFound)
	case m.Faulty:
		return nil
	case m.InSync && len(state.InSync()) == 1:
		// The kernel would keep it, and from then on fail all writes (MD_BROKEN, raid1_error).
		return fmt.Errorf("%s in %s: %w", s.Name, a.Name, ErrLast)
	}
	defer doing.Begin(ctx, "failing "+s.Name+" in "+a.Name)()
	return h.set(a.Name, stateOf(s), "faulty")
}

func stateOf(s Slice) string { return filepath.Join("dev-"+s.Name, "state") }

// Remove implements Mirrors.
func (h *Host) Remove(ctx context.Context, a Array, s Slice) error {
	state, err := h.State(a)
	if err != nil {
		return err
	}
	m, ok := state.Member(s)
	if !ok {
		return nil
	}
	if m.InSync && !m.Faulty {
		return fmt.Errorf("%s in %s is in sync; fail it first: %w", s.Name, a.Name, ErrState)
	}
	if !m.Faulty && m.Role >= 0 {
		if err := h.Fail(ctx, a, s); err != nil {
			return err
		}
	}
	// The kernel's own word for it would let writes pass that wait until the others' superblocks say that it is faulty.
	if _, err := h.Wait(ctx, a, func(st State) bool { m, ok := st.Member(s); return !ok || !m.Blocked }); err != nil {
		return err
	}
	defer doing.Begin(ctx, "removing "+s.Name+" from "+a.Name)()
	err = retry.OnError(held, busy(ctx), func() error { return h.set(a.Name, stateOf(s), "remove") })
	if errors.Is(err, ErrNotFound) {
		return h.confirm(a)
	}
	return err
}

// ReAdd implements Mirrors.
func (h *Host) ReAdd(ctx context.Context, a Array, s Slice) error {
	present, err := h.present(ctx, a, s)
	if err != nil {
		return err
	}
	super, err := h.Superblock(ctx, s)
	if errors.Is(err, ErrNoSuperblock) || errors.Is(err, ErrUnusable) {
		err = fmt.Errorf("%w: %w", ErrFullCopy, err)
	}
	if err == nil {
		err = Returns(a.Volume, super, present.super, present.roles)
	}
	if err == nil && (present.bitmap.stale || present.bitmap.array != a.Volume) {
		err = fmt.Errorf("the mirror's bitmap says nothing: %w", ErrFullCopy)
	}
	if err != nil {
		return fmt.Errorf("take %s back into %s: %w", s.Name, a.Name, err)
	}
	err = h.addDisk(ctx, a, s, int32(super.Role), diskActive|diskSync)
	if errors.Is(err, syscall.EINVAL) {
		err = fmt.Errorf("the kernel does not know what it has missed: %w: %w", ErrFullCopy, err)
	}
	return err
}

// present is what the members in sync say.
type present struct {
	block  []byte // superblock of one
	super  Superblock
	roles  []Role
	bitmap bitmap
}

// present state of an array, to which a slice is added.
func (h *Host) present(ctx context.Context, a Array, s Slice) (present, error) {
	state, err := h.State(a)
	if err != nil {
		return present{}, err
	}
	inSync := state.InSync()
	if _, ok := state.Member(s); ok || !state.Writable() || len(inSync) == 0 {
		return present{}, fmt.Errorf("add %s to %s, which is %s and has it, or has no member in sync: %w", s.Name, a.Name, state.Array, ErrState)
	}
	var p present
	for _, m := range inSync {
		p.roles = append(p.roles, m.Role)
	}
	if p.block, err = h.read(ctx, inSync[0].Slice, superAt); err != nil {
		return p, err
	}
	if p.super, err = ParseSuperblock(p.block); err != nil {
		return p, fmt.Errorf("%s: %w", inSync[0].Name, err)
	}
	block, err := h.read(ctx, inSync[0].Slice, bitmapAt)
	if err == nil {
		p.bitmap, err = parseBitmap(block)
	}
	return p, err
}

// Returns tells whether a former member of a volume's mirror can be brought in sync by bitmap, by its superblock, that
// of a present member, and the places of all that are in sync. It fails with ErrFullCopy when not. The kernel itself
// refuses one that left before its bitmap was last cleared.
func Returns(volume string, former, present Superblock, inSync []Role) error {
	if former.Filling && former.FillingByBitmap {
		former.Filling = false // what it had missed is still marked
	}
	switch err := former.usable(volume); {
	case errors.Is(err, ErrFullCopy):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrFullCopy, err)
	case slices.Contains(inSync, former.Role):
		return fmt.Errorf("its place is taken: %w", ErrFullCopy)
	case former.Events > present.Events:
		return fmt.Errorf("it has %d events, more than the mirror's %d: it went on alone: %w", former.Events, present.Events, ErrFullCopy)
	}
	for _, r := range inSync {
		if !slices.Contains(former.Roles, r) {
			return fmt.Errorf("it went on without the present member %d: %w", r, ErrFullCopy)
		}
	}
	return nil
}

// Fits implements Mirrors.
func (h *Host) Fits(a Array, s Slice) error {
	const file = "queue/logical_block_size"
	values := map[string]int{}
	for _, name := range []string{a.Name, s.Name} {
		value, err := attribute(h.sys("class/block", name), file)
		if err == nil {
			values[name], err = strconv.Atoi(value)
		}
		if err != nil {
			return fmt.Errorf("%s of %s: %w", file, name, err)
		}
	}
	if values[s.Name] > values[a.Name] {
		return fmt.Errorf("%s has logical blocks of %d bytes, and %s of %d: %w", s.Name, values[s.Name], a.Name, values[a.Name], ErrBlocks)
	}
	return nil
}

// Add implements Mirrors.
func (h *Host) Add(ctx context.Context, a Array, s Slice) error {
	if _, err := h.Superblock(ctx, s); !errors.Is(err, ErrNoSuperblock) {
		return fmt.Errorf("%s has a superblock, or may have one; zero it first: %w", s.Name, errors.Join(ErrState, err))
	}
	p, err := h.present(ctx, a, s)
	if err != nil {
		return err
	}
	size, err := h.sizeOf(s)
	if err == nil && size-dataAt < p.super.SizeBytes {
		err = fmt.Errorf("%s has %d bytes, too few for %d: %w", s.Name, size, p.super.SizeBytes, ErrState)
	}
	if err != nil {
		return err
	}
	err = syscall.EBUSY
	// The kernel keeps the number that a superblock has. One that a spare has, it says to be busy.
	for _, number := range freeNumbers(p.block) {
		if err := h.write(ctx, s, spareLike(p.block, number, uuid.New(), size), superAt); err != nil {
			return err
		}
		if err = h.addDisk(ctx, a, s, -1, 0); !errors.Is(err, syscall.EBUSY) {
			break
		}
	}
	if err != nil {
		return errors.Join(err, h.Zero(ctx, s))
	}
	return nil
}

// addNewDisk is ADD_NEW_DISK (include/uapi/linux/raid/md_u.h), which takes a diskInfo. mdadm's --re-add and --add come
// to the same call.
const addNewDisk = 0x40140921

const (
	diskActive = 1 << 1
	diskSync   = 1 << 2
)

type diskInfo struct{ number, major, minor, role, state int32 }

func (h *Host) addDisk(ctx context.Context, a Array, s Slice, role int32, state int32) error {
	defer doing.Begin(ctx, "adding "+s.Name+" to "+a.Name)()
	major, minor, ok := strings.Cut(s.Number, ":")
	first, err := strconv.ParseInt(major, 10, 32)
	second, minorErr := strconv.ParseInt(minor, 10, 32)
	if err := errors.Join(err, minorErr); err != nil || !ok {
		return fmt.Errorf("device number %q: %w", s.Number, errors.Join(syscall.EINVAL, err))
	}
	f, err := os.Open(a.Path)
	if err != nil {
		return notFound(err)
	}
	defer f.Close() //nolint:errcheck // nothing was written to it
	if err := h.confirm(a); err != nil {
		return err
	}
	d := diskInfo{number: -1, major: int32(first), minor: int32(second), role: role, state: state}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), addNewDisk, uintptr(unsafe.Pointer(&d))) //nolint:gosec // the kernel reads it
	runtime.KeepAlive(&d)
	if errno != 0 {
		return fmt.Errorf("add %s to %s: %w", s.Name, a.Name, errno)
	}
	return nil
}

// SetDisks implements Mirrors.
func (h *Host) SetDisks(ctx context.Context, a Array, disks int) error {
	if err := h.confirm(a); err != nil {
		return err
	}
	defer doing.Begin(ctx, "changing the number of members of "+a.Name)()
	// The kernel is busy for a moment after a member left or was copied to, and looks for what to copy afterwards.
	err := retry.OnError(held, busy(ctx), func() error { return h.set(a.Name, "raid_disks", strconv.Itoa(disks)) })
	if err != nil {
		return err
	}
	return retry.OnError(held, busy(ctx), func() error {
		if s, err := h.State(a); err != nil || s.Action == ActionIdle {
			return err
		}
		return fmt.Errorf("%s has %d members now, and is still busy: %w", a.Name, disks, syscall.EBUSY)
	})
}

// Grow implements Mirrors.
func (h *Host) Grow(ctx context.Context, a Array, dataBytes int64) (Array, error) {
	state, err := h.State(a)
	if err != nil || a.DataBytes >= dataBytes {
		return a, err
	}
	if state.Degraded > 0 || !state.Idle() || !state.Writable() {
		return a, fmt.Errorf("grow %s, which is %s, with %d of its members missing: %w", a.Name, state.Array, state.Degraded, ErrState)
	}
	defer doing.Begin(ctx, "growing "+a.Name)()
	for _, m := range state.Members {
		if err := h.set(a.Name, filepath.Join("dev-"+m.Name, "size"), "0"); err != nil { // all that the slice has
			return a, err
		}
	}
	// What is added would be resynchronized otherwise, which allocates it where legs are thin.
	if err := h.set(a.Name, "sync_action", "frozen"); err != nil {
		return a, err
	}
	err = h.set(a.Name, "component_size", strconv.FormatInt((FrontBytes+dataBytes)>>10, 10))
	if err == nil {
		err = h.set(a.Name, "resync_start", "none")
	}
	if err := errors.Join(err, h.set(a.Name, "sync_action", ActionIdle)); err != nil {
		return a, err
	}
	now, err := h.Of(a.Volume)
	if err == nil && now.DataBytes < dataBytes {
		err = fmt.Errorf("%s has %d bytes after it was made to have %d: %w", a.Name, now.DataBytes, dataBytes, ErrState)
	}
	return now, err
}

// SetSpeed implements Mirrors.
func (h *Host) SetSpeed(a Array, minimum, maximum int64) error {
	if err := h.confirm(a); err != nil {
		return err
	}
	value := func(bytes int64) string {
		if bytes == 0 {
			return "system"
		}
		return strconv.FormatInt(max(1, bytes>>10), 10)
	}
	return errors.Join(h.set(a.Name, "sync_speed_min", value(minimum)), h.set(a.Name, "sync_speed_max", value(maximum)))
}
