// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// start connects to the members, compares them, records the start, writes the headers and assembles the array.
func (k *Keeper) start(ctx context.Context, v *view) Status {
	s := k.startNext(ctx, v)
	s.Phase = Starting
	return s
}

func (k *Keeper) startNext(ctx context.Context, v *view) Status {
	if d := k.unblock(v, compareTask, assembleTask); d.did {
		return d.Status
	}
	if len(v.deleting) > 0 {
		return k.waits(v, nil).Status
	}
	present, wait, err := k.gather(ctx, v)
	if err != nil || wait {
		return k.waits(v, err).Status
	}
	if k.started {
		return k.assemble(ctx, v, present)
	}
	if d := k.compare(v, k.toCompare(v, present)); d.did {
		return d.Status
	}
	all, ready, err := k.found(ctx, v)
	if err != nil || !ready {
		return k.waits(v, err).Status
	}
	s := k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Start(v.Record, all) })
	k.compared = nil
	if errors.Is(s.Err, mirror.ErrForeign) {
		s.Err = fmt.Errorf("%w: %w", ErrPast, s.Err)
	}
	k.started, k.unmade = s.Err == nil, false
	return s
}

// compare the metadata of these members, unless that was done.
func (k *Keeper) compare(v *view, present []string) doing {
	if slices.Equal(k.compared, present) {
		return nothing
	}
	compared, ok := k.comparison(present)
	if !ok {
		return k.waits(v, nil)
	}
	if compared.err != nil {
		return k.waits(v, fmt.Errorf("%s: %w", compareTask, compared.err))
	}
	if k.compared, k.kicked = compared.of, compared.names; !slices.Equal(k.compared, present) {
		return did(Status{}) // another one answers now
	}
	return nothing
}

// comparison of members, if it has ended. Else it is begun.
func (k *Keeper) comparison(members []string) (result, bool) {
	r, ended := k.tasks.result(k.comparing())
	if !ended {
		k.tasks.start(k.comparing(), func(ctx context.Context) result {
			kicked, err := k.Array.Compare(ctx, members)
			return result{err: err, names: kicked, of: members}
		})
	}
	return r, ended
}

// comparing is the task that compares members. What was compared before the mirror ran says nothing of it afterwards.
func (k *Keeper) comparing() string { return fmt.Sprint(compareTask, " ", k.ran) }

// toCompare are the members that are there, and that a former kernel may have had in sync.
func (k *Keeper) toCompare(v *view, inSync []string) []string {
	all := slices.Clone(inSync)
	for _, m := range v.Members {
		if m.State != v1alpha1.MemberInSync && m.MayBeAhead() && v.live(m.Replica) {
			all = append(all, m.Replica)
		}
	}
	return all
}

// gather the members: those in sync are connected to, for as long as the grace lasts; the others tell whether the
// record is the past, if they can be reached.
func (k *Keeper) gather(ctx context.Context, v *view) (inSync []string, wait bool, err error) {
	late := k.Now().Sub(k.since) >= k.Grace
	for _, m := range v.Members {
		if v.live(m.Replica) {
			if m.State == v1alpha1.MemberInSync {
				inSync = append(inSync, m.Replica)
			}
			continue
		}
		if v.legs[m.Replica].State == LegGone && !k.tasks.busy(connectTask+m.Replica) {
			if e := k.reach(ctx, m); e != nil {
				err = errors.Join(err, e)
			}
		}
		// A connection that is being made is waited for: without the member, it would have to be copied.
		wait = wait || !late || k.tasks.busy(connectTask+m.Replica)
	}
	if len(inSync) == 0 {
		return nil, true, errors.Join(err, errors.New("none of the replicas in sync can be reached"))
	}
	if !wait {
		err = nil
	}
	return inSync, wait, err
}

// reach a member for the first time.
func (k *Keeper) reach(ctx context.Context, m mirror.Member) error {
	task := connectTask + m.Replica
	if result, ok := k.tasks.result(task); ok && result.err != nil {
		return fmt.Errorf("%s: %w", task, result.err)
	}
	call, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	answer, err := k.Agents.Ask(call, m.Replica, m.ReplicaUID)
	if err != nil {
		return err
	}
	if answer.Identity == "" || answer.Identity == m.Identity && !m.MayBeAhead() {
		return nil
	}
	k.tasks.start(task, func(ctx context.Context) result { return result{err: k.Legs.Connect(ctx, m.Replica, answer.Identity)} })
	return nil
}

// found is what the record needs to know of the members that are there.
func (k *Keeper) found(ctx context.Context, v *view) ([]mirror.Found, bool, error) {
	var live []string
	for _, m := range v.Members {
		if v.live(m.Replica) {
			live = append(live, m.Replica)
		}
	}
	marks, ready, err := k.marksOf(v, live)
	if err != nil || !ready {
		return nil, false, err
	}
	var all []mirror.Found
	for _, m := range v.Members {
		if !v.live(m.Replica) {
			continue
		}
		f := mirror.Found{Replica: mirror.Replica{Name: m.Replica, UID: m.ReplicaUID}, Mark: marks[m.Replica]}
		if m.State == v1alpha1.MemberInSync {
			call, cancel := context.WithTimeout(ctx, k.Timeout)
			_, err := k.Agents.Ask(call, m.Replica, m.ReplicaUID)
			cancel()
			if err != nil {
				return nil, false, err
			}
			f.Identity = v.legs[m.Replica].Identity
			f.Kicked = slices.Contains(k.kicked, m.Replica)
		}
		all = append(all, f)
	}
	return all, true, nil
}

// assemble what the record says is in sync, once it is prepared.
func (k *Keeper) assemble(ctx context.Context, v *view, present []string) Status {
	members := mirror.InSync(v.Record)
	if !k.tasks.pending(assembleTask) {
		if d := k.prepare(ctx, v, members, present); d.did {
			return d.Status
		}
	}
	made := k.background(v, assembleTask, func(ctx context.Context) result {
		return result{err: k.Array.Assemble(ctx, members)}
	})
	if made.Err != nil {
		k.compared, k.unmade = nil, true
	}
	return made.Status
}

// prepare to make the array of these members: all of them are there, and their headers have the record. If it could not
// be made before, members that the others' metadata says were left behind meanwhile are left behind.
func (k *Keeper) prepare(ctx context.Context, v *view, members, present []string) doing {
	for _, replica := range members {
		if !slices.Contains(present, replica) {
			return k.leaveBehind(ctx, v, replica, present)
		}
	}
	if k.unmade {
		if d := k.compare(v, members); d.did {
			return d
		}
		if len(k.kicked) > 0 {
			return k.leaveBehind(ctx, v, k.kicked[0], members)
		}
		k.compared, k.unmade = nil, false
	}
	// As in a mirror that runs, a header is written only with a mark that this process stored.
	for _, replica := range members {
		if m, _ := mirror.Get(v.Record, replica); !k.mine[lastMark(m)] {
			return k.stampAll(ctx, v, members)
		}
	}
	ready, err := k.read(v, members)
	if ready && err == nil {
		ready, err = k.write(v, members)
	}
	if err != nil || !ready {
		return k.waits(v, err)
	}
	return nothing
}

// leaveBehind a member that went away after the start was recorded, and before anybody was told that the mirror runs.
// Nothing was written since, and all members that the start has in sync have everything: any of them will do.
func (k *Keeper) leaveBehind(ctx context.Context, v *view, replica string, present []string) doing {
	if v.legs[replica].State == LegHanging && !k.hangs(v, replica) {
		return k.waits(v, nil)
	}
	rest := slices.DeleteFunc(slices.Clone(present), func(other string) bool { return other == replica })
	marks, ready, err := k.marksOf(v, rest)
	if err != nil || !ready {
		return k.waits(v, err)
	}
	return did(k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) {
		return h.Lost(v.Record, replica, mirror.ReasonUnreachable, marks)
	}))
}

// Tasks that make or end what is there.
const (
	connectTask  = "connect to "                // and the replica
	deleteTask   = "delete the controllers of " // and the replica
	assembleTask = "assemble"
	compareTask  = "compare the members"
	stopTask     = "stop" // the array
)

// stop the array once every member that the record has as in sync has everything in the kernel, too; and record that.
func (k *Keeper) stop(ctx context.Context, v *view) Status {
	if v.array.Exists {
		if k.stopping.IsZero() {
			k.stopping = k.Now()
		}
		if k.Now().Sub(k.stopping) >= 2*k.Grace {
			return k.stopDirty(v)
		}
		for _, part := range []func(context.Context, *view) doing{k.check, k.complete, k.lose, k.stamped, k.release} {
			if d := part(ctx, v); d.did && (d.Err != nil || d.Next < interval) {
				return d.Status
			}
		}
		k.clean = !v.array.Resyncing
		for _, replica := range mirror.InSync(v.Record) {
			k.clean = k.clean && v.works(replica)
		}
		if !k.clean {
			return k.waits(v, errors.New("the members in sync do not all work")).Status
		}
		return k.background(v, stopTask, func(ctx context.Context) result { return result{err: k.Array.Stop(ctx)} }).Status
	}
	if v.Dirty && k.clean {
		return k.stopped(ctx, v)
	}
	return k.disconnected(v)
}

// disconnected ends the connections of a mirror without an array.
func (k *Keeper) disconnected(v *view) Status {
	if s := k.disconnect(v, every); s.did {
		return s.Status
	}
	if v.busy {
		return Status{Phase: Waiting, Next: interval}
	}
	return Status{Phase: Stopped, Next: interval}
}

// stopDirty ends an array whose members in sync do not all work, and cannot be given up. Nothing is under way, because
// nobody uses it any more. The record stays dirty, so that the next start compares the members.
func (k *Keeper) stopDirty(v *view) Status {
	k.clean = false
	if d := k.disconnect(v, every); d.did {
		return d.Status
	}
	return k.background(v, stopTask, func(ctx context.Context) result { return result{err: k.Array.Stop(ctx)} }).Status
}

// stopped records a clean end. The kernel may have dropped a member while it stopped: the members' metadata says so.
func (k *Keeper) stopped(ctx context.Context, v *view) Status {
	if d := k.unblock(v, compareTask); d.did {
		return d.Status
	}
	compared, ok := k.comparison(mirror.InSync(v.Record))
	if !ok {
		return k.waits(v, nil).Status
	}
	if compared.err != nil || len(compared.names) > 0 {
		k.clean = false // it stays dirty, and the next start finds out
		return Status{}
	}
	status := k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Stop(v.Record) })
	k.clean = status.Err != nil // once: an agent that suspects a restore makes the record dirty again
	return status
}

// unblock these tasks, which read the metadata of members before there is a pod: they wait for as long as one of them
// hangs. It is given up after the grace, as in a mirror that runs.
func (k *Keeper) unblock(v *view, tasks ...string) doing {
	if !k.tasks.runs(tasks...) {
		return nothing
	}
	return k.disconnect(v, func(replica string) bool { return k.hangs(v, replica) })
}

// hangs tells whether a leg has not answered for the grace.
func (k *Keeper) hangs(v *view, replica string) bool {
	return v.legs[replica].State == LegHanging && k.Now().Sub(k.hung[replica]) >= k.Grace
}

func every(string) bool { return true }

// disconnect the legs for which which says so, each in the background.
func (k *Keeper) disconnect(v *view, which func(replica string) bool) doing {
	waiting := nothing
	for _, replica := range v.replicas() {
		if v.legs[replica].State == LegGone || !which(replica) {
			continue
		}
		waiting = k.delete(v, replica)
	}
	return waiting
}

// delete the controllers of a replica, in the background.
func (k *Keeper) delete(v *view, replica string) doing {
	return k.background(v, deleteTask+replica, func(ctx context.Context) result {
		return result{err: k.Legs.Delete(ctx, replica)}
	})
}
