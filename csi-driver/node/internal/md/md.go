// SPDX-License-Identifier: Apache-2.0

// Package md mirrors a volume over its replicas with the kernel's own RAID 1, in MD's native metadata, format 1.2. An
// array is made and assembled by mdadm. What is changed while it may be written to (members that fail, leave, come and
// return) is written to sysfs, or asked of the kernel by one ioctl: no program has to be started while writes wait. The
// state of an array is read from sysfs alone.
//
// An array has its volume's UUID, and is found again by that (md/uuid). Its members are slices of package mapper, found
// by their device mapper UUIDs. The package says what is; who is in sync is decided by the record, not by what the
// kernel's counters prefer.
package md

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
)

// Errors of this package.
var (
	// ErrNotFound: there is no such array, or no such member, any more.
	ErrNotFound = errors.New("no such mirror")
	// ErrLast: a mirror's last member in sync is never given up.
	ErrLast = errors.New("it is the last member in sync")
	// ErrFullCopy: a member cannot be brought in sync by copying only what it has missed.
	ErrFullCopy = errors.New("it cannot be brought in sync by bitmap: zero it and add it as a new one")
	// ErrDisagree: the members that were named cannot be in sync with each other, by their own superblocks.
	ErrDisagree = errors.New("the members' superblocks do not agree")
	// ErrBlocks: a member has larger logical blocks than the array, so that smaller writes to it would fail.
	ErrBlocks = errors.New("its logical blocks are larger than the mirror's")
	// ErrState: the array is in no state in which it can do what was asked.
	ErrState = errors.New("the mirror's state does not allow it")
)

// Mirrors is what this package does. *Host does it with this machine's kernel; nodetest has a stand-in that is held to
// it. All methods are safe for concurrent use for different volumes.
//
// A method that reads or writes members waits as long as they do not answer. Fail, Remove, ReAdd, Add, Grow and Stop
// also wait for the kernel's lock of the array, which it holds while it writes superblocks: a member that hangs holds
// them up until its controllers are deleted. What reads state (Of, All, State, Watch, Wait) never waits for I/O.
type Mirrors interface {
	// Create a mirror of members that have no superblock yet. What is on the first that is not Missing must be on all:
	// nothing is copied. It returns when the array is written to by nobody else and takes writes.
	Create(ctx context.Context, s Spec) (Array, error)
	// Assemble a mirror of exactly these members, all of which are in sync by the record, and start it, degraded if
	// some are missing. When one cannot be in sync with the others, it starts nothing, leaves none out, and fails with
	// a *MembersError (ErrDisagree, ErrNoSuperblock, ErrUnusable, ErrFullCopy) that has what each says.
	// After an unclean end the kernel copies by bitmap: wait until the array is idle.
	Assemble(ctx context.Context, volume string, members []Slice) (Array, error)
	// Of a volume, by its UUID: its array. It fails with ErrNotFound when there is none.
	Of(volume string) (Array, error)
	// All arrays that have a slice of weft's as a member, and those that this package began to make and did not end.
	All() ([]Array, error)
	// State of an array.
	State(a Array) (State, error)
	// Superblock of a member, read from it past all caches.
	Superblock(ctx context.Context, s Slice) (Superblock, error)
	// Zero the superblock of what is no array's member.
	Zero(ctx context.Context, s Slice) error
	// Fail a member, which others in sync survive. It fails with ErrLast for the last one. Repeating it is no error.
	// The kernel writes that to the others' superblocks before it acknowledges another write.
	Fail(ctx context.Context, a Array, s Slice) error
	// Remove a member that is faulty, or that is not in sync. One that is no member any more is no error.
	Remove(ctx context.Context, a Array, s Slice) error
	// ReAdd a former member, which was in sync: what it missed is copied. It fails with ErrFullCopy when that is not
	// known, or when it was run without the present members.
	ReAdd(ctx context.Context, a Array, s Slice) error
	// Fits tells whether a slice can be added, or added again. It fails with ErrBlocks if not: the kernel would give
	// the array the slice's logical blocks, and whoever has it open relies on those that it had.
	Fits(a Array, s Slice) error
	// Add what has no superblock, as a new member: everything is copied.
	Add(ctx context.Context, a Array, s Slice) error
	// SetDisks changes how many members the mirror has: all places beyond the present members' must be free.
	SetDisks(ctx context.Context, a Array, disks int) error
	// Grow the data to a size, with slices that have grown before. All members must be in sync. What is added reads as
	// zeroes on each: nothing is copied.
	Grow(ctx context.Context, a Array, dataBytes int64) (Array, error)
	// Stop an array that nobody uses. One that is gone is no error.
	Stop(ctx context.Context, a Array) error
	// SetSpeed bounds copying, in bytes a second, of one array: at least so much though others use its members, and at
	// most so much. 0 gives the host's limit back.
	SetSpeed(a Array, minimum, maximum int64) error
	// Watch an array until the context ends: changed is called with its state at first, and whenever the kernel tells
	// of a change. It fails with ErrNotFound when the array is gone.
	Watch(ctx context.Context, a Array, changed func(State)) error
	// Wait until an array is in a state, and give it.
	Wait(ctx context.Context, a Array, until func(State) bool) (State, error)
	// Clean away arrays that were begun to be made and have no members. Call it once, before the first Create.
	Clean(ctx context.Context) error
}

// Slice is what is, or is to be, a member: a block device over a replica, from RecordBytes on. Keep it open,
// or another may have got its number.
type Slice struct {
	// Name such as dm-3, and Number as major:minor. Both empty for Missing.
	Name, Number string
}

// Missing stands for a member that is not there.
var Missing = Slice{}

// Spec of a mirror.
type Spec struct {
	// Volume by its UUID, which becomes the array's.
	Volume string
	// Members, at least one of which is not Missing. Their order is that of their roles.
	Members []Slice
	// DataBytes of the volume. The slices have RecordBytes less than their replicas, which may be larger.
	DataBytes int64
}

// Array of the kernel.
type Array struct {
	// Name such as md1023, Path of its node under the root, and Number as major:minor.
	Name, Path, Number string
	// Volume by its UUID. Empty while the array is being made.
	Volume string
	// DataBytes of the volume, which lie FrontBytes behind the start of the array.
	DataBytes int64
}

// Array states (md/array_state) that the kernel has. Others are Clear, while an array is made, and Inactive.
const (
	Clean         = "clean"
	Active        = "active"
	ActiveIdle    = "active-idle"
	WritePending  = "write-pending"
	ReadAuto      = "read-auto"
	ReadOnly      = "readonly"
	Broken        = "broken"
	Clear         = "clear"
	Inactive      = "inactive"
	ActionIdle    = "idle"
	ActionResync  = "resync"
	ActionRecover = "recover"
)

// State of an array.
type State struct {
	// Array is md/array_state. Broken says that the last member answered a write with an error: from then on the kernel
	// fails all writes, until the array is stopped and assembled again. The kernel still calls such an array Active
	// until no write has come for its safe mode delay (200 ms).
	Array string
	// Action is md/sync_action: idle, resync (after an unclean end), recover (copying to a member), check, repair,
	// frozen.
	Action string
	// DoneBytes of TotalBytes that an action works through. With a bitmap most are skipped.
	DoneBytes, TotalBytes int64
	// Unfinished tells that making it was cut off before it got its bitmap: nothing was written to it.
	Unfinished bool
	// Unequal tells that members in sync may differ after an unclean end, and are not all made equal yet.
	Unequal bool
	// Degraded is how many places are without a member in sync.
	Degraded int
	// MismatchBytes that the last check found to differ.
	MismatchBytes int64
	// Members, by their names.
	Members []Member
}

// Idle tells whether nothing is copied, and everything that can be in sync is. A member that was added and is not yet
// copied to is not idle, though the kernel's action still is.
func (s State) Idle() bool {
	return s.Action == ActionIdle && !slices.ContainsFunc(s.Members, func(m Member) bool { return m.Recovering() })
}

// Writable tells whether the kernel takes writes.
func (s State) Writable() bool {
	return slices.Contains([]string{Clean, Active, ActiveIdle, WritePending}, s.Array)
}

// Member by its slice.
func (s State) Member(slice Slice) (Member, bool) {
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Name == slice.Name })
	if i < 0 {
		return Member{}, false
	}
	return s.Members[i], true
}

// InSync are the members that have everything.
func (s State) InSync() []Member {
	return slices.DeleteFunc(slices.Clone(s.Members), func(m Member) bool { return !m.InSync || m.Faulty })
}

// Member of an array.
type Member struct {
	// Slice that it is. It has no number when the kernel lost the device.
	Slice
	// UUID is device mapper's, by which mapper tells replica and attachment. Empty when it is no device of that.
	UUID string
	// Role, or Spare.
	Role Role
	// InSync tells that the member has everything, Faulty that it was dropped, Blocked that writes wait until the
	// others' superblocks say so.
	InSync, Faulty, Blocked bool
	// Errors is how many reads of it were answered with errors and corrected from another.
	Errors int64
	// DoneBytes up to which a member that is copied to has everything.
	DoneBytes int64
}

// Recovering tells whether the member is, or will be, copied to.
func (m Member) Recovering() bool { return m.Role >= 0 && !m.InSync && !m.Faulty }

// DirectDevice is open past all caches. Offsets and lengths are multiples of 4 KiB.
type DirectDevice = interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// Host is this machine's MD.
type Host struct {
	// Root under which /sys and /dev are found; "/" on a real host.
	Root string
	// Exec runs mdadm.
	Exec exec.Interface
	// LoadModule loads a kernel module; loading one that is there already is no error.
	LoadModule func(ctx context.Context, name string) error
	// OpenDirect opens a block device past all caches; what is written is durable when the call returns.
	OpenDirect func(path string, write bool) (DirectDevice, error)
}

var _ Mirrors = (*Host)(nil)

func (h *Host) sys(elem ...string) string {
	return filepath.Join(append([]string{h.Root, "sys"}, elem...)...)
}

func (h *Host) dev(name string) string { return filepath.Join(h.Root, "dev", name) }

var arrayName = regexp.MustCompile(`^md[0-9]+$`)

// Of implements Mirrors.
func (h *Host) Of(volume string) (Array, error) {
	names, err := h.names()
	if err != nil {
		return Array{}, err
	}
	for _, name := range names {
		a, err := h.array(name)
		if err == nil && a.Volume == volume {
			return a, nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return Array{}, err
		}
	}
	return Array{}, fmt.Errorf("volume %s: %w", volume, ErrNotFound)
}

// All implements Mirrors.
func (h *Host) All() ([]Array, error) {
	names, err := h.names()
	if err != nil {
		return nil, err
	}
	var all []Array
	for _, name := range names {
		a, err := h.array(name)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		s, stateErr := h.State(a)
		if err := errors.Join(err, stateErr); err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		ours := func(m Member) bool { owner, _, ok := mapper.Parse(m.UUID); return ok && owner.Replica != "" }
		if slices.ContainsFunc(s.Members, ours) || inRange(name) && len(s.Members) == 0 {
			all = append(all, a)
		}
	}
	return all, nil
}

// names of the kernel's arrays.
func (h *Host) names() ([]string, error) {
	entries, err := os.ReadDir(h.sys("class/block"))
	var names []string
	for _, e := range entries {
		if arrayName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// inRange tells whether an array has a number of those that this package takes.
func inRange(name string) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "md"))
	return err == nil && n >= firstNumber && n <= lastNumber
}

// array by its name. It fails with ErrNotFound when it is gone, or is none in format 1.2.
func (h *Host) array(name string) (Array, error) {
	dir := h.sys("class/block", name)
	values, err := attributes(dir, "dev", "size", "md/metadata_version")
	if err != nil {
		return Array{}, fmt.Errorf("%s: %w", name, err)
	}
	a := Array{Name: name, Path: h.dev(name), Number: values["dev"]}
	if values["md/metadata_version"] != "1.2" {
		if !inRange(name) || values["md/metadata_version"] != "none" {
			return Array{}, fmt.Errorf("%s has metadata %s: %w", name, values["md/metadata_version"], ErrNotFound)
		}
		return a, nil
	}
	if a.Volume, err = attribute(dir, "md/uuid"); err != nil {
		return Array{}, fmt.Errorf("%s: the kernel is too old to tell the array's UUID: %w", name, err)
	}
	sectors, err := strconv.ParseInt(values["size"], 10, 64)
	a.DataBytes = max(0, sectors*sectorBytes-FrontBytes)
	return a, err
}

// attributes of sysfs, each by its path.
func attributes(dir string, files ...string) (map[string]string, error) {
	values := map[string]string{}
	for _, file := range files {
		value, err := attribute(dir, file)
		if err != nil {
			return nil, err
		}
		values[file] = value
	}
	return values, nil
}

// attribute reads a file of sysfs. It fails with ErrNotFound when its device is no longer there. Of an array that has
// been stopped, and is being removed, the kernel answers EBUSY to reads, and to nothing else (md_attr_show).
func attribute(elem ...string) (string, error) {
	data, err := readOnce(filepath.Join(elem...))
	if gone(err) || errors.Is(err, syscall.EBUSY) {
		return "", fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return strings.TrimSpace(string(data)), err
}

// readOnce reads a file of sysfs by one call. For some attributes, such as array_state and sync_completed, a second
// call gives what is there by then, from where the first one ended (sysfs_kf_read): "none" is followed by what is
// behind its length in "0 / 65536".
func readOnce(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data := make([]byte, os.Getpagesize())
	n, err := f.Read(data)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], err
}

// gone tells whether an access to sysfs failed because its device is no longer there. A member's files answer EBUSY
// when it is being removed (rdev_attr_show and rdev_attr_store in drivers/md/md.c).
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// State implements Mirrors.
func (h *Host) State(a Array) (State, error) {
	if err := h.confirm(a); err != nil {
		return State{}, err
	}
	dir := h.sys("class/block", a.Name, "md")
	var s State
	var err error
	if s.Array, err = attribute(dir, "array_state"); err != nil {
		return State{}, fmt.Errorf("%s: %w", a.Name, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return State{}, notFound(err)
	}
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), "dev-")
		if !ok {
			continue
		}
		m, err := member(filepath.Join(dir, e.Name()), name)
		if errors.Is(err, ErrNotFound) || errors.Is(err, syscall.EBUSY) {
			continue // it is leaving
		}
		if err != nil {
			return State{}, fmt.Errorf("%s: member %s: %w", a.Name, name, err)
		}
		s.Members = append(s.Members, m)
	}
	slices.SortFunc(s.Members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	if s.Action, err = attribute(dir, "sync_action"); errors.Is(err, ErrNotFound) {
		s.Action = ActionIdle // an array that does not run has none
		return s, nil
	}
	values, err := attributes(dir, "degraded", "mismatch_cnt", "sync_completed", "resync_start")
	if err != nil {
		return State{}, fmt.Errorf("%s: %w", a.Name, err)
	}
	s.Unequal = values["resync_start"] != "none"
	location, err := attribute(dir, "bitmap/location")
	if err != nil && !errors.Is(err, ErrNotFound) {
		return State{}, fmt.Errorf("%s: %w", a.Name, err)
	}
	s.Unfinished = location == "none"
	var mismatch int64
	_, err = fmt.Sscan(values["degraded"]+" "+values["mismatch_cnt"], &s.Degraded, &mismatch)
	s.MismatchBytes = mismatch * sectorBytes
	if done := values["sync_completed"]; done != "none" && done != "delayed" && err == nil {
		_, err = fmt.Sscanf(done, "%d / %d", &s.DoneBytes, &s.TotalBytes)
		s.DoneBytes, s.TotalBytes = s.DoneBytes*sectorBytes, s.TotalBytes*sectorBytes
	}
	if err != nil {
		return State{}, fmt.Errorf("%s has %q in sysfs: %w", a.Name, values, err)
	}
	return s, nil
}

// confirm that an array's name is still its own.
func (h *Host) confirm(a Array) error {
	now, err := h.array(a.Name)
	if err == nil && (now.Volume != a.Volume || now.Number != a.Number) {
		err = fmt.Errorf("%s was of volume %s, and is of %q: %w", a.Name, a.Volume, now.Volume, ErrNotFound)
	}
	return err
}

func notFound(err error) error {
	if gone(err) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

// member from its folder in sysfs.
func member(dir, name string) (Member, error) {
	m := Member{Slice: Slice{Name: name}, Role: Spare}
	values, err := attributes(dir, "state", "slot", "errors", "recovery_start")
	if err != nil {
		return m, err
	}
	for what, field := range map[string]*string{"block/dev": &m.Number, "block/dm/uuid": &m.UUID} {
		if *field, err = attribute(dir, what); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, syscall.EINVAL) {
			return m, err
		}
	}
	states := strings.Split(values["state"], ",")
	m.InSync, m.Faulty, m.Blocked = slices.Contains(states, "in_sync"), slices.Contains(states, "faulty"), slices.Contains(states, "blocked")
	if slot, err := strconv.Atoi(values["slot"]); err == nil { // else "none"
		m.Role = Role(slot)
	}
	if m.Errors, err = strconv.ParseInt(values["errors"], 10, 64); err != nil {
		return m, err
	}
	if sectors, err := strconv.ParseInt(values["recovery_start"], 10, 64); err == nil { // else "none": it has everything
		m.DoneBytes = sectors * sectorBytes
	}
	return m, nil
}
