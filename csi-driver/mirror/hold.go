// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// NoMark is the mark of a header that no holder of a mirror has written yet.
	NoMark = "none"
	// anyMark, followed by an epoch, stands for every mark of a header of a lower epoch, in the record of a member that
	// was recovered without its header: a person gave up what it had until then. It is filled, so that nothing of it is
	// used. A header of that epoch or a later one was written by a holder that came after the decision.
	anyMark = "any:"
)

// anyBefore is the mark that stands for all marks of headers with a lower epoch than this one.
func anyBefore(epoch int64) string { return anyMark + strconv.FormatInt(epoch, 10) }

// gaveUpBefore is the epoch of anyBefore; 0 for another mark.
func gaveUpBefore(mark string) int64 {
	text, is := strings.CutPrefix(mark, anyMark)
	if !is {
		return 0
	}
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0 // it stands for nothing
	}
	return epoch
}

// noMark tells whether a text must not be the mark of a header.
func noMark(mark string) bool { return mark == NoMark || strings.HasPrefix(mark, anyMark) }

// Holder makes the changes of the node plugin that holds a mirror. Each takes the marks that were read from the headers
// which are to be written next, by replica, and records that these may have Mark from then on. The order is: read the
// headers, Check them, store the record, write the headers, and only then act on it. A header that has neither mark is
// foreign.
type Holder struct {
	// Attachment that must be the record's holder; every change fails with ErrNotHolder otherwise.
	Attachment string
	// Mark is a fresh UUID for each change that is tried.
	Mark string
	Now  time.Time
}

// Found is what the holder learnt of a member that it has connected to, before it starts the mirror.
type Found struct {
	Replica
	// Mark in its header, NoMark if there is none.
	Mark string
	// Identity under which the holder is connected to it.
	Identity string
	// Kicked is true if the mirror's metadata on another member says that a kernel went on without this one.
	Kicked bool
}

// Start records that the mirror is going to be written. Members in sync that were not found, and those that were kicked
// by a former kernel, are dropped. After it is stored and the headers are written, the array is assembled from the
// members that are in sync, and from no others. Members of other states may be found, too: their headers tell whether
// the record is the past.
//
// A mover writes no new data: the members that are in sync stay equal, however it ends, and the record stays clean if
// it was. Else a node that is lost while it copies for nobody would keep the volume from its next user, as after an
// unclean end: what is copied may be the only one that has everything then.
//
// It fails with ErrForeign, ErrUnconfirmed if no member in sync was found, and ErrNeedsPerson.
func (h Holder) Start(r Record, all []Found) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	marks, at, identities := map[string]string{}, map[string]found{}, map[string]string{}
	for _, f := range all {
		m := member(&r, f.Name)
		if m == nil || m.ReplicaUID != f.UID {
			return Record{}, fmt.Errorf("%w: %s with UID %s was found, but it is no member", ErrMember, f.Name, f.UID)
		}
		if err := known(*m, f.Mark); err != nil {
			return Record{}, err
		}
		at[f.Name], identities[f.Name] = found{kicked: f.Kicked}, f.Identity
		if m.State == v1alpha1.MemberInSync {
			marks[f.Name] = f.Mark
		}
	}
	s, err := settle(r, at)
	if err != nil {
		return Record{}, err
	}
	next := raised(r)
	next.MoverWaiting = ""
	next.Dirty = r.Dirty || r.Mover == "" // what a mover leaves behind has nothing that was not there before
	s.apply(r, &next, ReasonUnreachable, h.Now)
	for i := range next.Members {
		m := &next.Members[i]
		if m.State != v1alpha1.MemberInSync {
			delete(marks, m.Replica)
		}
		if id := identities[m.Replica]; id != "" {
			m.Identity = id
		}
		m.Suspect, m.DeclaredCurrent, m.Header = false, 0, nil
	}
	return next, h.stamp(&next, marks)
}

// Distrust a record that is older than the headers: the API was restored. The kernel goes on meanwhile, and drops
// members, or copies to others, of which nothing is recorded. So none of them leaves before they have been compared.
func (h Holder) Distrust(r Record) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := Uncertain(r)
	suspectAll(&next)
	return next, nil
}

// Lost records that a member is given up. Once it is stored and the headers of those that stay are written, the kernel
// may go on without the member. The last one in sync is never given up: ErrLast.
func (h Holder) Lost(r Record, replica, reason string, marks map[string]string) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := raised(r)
	m := member(&next, replica)
	if m == nil || m.State == v1alpha1.MemberOut {
		return Record{}, fmt.Errorf("%w: %s is %s already", ErrMember, replica, stateOf(m))
	}
	if m.State == v1alpha1.MemberInSync && !slices.ContainsFunc(next.Members, func(o Member) bool {
		return o.Replica != replica && o.State == v1alpha1.MemberInSync && !o.Suspect
	}) {
		return Record{}, fmt.Errorf("%s cannot be given up: %w", replica, ErrLast)
	}
	out(r, m, reason, h.Now)
	if _, own := marks[replica]; own {
		return Record{}, fmt.Errorf("%w: the header of %s is not written when it is given up", ErrMember, replica)
	}
	return next, h.stamp(&next, marks)
}

// Return takes a member that is not in the array back: by bitmap if the mirror's bitmap covers all that it lacks,
// else it is filled. Identity is that of the new connection, under which nothing was written; all former ones are
// off. Marks has its own header's, too. Ahead says that its metadata shows a kernel that went on with it, and without
// a member that is in sync now: ErrForeign, unless it is to be filled anyway.
func (h Holder) Return(r Record, replica, identity string, ahead bool, marks map[string]string) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := raised(r)
	m := member(&next, replica)
	_, read := marks[replica]
	switch {
	case m == nil || m.State == v1alpha1.MemberInSync || m.Retired:
		return Record{}, fmt.Errorf("%w: %s is %s and cannot return", ErrMember, replica, stateOf(m))
	case !read:
		return Record{}, fmt.Errorf("%w: the header of %s was not read", ErrForeign, replica)
	case identity == "" || identity == m.Identity:
		return Record{}, fmt.Errorf("%w: %s cannot return under its former identity %q", ErrMember, replica, identity)
	case ahead && m.LastInSyncEpoch > 0:
		return Record{}, fmt.Errorf("%w: a kernel went on with %s alone", ErrForeign, replica)
	}
	m.State, m.Reason, m.Since, m.Identity, m.Released, m.Foreign = v1alpha1.MemberFilling, ReasonNew, at(h.Now), identity, false, false
	if m.LastInSyncEpoch > 0 {
		m.State, m.Reason = v1alpha1.MemberReturning, ReasonBitmap
	}
	return next, h.stamp(&next, marks)
}

// Refuse records that a member which is not in sync is not taken back: its header or its metadata has a history that
// the record does not know. Nothing follows from that but that nobody replaces the member or removes it by himself:
// once it does not answer any more, nobody else knows it.
func (h Holder) Refuse(r Record, replica string) (Record, error) {
	next, m, err := h.other(r, replica, func(m *Member) bool { return m.State != v1alpha1.MemberInSync })
	if err != nil {
		return Record{}, err
	}
	m.Foreign = true
	return next, nil
}

// other record, in the same epoch, and a member of it that is as it must be.
func (h Holder) other(r Record, replica string, is func(*Member) bool) (Record, *Member, error) {
	if err := h.holds(r); err != nil {
		return Record{}, nil, err
	}
	next := clone(r)
	m := member(&next, replica)
	if m == nil || !is(m) {
		return Record{}, nil, fmt.Errorf("%w: %s is %s", ErrMember, replica, stateOf(m))
	}
	return next, m, nil
}

// Keep a member that was recorded out, and that the kernel never let go of: since then the kernel has dropped all
// others, because they answered errors. It has everything; Complete records that, and then the others can be given
// up.
func (h Holder) Keep(r Record, replica string, marks map[string]string) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := raised(r)
	m := member(&next, replica)
	if m == nil || m.State != v1alpha1.MemberOut || m.Released {
		return Record{}, fmt.Errorf("%w: %s is %s", ErrMember, replica, stateOf(m))
	}
	m.State, m.Reason, m.Since = v1alpha1.MemberFilling, ReasonKept, at(h.Now)
	if m.LastInSyncEpoch > 0 {
		m.State = v1alpha1.MemberReturning
	}
	return next, h.stamp(&next, marks)
}

// Released records that the kernel has nothing of a member that is Out any more.
func (h Holder) Released(r Record, replica string) (Record, error) {
	next, m, err := h.other(r, replica, func(m *Member) bool { return m.State == v1alpha1.MemberOut })
	if err != nil {
		return Record{}, err
	}
	m.Released = true
	return next, nil
}

// Refill records that a member which was to return by bitmap has to be copied whole: its kernel refused the bitmap.
func (h Holder) Refill(r Record, replica string, marks map[string]string) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := raised(r)
	m := member(&next, replica)
	if m == nil || m.State != v1alpha1.MemberReturning {
		return Record{}, fmt.Errorf("%w: %s is %s", ErrMember, replica, stateOf(m))
	}
	m.State, m.Reason, m.Since, m.LastInSyncEpoch, m.CopiedBytes = v1alpha1.MemberFilling, ReasonBitmap, at(h.Now), 0, 0
	return next, h.stamp(&next, marks)
}

// Complete records that a member has everything: the array is idle and complete, and the member's header says that its
// data is formatted.
func (h Holder) Complete(r Record, replica string, marks map[string]string) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := raised(r)
	m := member(&next, replica)
	if m == nil || m.State != v1alpha1.MemberReturning && m.State != v1alpha1.MemberFilling {
		return Record{}, fmt.Errorf("%w: %s is %s, and cannot have become in sync", ErrMember, replica, stateOf(m))
	}
	if _, read := marks[replica]; !read {
		return Record{}, fmt.Errorf("%w: the header of %s was not read", ErrForeign, replica)
	}
	m.State, m.Reason, m.Since, m.LastInSyncEpoch, m.CopiedBytes, m.Foreign = v1alpha1.MemberInSync, "", at(h.Now), 0, 0, false
	return next, h.stamp(&next, marks)
}

// Stamp changes nothing but epoch and marks: a holder that finds a change recorded, after a restart, learns by it
// that it still holds the mirror.
func (h Holder) Stamp(r Record, marks map[string]string) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := raised(r)
	return next, h.stamp(&next, marks)
}

// Stop records that the array was stopped with all members that are in sync, and nothing in flight. This confirms all
// copies that were made since the mirror began the epoch, too.
func (h Holder) Stop(r Record) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := clone(r)
	next.Dirty, next.Confirmed = false, r.ConfirmRequested
	for i := range next.Members {
		if m := &next.Members[i]; m.State == v1alpha1.MemberInSync {
			m.Suspect = false // they were compared
		}
	}
	return next, nil
}

// Progress records how far the copy to a member is.
func (h Holder) Progress(r Record, replica string, copiedBytes int64) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := clone(r)
	m := member(&next, replica)
	if m == nil || m.State != v1alpha1.MemberReturning && m.State != v1alpha1.MemberFilling {
		return Record{}, fmt.Errorf("%w: %s is %s", ErrMember, replica, stateOf(m))
	}
	m.CopiedBytes = copiedBytes
	return next, nil
}

func (h Holder) holds(r Record) error {
	switch {
	case h.Attachment == "" || r.Holder != h.Attachment:
		return fmt.Errorf("%w: it is %q, and not %q", ErrNotHolder, r.Holder, h.Attachment)
	case r.Recovering:
		return ErrRecovering
	case noMark(h.Mark):
		return fmt.Errorf("%w: %q is no mark", ErrForeign, h.Mark)
	}
	return nil
}

// stamp says that the headers of these members have either the mark that was read or the new one.
func (h Holder) stamp(next *Record, marks map[string]string) error {
	if h.Mark == "" && len(marks) > 0 {
		return fmt.Errorf("%w: there is no mark to write", ErrForeign)
	}
	for replica, mark := range marks {
		m := member(next, replica)
		if m == nil {
			return fmt.Errorf("%w: there is no %s", ErrMember, replica)
		}
		if err := known(*m, mark); err != nil {
			return err
		}
		m.Marks = []string{mark, h.Mark}
	}
	return nil
}

// known tells whether a header's mark is one that the record knows of. Where a person gave up whatever the header has,
// Check has compared its epoch.
func known(m Member, mark string) error {
	if len(m.Marks) == 0 && mark == NoMark || slices.Contains(m.Marks, mark) ||
		slices.ContainsFunc(m.Marks, func(of string) bool { return gaveUpBefore(of) > 0 }) {
		return nil
	}
	return fmt.Errorf("%w: the header of %s has mark %s", ErrForeign, m.Replica, mark)
}
