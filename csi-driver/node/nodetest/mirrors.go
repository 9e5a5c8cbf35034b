// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

const (
	firstMirror = 256
	lastMirror  = 1023
	// slowBytes a second and less keep a copy from getting on.
	slowBytes = 1 << 20
	inSlice   = v1alpha1.HeaderBytes - md.RecordBytes
)

// mirror of the kernel's: an array, which is there until it is stopped.
type mirror struct {
	name, number, volume string
	dataBytes            int64
	disks                int
	members              []*mirrorMember
	// missed are the regions that some member has not got.
	missed map[int64]bool
	// events of its superblocks, and those when the bitmap was last cleared.
	events, cleared uint64
	// maximum of bytes a second that are copied; 0 for the host's.
	maximum int64
	// broken: it fails all writes, but says so only when idle.
	broken, idle bool
}

// safeModeDelay after the last write, until when an array counts as active. The kernel's is 200 ms.
const safeModeDelay = 10 * time.Millisecond

type mirrorMember struct {
	md.Slice
	uuid, nguid, device string
	role                md.Role
	inSync, faulty      bool
	// whole: everything is copied to it, not by bitmap.
	whole bool
	// done is how far into the data the copy to it is, and stored what the superblocks say of that.
	done, stored int64
}

func (m *mirrorMember) copied() bool { return m.role >= 0 && !m.inSync && !m.faulty }

// positionOf a copy in the array, by how far into the data it is.
func positionOf(done int64) int64 {
	if done == 0 {
		return 0
	}
	return md.FrontBytes + done
}

// metadata that a mirror keeps on a replica.
type metadata struct {
	super   md.Superblock
	missed  map[int64]bool
	cleared uint64
}

// Mirrors of this kernel: MD. Its arrays are held by this kernel, and their superblocks by the replicas. What a program
// writes to the file behind a volume's device is on every member in sync when any of these calls is made. A replica
// whose paths are all connecting hangs.
func (k *Kernel) Mirrors() md.Mirrors { return mirrors{k} }

type mirrors struct{ kernel *Kernel }

// on an array, once none of its members hangs that its superblocks are written to.
func (f mirrors) on(ctx context.Context, a md.Array, do func(k *Kernel, m *mirror) error) error {
	k := f.kernel
	for {
		k.mu.Lock()
		m, err := k.mirrorOf(a)
		if err != nil || !k.hangs(m) {
			if err == nil {
				err = errors.Join(k.level(m), do(k, m))
			}
			k.change()
			k.mu.Unlock()
			return errors.Join(err, k.released())
		}
		changed := k.changed
		k.mu.Unlock()
		k.tell()
		select { // the real call cannot be cancelled; a test that ends can
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (k *Kernel) mirrorOf(a md.Array) (*mirror, error) {
	m := k.mirrors[a.Name]
	if m == nil || m.volume != a.Volume || m.number != a.Number {
		return nil, fmt.Errorf("%s: %w", a.Name, md.ErrNotFound)
	}
	return m, nil
}

func (k *Kernel) mirrored(device string) bool {
	for _, m := range k.mirrors {
		if m.member(md.Slice{Name: device}) != nil {
			return true
		}
	}
	return false
}

func (m *mirror) member(s md.Slice) *mirrorMember {
	for _, member := range m.members {
		if member.Name == s.Name {
			return member
		}
	}
	return nil
}

func (m *mirror) inSync() []md.Role {
	var roles []md.Role
	for _, member := range m.members {
		if member.inSync && !member.faulty {
			roles = append(roles, member.role)
		}
	}
	slices.Sort(roles)
	return roles
}

// on is the head under a member; nil when its I/O fails.
func (k *Kernel) on(device string) *head {
	m := k.mapped[device]
	if m == nil {
		return nil
	}
	return k.under(m)
}

// hangs tells whether a member that superblocks are written to does not answer.
func (k *Kernel) hangs(m *mirror) bool {
	return slices.ContainsFunc(m.members, func(member *mirrorMember) bool {
		return !member.faulty && k.on(member.Name) != nil && !k.writeEnds(member.Number)
	})
}

// read is the head that a mirror's device is read from: of its first member in sync that answers.
func (k *Kernel) read(m *mirror) *head {
	for _, member := range m.members {
		if h := k.on(member.Name); h != nil && member.inSync && !member.faulty {
			return h
		}
	}
	return nil
}

// level what programs wrote to the file of the first member in sync to the others in sync.
func (k *Kernel) level(m *mirror) error {
	var from string
	var errs []error
	for _, member := range m.members {
		switch {
		case !member.inSync || member.faulty:
		case from == "":
			from = member.nguid
		default:
			errs = append(errs, k.copy(from, member.nguid, m.dataBytes, func(int64) bool { return true }))
		}
	}
	return errors.Join(errs...)
}

// copy regions of a replica to another.
func (k *Kernel) copy(from, to string, size int64, those func(region int64) bool) error {
	in, err := os.Open(k.Backing(from))
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // nothing was written to it
	out, err := os.OpenFile(k.Backing(to), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	source, is := make([]byte, RegionBytes), make([]byte, RegionBytes)
	for region := range size / RegionBytes {
		if !those(region) {
			continue
		}
		_, readErr := in.ReadAt(source, region*RegionBytes)
		_, isErr := out.ReadAt(is, region*RegionBytes)
		if readErr == nil && isErr == nil && !bytes.Equal(source, is) {
			_, err = out.WriteAt(source, region*RegionBytes)
		}
		if err := errors.Join(err, notEnd(readErr), notEnd(isErr)); err != nil {
			return errors.Join(err, out.Close())
		}
	}
	return out.Close()
}

func notEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// store writes superblocks. A member that cannot be written is dropped, but the last.
func (k *Kernel) store(m *mirror, dirty bool) {
	for again := true; again; {
		again = false
		m.events++
		for _, member := range m.members {
			if !member.faulty && k.on(member.Name) == nil && (!member.inSync || len(m.inSync()) > 1) {
				member.faulty, again = true, true
			}
		}
	}
	if len(m.inSync()) == m.disks {
		m.missed, m.cleared = map[int64]bool{}, m.events
	}
	super := md.Superblock{Array: m.volume, Disks: m.disks, SizeBytes: m.dataBytes + md.FrontBytes, Events: m.events, Dirty: dirty, Bitmap: true}
	for _, member := range m.members {
		if member.role >= 0 && !member.faulty {
			super.Roles = append(super.Roles, member.role)
		}
	}
	slices.Sort(super.Roles)
	for _, member := range m.members {
		member.stored = member.done
		if member.faulty || k.on(member.Name) == nil {
			continue
		}
		own := super
		own.Roles = slices.Clone(super.Roles)
		own.Role, own.Device, own.Filling, own.FillingByBitmap = member.role, member.device, member.copied(), member.copied() && !member.whole
		k.metadata[member.nguid] = &metadata{super: own, missed: cloned(m.missed), cleared: m.cleared}
	}
	for _, top := range k.mapped {
		if top.live != nil && top.live.name == m.name {
			_ = k.point(top) // it was made before
		}
	}
}

func cloned(set map[int64]bool) map[int64]bool {
	c := map[int64]bool{}
	for key := range set {
		c[key] = true
	}
	return c
}

// WriteMirror writes a byte, repeated, to a region of a mirror, given by its path, at an offset in it. It waits as the
// mirror does; the real call cannot be cancelled.
func (k *Kernel) WriteMirror(ctx context.Context, path string, offset int64, value byte) error {
	k.mu.Lock()
	m := k.mirrors[filepath.Base(path)]
	k.mu.Unlock()
	if m == nil || offset < md.FrontBytes {
		return &os.PathError{Op: "write", Path: path, Err: syscall.ENXIO}
	}
	return mirrors{k}.on(ctx, m.array(k), func(k *Kernel, m *mirror) error {
		k.store(m, true)
		if m.broken || k.read(m) == nil {
			m.broken = true
			time.AfterFunc(safeModeDelay, func() { k.rests(m) })
			return &os.PathError{Op: "write", Path: path, Err: syscall.EIO}
		}
		region := (offset - md.FrontBytes) / RegionBytes
		if len(m.inSync()) < m.disks {
			m.missed[region] = true
			k.store(m, true)
		}
		data := bytes.Repeat([]byte{value}, RegionBytes)
		for _, member := range m.members {
			if member.faulty || member.role < 0 {
				continue
			}
			if err := writeFile(k.Backing(member.nguid), data, region*RegionBytes); err != nil {
				return err
			}
			k.written[member.Name] += RegionBytes
		}
		return nil
	})
}

func (k *Kernel) rests(m *mirror) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m.idle = true
	k.change()
}

func writeFile(path string, data []byte, offset int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, offset)
	return errors.Join(err, f.Close())
}

// ReadSlice reads a byte of a slice, given by its path, at an offset in it.
func (k *Kernel) ReadSlice(path string, offset int64) (byte, error) {
	k.mu.Lock()
	h := k.on(filepath.Base(path))
	k.mu.Unlock()
	if h == nil || offset < inSlice {
		return 0, &os.PathError{Op: "read", Path: path, Err: syscall.EIO}
	}
	f, err := os.Open(k.Backing(h.nguid))
	if err != nil {
		return 0, err
	}
	value := make([]byte, 1)
	_, err = f.ReadAt(value, offset-inSlice)
	return value[0], errors.Join(err, f.Close())
}

// Written to a device of device mapper so far through mirrors, in bytes.
func (k *Kernel) Written(device string) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.written[device]
}

func (m *mirror) array(k *Kernel) md.Array {
	return md.Array{Name: m.name, Path: filepath.Join(k.Root, "dev", m.name), Number: m.number, Volume: m.volume, DataBytes: m.dataBytes}
}

// Create implements md.Mirrors.
func (f mirrors) Create(ctx context.Context, s md.Spec) (md.Array, error) {
	present := slices.DeleteFunc(slices.Clone(s.Members), func(m md.Slice) bool { return m == md.Missing })
	if len(s.Members) < 2 || len(present) == 0 || s.DataBytes <= 0 {
		return md.Array{}, fmt.Errorf("a mirror needs two places, a member and data: %w", md.ErrState)
	}
	for _, slice := range present {
		if _, err := f.Superblock(ctx, slice); !errors.Is(err, md.ErrNoSuperblock) {
			return md.Array{}, fmt.Errorf("%s: %w", slice.Name, errors.Join(md.ErrState, err))
		}
	}
	m := &mirror{volume: s.Volume, dataBytes: s.DataBytes, disks: len(s.Members), missed: map[int64]bool{}}
	for role, slice := range s.Members {
		if slice != md.Missing {
			m.members = append(m.members, &mirrorMember{Slice: slice, role: md.Role(role), inSync: true, device: uuid.NewString()})
		}
	}
	return f.start(m)
}

// Assemble implements md.Mirrors.
func (f mirrors) Assemble(ctx context.Context, volume string, members []md.Slice) (md.Array, error) {
	if len(members) == 0 {
		return md.Array{}, fmt.Errorf("a mirror needs a member: %w", md.ErrState)
	}
	reports := make([]md.Report, len(members))
	for i, slice := range members {
		super, err := f.Superblock(ctx, slice)
		reports[i] = md.Report{Slice: slice, Superblock: super, Err: err}
	}
	if err := md.Agree(volume, reports); err != nil {
		return md.Array{}, err
	}
	m := &mirror{volume: volume, disks: reports[0].Disks, dataBytes: reports[0].SizeBytes - md.FrontBytes, missed: map[int64]bool{}}
	f.kernel.mu.Lock()
	for _, r := range reports {
		m.members = append(m.members, &mirrorMember{Slice: r.Slice, role: r.Role, inSync: true, device: r.Device})
		kept := f.kernel.metadata[f.kernel.on(r.Slice.Name).nguid]
		m.events, m.cleared = max(m.events, r.Events), max(m.cleared, kept.cleared)
		for region := range kept.missed {
			m.missed[region] = true
		}
	}
	f.kernel.mu.Unlock()
	return f.start(m)
}

// start an array with a number that is free.
func (f mirrors) start(m *mirror) (md.Array, error) {
	k := f.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.change()
	for _, other := range k.mirrors {
		if other.volume == m.volume {
			return md.Array{}, fmt.Errorf("volume %s has %s already: %w", m.volume, other.name, md.ErrState)
		}
	}
	for _, member := range m.members {
		device, h := k.mapped[member.Name], k.on(member.Name)
		switch {
		case device == nil || device.number != member.Number || h == nil:
			return md.Array{}, fmt.Errorf("%s: %w", member.Name, md.ErrNotFound)
		case k.mirrored(member.Name) || k.users(member.Name):
			return md.Array{}, fmt.Errorf("%s: %w: %w", member.Name, md.ErrState, syscall.EBUSY)
		case device.live.sectors*sectorBytes < inSlice+m.dataBytes:
			return md.Array{}, fmt.Errorf("%s is too small: %w", member.Name, md.ErrState)
		}
		member.uuid, member.nguid = device.uuid, h.nguid
	}
	n := lastMirror
	for k.mirrors["md"+strconv.Itoa(n)] != nil {
		n--
	}
	if n < firstMirror {
		return md.Array{}, fmt.Errorf("all arrays are in use: %w", md.ErrState)
	}
	m.name, m.number = "md"+strconv.Itoa(n), "9:"+strconv.Itoa(n)
	k.mirrors[m.name] = m
	dir := filepath.Join(mappedDir, m.name)
	blocks := 0
	for _, member := range m.members {
		blocks = max(blocks, k.blocksOf(k.mapped[member.Name]))
	}
	err := errors.Join(
		k.write(filepath.Join(dir, "dev"), m.number), k.write(filepath.Join(dir, "ro"), "0"), k.sized(m),
		k.write(filepath.Join(dir, "queue/logical_block_size"), strconv.Itoa(blocks)), os.MkdirAll(filepath.Join(k.Root, dir, "holders"), 0o755),
		k.link(dir, filepath.Join("sys/class/block", m.name)), k.link(dir, filepath.Join("sys/dev/block", m.number)),
	)
	for _, member := range m.members {
		err = errors.Join(err, k.hold(m, member))
	}
	k.store(m, false)
	return m.array(k), err
}

func (k *Kernel) sized(m *mirror) error {
	return k.write(filepath.Join(mappedDir, m.name, "size"), strconv.FormatInt((m.dataBytes+md.FrontBytes)/sectorBytes, 10))
}

func (k *Kernel) hold(m *mirror, member *mirrorMember) error {
	return k.link(filepath.Join(mappedDir, m.name), filepath.Join(mappedDir, member.Name, "holders", m.name))
}

func (k *Kernel) letGo(m *mirror, member *mirrorMember) error {
	return k.delete(filepath.Join(mappedDir, member.Name, "holders", m.name))
}

// Of implements md.Mirrors.
func (f mirrors) Of(volume string) (md.Array, error) {
	all, err := f.All()
	if i := slices.IndexFunc(all, func(a md.Array) bool { return a.Volume == volume }); i >= 0 {
		return all[i], nil
	}
	return md.Array{}, errors.Join(err, fmt.Errorf("volume %s: %w", volume, md.ErrNotFound))
}

// All implements md.Mirrors.
func (f mirrors) All() ([]md.Array, error) {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	var all []md.Array
	for _, m := range f.kernel.mirrors {
		all = append(all, m.array(f.kernel))
	}
	slices.SortFunc(all, func(a, b md.Array) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// State implements md.Mirrors.
func (f mirrors) State(a md.Array) (md.State, error) {
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	m, err := f.kernel.mirrorOf(a)
	if err != nil {
		return md.State{}, err
	}
	s := md.State{Array: md.Clean, Action: md.ActionIdle, Degraded: m.disks - len(m.inSync())}
	if m.broken {
		s.Array = md.Active
		if m.idle {
			s.Array = md.Broken
		}
	}
	for _, member := range m.members {
		if member.copied() {
			// What lies in front of the data is part of the array, and is copied first.
			s.Action, s.TotalBytes = md.ActionRecover, md.FrontBytes+m.dataBytes
			s.DoneBytes = max(s.DoneBytes, positionOf(member.done))
		}
		is := md.Member{Slice: member.Slice, UUID: member.uuid, Role: member.role, InSync: member.inSync && !member.faulty, Faulty: member.faulty}
		if member.copied() {
			is.DoneBytes = positionOf(member.stored)
		}
		s.Members = append(s.Members, is)
	}
	slices.SortFunc(s.Members, func(a, b md.Member) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// Superblock implements md.Mirrors.
func (f mirrors) Superblock(_ context.Context, s md.Slice) (md.Superblock, error) {
	f.kernel.waitWritten(s.Number)
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	h := f.kernel.on(s.Name)
	if h == nil {
		return md.Superblock{}, &os.PathError{Op: "read", Path: s.Name, Err: syscall.EIO}
	}
	kept := f.kernel.metadata[h.nguid]
	if kept == nil {
		return md.Superblock{}, fmt.Errorf("%s: %w", s.Name, md.ErrNoSuperblock)
	}
	return kept.super, nil
}

// Zero implements md.Mirrors.
func (f mirrors) Zero(_ context.Context, s md.Slice) error {
	f.kernel.waitWritten(s.Number)
	f.kernel.mu.Lock()
	defer f.kernel.mu.Unlock()
	if f.kernel.mirrored(s.Name) {
		return fmt.Errorf("%s is in use: %w", s.Name, md.ErrState)
	}
	h := f.kernel.on(s.Name)
	if h == nil {
		return &os.PathError{Op: "write", Path: s.Name, Err: syscall.EIO}
	}
	delete(f.kernel.metadata, h.nguid)
	return nil
}
