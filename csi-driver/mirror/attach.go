// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Begin fences the holder: from then on it can record nothing, and so cannot give up a member and go on without it. A
// record that has no holder stays as it is.
func Begin(r Record) Record {
	if r.Holder == "" {
		return clone(r)
	}
	next := raised(r)
	next.Holder, next.HolderNode, next.Mover, next.MoverWaiting = "", "", "", ""
	return next
}

// Confirmation is what the agent of a replica said after Begin was stored: the new holder may connect, every earlier
// one is off, and none of its commands is in flight.
type Confirmation struct {
	Replica
	// Past is true if the agent found that the API was restored to an earlier state. It then confirms nothing, and the
	// mirror waits for a person: this member may be the only one that knows how its history went on.
	Past bool
}

// Admit sets the holder. Members that are in sync and did not confirm are dropped; at least one stays. After an unclean
// end no member is taken as the only source of several: a kernel drops a member that answers an error by itself, and
// may have acknowledged writes that it lacks before that was recorded. No target can say that it answered none. If all
// are there that the kernel may have had, they stay as suspects, which Start compares.
//
// It fails with ErrHeld, ErrForeign, ErrUnconfirmed, which is worth trying again, and ErrNeedsPerson.
func Admit(r Record, holder string, confirmed []Confirmation, now time.Time) (Record, error) {
	if r.Holder != "" {
		return Record{}, fmt.Errorf("%w: %s", ErrHeld, r.Holder)
	}
	if r.Recovering {
		return Record{}, ErrRecovering
	}
	if holder == "" {
		return Record{}, fmt.Errorf("%w: no holder was named", ErrNotHolder)
	}
	at := map[string]found{}
	for _, c := range confirmed {
		m := member(&r, c.Name)
		if m == nil || m.ReplicaUID != c.UID {
			return Record{}, fmt.Errorf("%w: %s with UID %s confirmed, but it is no member", ErrMember, c.Name, c.UID)
		}
		if c.Past {
			return Record{}, fmt.Errorf("%w: the agent of %s found that the API was restored to an earlier state", ErrForeign, c.Name)
		}
		at[c.Name] = found{}
	}
	s, err := settle(r, at)
	if err != nil {
		return Record{}, err
	}
	next := raised(r)
	next.Holder = holder
	s.apply(r, &next, ReasonUnconfirmed, now)
	for i := range next.Members {
		m := &next.Members[i]
		suspect := s.doubt && m.MayBeAhead()
		if m.State == v1alpha1.MemberReturning {
			out(r, m, ReasonUnconfirmed, now)
		}
		if m.State == v1alpha1.MemberInSync {
			suspect = s.doubt && r.Dirty
		}
		m.Suspect = suspect
		m.DeclaredCurrent, m.Identity, m.Released = 0, "", false
	}
	return next, nil
}

// Declare records that a person takes a member for one that has all data. It holds in the record's epoch: for the next
// Admit or Start, and no later one.
func Declare(r Record, replica string) (Record, error) {
	next := clone(r)
	m := member(&next, replica)
	if m == nil || m.State != v1alpha1.MemberInSync {
		return Record{}, fmt.Errorf("%w: only a member that is InSync can be declared current, but %s is %s", ErrMember, replica, stateOf(m))
	}
	m.DeclaredCurrent = r.Epoch
	return next, nil
}

// found is what is known of a member at hand.
type found struct{ kicked bool }

// settlement tells which members stay in sync.
type settlement struct {
	stay []string
	at   map[string]found
	// declared: they stay because a person said so.
	declared bool
	// doubt: they stay because all are there to be compared, though nobody knows which have everything.
	doubt bool
}

// settle decides which members stay in sync: of those at hand, the ones that have every acknowledged write. These are
// all of them if the holder recorded in the end that they were equal, but for those that a person declared current.
func settle(r Record, at map[string]found) (settlement, error) {
	s := settlement{at: at}
	var clean, declared, kicked, missing []string
	for _, m := range r.Members {
		f, here := at[m.Replica]
		if !here && m.MayBeAhead() {
			missing = append(missing, m.Replica)
		}
		if !here || m.State != v1alpha1.MemberInSync {
			continue
		}
		switch {
		case f.kicked && m.DeclaredCurrent != r.Epoch:
			kicked = append(kicked, m.Replica)
			continue
		case !r.Dirty && !f.kicked:
			clean = append(clean, m.Replica)
		case m.DeclaredCurrent == r.Epoch:
			declared = append(declared, m.Replica)
		}
		s.stay = append(s.stay, m.Replica)
	}
	switch {
	case len(s.stay) == 0 && len(kicked) > 0:
		return s, fmt.Errorf("%w: a former kernel went on without %s", ErrNeedsPerson, strings.Join(kicked, ", "))
	case len(s.stay) == 0:
		return s, ErrUnconfirmed
	case len(clean) == len(s.stay):
	case len(declared) > 0 && len(clean) == 0:
		s.stay, s.declared = declared[:1], true
	case len(missing) == 0:
		s.doubt = true
	case len(clean) > 0:
		s.stay = clean
	default:
		return s, fmt.Errorf("%w: %s may lack writes that %s has, which cannot be reached", ErrNeedsPerson, strings.Join(s.stay, ", "), strings.Join(missing, ", "))
	}
	return s, nil
}

// apply takes out the members that do not stay. What they lack is not all in the bitmap of those that stay if nobody
// knows that these have all data.
func (s settlement) apply(r Record, next *Record, missing string, now time.Time) {
	for i := range next.Members {
		m := &next.Members[i]
		if m.State != v1alpha1.MemberInSync || slices.Contains(s.stay, m.Replica) {
			continue
		}
		f, here := s.at[m.Replica]
		switch {
		case here && f.kicked:
			out(r, m, ReasonKicked, now)
		case here:
			out(r, m, ReasonUndeclared, now)
		default:
			out(r, m, missing, now)
		}
	}
	if !s.declared {
		return
	}
	for i := range next.Members {
		if m := &next.Members[i]; m.State != v1alpha1.MemberInSync {
			m.LastInSyncEpoch = 0 // no bitmap covers what it has and the one that was declared has not
		}
	}
}
