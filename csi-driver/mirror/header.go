// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"encoding/json"
	"fmt"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Header is the record as a replica's header has it, in Mirror of internal/header's Record.
type Header struct {
	Epoch  int64  `json:"epoch"`
	Mark   string `json:"mark"`
	Holder string `json:"holder"`
	// Members by replica, with their states.
	Members map[string]v1alpha1.MirrorMemberState `json:"members"`
	// Blank says that nothing was ever written to the replica, by the word of its agent. The header itself does not
	// have it.
	Blank bool `json:"-"`
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
	if h.Epoch < 1 || h.Mark == "" || noMark(h.Mark) {
		return Header{}, fmt.Errorf("the mirror's part of a header has epoch %d and mark %q", h.Epoch, h.Mark)
	}
	return h, nil
}

// Check a member's header before anything is started or copied. It fails with ErrForeign if the header has a higher
// epoch than the record, or a mark that the record does not know: the record was restored to an earlier state. The mark
// is needed because epochs go on after a restore, until the header's is no longer the higher one. Where any mark is
// known, because a person gave up what the header had, only a header from before that decision is.
func Check(r Record, replica string, h Header) error {
	m := member(&r, replica)
	switch {
	case m == nil:
		return fmt.Errorf("%w: %s is no member", ErrMember, replica)
	case h.Epoch > r.Epoch:
		return fmt.Errorf("%w: the header of %s has epoch %d, and the record %d", ErrForeign, replica, h.Epoch, r.Epoch)
	}
	for _, mark := range m.Marks {
		if before := gaveUpBefore(mark); before > 0 && h.Epoch >= before {
			return fmt.Errorf("%w: the header of %s has epoch %d, and a person gave up only what it had before epoch %d", ErrForeign, replica, h.Epoch, before)
		}
	}
	return known(*m, h.Mark)
}
