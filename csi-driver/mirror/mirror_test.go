// SPDX-License-Identifier: Apache-2.0

package mirror_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
	. "github.com/weft-storage/weft/csi-driver/mirror"
)

const (
	former = "00000000-0000-4000-8000-00000000000f"
	next   = "00000000-0000-4000-8000-00000000000e"
	clean  = "clean "
)

var now = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// record is written "holder|a=InSync,b=Out/5": the number is lastInSyncEpoch; ? is a suspect, ! a member declared
// current in this epoch, - a retired one. A record with a holder is dirty, unless clean is in front of it; "~" as
// holder is none, and dirty.
func record(t *testing.T, text string) Record {
	t.Helper()
	text, isClean := strings.CutPrefix(text, clean)
	holder, list, _ := strings.Cut(text, "|")
	r := Record{Epoch: 7, Holder: holder, Dirty: holder != ""}
	if holder == "~" {
		r.Holder = ""
	}
	r.Dirty = r.Dirty && !isClean
	for part := range strings.SplitSeq(list, ",") {
		name, state, _ := strings.Cut(part, "=")
		m := Member{Replica: name, ReplicaUID: "u-" + name, Marks: []string{"m-" + name}}
		state, m.Suspect = cut(state, "?")
		state, m.Retired = cut(state, "-")
		var declared bool
		if state, declared = cut(state, "!"); declared {
			m.DeclaredCurrent = 7
		}
		var left bool
		if state, left = cut(state, "/5"); left {
			m.LastInSyncEpoch = 5
		}
		m.State = v1alpha1.MirrorMemberState(state)
		r.Members = append(r.Members, m)
	}
	return r
}

func cut(text, suffix string) (string, bool) { return strings.CutSuffix(text, suffix) }

// show is what record reads, but for epoch, marks and dirty.
func show(r Record) string {
	var members []string
	for _, m := range r.Members {
		text := m.Replica + "=" + string(m.State)
		if m.LastInSyncEpoch > 0 {
			text += "/"
			if m.LastInSyncEpoch == 7 {
				text += "7"
			} else {
				text += "5"
			}
		}
		for suffix, set := range map[string]bool{"?": m.Suspect} {
			if set {
				text += suffix
			}
		}
		members = append(members, text)
	}
	return r.Holder + "|" + strings.Join(members, ",")
}

func check(t *testing.T, before, got Record, err error, want string, wantErr error) {
	t.Helper()
	if wantErr != nil {
		if !errors.Is(err, wantErr) {
			t.Errorf("got %s, %v; want the error %v", show(got), err, wantErr)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, show(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if show(before) != show(got) && got.Epoch != before.Epoch+1 {
		t.Errorf("epoch %d follows %d", got.Epoch, before.Epoch)
	}
}

func unchanged(t *testing.T, r Record) func() {
	before := *r.DeepCopy()
	return func() {
		t.Helper()
		if diff := cmp.Diff(before, r); diff != "" {
			t.Errorf("the record that was given changed:\n%s", diff)
		}
	}
}

func confirmed(names string) []Confirmation {
	var all []Confirmation
	for name := range strings.FieldsSeq(names) {
		all = append(all, Confirmation{Replica: Replica{name, "u-" + name}})
	}
	return all
}

// TestAttach has rule 1.
func TestAttach(t *testing.T) {
	for name, c := range map[string]struct {
		record, confirmed, want string
		err                     error
	}{
		"all confirm":                       {"|a=InSync,b=InSync", "a b", "|a=InSync,b=InSync", nil},
		"all confirm, after an unclean end": {"~|a=InSync,b=InSync", "a b", "|a=InSync?,b=InSync?", nil},
		// The former holder writes to b while the new one reads a.
		"one does not confirm": {"|a=InSync,b=InSync", "a", "|a=InSync,b=Out/7", nil},
		"none does":            {"~|a=InSync,b=InSync", "", "", ErrUnconfirmed},
		// Nobody holds the record any more, but the former holder's writes can still be under way.
		"a member that is out confirms": {"~|a=InSync,b=Out/5", "b", "", ErrUnconfirmed},
		"out stays out":                 {"~|a=InSync,b=Out/5", "a b", "|a=InSync?,b=Out/5", nil},
		// The former holder's kernel dropped a because of an error, acknowledged on b alone, and died with it.
		"one does not confirm, after an unclean end": {"~|a=InSync,b=InSync", "a", "", ErrNeedsPerson},
		"a person says that it is current":           {"~|a=InSync!,b=InSync", "a", "|a=InSync,b=Out", nil},
		"and the other one is there":                 {"~|a=InSync!,b=InSync", "a b", "|a=InSync,b=Out", nil},
		// a was kept as a suspect by a holder that never started; the next one finds it alone.
		"a suspect is not trusted later": {"~|a=InSync?,b=InSync", "a", "", ErrNeedsPerson},
		"nothing is missing":             {"~|a=InSync", "a", "|a=InSync?", nil},
		"a return is interrupted":        {"~|a=InSync,b=Returning/5", "a b", "|a=InSync?,b=Out/5", nil},
		"a filling goes on":              {"~|a=InSync,b=Filling", "a", "|a=InSync?,b=Filling", nil},
		"it has a holder":                {former + "|a=InSync,b=InSync", "a b", "", ErrHeld},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(t, c.record)
			defer unchanged(t, r)()
			got, err := Admit(r, next, confirmed(c.confirmed), now)
			want := next + c.want
			check(t, r, got, err, want, c.err)
		})
	}
	// The former holder's kernel had copied b, dropped a because of an error, and acknowledged on b alone, all before
	// it was recorded.
	r := record(t, "~|a=InSync,b=Returning/5")
	r.Members[1].Identity = "used"
	for confirm, want := range map[string]string{"a b": "|a=InSync?,b=Out/5?", "a": ""} {
		var wantErr error
		if want == "" {
			wantErr = ErrNeedsPerson
		}
		got, err := Admit(r, next, confirmed(confirm), now)
		check(t, r, got, err, next+want, wantErr)
	}
	r = record(t, "~|a=InSync")
	if _, err := Admit(r, next, []Confirmation{{Replica: Replica{"a", "another"}}}, now); !errors.Is(err, ErrMember) {
		t.Errorf("another replica with the name: %v", err)
	}
	// The member whose agent knows better must not be dropped as one that does not confirm.
	past := record(t, "~|a=InSync,b=InSync")
	if _, err := Admit(past, next, append(confirmed("a"), Confirmation{Replica: Replica{"b", "u-b"}, Past: true}), now); !errors.Is(err, ErrForeign) {
		t.Errorf("an agent knows better: %v", err)
	}
	if _, err := Admit(r, "", confirmed("a"), now); !errors.Is(err, ErrNotHolder) {
		t.Errorf("no holder: %v", err)
	}
}

func TestFence(t *testing.T) {
	r := record(t, former+"|a=InSync,b=InSync")
	fenced := Begin(r)
	check(t, r, fenced, nil, "|a=InSync,b=InSync", nil)
	if again := Begin(fenced); again.Epoch != fenced.Epoch || !again.Dirty {
		t.Errorf("fenced again: %s", String(again))
	}
	// The former holder can record nothing: neither in the fenced record nor in the next holder's.
	h := Holder{Attachment: former, Mark: "m", Now: now}
	admitted, err := Admit(fenced, next, confirmed("a b"), now)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Record{fenced, admitted} {
		var errs []error
		_, err := h.Start(r, nil)
		errs = append(errs, err)
		_, err = h.Lost(r, "b", ReasonLost, nil)
		errs = append(errs, err)
		_, err = h.Return(r, "b", "fresh", false, nil)
		errs = append(errs, err)
		_, err = h.Refill(r, "b", nil)
		errs = append(errs, err)
		_, err = h.Complete(r, "b", nil)
		errs = append(errs, err)
		_, err = h.Stamp(r, nil)
		errs = append(errs, err)
		_, err = h.Stop(r)
		errs = append(errs, err)
		_, err = h.Progress(r, "b", 1)
		for i, err := range append(errs, err) {
			if !errors.Is(err, ErrNotHolder) {
				t.Errorf("change %d of the former holder: %v", i, err)
			}
		}
	}
}

func TestDeclare(t *testing.T) {
	r := record(t, "~|a=InSync,b=Out/5")
	declared, err := Declare(r, "a")
	if m, _ := Get(declared, "a"); err != nil || m.DeclaredCurrent != 7 || declared.Epoch != 7 {
		t.Errorf("%s, %v", String(declared), err)
	}
	for _, replica := range []string{"b", "c"} {
		if _, err := Declare(r, replica); !errors.Is(err, ErrMember) {
			t.Errorf("%s: %v", replica, err)
		}
	}
	// It held for another epoch, and so for another history.
	r = record(t, "~|a=InSync!,b=InSync")
	r.Epoch++
	if _, err := Admit(r, next, confirmed("a"), now); !errors.Is(err, ErrNeedsPerson) {
		t.Errorf("a declaration of the past: %v", err)
	}
}

// TestStart has rule 2. A name with * was kicked by a former kernel, one with : and a mark has that mark.
func TestStart(t *testing.T) {
	for name, c := range map[string]struct {
		record, found, want string
		err                 error
	}{
		"all are there":                  {next + "|a=InSync,b=InSync", "a b", "|a=InSync,b=InSync", nil},
		"suspects, all there":            {next + "|a=InSync?,b=InSync?", "a b", "|a=InSync,b=InSync", nil},
		"one is not, after a clean end":  {clean + next + "|a=InSync,b=InSync", "a", "|a=InSync,b=Out/7", nil},
		"none is":                        {next + "|a=InSync,b=InSync", "", "", ErrUnconfirmed},
		"one was kicked, though clean":   {clean + next + "|a=InSync,b=InSync", "a* b", "|a=Out/7,b=InSync", nil},
		"and a person decided otherwise": {clean + next + "|a=InSync!,b=InSync,c=InSync", "a* b", "|a=Out/7,b=InSync,c=Out/7", nil},
		// The kernel before a reboot of the same node dropped a, acknowledged on b alone, and b is away now.
		"one is not, after an unclean end": {next + "|a=InSync,b=InSync", "a", "", ErrNeedsPerson},
		"a suspect alone":                  {next + "|a=InSync?,b=InSync", "a", "", ErrNeedsPerson},
		"a person decided":                 {next + "|a=InSync!?,b=InSync", "a", "|a=InSync,b=Out", nil},
		// Taken as equal, a would be copied over what was acknowledged on b.
		"one was kicked":                           {next + "|a=InSync?,b=InSync?", "a* b", "|a=Out/7,b=InSync", nil},
		"it was kicked, and a person decided":      {next + "|a=InSync!?,b=Out/5?", "a* b", "|a=InSync,b=Out", nil},
		"the only one, by one that is not in sync": {next + "|a=InSync?,b=Out/5?", "a* b", "", ErrNeedsPerson},
		"a suspect that is out has to be compared": {next + "|a=InSync?,b=Out/5?", "a", "", ErrNeedsPerson},
		"it was compared":                          {next + "|a=InSync?,b=Out/5?", "a b", "|a=InSync,b=Out/5", nil},
		"each kicked the other":                    {next + "|a=InSync,b=InSync", "a* b*", "", ErrNeedsPerson},
		// The record was restored to a time before b went on alone.
		"a header of the future":             {next + "|a=InSync,b=InSync", "a b:m9", "", ErrForeign},
		"of a member that is out":            {next + "|a=InSync,b=Out/5", "a b:m9", "", ErrForeign},
		"a header that lost its mark":        {next + "|a=InSync,b=InSync", "a b:none", "", ErrForeign},
		"a member that is out is not source": {next + "|a=InSync,b=Out/5", "b", "", ErrUnconfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(t, c.record)
			defer unchanged(t, r)()
			var all []Found
			for text := range strings.FieldsSeq(c.found) {
				text, mark, foreign := strings.Cut(text, ":")
				kicked := strings.Contains(text, "*")
				confirmed := confirmed(strings.Replace(text, "*", "", 1))[0]
				if !foreign {
					mark = "m-" + confirmed.Name
				}
				all = append(all, Found{Replica: confirmed.Replica, Mark: mark, Identity: "i", Kicked: kicked})
			}
			got, err := Holder{next, "new", now}.Start(r, all)
			check(t, r, got, err, next+c.want, c.err)
			if err != nil {
				return
			}
			for _, m := range got.Members {
				want := []string{"m-" + m.Replica}
				if m.State == v1alpha1.MemberInSync {
					want = append(want, "new")
				}
				if diff := cmp.Diff(want, m.Marks); diff != "" {
					t.Errorf("marks of %s:\n%s", m.Replica, diff)
				}
			}
		})
	}
}

// Blank members are equal. The record says so only while nobody holds it, and nobody has since it says who is in sync;
// and only if the agent of each that is in sync has said it.
func TestEquate(t *testing.T) {
	ab := []Replica{{"a", "u-a"}, {"b", "u-b"}}
	for name, tt := range map[string]struct {
		is      string
		blank   []Replica
		edit    func(*Record)
		want    string
		wantErr error
	}{
		"a new one is blank":              {is: "|a=InSync,b=Filling", blank: ab, want: "|a=InSync,b=InSync"},
		"the new one is not":              {is: "|a=InSync,b=Filling", blank: ab[:1], want: "|a=InSync,b=Filling"},
		"another has the new one's name":  {is: "|a=InSync,b=Filling", blank: []Replica{ab[0], {"b", "u-other"}}, want: "|a=InSync,b=Filling"},
		"the one in sync is not":          {is: "|a=InSync,b=Filling", blank: ab[1:], wantErr: ErrUnconfirmed},
		"one of those in sync is not":     {is: "|a=InSync,b=Filling,c=InSync", blank: ab, wantErr: ErrUnconfirmed},
		"one that is out stays so":        {is: "|a=InSync,b=Out", blank: ab, want: "|a=InSync,b=Out"},
		"one that is to leave stays so":   {is: "|a=InSync,b=Filling-", blank: ab, want: "|a=InSync,b=Filling"},
		"one in sync that leaves is out":  {is: "|a=InSync-,b=InSync", blank: ab, want: "|a=Out/7,b=InSync"},
		"the last one does not leave":     {is: "|a=InSync-,b=Filling", blank: ab, want: "|a=InSync,b=InSync"},
		"somebody holds it":               {is: "h|a=InSync,b=Filling", blank: ab, wantErr: ErrHeld},
		"its end was unclean":             {is: "~|a=InSync,b=Filling", blank: ab, wantErr: ErrNeedsPerson},
		"it is being recovered":           {is: "|a=InSync,b=Filling", blank: ab, edit: func(r *Record) { r.Recovering = true }, wantErr: ErrRecovering},
		"a kernel had the one in sync":    {is: "|a=InSync,b=Filling", blank: ab, edit: func(r *Record) { r.Members[0].Identity = former }, wantErr: ErrUnconfirmed},
		"a kernel may have the new one":   {is: "|a=InSync,b=Filling", blank: ab, edit: func(r *Record) { r.Members[1].Identity = former }, wantErr: ErrUnconfirmed},
		"the new one's history is not it": {is: "|a=InSync,b=Filling", blank: ab, edit: func(r *Record) { r.Members[1].Foreign = true }, want: "|a=InSync,b=Filling"},
	} {
		t.Run(name, func(t *testing.T) {
			r := record(t, tt.is)
			if tt.edit != nil {
				tt.edit(&r)
			}
			got, err := Equate(r, tt.blank, now)
			if !errors.Is(err, tt.wantErr) {
				t.Fatalf("error %v, want %v", err, tt.wantErr)
			}
			if err != nil {
				return
			}
			if show(got) != tt.want {
				t.Errorf("%s, want %s", show(got), tt.want)
			}
			if changed := show(got) != show(r); changed != (got.Epoch == r.Epoch+1) || !changed && got.Epoch != r.Epoch {
				t.Errorf("epoch %d after %d", got.Epoch, r.Epoch)
			}
		})
	}
}

// A member that is to leave is withdrawn if nobody has begun to fill it.
func TestWithdraw(t *testing.T) {
	for is, want := range map[string]string{
		"|a=InSync,b=Filling-":       "|a=InSync,b=Out",
		"~|a=InSync,b=Filling-":      "|a=InSync,b=Out",
		"h|a=InSync,b=Filling-":      "",
		"|a=InSync,b=Filling":        "",
		"|a=InSync,b=Returning-/5":   "",
		"|a=InSync,c=InSync,b=Out-":  "",
		"|a=InSync,b=InSync-":        "",
		"~|a=InSync?,b=Filling?-":    "",
		"|a=InSync,c=Filling-,d=Out": "",
	} {
		r := record(t, is)
		got, err := Withdraw(r, "b", now)
		switch {
		case want == "" && !errors.Is(err, ErrMember):
			t.Errorf("%s: %v, %s", is, err, show(got))
		case want != "" && (err != nil || show(got) != want || got.Epoch != r.Epoch+1):
			t.Errorf("%s: %v, %s, want %s", is, err, show(got), want)
		}
	}
	r := record(t, "|a=InSync,b=Filling-")
	r.Members[1].Identity = former
	if _, err := Withdraw(r, "b", now); !errors.Is(err, ErrMember) {
		t.Errorf("one that a kernel may have: %v", err)
	}
	r.Members[1].Identity, r.Recovering = "", true
	if _, err := Withdraw(r, "b", now); !errors.Is(err, ErrMember) {
		t.Errorf("while the record is recovered: %v", err)
	}
}
