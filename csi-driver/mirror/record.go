// SPDX-License-Identifier: Apache-2.0

// Package mirror has the rules of a volume's mirror record, NvmfMirror: which replicas have every acknowledged write,
// and which attachment may write to them. The CSI controller and the node plugin both change the record, by compare
// and swap; each change is a function of this package, from a record to the next one or an error.
//
// The invariant: every acknowledged write is on every member that is InSync. docs/design/mirror-record.md has the
// rules, and for each the history that it prevents.
//
// Nothing here reads, writes or keeps state. A function never changes the record that it gets.
package mirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Record is the spec of an NvmfMirror.
type Record = v1alpha1.NvmfMirrorSpec

// Member of a record.
type Member = v1alpha1.MirrorMember

// Reasons for which a member is not in sync.
const (
	// ReasonNew: it was added to the mirror.
	ReasonNew = "New"
	// ReasonLost: the holder gave it up, because it did not answer or answered errors.
	ReasonLost = "Lost"
	// ReasonUnconfirmed: it did not confirm in time that the former holder is off.
	ReasonUnconfirmed = "Unconfirmed"
	// ReasonUndeclared: a person declared that another member is current.
	ReasonUndeclared = "Undeclared"
	// ReasonBehind: the record was recovered, and by the headers other members are current.
	ReasonBehind = "Behind"
	// ReasonUnreachable: the holder could not connect to it when it started the mirror.
	ReasonUnreachable = "Unreachable"
	// ReasonKicked: the other members' metadata says that the former holder's kernel went on without it.
	ReasonKicked = "Kicked"
	// ReasonRetired: it is to leave the mirror.
	ReasonRetired = "Retired"
	// ReasonKept: the holder gave it up, but its kernel has no other member in sync any more.
	ReasonKept = "Kept"
	// ReasonBitmap: what it lacks is copied by the mirror's bitmap.
	ReasonBitmap = "Bitmap"
)

// Errors that callers tell apart.
var (
	// ErrNotHolder says that the attachment is not the record's holder. It may change nothing any more.
	ErrNotHolder = errors.New("the attachment does not hold the mirror")
	// ErrHeld says that the record has a holder. It has to be fenced first.
	ErrHeld = errors.New("the mirror has a holder")
	// ErrLast says that the change would leave no member in sync. Writes wait instead.
	ErrLast = errors.New("no other member is in sync")
	// ErrUnconfirmed says that no member that is in sync can be used yet. It is worth trying again.
	ErrUnconfirmed = errors.New("no member that is in sync has confirmed that the former holder is off")
	// ErrNeedsPerson says that none of the members at hand is known to have all data. A person may declare one current.
	ErrNeedsPerson = errors.New("none of the members that can be reached is known to have all data; connect the others, or declare one current")
	// ErrForeign says that a replica's header, or its metadata, has a history that the record does not know. The record
	// was restored to an earlier state, or the replica is not the member that it is taken for.
	ErrForeign = errors.New("the replica has a history that the mirror's record does not know")
	// ErrRecovering says that the record is being recovered: nobody but a mover that reads headers may hold it.
	ErrRecovering = errors.New("the mirror's record is being recovered")
	// ErrUnasked says that a replica which may have newer data was not asked: its header was not read.
	ErrUnasked = errors.New("a replica that may have newer data cannot be asked")
	// ErrMember says that there is no such member, or that its state does not allow the change.
	ErrMember = errors.New("the member does not allow this")
)

// OnlyProgress tells whether an update of an NvmfMirror changed how many bytes are copied to its members, or why that
// has not begun, and nothing else that anybody acts on. It takes the objects as an informer hands them over, and is
// false for other kinds, and for an update that changed nothing, by which an informer repeats an object.
func OnlyProgress(old, now any) bool {
	was, isMirror := old.(*v1alpha1.NvmfMirror)
	is, still := now.(*v1alpha1.NvmfMirror)
	if !isMirror || !still || equality.Semantic.DeepEqual(was.Spec, is.Spec) {
		return false
	}
	without := func(is *v1alpha1.NvmfMirror) *v1alpha1.NvmfMirror {
		is = is.DeepCopy()
		is.ResourceVersion, is.Generation, is.ManagedFields, is.Spec.MoverWaiting = "", 0, nil, ""
		for i := range is.Spec.Members {
			is.Spec.Members[i].CopiedBytes = 0
		}
		return is
	}
	return equality.Semantic.DeepEqual(without(was), without(is))
}

// Replica names a replica, and tells it from another one with the same name.
type Replica struct{ Name, UID string }

// New is the first record of a volume. The replicas in sync hold the same data: the only one that the volume had until
// now, the clone of a source, or several blank ones. The others are to be filled. With a holder, which uses the only
// replica already, the record is dirty.
func New(holder string, inSync, fill []Replica, now time.Time) (Record, error) {
	if len(inSync) == 0 || holder != "" && len(inSync) > 1 {
		return Record{}, fmt.Errorf("%w: %d replicas are in sync at the start, with holder %q", ErrMember, len(inSync), holder)
	}
	r := Record{Epoch: 1, Holder: holder, Dirty: holder != ""}
	for _, replica := range inSync {
		r.Members = append(r.Members, Member{Replica: replica.Name, ReplicaUID: replica.UID, State: v1alpha1.MemberInSync, Since: at(now)})
	}
	for _, replica := range fill {
		next, err := Add(r, replica, now)
		if err != nil {
			return Record{}, err
		}
		next.Epoch = r.Epoch
		r = next
	}
	return r, nil
}

// Add a replica, which the holder then fills.
func Add(r Record, replica Replica, now time.Time) (Record, error) {
	next := raised(r)
	switch {
	case member(&next, replica.Name) != nil:
		return Record{}, fmt.Errorf("%w: %s is a member already", ErrMember, replica.Name)
	case len(next.Members) >= v1alpha1.MaxMirrorMembers:
		return Record{}, fmt.Errorf("%w: the mirror has %d members already", ErrMember, len(next.Members))
	}
	next.Members = append(next.Members, Member{Replica: replica.Name, ReplicaUID: replica.UID,
		State: v1alpha1.MemberFilling, Reason: ReasonNew, Since: at(now)})
	return next, nil
}

// Equate members that are Filling with those in sync, because nothing was ever written to any of them, and take out one
// in sync that is to leave. Who says that nothing was written are the agents of all that are in sync, and of those that
// are equated, while nobody can write: blank names them. It fails with ErrHeld, with ErrUnconfirmed if one in sync is
// not named or was in use, and with ErrNeedsPerson after an unclean end. Without such a member, the record stays as it
// is.
func Equate(r Record, blank []Replica, now time.Time) (Record, error) {
	switch {
	case r.Holder != "":
		return Record{}, fmt.Errorf("%w: %s", ErrHeld, r.Holder)
	case r.Recovering:
		return Record{}, ErrRecovering
	case r.Dirty:
		return Record{}, fmt.Errorf("%w: the mirror was written", ErrNeedsPerson)
	}
	next, equal := raised(r), false
	for i := range next.Members {
		m := &next.Members[i]
		named := slices.Contains(blank, Replica{m.Replica, m.ReplicaUID})
		switch {
		case m.MayBeAhead() && (m.Identity != "" || !named):
			return Record{}, fmt.Errorf("%w: nobody says that nothing was written to %s", ErrUnconfirmed, m.Replica)
		case m.State == v1alpha1.MemberFilling && named && m.Identity == "" && !m.Retired && !m.Foreign:
			m.State, m.Reason, m.Since, m.LastInSyncEpoch, m.CopiedBytes, equal = v1alpha1.MemberInSync, "", at(now), 0, 0, true
		case m.State == v1alpha1.MemberInSync && m.Retired && slices.ContainsFunc(r.Members, func(o Member) bool {
			return o.State == v1alpha1.MemberInSync && !o.Retired
		}):
			out(r, m, ReasonRetired, now)
			equal = true
		}
	}
	if !equal {
		return r, nil
	}
	return next, nil
}

// Started tells whether a node plugin may have begun to use the members since one became the holder: then only another
// one makes them equal.
func Started(r Record) bool {
	return r.Dirty || slices.ContainsFunc(r.Members, func(m Member) bool { return m.Identity != "" })
}

// Withdraw a member that is to leave and that no holder has begun to fill since the last one left: nobody has it.
func Withdraw(r Record, replica string, now time.Time) (Record, error) {
	m := member(&r, replica)
	if m == nil || !Idle(r, *m) {
		return Record{}, fmt.Errorf("%w: %s is %s, and cannot be withdrawn", ErrMember, replica, stateOf(m))
	}
	next := raised(r)
	out(r, member(&next, replica), ReasonRetired, now)
	return next, nil
}

// Idle tells whether a member is to leave, and nobody fills it.
func Idle(r Record, m Member) bool {
	return r.Holder == "" && !r.Recovering && m.Retired && m.State == v1alpha1.MemberFilling && m.Identity == "" && !m.Suspect
}

// Retire says that a member is to leave. Who takes it out is the holder, because only the holder knows whether its
// kernel still writes to another member that is in sync, or who has withdrawn or equated it. It fails with ErrLast when
// no other member has all data yet.
func Retire(r Record, replica string) (Record, error) {
	next := clone(r)
	m := member(&next, replica)
	switch {
	case m == nil:
		return Record{}, fmt.Errorf("%w: there is no %s", ErrMember, replica)
	case m.State == v1alpha1.MemberInSync && len(InSync(next)) < 2:
		return Record{}, fmt.Errorf("%s cannot leave: %w", replica, ErrLast)
	}
	m.Retired = true
	return next, nil
}

// Remove a member that is Out, and that no kernel has any more. Its replica may be deleted once the record without it
// is stored, and its attachment off. Until the holder's kernel has let go of a member that is recorded out, it can
// still turn out to be the only one that has everything.
func Remove(r Record, replica string) (Record, error) {
	m := member(&r, replica)
	switch {
	case m == nil || m.State != v1alpha1.MemberOut:
		return Record{}, fmt.Errorf("%w: only a member that is Out can be removed, but %s is %s", ErrMember, replica, stateOf(m))
	case !Free(r, *m):
		return Record{}, fmt.Errorf("%w: the holder has not released %s", ErrMember, replica)
	case !Removable(r, *m):
		return Record{}, fmt.Errorf("%w: the former holder's kernel may have gone on with %s alone; the next holder finds out", ErrMember, replica)
	}
	next := raised(r)
	next.Members = slices.DeleteFunc(next.Members, func(m Member) bool { return m.Replica == replica })
	return next, nil
}

// Free tells whether no kernel has anything of a member that is Out: it may get a fresh identity.
func Free(r Record, m Member) bool {
	return m.State == v1alpha1.MemberOut && (r.Holder == "" || m.Identity == "" || m.Released)
}

// Removable tells whether a member that is Out can be removed: no kernel has it, and none that ran last can have gone
// on with it alone. After an unclean end only the next start can tell that.
func Removable(r Record, m Member) bool { return Free(r, m) && (!r.Dirty || !m.MayBeAhead()) }

// InSync are the members that have every acknowledged write, in the record's order.
func InSync(r Record) []string {
	var names []string
	for _, m := range r.Members {
		if m.State == v1alpha1.MemberInSync {
			names = append(names, m.Replica)
		}
	}
	return names
}

// Whole tells whether all members are in sync. A volume grows only then.
func Whole(r Record) bool { return len(InSync(r)) == len(r.Members) }

// StateOf a member, Out for a replica that is none.
func StateOf(r Record, replica string) v1alpha1.MirrorMemberState {
	return stateOf(member(&r, replica))
}

// Get a copy of a member, and whether there is one.
func Get(r Record, replica string) (Member, bool) {
	if m := member(&r, replica); m != nil {
		return *m.DeepCopy(), true
	}
	return Member{}, false
}

// String shows a record in one line.
func String(r Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "epoch %d holder %q", r.Epoch, r.Holder)
	if r.Dirty {
		b.WriteString(" dirty")
	}
	for _, m := range r.Members {
		fmt.Fprintf(&b, " %s=%s", m.Replica, m.State)
		if m.Suspect {
			b.WriteString("?")
		}
	}
	return b.String()
}

func clone(r Record) Record { return *r.DeepCopy() }

func raised(r Record) Record {
	next := clone(r)
	next.Epoch++
	return next
}

func member(r *Record, replica string) *Member {
	for i := range r.Members {
		if r.Members[i].Replica == replica {
			return &r.Members[i]
		}
	}
	return nil
}

func stateOf(m *Member) v1alpha1.MirrorMemberState {
	if m == nil {
		return v1alpha1.MemberOut
	}
	return m.State
}

// out takes a member out of what is in sync, Returning or Filling. What it lacks is in the bitmap of those that stay,
// unless they are not known to have all that it has.
func out(r Record, m *Member, reason string, now time.Time) {
	if m.State == v1alpha1.MemberInSync {
		m.LastInSyncEpoch = r.Epoch
	}
	m.State, m.Reason, m.Since, m.CopiedBytes, m.Suspect, m.Released = v1alpha1.MemberOut, reason, at(now), 0, false, false
}

func at(now time.Time) *metav1.Time {
	t := metav1.NewTime(now.UTC().Truncate(time.Second))
	return &t
}
