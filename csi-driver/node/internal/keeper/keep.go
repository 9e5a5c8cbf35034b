// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// doing is what a part of a step did: if it did nothing, the next part has its turn.
type doing struct {
	Status
	did bool
}

var nothing = doing{}

func did(s Status) doing { return doing{Status: s, did: true} }

// waits for a task, or for what failed to work when it is tried again.
func (k *Keeper) waits(v *view, err error) doing {
	next := interval
	if err != nil {
		next = retry
	}
	return did(Status{Phase: k.phase(v), Err: err, Next: next})
}

// keep a mirror that runs.
func (k *Keeper) keep(ctx context.Context, v *view) Status {
	if !k.speed {
		if result, ok := k.tasks.result("speed"); ok {
			k.speed = result.err == nil
		}
		k.tasks.start("speed", func(ctx context.Context) result { return result{err: k.Array.SetSpeed(ctx, k.CopyBytesPerSecond)} })
	}
	worst := Status{Phase: k.phase(v), Next: interval}
	if !v.array.Resyncing && worst.Phase != Running {
		worst.Phase = Starting
	}
	for _, part := range []func(context.Context, *view) doing{k.check, k.complete, k.lose, k.stamped, k.confirm, k.release, k.takeBack} {
		d := part(ctx, v)
		if !d.did {
			continue
		}
		if d.Err == nil && d.Next == 0 {
			return d.Status // it changed something: look again at once
		}
		worst.Next = min(worst.Next, d.Next)
		if d.Next == 0 {
			worst.Next = retry
		}
		worst.Err = errors.Join(worst.Err, d.Err)
	}
	if v.array.Resyncing {
		worst.Phase = Starting
	}
	return worst
}

// check the headers of all legs that answer: what the record does not know shows that it is the past.
func (k *Keeper) check(_ context.Context, v *view) doing {
	ready, err := k.read(v, v.inUse())
	if err == nil {
		err = k.past(v)
	}
	if errors.Is(err, ErrPast) {
		return did(Status{Phase: k.phase(v), Err: err})
	}
	if err != nil || !ready {
		return k.waits(v, err)
	}
	return nothing
}

// inUse are the members in the array that are in use by the record.
func (v *view) inUse() []string {
	var replicas []string
	for _, m := range v.Members {
		if m.State != v1alpha1.MemberOut && v.array.Members[m.Replica] != MemberAbsent {
			replicas = append(replicas, m.Replica)
		}
	}
	return replicas
}

// complete a member that the kernel has copied: it has everything. It comes before members are lost, because the one
// that has everything may be needed then.
func (k *Keeper) complete(ctx context.Context, v *view) doing {
	for _, m := range v.Members {
		copied := m.State == v1alpha1.MemberReturning || m.State == v1alpha1.MemberFilling
		if !copied || m.Retired && k.another(v, m.Replica) || v.array.Members[m.Replica] != MemberInSync || !v.live(m.Replica) {
			continue
		}
		marks, ready, err := k.marks(v, "")
		if !ready || err != nil {
			return k.waits(v, err)
		}
		return did(k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Complete(v.Record, m.Replica, marks) }))
	}
	return nothing
}

// lose members that the kernel dropped, or that have not answered for the grace, or that are to leave.
func (k *Keeper) lose(ctx context.Context, v *view) doing {
	waiting := nothing
	for _, m := range v.Members {
		reason, wait := k.lost(v, m)
		if wait > 0 && (!waiting.did || wait < waiting.Next) {
			waiting = did(Status{Phase: k.phase(v), Next: wait})
		}
		if reason == "" {
			continue
		}
		// What the kernel has dropped is recorded also if the last one that it has does not answer: whoever takes over
		// then may find nothing else that says so.
		dropped := v.array.Members[m.Replica] == MemberFaulty && v.kernelHasOther()
		if (m.State == v1alpha1.MemberInSync || v.array.Members[m.Replica] == MemberInSync) && !dropped && !k.another(v, m.Replica) {
			waiting = did(Status{Phase: k.phase(v), Next: retry})
			if !v.works(m.Replica) { // else it is to leave, and stays until another has everything
				waiting.Err = fmt.Errorf("%w: %s (%s)", ErrLastLeg, m.Replica, reason)
			}
			continue
		}
		marks, ready, err := k.marks(v, m.Replica)
		if !ready || err != nil {
			return k.waits(v, err)
		}
		return did(k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) {
			return h.Lost(v.Record, m.Replica, reason, marks)
		}))
	}
	return waiting
}

// another member that has everything, works and is here to stay.
func (k *Keeper) another(v *view, but string) bool {
	for _, m := range v.Members {
		if m.Replica != but && v.works(m.Replica) {
			return true
		}
	}
	return false
}

// lost gives the reason for which a member is to be given up, or how long to wait until there may be one.
func (k *Keeper) lost(v *view, m mirror.Member) (reason string, wait time.Duration) {
	if m.State == v1alpha1.MemberOut {
		return "", 0
	}
	kernel, leg := v.array.Members[m.Replica], v.legs[m.Replica]
	switch {
	case kernel == MemberFaulty, kernel == MemberAbsent && m.State == v1alpha1.MemberInSync:
		return mirror.ReasonLost, 0
	case kernel == MemberAbsent:
		// Its return was stored by a process that ended before it happened; or it has not returned yet.
		if m.Identity != "" && !k.returned[m.Replica] && leg.Identity == m.Identity {
			return mirror.ReasonLost, 0
		}
		if m.Retired || m.Identity != "" && leg.State == LegGone {
			return mirror.ReasonLost, 0
		}
		return "", 0
	case v.goes(m.Replica):
		return mirror.ReasonLost, 0
	case leg.State == LegHanging:
		left := k.Grace - k.Now().Sub(k.hung[m.Replica])
		if left <= 0 {
			return mirror.ReasonLost, 0
		}
		return "", left
	case m.Retired:
		return mirror.ReasonRetired, 0
	}
	return "", 0
}

// ask whether the replica is still the record's, and its agent has not found that the API was restored: at the start,
// and after each time that it did not answer. Nothing is copied from it before that. It may take a while, so it is the
// last thing that a step does.
func (k *Keeper) ask(ctx context.Context, v *view, m mirror.Member) doing {
	call, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	if _, err := k.Agents.Ask(call, m.Replica, m.ReplicaUID); err != nil {
		return did(Status{Phase: k.phase(v), Next: retry})
	}
	k.asked[m.Replica] = true
	return did(Status{Phase: k.phase(v)})
}

// stamped headers: those of the members in use say what the record says. A header is written only with a mark that this
// process stored: a record that was just read, by a process that began just now, may be an older one.
func (k *Keeper) stamped(ctx context.Context, v *view) doing {
	for _, replica := range v.working() {
		m, _ := mirror.Get(v.Record, replica)
		last := lastMark(m)
		if written := k.headers[replica].Mark == last; written && k.outdated(v, replica) || !written && !k.mine[last] {
			return k.stamp(ctx, v, "")
		}
	}
	ready, err := k.write(v, v.working())
	if err != nil || !ready {
		return k.waits(v, err)
	}
	return nothing
}

// outdated tells whether a member's header has another one in sync that is out: it did not answer when that was stored.
func (k *Keeper) outdated(v *view, replica string) bool {
	for other, state := range k.headers[replica].Members {
		if state == v1alpha1.MemberInSync && v.is(other, v1alpha1.MemberOut) {
			return true
		}
	}
	return false
}

// stamp the record, to learn that this process still holds the mirror.
func (k *Keeper) stamp(ctx context.Context, v *view, but string) doing {
	return k.stampAll(ctx, v, v.working(but))
}

// stampAll stamps the record with the headers of these members.
func (k *Keeper) stampAll(ctx context.Context, v *view, replicas []string) doing {
	marks, ready, err := k.marksOf(v, replicas)
	if !ready || err != nil {
		return k.waits(v, err)
	}
	return did(k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Stamp(v.Record, marks) }))
}

// working are the members in use that answer, but for these.
func (v *view) working(but ...string) []string {
	var replicas []string
	for _, m := range v.Members {
		if !slices.Contains(but, m.Replica) && m.State != v1alpha1.MemberOut && v.live(m.Replica) && v.array.Members[m.Replica] != MemberAbsent {
			replicas = append(replicas, m.Replica)
		}
	}
	return replicas
}

// confirm, if that was requested, that the kernel has all members in sync that the record has in sync. The kernel was
// looked at after the record was read, and what is stored follows that very version. A member that the kernel dropped
// is recorded out instead, which ends the epoch. A request is not answered by a record that may be the past, nor while
// writes do not go through the array: nothing is wrong then, and whoever asked waits.
func (k *Keeper) confirm(ctx context.Context, v *view) doing {
	if v.Confirmed >= v.ConfirmRequested || v.array.Resyncing {
		return nothing
	}
	for _, replica := range mirror.InSync(v.Record) {
		if !v.works(replica) {
			return nothing
		}
	}
	if bypassed, err := k.Top.Bypasses(); err != nil || bypassed {
		return k.waits(v, err)
	}
	if _, ready, err := k.marks(v, ""); err != nil || !ready {
		return k.waits(v, err)
	}
	return did(k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Confirm(v.Record) }))
}

// release members that are out by a record that this process stored: delete their controllers, so that the kernel goes
// on without them. Until then their writes wait.
func (k *Keeper) release(ctx context.Context, v *view) doing {
	waiting := nothing
	for _, replica := range v.replicas() {
		m, isMember := mirror.Get(v.Record, replica)
		kernel, leg := v.array.Members[replica], v.legs[replica]
		if isMember && m.State == v1alpha1.MemberOut && !mirror.Free(v.Record, m) && kernel == MemberAbsent && leg.State == LegGone {
			return did(k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Released(v.Record, replica) }))
		}
		used := kernel != MemberAbsent || leg.State != LegGone && (!isMember || m.Retired || leg.Identity == m.Identity)
		if isMember && m.State != v1alpha1.MemberOut || !used {
			continue
		}
		if isMember && kernel == MemberInSync && !v.kernelHasOther() {
			return k.keepOnly(ctx, v, m)
		}
		if !k.out[replica] {
			// Another process stored it: this one has to learn that it still holds the mirror.
			return k.stamp(ctx, v, replica)
		}
		if !k.recorded(v) {
			return k.waits(v, nil)
		}
		if leg.State == LegGone && kernel == MemberAbsent {
			continue
		}
		waiting = k.drop(v, replica, kernel, leg)
	}
	return waiting
}

// kernelHasOther tells whether the kernel has one of the members that the record has in sync.
func (v *view) kernelHasOther() bool {
	for _, replica := range mirror.InSync(v.Record) {
		if v.array.Members[replica] == MemberInSync {
			return true
		}
	}
	return false
}

// keepOnly a member that was recorded out: before the kernel let go of it, it dropped those that the record has in
// sync, because they answered errors. Once its controllers are being deleted it is too late: the kernel acknowledges
// writes that it has not answered, and so it lacks them.
func (k *Keeper) keepOnly(ctx context.Context, v *view, m mirror.Member) doing {
	if !v.live(m.Replica) {
		return k.waits(v, fmt.Errorf("%w: %s", ErrLastLeg, m.Replica))
	}
	return did(k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Keep(v.Record, m.Replica, nil) }))
}

// recorded tells whether the headers of the members that stay have the present record.
func (k *Keeper) recorded(v *view) bool {
	some := false
	for _, m := range v.Members {
		if m.State != v1alpha1.MemberInSync || v.array.Members[m.Replica] != MemberInSync {
			continue
		}
		if k.headers[m.Replica].Mark != lastMark(m) || k.outdated(v, m.Replica) {
			return false
		}
		some = true
	}
	return some
}

// drop a member from the kernel: its controllers, then its place in the array.
func (k *Keeper) drop(v *view, replica string, kernel MemberState, leg Leg) doing {
	var what string
	var do func(context.Context, string) error
	switch {
	case leg.State != LegGone:
		what, do = deleteTask, k.Legs.Delete
	case kernel == MemberFaulty:
		what, do = "remove ", k.Array.Remove
	default:
		what, do = "fail ", k.Array.Fail
	}
	return k.background(v, what+replica, func(ctx context.Context) result { return result{err: do(ctx, replica)} })
}

// background runs a task, and waits for it.
func (k *Keeper) background(v *view, task string, do func(context.Context) result) doing {
	if result, ok := k.tasks.result(task); ok {
		if result.err != nil {
			return k.waits(v, fmt.Errorf("%s: %w", task, result.err))
		}
		return did(Status{Phase: k.phase(v)})
	}
	k.tasks.start(task, do)
	return k.waits(v, nil)
}

// takeBack a member that left, or is new, once its agent says that all its former identities are off.
func (k *Keeper) takeBack(ctx context.Context, v *view) doing {
	if v.array.Resyncing || !k.another(v, "") {
		return nothing // nothing could be copied from
	}
	// One at a time, and only from members that were asked.
	for _, m := range v.Members {
		switch {
		case v.array.Members[m.Replica] == MemberCopying:
			return nothing
		case v.works(m.Replica) && !m.Retired && !k.asked[m.Replica]:
			return k.ask(ctx, v, m)
		}
	}
	// What does not go through the array would be missing on a member that is copied.
	if bypassed, err := k.Top.Bypasses(); err != nil || bypassed {
		return k.waits(v, err)
	}
	waiting := nothing
	for _, m := range v.Members {
		if m.State == v1alpha1.MemberInSync || m.Retired || v.array.Members[m.Replica] != MemberAbsent {
			continue
		}
		if d := k.takeBackOne(ctx, v, m); d.did {
			if d.Err == nil && d.Next == 0 {
				return d
			}
			waiting = d
		}
	}
	return waiting
}

func (k *Keeper) takeBackOne(ctx context.Context, v *view, m mirror.Member) doing {
	if v.deleting[m.Replica] {
		return k.waits(v, nil)
	}
	leg := v.legs[m.Replica]
	if k.returned[m.Replica] && m.State != v1alpha1.MemberOut && leg.State == LegLive {
		return k.add(ctx, v, m)
	}
	if leg.State == LegGone {
		return k.connect(ctx, v, m)
	}
	if leg.State != LegLive || leg.Identity == m.Identity {
		if k.hangs(v, m.Replica) {
			return k.delete(v, m.Replica)
		}
		return k.waits(v, nil)
	}
	task := "compare " + m.Replica
	compared, ok := k.tasks.result(task)
	if !ok {
		k.tasks.start(task, func(ctx context.Context) result {
			ahead, err := k.Array.Ahead(ctx, m.Replica)
			return result{err: err, ahead: ahead}
		})
		return k.waits(v, nil)
	}
	if compared.err != nil {
		return k.waits(v, compared.err)
	}
	replicas := []string{m.Replica}
	for _, o := range v.Members {
		if v.works(o.Replica) {
			replicas = append(replicas, o.Replica)
		}
	}
	marks, ready, err := k.marksOf(v, replicas)
	if !ready || err != nil {
		return k.waits(v, err)
	}
	s := k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) {
		return h.Return(v.Record, m.Replica, leg.Identity, compared.ahead, marks)
	})
	k.returned[m.Replica] = s.Err == nil
	if errors.Is(s.Err, mirror.ErrForeign) {
		s.Err = errors.Join(s.Err, k.refuse(ctx, v, m))
	}
	return did(s)
}

// connect to a replica under a fresh identity.
func (k *Keeper) connect(ctx context.Context, v *view, m mirror.Member) doing {
	task := connectTask + m.Replica
	if result, ok := k.tasks.result(task); ok && result.err != nil {
		return k.waits(v, fmt.Errorf("%s: %w", task, result.err))
	}
	call, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	answer, err := k.Agents.Ask(call, m.Replica, m.ReplicaUID)
	if err != nil || answer.Identity == "" || answer.Identity == m.Identity {
		return k.waits(v, nil) // it is not back yet, which its object says
	}
	k.tasks.start(task, func(ctx context.Context) result { return result{err: k.Legs.Connect(ctx, m.Replica, answer.Identity)} })
	return k.waits(v, nil)
}

// add a member whose return is stored to the array.
func (k *Keeper) add(ctx context.Context, v *view, m mirror.Member) doing {
	if last := lastMark(m); !k.mine[last] {
		return k.stampAll(ctx, v, append(v.working(), m.Replica))
	}
	if ready, err := k.write(v, []string{m.Replica}); err != nil || !ready {
		return k.waits(v, err)
	}
	if !k.recorded(v) {
		return k.waits(v, nil)
	}
	if m.State == v1alpha1.MemberFilling {
		return k.background(v, "add "+m.Replica, func(ctx context.Context) result {
			return result{err: k.Array.Add(ctx, m.Replica)}
		})
	}
	d := k.background(v, "return "+m.Replica, func(ctx context.Context) result {
		return result{err: k.Array.ReAdd(ctx, m.Replica)}
	})
	if !errors.Is(d.Err, ErrFullCopy) {
		return d
	}
	replicas := append(v.working(), m.Replica)
	marks, ready, err := k.marksOf(v, replicas)
	if !ready || err != nil {
		return k.waits(v, err)
	}
	return did(k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Refill(v.Record, m.Replica, marks) }))
}
