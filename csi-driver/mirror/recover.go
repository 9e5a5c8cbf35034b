// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A record that is lost, or says what is not true, is recovered in four steps, each stored by compare and swap. Doubt
// removes the holder, so that nobody writes by the record. AdmitReader lets one node connect to the members, which it
// can only where every earlier host is off: what a member's header says is final from then on, until somebody else is
// admitted. Report stores the headers. Recover, or Choose if a person has decided, makes the record that is true.

// recoveredEpochs is by how much a recovered record is higher than what is known: than any epoch that was stored before
// the restore and did not reach a header. A keeper that saw one takes a lower record for the past.
const recoveredEpochs = 1 << 20

// NewDoubt is the record of a volume whose record is lost, until it is recovered: it says who the members are, and
// nothing of what they have. Its epoch comes from the time, so that it is higher than that of any record that the
// volume had: each recovery raises the epoch by 2 * recoveredEpochs, and takes more than two seconds.
func NewDoubt(members []Replica, now time.Time) (Record, error) {
	r, err := New("", members, nil, now)
	if err != nil {
		return Record{}, err
	}
	next := Doubt(r)
	next.Epoch = max(next.Epoch, now.Unix()*recoveredEpochs)
	return next, nil
}

// Doubt begins to recover a record. Nobody holds it, and nobody can begin to, until it is recovered. A record that is
// being recovered stays as it is.
func Doubt(r Record) Record {
	if r.Recovering {
		return clone(r)
	}
	next := raised(r)
	next.Epoch += recoveredEpochs
	next.Holder, next.HolderNode, next.Mover, next.MoverWaiting = "", "", "", ""
	next.Dirty, next.Recovering = true, true
	for i := range next.Members {
		m := &next.Members[i]
		m.Suspect, m.DeclaredCurrent, m.Header = true, 0, nil
	}
	return next
}

// Uncertain is the record once an agent suspects that the API was restored: as after an unclean end, only the next
// start, which reads the headers, tells which members have everything. Until then none is taken for equal to another
// one, and none leaves, not even one that has nothing by the record: it may have been filled since the backup. A person
// who declares the restore to the agents has seen no header. A holder that is there finds out by itself: see Distrust.
func Uncertain(r Record) Record {
	next := clone(r)
	next.Dirty = true
	if r.Holder == "" {
		suspectAll(&next)
	}
	return next
}

// IsUncertain tells whether Uncertain has nothing to add to a record.
func IsUncertain(r Record) bool {
	return r.Dirty && (r.Holder != "" || !slices.ContainsFunc(r.Members, func(m Member) bool { return !m.Suspect }))
}

func suspectAll(r *Record) {
	for i := range r.Members {
		r.Members[i].Suspect = true
	}
}

// Renew the members of a record that is being recovered: they are the volume's replicas as these are now. An object
// that was restored has another UID than the record knows, and a replica may have joined or not yet joined the record
// of the backup. Their headers tell what they have. A record that knows them all stays as it is. It fails with ErrHeld,
// and with ErrMember unless the record is being recovered.
func Renew(r Record, replicas []Replica, now time.Time) (Record, error) {
	switch {
	case r.Holder != "":
		return Record{}, fmt.Errorf("%w: %s", ErrHeld, r.Holder)
	case !r.Recovering:
		return Record{}, fmt.Errorf("%w: the record is not being recovered", ErrMember)
	}
	next, changed := raised(r), false
	for _, is := range replicas {
		m := member(&next, is.Name)
		switch {
		case m != nil && m.ReplicaUID == is.UID:
			continue
		case m != nil:
			m.ReplicaUID, m.Identity, m.Header, m.Foreign = is.UID, "", nil, false
		case len(next.Members) >= v1alpha1.MaxMirrorMembers:
			return Record{}, fmt.Errorf("%w: the mirror has %d members already", ErrMember, len(next.Members))
		default:
			next.Members = append(next.Members, Member{Replica: is.Name, ReplicaUID: is.UID, State: v1alpha1.MemberFilling, Reason: ReasonNew, Since: at(now), Suspect: true})
		}
		changed = true
	}
	if !changed {
		return clone(r), nil
	}
	return next, nil
}

// AdmitReader lets an attachment read the headers of the members, and nothing else. What was read before is forgotten.
// It fails with ErrHeld, and with ErrMember unless the record is being recovered.
func AdmitReader(r Record, holder, node string) (Record, error) {
	switch {
	case r.Holder != "":
		return Record{}, fmt.Errorf("%w: %s", ErrHeld, r.Holder)
	case !r.Recovering || holder == "":
		return Record{}, fmt.Errorf("%w: the record is not being recovered", ErrMember)
	}
	next := raised(r)
	next.Holder, next.HolderNode, next.Mover, next.MoverWaiting = holder, node, v1alpha1.MoverRead, ""
	for i := range next.Members {
		next.Members[i].Header = nil
	}
	return next, nil
}

// Report records the headers that a reader has read, and that it has disconnected. Members that it could not connect to
// have none. It fails with ErrNotHolder.
func Report(r Record, holder string, headers map[string]v1alpha1.MirrorHeader) (Record, error) {
	if holder == "" || r.Holder != holder || r.Mover != v1alpha1.MoverRead {
		return Record{}, fmt.Errorf("%w: %q was to read headers", ErrNotHolder, r.Holder)
	}
	next := clone(r)
	for replica, h := range headers {
		m := member(&next, replica)
		if m == nil {
			return Record{}, fmt.Errorf("%w: there is no %s", ErrMember, replica)
		}
		m.Header = &h
	}
	next.Mover, next.MoverWaiting = v1alpha1.MoverStopped, ""
	return next, nil
}

// Reported is a header as Report takes it.
func Reported(h Header) v1alpha1.MirrorHeader {
	is := v1alpha1.MirrorHeader{Epoch: h.Epoch, Mark: h.Mark, Blank: h.Blank}
	if h.Mark == NoMark {
		is.Mark = ""
	}
	for _, replica := range slices.Sorted(maps.Keys(h.Members)) {
		is.Members = append(is.Members, v1alpha1.MirrorHeaderMember{Replica: replica, State: h.Members[replica]})
	}
	return is
}

// Headers that were read, by replica.
func Headers(r Record) map[string]Header {
	all := map[string]Header{}
	for _, m := range r.Members {
		if m.Header == nil || m.Header.Error != "" {
			continue
		}
		h := Header{Epoch: m.Header.Epoch, Mark: cmp.Or(m.Header.Mark, NoMark), Members: map[string]v1alpha1.MirrorMemberState{}, Blank: m.Header.Blank}
		for _, is := range m.Header.Members {
			h.Members[is.Replica] = is.State
		}
		all[m.Replica] = h
	}
	return all
}

// Recover makes a record from the headers of all its members. The header with the highest epoch, of those that say that
// they are in sync, tells which others are, if their own headers agree. All others are filled. If no mirror was ever
// started, they are equal if all are blank, and else the only one that is not blank is current.
//
// It fails with ErrUnasked if the header of a member was not read, or if that with the highest epoch names a replica
// that is none: it may have gone on alone. It fails with ErrNeedsPerson if no header says that its replica was in sync,
// or if there are two histories: after a restore, members may have been used one after the other, each without what the
// other has. Epochs tell nothing then, because they went on from the same one.
func Recover(r Record, headers map[string]Header, now time.Time) (Record, error) {
	for replica := range headers {
		if member(&r, replica) == nil {
			return Record{}, fmt.Errorf("%w: %s is no member", ErrMember, replica)
		}
	}
	for _, m := range r.Members {
		if _, read := headers[m.Replica]; !read {
			return Record{}, fmt.Errorf("%w: the header of %s was not read", ErrUnasked, m.Replica)
		}
	}
	if unused := neverStarted(headers); len(unused) > 0 {
		return unstarted(r, headers, unused, now), nil
	}
	newest, err := newestOf(headers)
	if err != nil {
		return Record{}, err
	}
	last := headers[newest]
	for _, replica := range slices.Sorted(maps.Keys(last.Members)) {
		if member(&r, replica) == nil && last.Members[replica] != v1alpha1.MemberOut {
			return Record{}, fmt.Errorf("%w: the header of %s has %s as %s, which is not a replica of the volume", ErrUnasked, newest, replica, last.Members[replica])
		}
	}
	next := recovered(r, headers)
	for i := range next.Members {
		m := &next.Members[i]
		m.Since, m.Suspect = at(now), true
		if last.Members[m.Replica] == v1alpha1.MemberInSync && inSyncByItself(headers, m.Replica) {
			m.State, m.Reason = v1alpha1.MemberInSync, ""
		}
	}
	return next, nil
}

// Choose makes a record in which a member is current because a person says so. All others are filled from it, whatever
// they have. The member's header must have been read: only then is every earlier host of it off. It fails with
// ErrUnasked else, and with ErrMember if there is no such member.
func Choose(r Record, replica string, headers map[string]Header, now time.Time) (Record, error) {
	if member(&r, replica) == nil {
		return Record{}, fmt.Errorf("%w: there is no %s", ErrMember, replica)
	}
	if _, read := headers[replica]; !read {
		return Record{}, fmt.Errorf("%w: the header of %s was not read", ErrUnasked, replica)
	}
	next := recovered(r, headers)
	for i := range next.Members {
		m := &next.Members[i]
		m.Since, m.Identity = at(now), ""
		if m.Replica == replica {
			m.State, m.Reason, m.Retired = v1alpha1.MemberInSync, "", false
			continue
		}
		m.Reason = ReasonUndeclared
		if _, read := headers[m.Replica]; !read {
			m.Marks = []string{anyBefore(next.Epoch)}
		}
	}
	return next, nil
}

// newestOf the headers of those that say that they are in sync: the replica with the highest epoch. Each other one has
// to say itself that one which is newer went on with it.
func newestOf(headers map[string]Header) (string, error) {
	newest := ""
	for _, replica := range slices.Sorted(maps.Keys(headers)) {
		if inSyncByItself(headers, replica) && (newest == "" || headers[replica].Epoch > headers[newest].Epoch) {
			newest = replica
		}
	}
	if newest == "" {
		return "", fmt.Errorf("%w: no header says that its replica was in sync", ErrNeedsPerson)
	}
	for _, replica := range slices.Sorted(maps.Keys(headers)) {
		if !inSyncByItself(headers, replica) || succeeded(headers, replica, newest) {
			continue
		}
		return "", fmt.Errorf("%w: %s and %s have different histories: each was used without the other", ErrNeedsPerson, replica, newest)
	}
	return newest, nil
}

// neverStarted are the members that are current although no mirror was ever started: all of them if none was written,
// or the only one that was. Nil if a mirror was started, or nobody can tell.
func neverStarted(headers map[string]Header) []string {
	var blank, written []string
	for _, replica := range slices.Sorted(maps.Keys(headers)) {
		switch h := headers[replica]; {
		case h.Mark != NoMark:
			return nil
		case h.Blank:
			blank = append(blank, replica)
		default:
			written = append(written, replica)
		}
	}
	switch len(written) {
	case 0:
		return blank
	case 1:
		return written
	}
	return nil
}

// unstarted is the record of members of which these are current, and equal: nobody ever wrote to them together.
func unstarted(r Record, headers map[string]Header, current []string, now time.Time) Record {
	next := recovered(r, headers)
	next.Dirty = false
	for i := range next.Members {
		m := &next.Members[i]
		m.Since, m.Identity = at(now), ""
		if slices.Contains(current, m.Replica) {
			m.State, m.Reason = v1alpha1.MemberInSync, ""
		}
	}
	return next
}

// succeeded tells whether a replica has the newest history, or is behind one: a replica with a higher epoch was in sync
// in its mirror when its header was written. A holder writes the headers of all that are in sync before anything is
// written to them, and before it goes on without one. That another one was to be copied to proves nothing: a holder
// writes the header of what it copies from before that of what it copies to, and may never have begun.
func succeeded(headers map[string]Header, replica, newest string) bool {
	h := headers[replica]
	if h.Epoch == headers[newest].Epoch {
		return h.Mark == headers[newest].Mark
	}
	for other, by := range headers {
		if inSyncByItself(headers, other) && by.Epoch > h.Epoch && h.Members[other] == v1alpha1.MemberInSync {
			return true
		}
	}
	return false
}

// inSyncByItself tells whether a replica's own header says that it was in sync when that was written.
func inSyncByItself(headers map[string]Header, replica string) bool {
	return headers[replica].Members[replica] == v1alpha1.MemberInSync
}

// recovered is a record without holder, in which nobody is in sync yet, and which knows the headers. It keeps those
// that were reported until the mirror is started, for people.
func recovered(r Record, headers map[string]Header) Record {
	next := raised(r)
	next.Holder, next.HolderNode, next.Mover, next.MoverWaiting, next.Dirty, next.Recovering = "", "", "", "", true, false
	for _, h := range headers {
		next.Epoch = max(next.Epoch, h.Epoch)
	}
	next.Epoch += recoveredEpochs
	for i := range next.Members {
		m := &next.Members[i]
		m.DeclaredCurrent, m.Suspect, m.LastInSyncEpoch, m.CopiedBytes, m.Released, m.Foreign = 0, false, 0, 0, false, false
		m.State, m.Reason = v1alpha1.MemberOut, ReasonBehind
		h, read := headers[m.Replica]
		switch {
		case read && h.Mark == NoMark:
			m.Marks = nil
		case read:
			m.Marks = []string{h.Mark}
		}
	}
	return next
}

// Lacking says what members lack that were made current, or what a person gives up with them, for people.
func Lacking(r Record, headers map[string]Header) []string {
	var all []string
	for _, m := range r.Members {
		h, read := headers[m.Replica]
		switch {
		case m.State == v1alpha1.MemberInSync:
		case !read:
			all = append(all, fmt.Sprintf("%s, whose header was not read", m.Replica))
		case inSyncByItself(headers, m.Replica):
			all = append(all, fmt.Sprintf("%s, whose header of epoch %d has %s in sync", m.Replica, h.Epoch, strings.Join(inSyncOf(h), ", ")))
		default:
			all = append(all, fmt.Sprintf("%s, which was not in sync by its header", m.Replica))
		}
	}
	return all
}

func inSyncOf(h Header) []string {
	var names []string
	for _, replica := range slices.Sorted(maps.Keys(h.Members)) {
		if h.Members[replica] == v1alpha1.MemberInSync {
			names = append(names, replica)
		}
	}
	return names
}
