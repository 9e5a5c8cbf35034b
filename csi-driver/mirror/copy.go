// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"errors"
	"fmt"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A copy of one member, such as a snapshot, has every write that was acknowledged before it was frozen, if the kernel
// had that member in sync then. The record alone does not tell: a kernel drops a member that answers errors by itself,
// and acknowledges writes without it before the holder can record that. But it never takes such a member back within
// an epoch. So a member that the kernel has in sync after the copy was frozen, in the epoch in which the record had it
// in sync before that, was in sync all the time.
//
// The order is: Copyable on a live read; freeze the copy; RequestConfirm, stored by compare and swap; the holder reads
// that, looks at its kernel, and stores Confirm from the version that it read; Proven on any later read. What Proven
// finds in the copy's epoch stays true: the read may be an old one.

// Errors of copies.
var (
	// ErrUncopyable says that nobody can tell now whether the member has everything: the last holder did not end
	// cleanly, and there is no other yet.
	ErrUncopyable = errors.New("the mirror was not stopped cleanly, and no node uses it")
	// ErrChanged says that the record went on since the copy was asked for. The copy may lack acknowledged writes.
	ErrChanged = errors.New("the mirror changed while the copy was made")
)

// Copy is what is known of a copy of a member.
type Copy struct {
	// Replica that is copied.
	Replica string
	// Epoch in which the record had it in sync before the copy was asked for.
	Epoch int64
	// Request that the holder is to confirm; 0 if none was made since the copy was frozen.
	Request int64
}

// Copyable begins a copy of a member. It fails with ErrMember if the record does not have the member in sync, or takes
// it for suspect, and with ErrUncopyable.
func Copyable(r Record, replica string) (Copy, error) {
	switch m := member(&r, replica); {
	case m == nil || m.State != v1alpha1.MemberInSync || m.Suspect:
		return Copy{}, fmt.Errorf("%w: %s is %s, and cannot be copied", ErrMember, replica, stateOf(m))
	case r.Dirty && r.Holder == "":
		return Copy{}, ErrUncopyable
	}
	return Copy{Replica: replica, Epoch: r.Epoch}, nil
}

// RequestConfirm asks the holder to look at its kernel after the copy was frozen. Each copy makes a request of its own:
// what an earlier request found may be older than the copy. It does so even if nobody writes: that it was stored tells
// that the record which was read was the current one. It fails with ErrChanged.
func RequestConfirm(r Record, c Copy) (Record, Copy, error) {
	if _, err := Proven(r, c); err != nil {
		return Record{}, Copy{}, err
	}
	next := clone(r)
	next.ConfirmRequested++
	c.Request = next.ConfirmRequested
	return next, c, nil
}

// Proven tells whether a copy has every write that was acknowledged before it was frozen: the holder has confirmed that
// since, or nobody writes. False means that nobody was asked, or that the holder has not answered yet. It fails with
// ErrChanged.
//
// That a record with a holder is clean does not tell: after a restore of the API, a kernel may run that started the
// mirror in a later epoch. Its keeper notices, and confirms nothing.
func Proven(r Record, c Copy) (bool, error) {
	m := member(&r, c.Replica)
	if r.Epoch != c.Epoch || m == nil || m.State != v1alpha1.MemberInSync {
		return false, fmt.Errorf("%w: %s was in sync in epoch %d, and is %s in epoch %d", ErrChanged, c.Replica, c.Epoch, stateOf(m), r.Epoch)
	}
	nobody := r.Holder == "" && !r.Dirty
	return c.Request > 0 && (nobody || r.Confirmed >= c.Request), nil
}

// Confirm answers all requests that the record has. Before, and after it read the record, the holder has found that its
// kernel has all members in sync that the record has in sync.
func (h Holder) Confirm(r Record) (Record, error) {
	if err := h.holds(r); err != nil {
		return Record{}, err
	}
	next := clone(r)
	next.Confirmed = r.ConfirmRequested
	return next, nil
}
