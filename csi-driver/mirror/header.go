// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Header is the record as a replica's header has it, in Mirror of internal/header's Record.
type Header struct {
	Epoch  int64  `json:"epoch"`
	Mark   string `json:"mark"`
	Holder string `json:"holder"`
	// Members by replica, with their states.
	Members map[string]v1alpha1.MirrorMemberState `json:"members"`
}

// HeaderOf a record that was stored with this mark.
func HeaderOf(r Record, mark string) Header {
	h := Header{Epoch: r.Epoch, Mark: mark, Holder: r.Holder, Members: map[string]v1alpha1.MirrorMemberState{}}
	for _, m := range r.Members {
		h.Members[m.Replica] = m.State
	}
	return h
}

// Encode gives the same text for the same header.
func (h Header) Encode() (string, error) {
	text, err := json.Marshal(h)
	return string(text), err
}

// ParseHeader reads what Encode wrote. An empty text is a header without the mirror's part: its mark is NoMark.
func ParseHeader(text string) (Header, error) {
	if text == "" {
		return Header{Mark: NoMark}, nil
	}
	var h Header
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return Header{}, fmt.Errorf("the mirror's part of a header: %w", err)
	}
	if h.Epoch < 1 || h.Mark == "" || h.Mark == NoMark {
		return Header{}, fmt.Errorf("the mirror's part of a header has epoch %d and mark %q", h.Epoch, h.Mark)
	}
	return h, nil
}

// Check a member's header before anything is started or copied. It fails with ErrForeign if the header has a higher
// epoch than the record, or a mark that the record does not know: the record was restored to an earlier state. The mark
// is needed because epochs go on after a restore, until the header's is no longer the higher one.
func Check(r Record, replica string, h Header) error {
	m := member(&r, replica)
	switch {
	case m == nil:
		return fmt.Errorf("%w: %s is no member", ErrMember, replica)
	case h.Epoch > r.Epoch:
		return fmt.Errorf("%w: the header of %s has epoch %d, and the record %d", ErrForeign, replica, h.Epoch, r.Epoch)
	}
	return known(*m, h.Mark)
}

// recoveredEpochs is by how much a recovered record is higher than what is known: than any epoch that was stored before
// the restore and did not reach a header. A keeper that saw one takes a lower record for the past.
const recoveredEpochs = 1 << 20

// Recover makes a record from the headers of all replicas that there are, after a person decided to go on from them
// because the API was restored to an earlier state. The header with the highest epoch, of those that say that they
// are in sync, tells which others are, if their own headers agree. All others are filled. The object has to be
// created again with it: the API server refuses it as a change. It fails with ErrNeedsPerson when two headers of the
// highest epoch have different marks, so that there are two histories to choose from: give it the replicas of one.
func Recover(r Record, headers map[string]Header, now time.Time) (Record, error) {
	next := raised(r)
	next.Holder, next.HolderNode, next.Mover, next.MoverWaiting, next.Dirty = "", "", "", "", true
	var newest Header
	for _, replica := range slices.Sorted(maps.Keys(headers)) {
		h := headers[replica]
		if member(&next, replica) == nil {
			return Record{}, fmt.Errorf("%w: %s is no member", ErrMember, replica)
		}
		next.Epoch = max(next.Epoch, h.Epoch)
		if h.Members[replica] != v1alpha1.MemberInSync {
			continue // it says nothing of the others that theirs do not say
		}
		if newest.Mark != "" && h.Epoch == newest.Epoch && h.Mark != newest.Mark {
			return Record{}, fmt.Errorf("%w: headers of epoch %d have different histories", ErrNeedsPerson, h.Epoch)
		}
		if newest.Mark == "" || h.Epoch > newest.Epoch {
			newest = h
		}
	}
	next.Epoch += recoveredEpochs
	for i := range next.Members {
		m := &next.Members[i]
		h, here := headers[m.Replica]
		switch {
		case here && h.Mark == NoMark:
			m.Marks = nil
		case here:
			m.Marks = []string{h.Mark}
		}
		m.DeclaredCurrent, m.Suspect, m.LastInSyncEpoch, m.CopiedBytes, m.Since, m.Reason = 0, true, 0, 0, at(now), ""
		if here && newest.Members[m.Replica] == v1alpha1.MemberInSync && h.Members[m.Replica] == v1alpha1.MemberInSync {
			m.State = v1alpha1.MemberInSync
			continue
		}
		m.State, m.Reason = v1alpha1.MemberOut, ReasonUnconfirmed
	}
	if len(InSync(next)) == 0 {
		return Record{}, fmt.Errorf("%w: no header says that its replica was in sync", ErrNeedsPerson)
	}
	return next, nil
}
