// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"

	"github.com/weft-storage/weft/csi-driver/mirror"
)

// Version of a record that was read.
type Version struct {
	mirror.Record
	// ResourceVersion that it is swapped from.
	ResourceVersion string
}

// Records is the mirror's NvmfMirror.
type Records interface {
	// Get reads it live, from the API server's store and from no cache.
	Get(ctx context.Context) (Version, error)
	// Swap stores a record in place of the version. It returns nil only if the API server answered that this call
	// stored it. Any error, a conflict too, says nothing about whether it did.
	Swap(ctx context.Context, old Version, next mirror.Record) error
}

// LegState is that of the connection to a replica.
type LegState int

const (
	// LegGone says that the kernel has no controller for it.
	LegGone LegState = iota
	// LegLive says that at least one controller is live.
	LegLive
	// LegHanging says that no controller is live; the kernel tries to reconnect, and I/O waits.
	LegHanging
)

// Leg is the connection to a replica. The zero value is none.
type Leg struct {
	State LegState
	// Identity is the UUID in the NQN of the subsystem that it leads to.
	Identity string
}

// Legs are the connections to the replicas, with the slices on them.
type Legs interface {
	// All that the kernel has, by replica. It never waits for a target.
	All() (map[string]Leg, error)
	// Connect to a replica with an identity that its agent admitted, and put the slice on it. It refuses when the
	// kernel has anything of another identity.
	Connect(ctx context.Context, replica, identity string) error
	// Delete all controllers of a replica, whatever their identity, and return when the kernel has none, nor the
	// device. This can take up to a minute in the kernel. I/O that waits for it fails, and the array drops the member
	// by itself, unless it is the last. Repeating it is no error.
	Delete(ctx context.Context, replica string) error
}

// MemberState is that of a member of the array, in the kernel.
type MemberState int

const (
	// MemberAbsent says that it is no member.
	MemberAbsent MemberState = iota
	// MemberInSync says that the kernel reads from it, and the metadata on all members says so. Until that is
	// written, it is MemberCopying says that after a loss of power, the kernel would not take it for in sync.
	MemberInSync
	// MemberCopying says that it gets what it lacks, and all writes.
	MemberCopying
	// MemberFaulty says that the kernel dropped it.
	MemberFaulty
)

// ArrayState is that of the array, in the kernel.
type ArrayState struct {
	Exists bool
	// Resyncing: members that are in sync are made equal after an unclean end.
	Resyncing bool
	// Members by replica.
	Members map[string]MemberState
}

// ErrFullCopy says that a member cannot be brought in sync by bitmap.
var ErrFullCopy = errors.New("the member cannot be brought in sync by bitmap")

// Arrays is the mirror's array in the kernel. State never waits for a leg; all else can, for as long as one hangs.
type Arrays interface {
	State() (ArrayState, error)
	// Compare what the metadata of members that are no part of a running array says of each other. It names those
	// that a kernel dropped, and went on without: newer metadata on another, which was in sync itself, says that they
	// are faulty. What is on a member that was only being copied proves nothing, because no write was acknowledged
	// for its sake. A member without metadata was left behind by one that has some, because the array was being made
	// when that was cut off; if none has any, they are new.
	Compare(ctx context.Context, replicas []string) (kicked []string, err error)
	// Ahead tells whether the metadata of a replica shows that a kernel may have gone on with it, and without one of
	// those members that are in sync in the running array: it has no place for that one, as for a faulty one. Its count
	// of events can then be that of another history, and tells nothing of what the array's bitmap covers.
	Ahead(ctx context.Context, replica string) (bool, error)
	// Assemble exactly these members, and start the array; it is made if they have no metadata. Their data is the same,
	// but for writes that were not acknowledged, which the kernel then makes equal by bitmap.
	Assemble(ctx context.Context, replicas []string) error
	// Fail a member. The last one in sync is not failed.
	Fail(ctx context.Context, replica string) error
	// Remove a member that is faulty.
	Remove(ctx context.Context, replica string) error
	// ReAdd a former member, which gets what it lacks by bitmap, or fail with ErrFullCopy.
	ReAdd(ctx context.Context, replica string) error
	// Add a replica as a new member, which gets everything. What metadata it has is erased first.
	Add(ctx context.Context, replica string) error
	// SetSpeed bounds copying, in bytes a second.
	SetSpeed(ctx context.Context, bytes int64) error
	// Stop the array, which nobody uses.
	Stop(ctx context.Context) error
}

// Headers of the replicas that there are legs to. Both methods wait for as long as the leg hangs.
type Headers interface {
	// Read the mirror's part of a header, past all caches.
	Read(ctx context.Context, replica string) (mirror.Header, error)
	// Write the mirror's part, and the rest of the volume's header with it: whether it is formatted, as the members in
	// sync say. It is durable, and was read back, when this returns without an error.
	Write(ctx context.Context, replica string, header mirror.Header) error
}

// Top is the device that the volume's users have open: the last layer of the stack.
type Top interface {
	// Exists tells whether there is one that is not failing. It never waits.
	Exists() (bool, error)
	// Bypasses tells whether its I/O goes to a replica, past the array: the volume got its mirror while it was in use.
	// It never waits.
	Bypasses() (bool, error)
	// Block new I/O, at once. It returns when what is under way has ended, which can be never.
	Block(ctx context.Context) error
	// Fail all I/O from now on, and let go of the array.
	Fail(ctx context.Context) error
}

// Users of the top device.
type Users interface {
	// Kill all processes that have the device, or a filesystem on it, open, and tell how many there still are. A
	// process that was killed gets no answer any more, although it may end only when its I/O does. It never waits.
	Kill() (left int, err error)
}

// Answer of a replica's agent, as its object has it.
type Answer struct {
	// Identity that may connect to the replica for this holder; every earlier one is off, and none of its commands is
	// in flight. Empty: none is known.
	Identity string
}

// Agents are those of the replicas.
type Agents interface {
	// Ask reads a replica's object live. It fails when that is of another UID, or when its agent found that the API was
	// restored to an earlier state.
	Ask(ctx context.Context, replica, uid string) (Answer, error)
}
