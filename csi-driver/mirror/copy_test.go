// SPDX-License-Identifier: Apache-2.0

package mirror_test

import (
	"errors"
	"testing"

	. "github.com/weft-storage/weft/csi-driver/mirror"
)

func TestCopyable(t *testing.T) {
	clean := record(t, next+"|a=InSync,b=InSync")
	clean.Dirty = false
	for name, c := range map[string]struct {
		record  Record
		replica string
		err     error
	}{
		"in use":                         {record(t, next+"|a=InSync,b=InSync"), "b", nil},
		"admitted, and not started":      {clean, "b", nil},
		"detached":                       {record(t, "|a=InSync,b=InSync"), "b", nil},
		"detached, but not cleanly":      {record(t, "~|a=InSync,b=InSync"), "b", ErrUncopyable},
		"another is being filled":        {record(t, next+"|a=InSync,b=Filling"), "a", nil},
		"it is being filled":             {record(t, next+"|a=InSync,b=Filling"), "b", ErrMember},
		"it returns":                     {record(t, next+"|a=InSync,b=Returning/5"), "b", ErrMember},
		"it is out":                      {record(t, next+"|a=InSync,b=Out/5"), "b", ErrMember},
		"it is suspect until it started": {record(t, next+"|a=InSync,b=InSync?"), "b", ErrMember},
		"it is no member":                {record(t, next+"|a=InSync"), "b", ErrMember},
	} {
		t.Run(name, func(t *testing.T) {
			defer unchanged(t, c.record)()
			got, err := Copyable(c.record, c.replica)
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if want := (Copy{Replica: c.replica, Epoch: 7}); err == nil && got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestRequestConfirm(t *testing.T) {
	r := record(t, next+"|a=InSync,b=InSync")
	defer unchanged(t, r)()
	c, err := Copyable(r, "b")
	if err != nil {
		t.Fatal(err)
	}
	first, one, err := RequestConfirm(r, c)
	if err != nil || one.Request != 1 || first.ConfirmRequested != 1 || first.Epoch != r.Epoch {
		t.Fatalf("the first: %+v of %+v, %v", one, first, err)
	}
	// What is confirmed for one copy says nothing of another that was frozen later.
	confirmed, err := holder.Confirm(first)
	if err != nil || confirmed.Confirmed != 1 || confirmed.Epoch != r.Epoch {
		t.Fatalf("confirmed: %+v, %v", confirmed, err)
	}
	later, two, err := RequestConfirm(confirmed, c)
	if err != nil || two.Request != 2 || later.ConfirmRequested != 2 {
		t.Fatalf("the second: %+v of %+v, %v", two, later, err)
	}
	if proven, err := Proven(later, two); proven || err != nil {
		t.Errorf("the second copy is proven by the first one's confirmation: %v, %v", proven, err)
	}
	if proven, err := Proven(later, one); !proven || err != nil {
		t.Errorf("the first copy is not proven any more: %v, %v", proven, err)
	}
	// A request that is repeated with the copy of the call before is another request.
	if _, again, err := RequestConfirm(later, two); err != nil || again.Request != 3 {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	// Nobody writes: the request is stored all the same, and proves that the record was the current one.
	got, asked, err := RequestConfirm(record(t, "|a=InSync,b=InSync"), c)
	if err != nil {
		t.Fatal(err)
	}
	if proven, err := Proven(got, asked); got.ConfirmRequested != 1 || !proven || err != nil {
		t.Errorf("nobody writes: %+v of %+v, %v, %v", asked, got, proven, err)
	}
	gone := record(t, next+"|a=InSync,b=Out/7")
	gone.Epoch++
	if _, _, err := RequestConfirm(gone, c); !errors.Is(err, ErrChanged) {
		t.Errorf("it is out: %v", err)
	}
}

func TestProven(t *testing.T) {
	with := func(text string, requested, confirmed int64) Record {
		r := record(t, text)
		r.ConfirmRequested, r.Confirmed = requested, confirmed
		return r
	}
	unstarted := with(next+"|a=InSync,b=InSync", 3, 0)
	unstarted.Dirty = false
	raised := with(next+"|a=InSync,b=InSync", 3, 3)
	raised.Epoch++
	stopped, err := holder.Stop(with(next+"|a=InSync,b=InSync", 3, 0))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		record  Record
		request int64
		proven  bool
		err     error
	}{
		"confirmed":                              {with(next+"|a=InSync,b=InSync", 3, 3), 3, true, nil},
		"a later request is confirmed":           {with(next+"|a=InSync,b=InSync", 4, 4), 3, true, nil},
		"only an earlier request is confirmed":   {with(next+"|a=InSync,b=InSync", 3, 2), 3, false, nil},
		"never requested":                        {with(next+"|a=InSync,b=InSync", 3, 3), 0, false, nil},
		"an older node plugin dropped the count": {with(next+"|a=InSync,b=InSync", 0, 0), 3, false, nil},
		"the other one returns":                  {with(next+"|a=Returning/5,b=InSync", 3, 3), 3, true, nil},
		"confirmed in a later epoch":             {raised, 3, false, ErrChanged},
		"it is out":                              {with(next+"|a=InSync,b=Out/5", 3, 3), 3, false, ErrChanged},
		"it is no member":                        {with(next+"|a=InSync", 3, 3), 3, false, ErrChanged},
		"clean, and held by a node":              {unstarted, 3, false, nil},
		"stopped cleanly before it was asked":    {stopped, 3, true, nil},
		"detached, and nobody writes":            {with("|a=InSync,b=InSync", 3, 0), 3, true, nil},
		"detached, and the read may be old":      {with("|a=InSync,b=InSync", 0, 0), 0, false, nil},
		"detached uncleanly":                     {with("~|a=InSync,b=InSync", 3, 2), 3, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			defer unchanged(t, c.record)()
			proven, err := Proven(c.record, Copy{Replica: "b", Epoch: 7, Request: c.request})
			if proven != c.proven || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("got %v, %v; want %v, %v", proven, err, c.proven, c.err)
			}
		})
	}
}

func TestConfirm(t *testing.T) {
	r := record(t, former+"|a=InSync,b=InSync")
	r.ConfirmRequested = 2
	defer unchanged(t, r)()
	if _, err := holder.Confirm(r); !errors.Is(err, ErrNotHolder) {
		t.Errorf("another holds it: %v", err)
	}
}
