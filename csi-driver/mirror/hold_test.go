// SPDX-License-Identifier: Apache-2.0

package mirror_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
	. "github.com/weft-storage/weft/csi-driver/mirror"
)

var holder = Holder{Attachment: next, Mark: "new", Now: now}

func marks(names string) map[string]string {
	all := map[string]string{}
	for name := range strings.FieldsSeq(names) {
		all[name] = "m-" + name
	}
	return all
}

// TestHold has rules 3 and 4.
func TestHold(t *testing.T) {
	lost := func(r Record) (Record, error) { return holder.Lost(r, "b", ReasonLost, marks("a")) }
	returns := func(r Record) (Record, error) { return holder.Return(r, "b", "fresh", false, marks("a b")) }
	ahead := func(r Record) (Record, error) { return holder.Return(r, "b", "fresh", true, marks("a b")) }
	complete := func(r Record) (Record, error) { return holder.Complete(r, "b", marks("a b")) }
	refill := func(r Record) (Record, error) { return holder.Refill(r, "b", marks("a b")) }
	keep := func(r Record) (Record, error) { return holder.Keep(r, "b", nil) }
	for name, c := range map[string]struct {
		record string
		change func(Record) (Record, error)
		want   string
		err    error
	}{
		"lost": {"a=InSync,b=InSync", lost, "a=InSync,b=Out/7", nil},
		// Both legs fail one after the other: the one that goes last has all data.
		"the last is never lost":               {"a=Out/5,b=InSync", lost, "", ErrLast},
		"nor with one that is only filled":     {"a=Filling,b=InSync", lost, "", ErrLast},
		"nor with one that returns":            {"a=Returning/5,b=InSync", lost, "", ErrLast},
		"nor with a suspect":                   {"a=InSync?,b=InSync", lost, "", ErrLast},
		"lost already":                         {"a=InSync,b=Out/5", lost, "", ErrMember},
		"a return that is lost may be resumed": {"a=InSync,b=Returning/5", lost, "a=InSync,b=Out/5", nil},
		"a filling that is lost starts again":  {"a=InSync,b=Filling", lost, "a=InSync,b=Out", nil},
		"by bitmap":                            {"a=InSync,b=Out/5", returns, "a=InSync,b=Returning/5", nil},
		// The bitmap knows nothing of the regions that were not filled yet.
		"never in sync, so not by bitmap": {"a=InSync,b=Out", returns, "a=InSync,b=Filling", nil},
		"a new one":                       {"a=InSync,b=Filling", returns, "a=InSync,b=Filling", nil},
		"after a restart":                 {"a=InSync,b=Returning/5", returns, "a=InSync,b=Returning/5", nil},
		"in sync":                         {"a=InSync,b=InSync", returns, "", ErrMember},
		"retired":                         {"a=InSync,b=Out/5-", returns, "", ErrMember},
		// A fenced holder's kernel went on with b alone; the bitmap of a does not know what it wrote.
		"it went on alone":                      {"a=InSync,b=Out/5", ahead, "", ErrForeign},
		"it went on alone, and a person judged": {"a=InSync,b=Out", ahead, "a=InSync,b=Filling", nil},
		"the kernel refuses the bitmap":         {"a=InSync,b=Returning/5", refill, "a=InSync,b=Filling", nil},
		"refill of what is filled":              {"a=InSync,b=Filling", refill, "", ErrMember},
		"copied":                                {"a=InSync,b=Returning/5", complete, "a=InSync,b=InSync", nil},
		"filled":                                {"a=InSync,b=Filling", complete, "a=InSync,b=InSync", nil},
		// a was given up, b answered errors, and the kernel went on with a, which it had not let go of yet.
		"kept after all":             {"a=InSync,b=Out/5", keep, "a=InSync,b=Returning/5", nil},
		"kept, and in sync only now": {"a=InSync,b=Out", keep, "a=InSync,b=Filling", nil},
		"kept though in sync":        {"a=InSync,b=InSync", keep, "", ErrMember},
		"nothing was copied":         {"a=InSync,b=Out/5", complete, "", ErrMember},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(t, next+"|"+c.record)
			defer unchanged(t, r)()
			got, err := c.change(r)
			check(t, r, got, err, next+"|"+c.want, c.err)
		})
	}
}

// A record of which a holder, or an agent, finds that it may be the past: no member leaves by it, nor is one taken for
// the only source, before all have been compared.
func TestRecordsOfThePast(t *testing.T) {
	r := record(t, "clean "+next+"|a=InSync,b=Returning/5,c=Filling-")
	distrusted, err := holder.Distrust(r)
	if want := next + "|a=InSync?,b=Returning/5?,c=Filling?"; err != nil || show(distrusted) != want || !distrusted.Dirty || distrusted.Epoch != r.Epoch {
		t.Errorf("got %s, %v", String(distrusted), err)
	}
	if _, err := (Holder{former, "new", now}).Distrust(r); !errors.Is(err, ErrNotHolder) {
		t.Errorf("another holder: %v", err)
	}
	stopped, err := holder.Stop(distrusted)
	if want := next + "|a=InSync,b=Returning/5?,c=Filling?"; err != nil || show(stopped) != want || stopped.Dirty {
		t.Errorf("those that were in sync at a clean end have been compared: %s, %v", String(stopped), err)
	}
	left := Begin
	if is := left(distrusted); Idle(is, is.Members[2]) {
		t.Error("a member may leave of which it is not known what it has")
	}
	doubted := Uncertain(left(r))
	if want := "|a=InSync?,b=Returning/5?,c=Filling?"; show(doubted) != want || !doubted.Dirty || !IsUncertain(doubted) || IsUncertain(left(r)) {
		t.Errorf("nobody holds it, and an agent suspects a restore: %s", String(doubted))
	}
	doubted.Members[2].Retired = true
	if Idle(doubted, doubted.Members[2]) {
		t.Error("one that nobody has begun to fill by the record leaves by it")
	}
	doubted.Members[1].State = v1alpha1.MemberOut
	if Removable(doubted, doubted.Members[1]) {
		t.Error("one that is out by the record leaves by it")
	}
	if held := Uncertain(r); show(held) != show(r) || !held.Dirty || !IsUncertain(held) {
		t.Errorf("its holder finds out by itself: %s", String(held))
	}
	detached := record(t, "|a=InSync-,b=InSync")
	only := []Confirmation{{Replica: Replica{Name: "b", UID: "u-b"}}}
	if admitted, err := Admit(detached, next, only, now); err != nil || StateOf(admitted, "a") != v1alpha1.MemberOut {
		t.Errorf("of equal members, one is enough: %s, %v", String(admitted), err)
	}
	if _, err := Admit(Uncertain(detached), next, only, now); !errors.Is(err, ErrNeedsPerson) {
		t.Errorf("one that may lack data is the only source: %v", err)
	}
}

// A header may have the mark that was read, or the new one, until it is read again.
func TestMarks(t *testing.T) {
	r := record(t, next+"|a=InSync,b=InSync")
	r.Members[1].Marks = nil
	stamp := func(mark string, read map[string]string) error {
		got, err := Holder{next, mark, now}.Stamp(r, read)
		if err == nil {
			r = got
		}
		return err
	}
	if err := stamp("m1", map[string]string{"a": "m-a", "b": NoMark}); err != nil {
		t.Fatal(err)
	}
	// The write of b's header was cut off, and again.
	for _, mark := range []string{"m2", "m3"} {
		if err := stamp(mark, map[string]string{"b": NoMark}); err != nil {
			t.Fatal(err)
		}
	}
	for mark, fits := range map[string]bool{NoMark: true, "m3": true, "m2": false, "m1": false} {
		if err := Check(r, "b", Header{Epoch: 1, Mark: mark}); errors.Is(err, ErrForeign) == fits {
			t.Errorf("%s: %v", mark, err)
		}
	}
	if err := stamp("m4", map[string]string{"b": "m2"}); !errors.Is(err, ErrForeign) {
		t.Errorf("an unknown mark: %v", err)
	}
	if err := stamp("", map[string]string{"b": "m3"}); !errors.Is(err, ErrForeign) {
		t.Errorf("no mark: %v", err)
	}
	if err := stamp(NoMark, nil); !errors.Is(err, ErrForeign) {
		t.Errorf("the mark of none: %v", err)
	}
	if err := stamp("m4", map[string]string{"c": "m3"}); !errors.Is(err, ErrMember) {
		t.Errorf("no member: %v", err)
	}
	if _, err := holder.Lost(r, "b", ReasonLost, map[string]string{"b": "m3"}); !errors.Is(err, ErrMember) {
		t.Errorf("the header of the lost one: %v", err)
	}
	for i, change := range []func() (Record, error){
		func() (Record, error) {
			return holder.Return(record(t, next+"|a=InSync,b=Out/5"), "b", "fresh", false, marks("a"))
		},
		func() (Record, error) { return holder.Complete(record(t, next+"|a=InSync,b=Filling"), "b", marks("a")) },
	} {
		if _, err := change(); !errors.Is(err, ErrForeign) {
			t.Errorf("change %d without the header: %v", i, err)
		}
	}
}

func TestHeader(t *testing.T) {
	h := HeaderOf(record(t, next+"|b=Out/5,a=InSync"), "m")
	text, err := h.Encode()
	const want = `{"epoch":7,"mark":"m","holder":"` + next + `","members":{"a":"InSync","b":"Out"}}`
	if err != nil || text != want {
		t.Errorf("%s, %v", text, err)
	}
	if got, err := ParseHeader(text); err != nil || !cmp.Equal(h, got) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseHeader(""); err != nil || got.Mark != NoMark {
		t.Errorf("none: %+v, %v", got, err)
	}
	for _, bad := range []string{"{", `{}`, `{"epoch":1,"mark":"none"}`, `{"epoch":1,"mark":"any:5"}`, `{"epoch":0,"mark":"m"}`} {
		if _, err := ParseHeader(bad); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

// The API was restored to an earlier state. Epochs go on from there, so that they are no longer lower than those of the
// headers; marks tell.
func TestAfterARestore(t *testing.T) {
	r := record(t, "~|a=InSync,b=InSync")
	if err := Check(r, "b", Header{Epoch: 9, Mark: "m-b"}); !errors.Is(err, ErrForeign) {
		t.Errorf("a higher epoch: %v", err)
	}
	for range 5 {
		admitted, err := Admit(r, next, confirmed("a b"), now)
		if err != nil {
			t.Fatal(err)
		}
		r = Begin(admitted)
	}
	b := Header{Epoch: 9, Mark: "m9", Members: map[string]v1alpha1.MirrorMemberState{"a": v1alpha1.MemberOut, "b": v1alpha1.MemberInSync}}
	if err := Check(r, "b", b); !errors.Is(err, ErrForeign) {
		t.Errorf("an unknown mark: %v", err)
	}
	if err := Check(r, "c", b); !errors.Is(err, ErrMember) {
		t.Errorf("no member: %v", err)
	}
}

func TestMembers(t *testing.T) {
	a, b, c := Replica{"a", "u-a"}, Replica{"b", "u-b"}, Replica{"c", "u-c"}
	try := func(got Record, err error) func(want string, wantErr error) {
		return func(want string, wantErr error) {
			t.Helper()
			check(t, Record{Epoch: got.Epoch - 1}, got, err, want, wantErr)
		}
	}
	try(New("", []Replica{a, b}, nil, now))("|a=InSync,b=InSync", nil)
	try(New("", []Replica{a}, []Replica{b}, now))("|a=InSync,b=Filling", nil)
	try(New(next, []Replica{a}, []Replica{b}, now))(next+"|a=InSync,b=Filling", nil)
	try(New(next, []Replica{a, b}, nil, now))("", ErrMember)
	try(New("", nil, []Replica{b}, now))("", ErrMember)
	try(New("", []Replica{a}, []Replica{a}, now))("", ErrMember)
	try(Add(record(t, "|a=InSync,b=Out/5"), c, now))("|a=InSync,b=Out/5,c=Filling", nil)
	try(Add(record(t, "|a=InSync"), a, now))("", ErrMember)
	try(Add(record(t, "|a=InSync,b=Out,d=Out,e=Out,f=Out,g=Out"), c, now))("", ErrMember)
	if got, err := Retire(record(t, next+"|a=InSync,b=InSync"), "a"); err != nil || !got.Members[0].Retired {
		t.Errorf("%s, %v", String(got), err)
	}
	// A move's new replica is not filled yet.
	try(Retire(record(t, next+"|a=InSync,b=Filling"), "a"))("", ErrLast)
	try(Retire(record(t, next+"|a=InSync,b=Filling"), "c"))("", ErrMember)
	try(Remove(record(t, next+"|a=InSync,b=Out/5-"), "b"))(next+"|a=InSync", nil)
	try(Remove(record(t, next+"|a=InSync,b=InSync-"), "b"))("", ErrMember)
	try(Remove(record(t, next+"|a=InSync"), "b"))("", ErrMember)
	// The holder's kernel may still drop a, because of an error, and go on with b.
	used := record(t, next+"|a=InSync,b=Out/5-")
	used.Members[1].Identity = "used"
	try(Remove(used, "b"))("", ErrMember)
	fenced := Begin(used)
	fenced.Dirty = true
	try(Remove(fenced, "b"))("", ErrMember)
	fenced.Dirty = false
	try(Remove(fenced, "b"))("|a=InSync", nil)
	released, err := holder.Released(used, "b")
	if err != nil {
		t.Fatal(err)
	}
	try(Remove(released, "b"))(next+"|a=InSync", nil)
	if _, err := holder.Released(record(t, next+"|a=InSync,b=InSync-"), "b"); !errors.Is(err, ErrMember) {
		t.Errorf("a member in sync is released: %v", err)
	}
	if got, err := holder.Keep(released, "b", nil); !errors.Is(err, ErrMember) {
		t.Errorf("a member that was let go of is kept: %s, %v", String(got), err)
	}
	if Whole(record(t, "|a=InSync,b=Out")) || !Whole(record(t, "|a=InSync,b=InSync")) {
		t.Error("a volume grows only while all of its replicas are in sync")
	}
	if StateOf(record(t, "|a=InSync"), "b") != v1alpha1.MemberOut {
		t.Error("a replica that is no member is not out")
	}
	if _, ok := Get(record(t, "|a=InSync"), "b"); ok {
		t.Error("there is a b")
	}
}

// Commands that were sent under the former identity can still be under way.
func TestReturnUnderTheFormerIdentity(t *testing.T) {
	r := record(t, next+"|a=InSync,b=Out/5")
	r.Members[1].Identity = "used"
	for _, identity := range []string{"", "used"} {
		if _, err := holder.Return(r, "b", identity, false, marks("a b")); !errors.Is(err, ErrMember) {
			t.Errorf("%q: %v", identity, err)
		}
	}
	if got, err := holder.Return(r, "b", "fresh", false, marks("a b")); err != nil || got.Members[1].Identity != "fresh" {
		t.Errorf("%s, %v", String(got), err)
	}
}

// A member that was refused is foreign until it returns, or its record is recovered. Nothing else follows from it.
func TestRefuse(t *testing.T) {
	r := record(t, next+"|a=InSync,b=Out/5")
	defer unchanged(t, r)()
	refused, err := holder.Refuse(r, "b")
	if err != nil || !refused.Members[1].Foreign || refused.Epoch != r.Epoch {
		t.Fatalf("%+v, %v", refused, err)
	}
	for name, c := range map[string]struct {
		change  func(Record) (Record, error)
		foreign bool
	}{
		"it is refused again": {func(r Record) (Record, error) { return holder.Refuse(r, "b") }, true},
		"another holder":      {func(r Record) (Record, error) { return Admit(Begin(r), "pod", confirmed("a"), now) }, true},
		"it returns":          {func(r Record) (Record, error) { return holder.Return(r, "b", "fresh", false, marks("a b")) }, false},
		"a recovery":          {func(r Record) (Record, error) { return Choose(Doubt(r), "a", headersOf("a: 9 m9 a=InSync,b=Out"), now) }, false},
	} {
		got, err := c.change(refused)
		if m, is := Get(got, "b"); err != nil || !is || m.Foreign != c.foreign {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	for _, other := range []string{"a", "c"} {
		if _, err := holder.Refuse(r, other); !errors.Is(err, ErrMember) {
			t.Errorf("%s: %v", other, err)
		}
	}
	if _, err := holder.Refuse(record(t, former+"|a=InSync,b=Out/5"), "b"); !errors.Is(err, ErrNotHolder) {
		t.Errorf("another holds it: %v", err)
	}
}

func TestProgress(t *testing.T) {
	r := record(t, next+"|a=InSync,b=Filling")
	got, err := holder.Progress(r, "b", 5)
	if m, _ := Get(got, "b"); err != nil || m.CopiedBytes != 5 || got.Epoch != r.Epoch {
		t.Errorf("%s, %v", String(got), err)
	}
	if _, err := holder.Progress(r, "a", 5); !errors.Is(err, ErrMember) {
		t.Errorf("in sync: %v", err)
	}
}

// A node is lost while it copies to c for nobody: whoever comes next needs no answer of it, if the record was clean. c
// has nothing that the others lack. After a pod, or over a dirty record, c may be the only one that has everything.
func TestAMoverLeavesTheRecordAsCleanAsItWas(t *testing.T) {
	for name, tc := range map[string]struct {
		mover v1alpha1.MoverState
		dirty bool
		err   error
	}{
		"mover":                     {v1alpha1.MoverCopy, false, nil},
		"mover over a dirty record": {v1alpha1.MoverCopy, true, ErrNeedsPerson},
		"pod":                       {"", false, ErrNeedsPerson},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(t, "|a=InSync,b=InSync,c=Filling")
			r.Holder, r.Mover, r.Dirty = next, tc.mover, tc.dirty
			var found []Found
			for _, m := range r.Members[:2] {
				found = append(found, Found{Replica: Replica{Name: m.Replica, UID: m.ReplicaUID}, Mark: "m-" + m.Replica, Identity: "id-" + m.Replica})
			}
			r, err := holder.Start(r, found)
			if err == nil {
				r, err = Holder{Attachment: next, Mark: "newer", Now: now}.Return(r, "c", "id-c", false, map[string]string{"a": "new", "b": "new", "c": "m-c"})
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = Admit(Begin(r), "pod", []Confirmation{{Replica: Replica{Name: "a", UID: r.Members[0].ReplicaUID}}, {Replica: Replica{Name: "b", UID: r.Members[1].ReplicaUID}}}, now)
			if !errors.Is(err, tc.err) {
				t.Errorf("got %v, want %v", err, tc.err)
			}
		})
	}
}

// Only an update that nobody decides anything by is left out, and never one that an informer repeats.
func TestOnlyProgress(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.NvmfMirror)
		want   bool
	}{
		"nothing":         {func(*v1alpha1.NvmfMirror) {}, false},
		"another version": {func(m *v1alpha1.NvmfMirror) { m.ResourceVersion = "2" }, false},
		"bytes":           {func(m *v1alpha1.NvmfMirror) { m.ResourceVersion, m.Spec.Members[1].CopiedBytes = "2", 5 }, true},
		"why it waits":    {func(m *v1alpha1.NvmfMirror) { m.ResourceVersion, m.Spec.MoverWaiting = "2", "it is staged" }, true},
		"bytes and a state": {func(m *v1alpha1.NvmfMirror) {
			m.Spec.Members[1].CopiedBytes, m.Spec.Members[1].State = 5, v1alpha1.MemberInSync
		}, false},
		"bytes and a label": {func(m *v1alpha1.NvmfMirror) { m.Spec.Members[1].CopiedBytes, m.Labels = 5, map[string]string{"a": "b"} }, false},
		"bytes of another":  {func(m *v1alpha1.NvmfMirror) { m.Spec.Members[1].CopiedBytes, m.UID = 5, "other" }, false},
		"the epoch":         {func(m *v1alpha1.NvmfMirror) { m.Spec.Epoch++ }, false},
	} {
		was := &v1alpha1.NvmfMirror{Spec: record(t, next+"|a=InSync,b=Filling")}
		was.ResourceVersion = "1"
		now := was.DeepCopy()
		c.change(now)
		if got := OnlyProgress(was, now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
