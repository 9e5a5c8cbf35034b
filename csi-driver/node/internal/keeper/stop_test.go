// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// pieces is an array that the kernel takes down as Linux does: its members leave sysfs one after the other, and a step
// may look in between.
type pieces struct {
	kernelArray
	look func()
}

func (p pieces) Stop(ctx context.Context) error {
	left := *p.n.array
	if err := p.kernelArray.Stop(ctx); err != nil {
		return err
	}
	left.members = maps.Clone(left.members)
	for _, name := range sorted(left.members) {
		delete(left.members, name)
		p.n.array = &left
		p.look()
	}
	p.n.array = nil
	return nil
}

// running is a node that keeps a mirror, in a world in which nothing else happens.
type running struct {
	testing.TB
	*world
	n *node
}

func startRunning(t testing.TB) running {
	t.Helper()
	w := newWorld(1, faults{})
	w.calm = true
	for w.api.mirror.Holder == "" {
		w.agents()
	}
	n := w.nodes["n1"]
	n.attachment = w.api.wish
	n.keep()
	return running{t, w, n}
}

// agents and the CSI controller do what there is to do for them.
func (w *world) agents() {
	w.now = w.now.Add(time.Second)
	w.controller()
	for _, name := range sorted(w.targets) {
		w.targets[name].agent()
	}
}

// steps the keeper makes until it, or the record, is as it should be.
func (r running) steps(most int, until func(Status) bool) bool {
	for range most {
		r.now = r.now.Add(100 * time.Millisecond)
		r.refresh()
		status := r.n.plugin.Step(context.Background())
		tasks := r.n.tasks
		r.n.tasks = nil
		for _, do := range tasks {
			do()
		}
		for range 100 {
			r.traffic()
		}
		if until(status) {
			return true
		}
	}
	return false
}

func (r running) want(what string, until func(Status) bool) {
	r.Helper()
	if !r.steps(1000, until) {
		r.Fatalf("never %s: %s", what, mirror.String(r.api.mirror.Record))
	}
}

func in(phase Phase) func(Status) bool { return func(s Status) bool { return s.Phase == phase } }

// Members that leave an array because it is stopped are not lost.
func TestAnArrayThatEndsPieceByPieceLosesNoMember(t *testing.T) {
	r := startRunning(t)
	looks := 0
	r.n.plugin.Array = pieces{kernelArray{r.n}, func() {
		looks++
		r.n.plugin.Step(t.Context())
	}}
	r.want("running", in(Running))
	r.n.plugin.Mode = Stop
	r.want("stopped", in(Stopped))
	if is := r.api.mirror.Record; looks == 0 || is.Dirty || !mirror.Whole(is) {
		t.Errorf("stopped, after %d looks, with the record %s", looks, mirror.String(is))
	}
}

// slowly deletes controllers, and what was made over them after that: look is called in between.
type slowly struct {
	kernelLegs
	look func()
}

func (s slowly) Delete(ctx context.Context, replica string) error {
	err := s.kernelLegs.Delete(ctx, replica)
	s.look()
	return err
}

// late are controllers that the kernel only begins to delete: look is called before they are gone.
type late struct {
	kernelLegs
	look func()
}

func (l late) Delete(ctx context.Context, replica string) error {
	l.look()
	return l.kernelLegs.Delete(ctx, replica)
}

// A member whose controllers are being deleted is not kept, although it answers again and is the last one that the
// kernel has: writes that it does not answer are acknowledged without it.
func TestAMemberThatIsBeingDeletedIsNotKept(t *testing.T) {
	r := startRunning(t)
	r.want("running", in(Running))
	other, lost := mirror.InSync(r.api.mirror.Record)[0], mirror.InSync(r.api.mirror.Record)[1]
	looks := 0
	r.n.plugin.Legs = late{kernelLegs{r.n}, func() {
		looks++
		r.targets[lost].powered = true
		r.refresh()
		r.n.array.fail(other)
		for range 100 {
			r.traffic()
			r.n.plugin.Step(t.Context())
		}
		if is, _ := mirror.Get(r.api.mirror.Record, lost); is.State != v1alpha1.MemberOut {
			t.Errorf("it is recorded as %s", is.State)
		}
	}}
	r.targets[lost].crash()
	r.want("given up", func(Status) bool { return looks > 0 })
}

// A mirror has not stopped while a call is still being made for it: that would act on what the next attachment makes.
func TestNoCallOutlivesTheMirror(t *testing.T) {
	runs := func(r running) bool { return r.n.array != nil }
	for name, tc := range map[string]struct {
		at  func(running) bool
		end func(running)
	}{
		"stopped":             {runs, func(r running) { r.n.plugin.Mode = Stop }},
		"left":                {runs, running.another},
		"left before it runs": {func(r running) bool { return len(r.n.legs) > 1 }, running.another},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRunning(t)
			looks := 0
			r.n.plugin.Legs = slowly{kernelLegs{r.n}, func() {
				looks++
				if s := r.n.plugin.Step(t.Context()); s.Phase == Stopped {
					t.Error("it has stopped, and a call has not ended")
				}
			}}
			r.want(name, func(Status) bool { return tc.at(r) })
			tc.end(r)
			r.want("stopped", in(Stopped))
			if looks == 0 {
				t.Error("nothing was deleted")
			}
		})
	}
}

// A mirror that another attachment holds is left, although a header is being read that does not answer.
func TestAMirrorIsLeftWhileAHeaderHangs(t *testing.T) {
	r := startRunning(t)
	r.want("running", in(Running))
	r.another()
	r.n.plugin.Step(t.Context())
	if len(r.n.tasks) == 0 {
		t.Fatal("no header is read")
	}
	r.targets[mirror.InSync(r.api.mirror.Record)[1]].crash()
	r.want("stopped", in(Stopped))
}

// another attachment holds the mirror.
func (r running) another() {
	r.api.mirror.Epoch++
	r.api.mirror.Holder = "the next"
}

// A record that is being recovered ends its mirror, although the headers are foreign to it: somebody has decided that.
// One whose recovery has ended since is the past, and the mirror of a restored API goes on, also in another process.
func TestOnlyARecoveryOfThePresentEndsAMirror(t *testing.T) {
	for name, tc := range map[string]struct {
		above int64
		ends  bool
	}{"it waits": {-1, true}, "it has ended since": {1, false}} {
		t.Run(name, func(t *testing.T) {
			r := startRunning(t)
			r.want("running", in(Running))
			doubted := mirror.Doubt(r.api.mirror.Record)
			r.api.mirror = Version{Record: doubted, ResourceVersion: "doubted"}
			for _, target := range r.targets {
				target.disk.header.Epoch, target.disk.header.Mark = doubted.Epoch+tc.above, "later"
			}
			r.n.kill()
			r.n.keep()
			r.n.plugin.Mode = Keep
			past := false
			ended := r.steps(200, func(s Status) bool {
				past = past || errors.Is(s.Err, ErrPast)
				return s.Phase == Stopped
			})
			if ended != tc.ends || past == tc.ends || tc.ends == (r.n.array != nil) {
				t.Errorf("it ended: %v; the record is the past: %v; the array is %+v", ended, past, r.n.array)
			}
		})
	}
}

// While the volume's device is made of a replica, what is written does not go through the array: no member is copied.
func TestNothingIsCopiedPastTheArray(t *testing.T) {
	r := startRunning(t)
	r.want("running", in(Running))
	lost := mirror.InSync(r.api.mirror.Record)[1]
	r.targets[lost].crash()
	r.want("out", func(Status) bool { return mirror.StateOf(r.api.mirror.Record, lost) == v1alpha1.MemberOut })
	r.n.top.bypasses = true
	r.targets[lost].powered = true
	back := func(Status) bool {
		r.agents()
		return mirror.StateOf(r.api.mirror.Record, lost) != v1alpha1.MemberOut
	}
	if r.steps(200, back) {
		t.Fatalf("it returned: %s", mirror.String(r.api.mirror.Record))
	}
	r.n.top.bypasses = false
	r.want("back", back)
}

// lagging is an API server that answers with an old record.
type lagging struct {
	Records
	old Version
}

func (l lagging) Get(context.Context) (Version, error) { return l.old, nil }

// A record from before the start that is read late, at any moment of the start, does not take a connection away from
// the array that is made, in whatever order the kernel does what it was asked for: writes would be acknowledged without
// that member, which the record has in sync.
func TestAnOldRecordTakesNoMemberFromAStart(t *testing.T) {
	for _, laterFirst := range []bool{false, true} {
		for at := 1; startWithAnOldRecord(t, at, laterFirst); at++ {
		}
	}
}

// startWithAnOldRecord is a start in which, after this step, an old record is read before the kernel has done what is
// asked for then; or, with laterFirst, what is asked for then is done after what a later step asks for. It tells
// whether the mirror had not started before.
func startWithAnOldRecord(t *testing.T, at int, laterFirst bool) bool {
	t.Helper()
	r := startRunning(t)
	now, old := r.n.plugin.Record, Version{Record: r.api.mirror.Record, ResourceVersion: "old"}
	old.Epoch, old.Holder = 1, ""
	step, after := 0, false
	running := func(s Status) bool {
		for name, is := range r.n.members() {
			if is != MemberAbsent && r.n.legs[name] == nil {
				t.Fatalf("after an old record at step %d, the array has %s, which is not connected", at, name)
			}
		}
		if step++; step == at {
			if !laterFirst {
				r.n.plugin.Step(t.Context())
			}
			r.n.plugin.Record = lagging{now, old}
			r.n.plugin.Step(t.Context())
			r.n.plugin.Record = now
			r.n.plugin.Step(t.Context())
			after = true
			if laterFirst {
				slices.Reverse(r.n.tasks)
			}
			for len(r.n.tasks) > 0 {
				do := r.n.tasks[0]
				r.n.tasks = r.n.tasks[1:]
				do()
			}
		}
		return s.Phase == Running
	}
	r.want("running", running)
	return after
}

func (n *node) members() map[string]MemberState {
	if n.array == nil {
		return nil
	}
	return n.array.members
}

// disturbed is an array whose calls something happens in; nil where nothing does.
type disturbed struct {
	kernelArray
	compares func()
	// assembles may fail the call.
	assembles func() error
	stopped   func()
}

func (d disturbed) Compare(ctx context.Context, replicas []string) ([]string, error) {
	if d.compares != nil {
		d.compares()
	}
	return d.kernelArray.Compare(ctx, replicas)
}

func (d disturbed) Assemble(ctx context.Context, replicas []string) error {
	if d.assembles != nil {
		if err := d.assembles(); err != nil {
			return err
		}
	}
	return d.kernelArray.Assemble(ctx, replicas)
}

func (d disturbed) Stop(ctx context.Context) error {
	err := d.kernelArray.Stop(ctx)
	if d.stopped != nil {
		d.stopped()
	}
	return err
}

// lose a replica: its target goes off. It tells whether it was on.
func (r running) lose(replica string) bool {
	was := r.targets[replica].powered
	r.targets[replica].crash()
	r.refresh()
	return was
}

// A member that stops answering while the members are compared, or the array is made of them, is given up after the
// grace, as any other: the mirror does not wait for it.
func TestAStartGoesOnWithoutAMemberThatHangs(t *testing.T) {
	for _, during := range []string{"compare", "assemble"} {
		t.Run(during, func(t *testing.T) {
			r := startRunning(t)
			lost := mirror.InSync(r.api.mirror.Record)[1]
			array := disturbed{kernelArray: kernelArray{r.n}}
			if during == "compare" {
				array.compares = func() { r.lose(lost) }
			} else {
				array.assembles = func() error { r.lose(lost); return nil }
			}
			r.n.plugin.Array = array
			r.want("running", in(Running))
			if got := mirror.InSync(r.api.mirror.Record); slices.Contains(got, lost) || len(got) != 1 {
				t.Errorf("in sync are %v, and %s went away", got, lost)
			}
		})
	}
}

// So does a stop that a member does not answer any more: it is not clean, and ends.
func TestAStopGoesOnWithoutAMemberThatHangs(t *testing.T) {
	r := startRunning(t)
	r.want("running", in(Running))
	lost := mirror.InSync(r.api.mirror.Record)[1]
	r.n.plugin.Array = disturbed{kernelArray: kernelArray{r.n}, compares: func() { r.lose(lost) }}
	r.n.plugin.Mode = Stop
	r.want("stopped", in(Stopped))
	if is := r.api.mirror.Record; !is.Dirty || !mirror.Whole(is) {
		t.Errorf("stopped, with the record %s", mirror.String(is))
	}
}

// A mirror that is to be started again before it has stopped for good is started as any other: what is written then is
// not written over a record that says it was stopped cleanly.
func TestAStartInTheMiddleOfAStopIsRecorded(t *testing.T) {
	r := startRunning(t)
	r.want("running", in(Running))
	r.n.plugin.Mode = Stop
	r.want("stopped, with its legs", func(s Status) bool { return r.n.array == nil && !r.api.mirror.Dirty && len(r.n.legs) > 0 })
	r.n.plugin.Mode = Start
	r.want("running", in(Running))
	if is := r.api.mirror.Record; !is.Dirty || !mirror.Whole(is) {
		t.Errorf("running, with the record %s", mirror.String(is))
	}
}

// An array that cannot be made at first is made of what is left, although the start is recorded: nothing was written
// since.
func TestAnArrayThatCannotBeMadeIsMadeOfWhatIsLeft(t *testing.T) {
	r := startRunning(t)
	lost := mirror.InSync(r.api.mirror.Record)[1]
	r.n.plugin.Array = disturbed{kernelArray: kernelArray{r.n}, assembles: func() error {
		if r.lose(lost) {
			return errors.New("cut off")
		}
		return nil
	}}
	r.want("running", in(Running))
	if got := mirror.InSync(r.api.mirror.Record); slices.Contains(got, lost) || len(got) != 1 {
		t.Errorf("in sync are %v, and %s went away", got, lost)
	}
}

// A member of which another's metadata says that it was left behind, when the array could not be made, is left behind.
func TestAnArrayThatCannotBeMadeLeavesAMemberBehind(t *testing.T) {
	r := startRunning(t)
	stays, left := mirror.InSync(r.api.mirror.Record)[0], mirror.InSync(r.api.mirror.Record)[1]
	failed := false
	r.n.plugin.Array = disturbed{kernelArray: kernelArray{r.n}, assembles: func() error {
		if failed {
			return nil
		}
		failed = true
		r.targets[stays].disk.super = superblock{valid: true, array: 7, events: 2, disks: 2, faulty: map[string]bool{left: true}, active: map[string]bool{stays: true}}
		return errors.New("cut off")
	}}
	r.want("running", in(Running))
	if got := r.n.array.inSync(); !slices.Equal(got, []string{stays}) {
		t.Errorf("in sync in the array are %v, want %s", got, stays)
	}
}

// What was compared before a mirror ran does not prove that it stopped cleanly.
func TestAComparisonFromBeforeProvesNothing(t *testing.T) {
	r := startRunning(t)
	members := mirror.InSync(r.api.mirror.Record)
	r.want("recorded", func(Status) bool { return r.api.mirror.Dirty })
	r.n.plugin.tasks.start(r.n.plugin.comparing(), func(context.Context) result { return result{of: members} })
	r.want("running", in(Running))
	r.n.plugin.Array = disturbed{kernelArray: kernelArray{r.n}, stopped: func() {
		super := &r.targets[members[0]].disk.super
		super.events += 2
		super.faulty, super.active = map[string]bool{members[1]: true}, map[string]bool{members[0]: true}
	}}
	r.n.plugin.Mode = Stop
	r.want("stopped", in(Stopped))
	if !r.api.mirror.Dirty {
		t.Errorf("stopped cleanly, although %s was left behind: %s", members[1], mirror.String(r.api.mirror.Record))
	}
}

// unanswered is an API server that stores a record without a member, and whose answer to that is lost.
type unanswered struct {
	Records
	out    string
	before *Version
}

func (u unanswered) Swap(ctx context.Context, old Version, next mirror.Record) error {
	err := u.Records.Swap(ctx, old, next)
	if err == nil && mirror.StateOf(next, u.out) == v1alpha1.MemberOut {
		*u.before = old
		return errors.New("timeout")
	}
	return err
}

// When the loss of a member is stored in the middle of a start, and the answer is lost, no header is written from an
// older record that is read then: the record would know its mark no more.
func TestALossWithoutAnAnswerWritesNoOldMark(t *testing.T) {
	r := startRunning(t)
	lost := mirror.InSync(r.api.mirror.Record)[1]
	now, before := r.n.plugin.Record, Version{}
	r.n.plugin.Array = disturbed{kernelArray: kernelArray{r.n}, compares: func() {
		r.n.plugin.Headers = unwritten{kernelHeaders{r.n}}
	}}
	r.n.plugin.Record = unanswered{now, lost, &before}
	r.want("recorded", func(Status) bool { return r.api.mirror.Dirty })
	r.lose(lost)
	r.want("recorded as out", func(Status) bool { return before.ResourceVersion != "" })
	r.targets[lost].powered = true
	r.refresh()
	r.n.plugin.Record, r.n.plugin.Headers = lagging{now, before}, kernelHeaders{r.n}
	r.steps(5, func(Status) bool { return false })
	r.n.plugin.Record = now
	r.want("running", func(s Status) bool { return s.Phase == Running && s.Err == nil })
}

// unwritten are headers whose writing fails.
type unwritten struct{ kernelHeaders }

func (unwritten) Write(context.Context, string, mirror.Header) error { return errors.New("no space") }
