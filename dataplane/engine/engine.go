// SPDX-License-Identifier: Apache-2.0

// Package engine is the contract between weft's agent and what serves the
// volumes: the Linux kernel's target (engine/nvmet) or SPDK (engine/spdk).
//
// The words are NVMe-oF's. A pool is one drive, or one file, prepared to hold
// volumes. A volume is a run of bytes in a pool. An export is a subsystem with
// its namespaces and the hosts it admits. A portal is an address to listen on.
//
// What every engine guarantees:
//
//   - Each call takes many items and does them in bulk; the answer has one
//     error for each item, in the same order, nil for those that were done.
//     One item's failure never stops the others.
//   - Each call is idempotent: what is already as asked is left alone, and is not an error.
//   - Nothing is remembered between calls that the engine's own target, or its
//     disks, do not hold: another process may go on where this one was killed, at any point.
//   - An error never means "absent". Gather fails as a whole rather than leave
//     out what it could not read, except for a pool that cannot be read, which it
//     lists with its Err: volumes on it are unknown, not gone.
//   - Nothing disturbs I/O on exports that a call does not name.
//   - Calls are safe for concurrent use; each runs alone, but for Clear and those of a NoteKeeper or a BlockLister.
//     Only OpenPools, of a blank device, waits for I/O whose length depends on a size.
package engine

import (
	"context"
	"math/bits"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
)

// Engine is a target on this node.
type Engine interface {
	// Info says what runs. It fails with ErrUnavailable when nothing answers.
	Info(ctx context.Context) (Info, error)

	// Start brings a target that waits for its settings into service with those of the plan. Of
	// one that serves already it changes what can be changed while it serves, and
	// compares the rest: what differs is a *RestartNeededError, and the target goes on as it is. A plan that this
	// target cannot keep at all fails with ErrUnsupported, before anything is changed. With nothing to do it only
	// reads.
	Start(ctx context.Context, plan v1alpha1.Plan) error

	// Gather reads all that the target holds and serves, once.
	Gather(ctx context.Context) (State, error)

	// OpenPools makes each device a pool: a blank device, and only that, is
	// prepared; a device prepared earlier is taken as it is, with its volumes. A device that carries anything else is
	// refused with a *device.ForeignSignatureError, and one that something else on the node uses with device.ErrInUse.
	// A drive is compared with its ID right before, and another one in its place left as it is, with a
	// *device.SwappedError: what was known of it when the call was made may be true no more.
	// A file that does not exist is created; one that is too small is grown.
	OpenPools(ctx context.Context, devices []Device) []error

	// ForgetPools, by their Device, that cannot be read and never will be: from then on they are not listed, and their
	// volumes and snapshots are not found. Nothing is written to the drive. A pool that can be read fails with
	// ErrInUse; one that is not there is not an error. Hosts of its volumes get errors, no answer to wait for. Opened
	// again, a device is what it holds.
	ForgetPools(ctx context.Context, devices []string) []error

	// CreateVolumes makes volumes, in constant time whatever their size, and thin. A volume that exists with the same
	// pool, or with another, is left alone: compare with Gather. One with another size fails
	// with ErrExists. Without room it fails with ErrNoSpace, with a source that is missing with
	// ErrNotFound; a volume smaller than its source fails with ErrInvalid. ErrBusy: it is being made of its source, and
	// a later call finds it. What was begun and is not asked for again is dropped.
	CreateVolumes(ctx context.Context, volumes []VolumeSpec) []error

	// GrowVolumes sets larger sizes; connected hosts are told. A smaller size fails
	// with ErrShrink and changes nothing, and a volume that is being copied with ErrBusy.
	GrowVolumes(ctx context.Context, sizes []VolumeSize) []error

	// SetQoS gives volumes their limits, all of them: what is 0 is lifted. Connected hosts go on. A restart of the
	// target loses them. A target that knows no limits fails with ErrUnsupported, but for one that asks for none. A
	// limit between two steps fails with ErrInvalid. A target may refuse to change the limits of a volume that is not
	// exported, with ErrBusy (SPDK, of one that has some already); the first ones it takes.
	SetQoS(ctx context.Context, limits []VolumeQoS) []error

	// DeleteVolumes deletes volumes, in constant time whatever their size. One that is exported, or is being copied,
	// fails with ErrInUse and keeps its data; one that is not there is not an error. Their space may come back later:
	// see Clearer. One that cannot be put aside until then fails with ErrBusy, and is listed, but cannot be used, until
	// it is cleared.
	DeleteVolumes(ctx context.Context, ids []ID) []error

	// CreateSnapshots freezes volumes' data, atomically for each, at a moment after it was asked for first. A source
	// that is missing fails with ErrNotFound. ErrBusy as for CreateVolumes.
	CreateSnapshots(ctx context.Context, snapshots []SnapshotSpec) []error

	// DeleteSnapshots deletes snapshots, in constant time whatever their size. Volumes made from them keep their data.
	// Their space may come back later: see Clearer. One that cannot be put aside until then fails as a volume does.
	DeleteSnapshots(ctx context.Context, ids []ID) []error

	// Export makes each export as given: subsystem, namespaces and admitted
	// hosts. What differs is changed, in an order that never lets a host see half of it. A host that
	// is no longer listed, and is not retired, is disconnected before the call answers, and can
	// write nothing afterwards. From then on it is refused so that it keeps trying, also after a restart of the target:
	// a host that is told to give up fails the I/O that waits, and a mirror of it then acknowledges what only its other
	// leg has. An export without hosts can be connected to by nobody. A missing
	// volume fails with ErrNotFound, and one that may be in a pool that cannot be read with ErrUnavailable; in both
	// cases hosts that are no longer listed are shut out all the same, and no other is let in. Hosts that stay listed
	// may lose their connection with it (nvmet), until a later call finds the volume. A volume that another subsystem
	// of weft's serves fails with ErrInUse: whoever was admitted there may have writes under way until that is gone.
	// While hosts are admitted there may be no room for an NSID above those that the export was made with:
	// ErrRestartNeeded. A host is never admitted without the keys that it was given, not even for a moment; where they
	// cannot be set, it stays out, or connected as it is. One whose keys change stays connected, and must have the new
	// ones when it connects again. A target that cannot authenticate fails with ErrUnsupported. No error and no log has
	// a key in it, and keys can be read by root alone. Exports are reached through the portals that are open; while
	// none is (after a restart), through those that OpenPortals opens later.
	Export(ctx context.Context, exports []Export) []error

	// Unexport takes subsystems away, and disconnects their hosts, which are refused as Export says. One that is not
	// there is not an error.
	// It removes only subsystems that it could have made: those whose NQN starts with v1alpha1.NQNPrefix.
	Unexport(ctx context.Context, nqns []string) []error

	// OpenPortals listens on each portal, with every export reachable before, or
	// as nearly as the target allows at the moment, its listener opens: a host that reconnects must not
	// find its subsystem missing. A portal whose settings differ from those
	// it was opened with, or from those that the whole target has (SPDK's transports), fails with ErrRestartNeeded and
	// goes on as it was.
	OpenPortals(ctx context.Context, portals []Portal) []error

	// ClosePortals stops listening. A portal that is not there is not an error.
	ClosePortals(ctx context.Context, portals []v1alpha1.Portal) []error
}

// ID is the UUID of a volume or snapshot, in lower case with hyphens.
type ID string

// Info about a target.
type Info struct {
	Type v1alpha1.Engine
	// Version as the target reports it: the kernel's release, SPDK's version.
	Version string
	// Transports that it can serve.
	Transports []v1alpha1.TransportType
	// InterruptMode: its reactors sleep until there is work. False for the kernel's target, which has none.
	InterruptMode bool
	// QoS: it can limit volumes.
	QoS bool
	// Authentication: hosts and it can prove themselves to each other.
	Authentication bool
}

// Watcher is an engine whose target may end, and come back empty, by itself.
type Watcher interface {
	// Watch calls changed each time the target was lost, and each time it answers again,
	// until ctx ends. Calls of changed may be merged. It may return some seconds later, so that what the target is
	// doing is not left to a process that does not know of it.
	Watch(ctx context.Context, changed func())
}

// Glancer is an engine that can look at less, so that its target is held up less.
type Glancer interface {
	// Glance is Gather, but what no call of this process can have changed may be as it was up to GlanceAge ago, and
	// what hosts have written as of half a minute ago. Of a volume whose hosts have changed since it is exact.
	Glance(ctx context.Context) (State, error)
}

// GlanceAge is how old at most what Glance finds may be.
const GlanceAge = 5 * time.Minute

// Clearer is an engine whose target overwrites what was deleted. What is deleted is gone for its user at once, and the
// pool keeps its space until it is cleared. That goes on where it was after a restart of agent or target. After the end
// of a target free space may have to be cleared as well: until enough of it is, Export fails with ErrBusy.
type Clearer interface {
	// Clear what was deleted in a pool, by its Device, and free space of it that may hold old data, beside all other
	// calls, until nothing is left that can be cleared now. It does one thing at a time, and pauses after it; that may
	// take hours, and does not end where a drive answers nothing. Pools are cleared beside each other, and a second
	// call for one waits for the first. It answers whether any space came back. What fails is tried again by a call
	// that follows a Gather. A pool that is not there, or cannot be read, has nothing to clear.
	Clear(ctx context.Context, pool string) (cleared bool, err error)
}

// NoteKeeper is an engine that can keep a note beside each volume and snapshot, in its pool. A note goes where its pool
// goes, and is gone with what it is about. It is no data of a volume's, and is never read to decide what is served.
type NoteKeeper interface {
	// WriteNotes, each in place of the one that there was. One that was written survives a loss of power, and one whose
	// writing is cut off leaves the former. It fails with ErrUnavailable where the pool cannot be read, and with
	// ErrNotFound where it is not there. It waits for a drive, but no other call waits for it.
	WriteNotes(ctx context.Context, notes []Note) []error

	// ReadNotes fills in the texts of notes; those that do not exist fail with ErrNotFound, and those whose pool cannot
	// be read with ErrUnavailable. One that is longer than MaxNoteBytes fails with ErrInvalid.
	ReadNotes(ctx context.Context, notes []Note) []error
}

// MaxNoteBytes of a note. What a description of a volume can have at most is about 12 KiB.
const MaxNoteBytes = 32 << 10

// Note about a volume or snapshot.
type Note struct {
	ID ID
	// Pool is the Device of its pool.
	Pool string
	Text []byte
}

// BlockLister is an engine that knows which blocks of a snapshot were written, and which differ from another one's.
type BlockLister interface {
	// ListBlocks tells found of all ranges within a range in which a snapshot may have other data than its base, which
	// is in the same pool, or without a base, other data than zeros. They come in order, do not overlap, and begin and
	// end with the range or a block. No data is read: what is the same may be among them, what differs never is
	// missing. Bytes are counted as hosts see them, and zeros follow the end of the base. It fails with ErrUnavailable
	// where the pool cannot be read, with ErrNotFound where one of the two is not there, and with the error of found.
	// It waits for a drive, but no other call waits for it.
	ListBlocks(ctx context.Context, of Blocks, found func(Range) error) error
}

// Blocks that are asked for.
type Blocks struct {
	// Pool is the Device of the pool of both.
	Pool     string
	Snapshot ID
	// Base that the snapshot is compared with. Empty for none.
	Base   ID
	Within Range
}

// Range of bytes.
type Range struct{ Offset, Bytes int64 }

// End is the first byte behind it.
func (r Range) End() int64 { return r.Offset + r.Bytes }

// Device that is, or shall be, a pool.
type Device struct {
	// ID is stable over reboots: a drive's world-wide id, or its serial number, as the inventory has it, or the file's
	// path. One that goes by where it is (device.ByPathPrefix) is no drive's that has either.
	ID string
	// Path of the block device or of the file.
	Path string
	// FileBytes is the size of the file; 0 when Path is a block device.
	FileBytes int64
	// PCIAddress of a drive that the target drives itself, such as 0000:5e:00.0; Path is empty then. SPDK only.
	PCIAddress string
	// ClusterBytes of a pool that is made on it; 0 for v1alpha1.DefaultClusterSize. One that is there keeps its own.
	// SPDK only.
	ClusterBytes int64
}

// State of a target.
type State struct {
	Pools     []Pool
	Volumes   []Volume
	Snapshots []Snapshot
	Exports   []Export
	Portals   []Portal
}

// Pool is a device that holds volumes.
type Pool struct {
	// Device is the ID it was opened with.
	Device string
	// Path of the block device or file.
	Path string
	// TotalBytes and FreeBytes as the pool sees them; what is unwritten in thin volumes is free. A pool in a file has
	// no more than the file's filesystem has room for.
	TotalBytes, FreeBytes int64
	// MissingBytes are those that a pool in a file would have, if the file's filesystem had room for all of it.
	MissingBytes int64
	// ClearingBytes hold what was deleted and is not cleared yet (see Clearer). They are not free.
	ClearingBytes int64
	// ClusterBytes in which it allocates, and of which the size of each of its volumes is a multiple; 0 where SizeUnit
	// is all that is asked of a size.
	ClusterBytes int64
	// BlockBytes of each logical block of its volumes, as hosts see it; 0 while it is not known.
	BlockBytes int32
	// Err is set when the pool cannot be read: nothing is known of its volumes.
	Err error
	// NotDurable is nil when every write is acknowledged only once it would survive a loss of the node's power. Else it
	// says why not, with device.ErrVolatile, or without it why that is not known.
	NotDurable error
	// KeepsDeleted is nil when the engine clears what was deleted from the pool. Else it says why not, and what to do.
	KeepsDeleted error
}

// RoomParts is the least number of parts that the room of a filesystem is counted in, so that what else is written
// there does not change the pool all the time. There may be twice as many.
const RoomParts = 64

// LimitFiles bounds pools in files by the room that their filesystems have. Under says where a path of the node is.
// What cannot be looked at stays as it is.
func (s *State) LimitFiles(under func(path string) string) {
	for i := range s.Pools {
		p := &s.Pools[i]
		if p.Err != nil || p.Path != p.Device { // a file's ID is its path
			continue
		}
		if taken, left, err := device.RoomOfFile(under(p.Path)); err == nil {
			p.limit(taken, left)
		}
	}
}

func (p *Pool) limit(taken, left int64) {
	room := taken + left
	if p.TotalBytes <= room {
		return
	}
	part := int64(1) << max(bits.Len64(uint64(room/RoomParts))-1, 0)
	total := room / part * part
	p.MissingBytes = p.TotalBytes - total
	p.TotalBytes, p.FreeBytes = total, max(p.FreeBytes-p.MissingBytes, 0)
}

// Volume in a pool.
type Volume struct {
	ID ID
	// Pool is the Device of its pool.
	Pool string
	// SizeBytes that hosts see.
	SizeBytes int64
	// AllocatedBytes of the pool, with those that it shares with snapshots and clones; 0 means that nothing was written
	// to it, nor to what it was made from.
	AllocatedBytes int64
	// QoS limits in force.
	QoS QoS
}

// QoS limits of a volume, for all its hosts together; 0 is no limit.
type QoS struct {
	// IOPS of reads and writes together, a multiple of v1alpha1.QoSIOPSStep.
	IOPS int64
	// MiBps of reads and writes together, ReadMiBps and WriteMiBps of each, in MiB a second.
	MiBps, ReadMiBps, WriteMiBps int64
}

// VolumeQoS are the limits that a volume shall have.
type VolumeQoS struct {
	ID  ID
	QoS QoS
}

// Snapshot in a pool.
type Snapshot struct {
	ID             ID
	Pool           string
	SizeBytes      int64
	AllocatedBytes int64
	CreatedAt      time.Time
}

// VolumeSpec is a volume to be made.
type VolumeSpec struct {
	ID ID
	// Pool is the Device of an open pool. With a source it must be the source's, or empty.
	Pool string
	// SizeBytes, a multiple of SizeUnit and of its pool's ClusterBytes, so that the engine can keep it exactly.
	SizeBytes int64
	// Source of its first data; empty for a blank volume.
	Source Source
}

// Source of a volume: at most one of the two is set.
type Source struct {
	Snapshot ID
	Volume   ID
}

// VolumeSize is a size that a volume shall have.
type VolumeSize struct {
	ID        ID
	SizeBytes int64
}

// SnapshotSpec is a snapshot to be made.
type SnapshotSpec struct {
	ID     ID
	Volume ID
}

// Export is a subsystem.
type Export struct {
	// NQN of the subsystem; it starts with v1alpha1.NQNPrefix.
	NQN string
	// Serial number, at most 20 ASCII characters.
	Serial string
	// Model, at most 40 ASCII characters.
	Model string
	// MaxIOQueues of a controller, v1alpha1.MinIOQueues to MaxIOQueues; it takes effect with a host's next connection.
	// Gather answers 0 where the target has no limit for each export (SPDK): its transports', which the plan gives,
	// holds.
	MaxIOQueues int
	// Namespaces, by NSID.
	Namespaces []Namespace
	// Hosts that may connect, by NQN, in order.
	Hosts []string
	// Retired hosts, by NQN, none of which is among Hosts: their nodes have said that they have no connection as those,
	// and never make one again, because other hosts took their places. They may not connect any more. No other host is
	// disturbed for that: if one has a connection after all, it may keep it until another host is dismissed (nvmet),
	// and is told to give up when it connects again. Gather does not answer them.
	Retired []string
	// Authentication of hosts, by NQN. A host that has one connects only after it has proved its key, and is given a
	// proof of the target's. A host without one is admitted by its NQN alone. A host that several exports list has the
	// same keys in all of them: else a target may refuse one with ErrInUse (nvmet). It holds keys: it is never stored.
	Authentication map[string]Authentication `json:"-"`
	// Portals where it is reached now. Read only: set by Gather.
	Portals []v1alpha1.Portal
}

// Namespace of a subsystem.
type Namespace struct {
	// NSID from 1.
	NSID uint32
	// Volume it serves; its UUID and NGUID are the volume's ID. Every path to it is ANA optimized.
	Volume ID
}

// Portal is an address to listen on, with its limits.
type Portal struct {
	v1alpha1.Portal
	// QueueDepth is the largest queue, v1alpha1.MinQueueDepth to MaxQueueDepth. Gather answers 0 where the target
	// cannot limit it (the kernel before Linux 6.9).
	QueueDepth int
	// InCapsuleDataBytes that a command may carry.
	InCapsuleDataBytes int
}
