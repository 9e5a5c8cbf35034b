// SPDX-License-Identifier: Apache-2.0

package mirror_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
	. "github.com/weft-storage/weft/csi-driver/mirror"
)

// headersOf replicas, written "a: 9 m9 a=InSync,b=Out; b: ...". One without members was never written by a mirror.
func headersOf(text string) map[string]Header {
	all := map[string]Header{}
	for part := range strings.SplitSeq(text, ";") {
		replica, rest, _ := strings.Cut(strings.TrimSpace(part), ":")
		fields := strings.Fields(rest)
		if len(fields) < 3 {
			all[replica] = Header{Mark: NoMark, Blank: len(fields) == 1} // "blank"
			continue
		}
		h := Header{Mark: fields[1], Members: map[string]v1alpha1.MirrorMemberState{}}
		for _, digit := range fields[0] {
			h.Epoch = h.Epoch*10 + int64(digit-'0')
		}
		for member := range strings.SplitSeq(fields[2], ",") {
			name, state, _ := strings.Cut(member, "=")
			h.Members[name] = v1alpha1.MirrorMemberState(state)
		}
		all[replica] = h
	}
	return all
}

// What follows from the headers of a volume whose record is not true. The record itself always says the same.
func TestRecover(t *testing.T) {
	for _, tc := range []struct {
		name, headers, want string
		err                 error
	}{
		{"both", "a: 9 m9 a=InSync,b=InSync; b: 9 m9 a=InSync,b=InSync", "a b", nil},
		{"b went on alone", "a: 7 m7 a=InSync,b=InSync; b: 9 m9 a=Out,b=InSync", "b", nil},
		{"b went on alone, and a was returning", "a: 9 m9 a=Returning,b=InSync; b: 9 m9 a=Returning,b=InSync", "b", nil},
		{"a returned, and the header of b was written last", "a: 9 m9 a=InSync,b=Out; b: 8 m8 a=InSync,b=InSync", "a", nil},
		{"a returned, and the header of b was not written any more", "a: 9 m9 a=InSync,b=Out; b: 7 m7 a=Filling,b=InSync", "", ErrNeedsPerson},
		// The return of b was stored, a says so, and b was never copied to. After the restore, b was used without a.
		{"b was to return, and was used by an earlier record", "a: 12 m12 a=InSync,b=Returning; b: 20 m20 a=Out,b=InSync", "", ErrNeedsPerson},
		{"a was in sync before it says so", "a: ; b: 9 m9 a=InSync,b=InSync", "b", nil},
		{"neither was started, and both were written", "a: ; b: ", "", ErrNeedsPerson},
		{"one was started, and the other is blank", "a: 9 m9 a=Filling,b=InSync; b: blank", "", ErrNeedsPerson},
		{"neither says that it has all", "a: 9 m9 a=Filling,b=InSync; b: 9 m9 a=InSync,b=Returning", "", ErrNeedsPerson},
		{"two histories of one epoch", "a: 9 m8 a=InSync,b=Out; b: 9 m9 a=Out,b=InSync", "", ErrNeedsPerson},
		// After the restore, b was used by an earlier record, while a, which had gone on alone, was away.
		{"each newer in turn", "a: 9 m9 a=InSync,b=Out; b: 12 m12 a=Out,b=InSync", "", ErrNeedsPerson},
		{"each newer in turn, the other way", "a: 12 m12 a=InSync,b=Out; b: 9 m9 a=Out,b=InSync", "", ErrNeedsPerson},
		{"b cannot be asked", "a: 9 m9 a=InSync,b=InSync", "", ErrUnasked},
		{"b cannot be asked, and is out by the other", "a: 9 m9 a=InSync,b=Out", "", ErrUnasked},
		{"a replica that is no member has all", "a: 9 m9 a=InSync,b=Out,c=InSync; b: 7 m7 a=InSync,b=InSync", "", ErrUnasked},
		{"a replica that is no member was being filled", "a: 9 m9 a=InSync,b=Out,c=Filling; b: 7 m7 a=InSync,b=InSync", "", ErrUnasked},
		{"a replica that is no member was removed", "a: 9 m9 a=InSync,b=InSync,c=Out; b: 9 m9 a=InSync,b=InSync,c=Out", "a b", nil},
		{"a header of what is no member", "a: 9 m9 a=InSync,b=Out; b: 7 m7 a=InSync,b=InSync; c: 7 m7 c=InSync", "", ErrMember},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Doubt(record(t, next+"|a=InSync,b=InSync"))
			headers := headersOf(tc.headers)
			same := unchanged(t, r)
			got, err := Recover(r, headers, now)
			same()
			if !errors.Is(err, tc.err) {
				t.Fatalf("got %s, %v", String(got), err)
			}
			if err != nil {
				return
			}
			if in := strings.Join(InSync(got), " "); in != tc.want {
				t.Errorf("in sync are %s", in)
			}
			for _, m := range got.Members {
				if !m.Suspect || m.LastInSyncEpoch != 0 {
					t.Errorf("%s is not compared, or copied by bitmap: %+v", m.Replica, m)
				}
			}
			recoveredOnce(t, r, got, headers)
		})
	}
}

// No mirror was ever started: replicas that nobody wrote are equal, and one that was written has all there is.
func TestRecoverWhatWasNeverStarted(t *testing.T) {
	for headers, want := range map[string]string{"a: blank; b: blank": "|a=InSync,b=InSync", "a: ; b: blank": "|a=InSync,b=Out"} {
		r := Doubt(record(t, "|a=InSync,b=InSync"))
		r.Members[1].Identity = "i"
		got, err := Recover(r, headersOf(headers), now)
		check(t, Record{Epoch: got.Epoch - 1}, got, err, want, nil)
		if got.Dirty || got.Recovering {
			t.Errorf("%s: recovered, the record is %s", headers, String(got))
		}
		for replica, h := range headersOf(headers) {
			if err := Check(got, replica, h); err != nil {
				t.Error(err)
			}
		}
		if _, err := Admit(got, next, confirmed("a"), now); err != nil {
			t.Errorf("%s: a alone is not admitted: %v", headers, err)
		}
	}
	if _, err := Recover(Doubt(record(t, "|a=InSync,b=InSync")), headersOf("a: blank"), now); !errors.Is(err, ErrUnasked) {
		t.Errorf("b was not asked: %v", err)
	}
}

// The objects of the replicas were created again, and one of them is not in the record of the backup.
func TestRenew(t *testing.T) {
	r := Doubt(record(t, "|a=InSync,b=Out/5"))
	same, err := Renew(r, []Replica{{"a", "u-a"}, {"b", "u-b"}}, now)
	if err != nil || !cmp.Equal(same, r) {
		t.Errorf("nothing is new: %s, %v", String(same), err)
	}
	got, err := Renew(r, []Replica{{"a", "again"}, {"b", "u-b"}, {"c", "u-c"}}, now)
	check(t, r, got, err, "|a=InSync?,b=Out/5?,c=Filling?", nil)
	if a, _ := Get(got, "a"); a.ReplicaUID != "again" {
		t.Errorf("a has UID %s", a.ReplicaUID)
	}
	// The new one is the only one that is current.
	next, err := Recover(got, headersOf("a: 7 m7 a=InSync,b=Out,c=InSync; b: ; c: 9 m9 a=Out,b=Out,c=InSync"), now)
	if err != nil || !cmp.Equal(InSync(next), []string{"c"}) {
		t.Errorf("recovered, it is %s: %v", String(next), err)
	}
	if _, err := Renew(record(t, "|a=InSync"), nil, now); !errors.Is(err, ErrMember) {
		t.Errorf("a record that is not in doubt: %v", err)
	}
	read, err := AdmitReader(got, former, "n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(read, nil, now); !errors.Is(err, ErrHeld) {
		t.Errorf("while it is read: %v", err)
	}
}

// recoveredOnce: nobody holds the record, its epoch is beyond all that may have been seen, and no header is foreign.
func recoveredOnce(t *testing.T, was, got Record, headers map[string]Header) {
	t.Helper()
	if got.Holder != "" || got.Recovering || !got.Dirty {
		t.Errorf("recovered, the record is %s", String(got))
	}
	for replica, h := range headers {
		if got.Epoch < max(was.Epoch, h.Epoch)+1000 {
			t.Errorf("a keeper that stored a change before the restore takes epoch %d for the past", got.Epoch)
		}
		if err := Check(got, replica, h); err != nil {
			t.Error(err)
		}
	}
}

// Who goes on with the members of a recovered record is found by comparing them, so that all must be there.
func TestWhatIsRecoveredIsCompared(t *testing.T) {
	r, err := Recover(Doubt(record(t, "~|a=InSync,b=InSync")), headersOf("a: 7 m7 a=InSync,b=InSync; b: 9 m9 a=Out,b=InSync"), now)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Admit(r, next, confirmed("b"), now); !errors.Is(err, ErrNeedsPerson) {
		t.Errorf("b alone is admitted: %s, %v", String(got), err)
	}
	held, err := Admit(r, next, confirmed("a b"), now)
	if err != nil {
		t.Fatal(err)
	}
	h := Holder{Attachment: next, Mark: "m10", Now: now}
	// A kernel had dropped b, because of an error, and nobody had recorded that.
	kicked := []Found{{Replica: Replica{"a", "u-a"}, Mark: "m7", Identity: "i"}, {Replica: Replica{"b", "u-b"}, Mark: "m9", Identity: "j", Kicked: true}}
	if got, err := h.Start(held, kicked); !errors.Is(err, ErrNeedsPerson) {
		t.Errorf("started: %s, %v", String(got), err)
	}
}

// A person decides. What the others have is given up, and none of their headers keeps the volume from being used.
func TestChoose(t *testing.T) {
	r := Doubt(record(t, "~|a=InSync?,b=Out/5?-,c=Filling"))
	r.Members[1].Identity = "i"
	headers := headersOf("a: 12 m12 a=InSync,b=Out; b: 9 m9 a=Out,b=InSync")
	got, err := Choose(r, "b", headers, now)
	check(t, Record{Epoch: got.Epoch - 1}, got, err, "|a=Out,b=InSync,c=Out", nil)
	recoveredOnce(t, r, got, headers)
	if b, _ := Get(got, "b"); b.Retired || b.MayBeAhead() && b.Suspect {
		t.Errorf("b is to leave: %+v", b)
	}
	// c was not asked: it may have any header, and is filled.
	if err := Check(got, "c", Header{Epoch: 20, Mark: "unheard of"}); err != nil {
		t.Error(err)
	}
	// Not what it has since: it was filled, ran alone, and the API was restored to this record, which was used since.
	later := got
	later.Epoch += 10
	for epoch, want := range map[int64]error{got.Epoch - 1: nil, got.Epoch: ErrForeign, got.Epoch + 5: ErrForeign} {
		if err := Check(later, "c", Header{Epoch: epoch, Mark: "unheard of"}); !errors.Is(err, want) {
			t.Errorf("a header of epoch %d, given up in %d: %v", epoch, got.Epoch, err)
		}
	}
	held, err := Admit(got, next, confirmed("b"), now)
	if err != nil {
		t.Fatalf("b alone is not admitted: %v", err)
	}
	h := Holder{Attachment: next, Mark: "m-next", Now: now}
	if held, err = h.Start(held, []Found{{Replica: Replica{"b", "u-b"}, Mark: "m9", Identity: "i"}}); err != nil {
		t.Fatal(err)
	}
	for _, replica := range []string{"a", "c"} {
		mark := map[string]string{"a": "m12", "c": "unheard of"}[replica]
		back, err := h.Return(held, replica, "fresh", true, map[string]string{"b": "m-next", replica: mark})
		if err != nil || StateOf(back, replica) != v1alpha1.MemberFilling {
			t.Errorf("%s returns as %s: %v", replica, StateOf(back, replica), err)
		}
		if m, _ := Get(back, replica); !cmp.Equal(m.Marks, []string{mark, "m-next"}) {
			t.Errorf("%s has marks %v", replica, m.Marks)
		}
	}
	if _, err := Choose(r, "c", headers, now); !errors.Is(err, ErrUnasked) {
		t.Errorf("one that was not asked: %v", err)
	}
	if _, err := Choose(r, "d", headers, now); !errors.Is(err, ErrMember) {
		t.Errorf("no member: %v", err)
	}
}

// Nobody begins to write while a record is being recovered, and only who was to read headers reports them.
func TestNobodyHoldsARecordInDoubt(t *testing.T) {
	r := Doubt(record(t, next+"|a=InSync,b=Out/5"))
	if r.Holder != "" || !r.Recovering || r.Epoch < 1000 {
		t.Fatalf("in doubt, the record is %s", String(r))
	}
	if again := Doubt(r); !cmp.Equal(r, again) {
		t.Errorf("doubted twice, it is %s", String(again))
	}
	if got, err := Admit(r, next, confirmed("a b"), now); !errors.Is(err, ErrRecovering) {
		t.Errorf("admitted: %s, %v", String(got), err)
	}
	if _, err := AdmitReader(record(t, "|a=InSync"), next, "n"); !errors.Is(err, ErrMember) {
		t.Errorf("a reader of a record that is not in doubt: %v", err)
	}
	read, err := AdmitReader(r, next, "n")
	if err != nil || read.Mover != v1alpha1.MoverRead || read.HolderNode != "n" {
		t.Fatalf("%s, %v", String(read), err)
	}
	if _, err := AdmitReader(read, former, "n"); !errors.Is(err, ErrHeld) {
		t.Errorf("another reader: %v", err)
	}
	h := Holder{Attachment: next, Mark: "m", Now: now}
	for name, change := range map[string]func() (Record, error){
		"starts": func() (Record, error) {
			return h.Start(read, []Found{{Replica: Replica{"a", "u-a"}, Mark: "m-a", Identity: "i"}})
		},
		"stops":    func() (Record, error) { return h.Stop(read) },
		"confirms": func() (Record, error) { return h.Confirm(read) },
	} {
		if got, err := change(); !errors.Is(err, ErrRecovering) {
			t.Errorf("a reader %s: %s, %v", name, String(got), err)
		}
	}
	headers := headersOf("a: 9 m9 a=InSync,b=Out; b: ")
	reported := map[string]v1alpha1.MirrorHeader{}
	for replica, h := range headers {
		reported[replica] = Reported(h)
	}
	if _, err := Report(read, former, reported); !errors.Is(err, ErrNotHolder) {
		t.Errorf("another one reports: %v", err)
	}
	done, err := Report(read, next, reported)
	if err != nil || done.Mover != v1alpha1.MoverStopped {
		t.Fatalf("%s, %v", String(done), err)
	}
	if _, err := Report(done, next, reported); !errors.Is(err, ErrNotHolder) {
		t.Errorf("it reports twice: %v", err)
	}
	ended := Begin(done)
	headers["b"] = Header{Mark: NoMark, Members: map[string]v1alpha1.MirrorMemberState{}}
	if got := Headers(ended); !cmp.Equal(got, headers) {
		t.Errorf("the headers are %+v", got)
	}
	// A replica is used again by nobody, but a later reading counts alone.
	again, err := AdmitReader(ended, former, "n")
	if err != nil || len(Headers(again)) > 0 {
		t.Errorf("it keeps the headers %v of a former reading, %v", slices.Collect(maps.Keys(Headers(again))), err)
	}
}

// A record that is lost begins without knowing anything, and what could not be read is not known.
func TestLostRecord(t *testing.T) {
	r, err := NewDoubt([]Replica{{"a", "u-a"}, {"b", "u-b"}}, now)
	if err != nil || !r.Recovering {
		t.Fatalf("%s, %v", String(r), err)
	}
	// Lost again, after it was recovered again and again, it is still no record of the past.
	recovered, lostAgain := r, now.Add(time.Minute)
	for range 10 {
		if recovered, err = Choose(Doubt(recovered), "a", headersOf("a: 9 m9 a=InSync"), now); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := NewDoubt([]Replica{{"a", "u-a"}}, lostAgain); err != nil || again.Epoch <= recovered.Epoch {
		t.Errorf("lost again, it has epoch %d after %d: %v", again.Epoch, recovered.Epoch, err)
	}
	for _, m := range r.Members {
		if m.ServesAlone(&v1alpha1.NvmfReplica{}) || !m.Suspect {
			t.Errorf("%s is taken for one that has everything", m.Replica)
		}
	}
	if r, err = AdmitReader(r, next, "n"); err == nil {
		r, err = Report(r, next, map[string]v1alpha1.MirrorHeader{"a": Reported(headersOf("a: 9 m9 a=InSync,b=InSync")["a"]), "b": {Error: "damaged"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	headers := Headers(Begin(r))
	if got, err := Recover(r, headers, now); !errors.Is(err, ErrUnasked) {
		t.Errorf("without a header that cannot be read: %s, %v", String(got), err)
	}
	got, err := Choose(r, "a", headers, now)
	check(t, Record{Epoch: got.Epoch - 1}, got, err, "|a=InSync,b=Out", nil)
	if a, _ := Get(got, "a"); a.Header == nil {
		t.Error("the record does not say by which headers it was recovered")
	}
	held, err := Admit(got, next, confirmed("a"), now)
	if err == nil {
		held, err = Holder{Attachment: next, Mark: "m", Now: now}.Start(held, []Found{{Replica: Replica{"a", "u-a"}, Mark: "m9", Identity: "i"}})
	}
	if err != nil || len(Headers(held)) > 0 {
		t.Errorf("started, it has the headers %v of before: %v", Headers(held), err)
	}
	if lacking := Lacking(got, headers); !cmp.Equal(lacking, []string{"b, whose header was not read"}) {
		t.Errorf("it lacks what %v has", lacking)
	}
	if _, err := NewDoubt(nil, now); err == nil {
		t.Error("a record without members")
	}
}
