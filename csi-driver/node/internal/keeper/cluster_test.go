// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// confirmGrace is how long the CSI controller waits for replicas that do not confirm.
const confirmGrace = 5 * time.Second

// controller does one step of the CSI controller: it keeps nothing, and may be another one each time.
func (w *world) controller() {
	v := w.api.mirror
	if n := len(w.api.history); n > 0 && !w.calm && w.chance(5) {
		v = w.api.history[max(0, n-1-w.rng.IntN(3))]
	}
	store := func(next mirror.Record) {
		if err := w.api.store(v, next); err == nil {
			w.say("the controller stores %s", mirror.String(next))
		}
	}
	if v.Recovering {
		return // until what a person asked for is done
	}
	w.rotate(v.Record)
	switch {
	case w.suspected(v) && !mirror.IsUncertain(v.Record):
		store(mirror.Uncertain(v.Record))
	case v.Holder != "" && v.Holder != w.api.wish:
		if w.left(v.Holder) {
			w.api.since = w.now
			store(mirror.Begin(v.Record))
		}
	case v.Holder == "" && w.api.wish != "":
		w.publish(v, store)
	case w.suspected(v):
		// Nobody joins or leaves before the restore is declared.
		if by, is := mirror.Get(v.Record, w.api.replacement); w.api.lost != "" && (!is || by.State != v1alpha1.MemberInSync) {
			w.endReplacement("suspected restore")
		}
	case w.api.moving || slices.ContainsFunc(v.Members, func(m mirror.Member) bool { return m.Retired }):
		w.move(v, store)
	case w.faults == (faults{}): // as they are planted, they are found without it, too
		w.replaceLost(v, store)
	}
}

// left tells whether the node of an attachment that is to go has unstaged, or is not worth waiting for.
func (w *world) left(attachment string) bool {
	for _, n := range w.nodes {
		if n.attachment == attachment && w.now.Sub(w.api.since) < 2*confirmGrace {
			return false
		}
	}
	return true
}

func (w *world) publish(v Version, store func(mirror.Record)) {
	var confirmed []mirror.Confirmation
	missing := 0
	for _, m := range v.Members {
		r := w.api.replicas[m.Replica]
		if r == nil || r.uid != m.ReplicaUID {
			missing++
			continue
		}
		if !w.chosen(r.wanted, m) {
			r.wanted, r.version = w.api.wish+"/"+m.Replica, w.api.bump()
		}
		c := mirror.Confirmation{Replica: mirror.Replica{Name: m.Replica, UID: m.ReplicaUID}, Past: r.past}
		switch {
		case r.past, r.admitted == r.wanted:
			confirmed = append(confirmed, c)
		default:
			missing++
		}
	}
	if missing > 0 && w.now.Sub(w.api.since) < confirmGrace {
		return
	}
	if w.api.mover && w.equate(v, store) {
		w.attach("")
		return
	}
	next, err := mirror.Admit(v.Record, w.api.wish, confirmed, w.now)
	w.needsPerson = errors.Is(err, mirror.ErrNeedsPerson)
	if err != nil {
		return
	}
	if w.api.mover {
		next.Mover = v1alpha1.MoverCopy
		w.tally["movers"]++
	}
	w.tally["admitted"]++
	if missing > 0 {
		w.tally["admitted without one"]++
	}
	store(next)
}

// equate the members of a volume to which nothing was written, by the word of their agents. It tells whether there was
// one to equate.
func (w *world) equate(v Version, store func(mirror.Record)) bool {
	record := *v.DeepCopy()
	var blank []mirror.Replica
	for i := range record.Members {
		m := &record.Members[i]
		r := w.api.replicas[m.Replica]
		if r == nil || r.uid != m.ReplicaUID || r.past || r.admitted != r.wanted || !w.chosen(r.wanted, *m) {
			continue
		}
		if w.faults.takesForBlank {
			m.Identity, record.Dirty = "", false
		} else if !r.blank {
			continue
		}
		blank = append(blank, mirror.Replica{Name: m.Replica, UID: m.ReplicaUID})
	}
	next, err := mirror.Equate(record, blank, w.now)
	if err != nil || next.Epoch == v.Epoch {
		return false
	}
	w.tally["equated"]++
	store(next)
	return true
}

// chosen tells whether a replica's identity is one of this attachment's.
func (w *world) chosen(identity string, m mirror.Member) bool {
	return identity == w.api.wish+"/"+m.Replica
}

// rotate gives a fresh identity to each member that left.
func (w *world) rotate(r mirror.Record) {
	for _, m := range r.Members {
		o := w.api.replicas[m.Replica]
		if o == nil || o.uid != m.ReplicaUID || r.Holder == "" || r.Holder != w.api.wish {
			continue
		}
		if o.wanted == "" || mirror.Free(r, m) && o.wanted == m.Identity {
			o.wanted, o.version = w.id("identity"), w.api.bump()
		}
	}
}

// suspected tells whether the agent of a member suspects a restore of the API, or has to be asked for that.
func (w *world) suspected(v Version) bool {
	return slices.ContainsFunc(v.Members, func(m mirror.Member) bool {
		r := w.api.replicas[m.Replica]
		return r == nil || r.past
	})
}

// move the volume: add a replica, retire an old one once the new one is in sync, and remove it.
func (w *world) move(v Version, store func(mirror.Record)) {
	var spare string
	for _, name := range []string{"a", "b", "c"} {
		if _, ok := mirror.Get(v.Record, name); !ok {
			spare = name
		}
	}
	var retired *mirror.Member
	for i, m := range v.Members {
		if m.Retired {
			retired = &v.Members[i]
		}
	}
	switch {
	case spare != "" && retired == nil && len(v.Members) < 3:
		if w.restored {
			return // a new replica has a name that none had before, and here are but three
		}
		if _, exists := mirror.Get(w.api.mirror.Record, spare); exists || w.inUse(spare) {
			return
		}
		w.backup = nil
		if next, err := mirror.Add(v.Record, w.create(spare), w.now); err == nil {
			store(next)
		}
	case retired != nil && mirror.Idle(v.Record, *retired):
		if next, err := mirror.Withdraw(v.Record, retired.Replica, w.now); err == nil {
			store(next)
			w.tally["withdrawn"]++
		}
	case retired != nil && retired.State == v1alpha1.MemberOut:
		if w.restored && v.Holder != "" {
			return // before the holder has seen the record: see docs/design/mirror-limits.md
		}
		if next, err := mirror.Remove(v.Record, retired.Replica); err == nil {
			store(next)
			w.backup = nil
			w.api.moving = false
			if w.api.lost != "" && w.api.lost == retired.Replica {
				w.tally["replaced automatically"]++
			}
			w.tally["moved"]++
		}
	case retired == nil && mirror.Whole(v.Record):
		if next, err := mirror.Retire(v.Record, v.Members[0].Replica); err == nil {
			store(next)
		}
	}
}

// replaceLost replaces a member that is lost, as the CSI controller does after a time. How long a member was lost
// decides nothing, so a member is lost at any time here. What the controller sees of nodes may have changed a moment
// later, and it may see that at any time.
func (w *world) replaceLost(v Version, store func(mirror.Record)) {
	served := func(name string) bool { return w.targets[name].powered && w.linked("api", name) }
	retire := func(name string) {
		if next, err := mirror.Retire(v.Record, name); err == nil {
			store(next)
		}
	}
	lost, is := mirror.Get(v.Record, w.api.lost)
	by, joined := mirror.Get(v.Record, w.api.replacement)
	filled := joined && by.State == v1alpha1.MemberInSync
	switch {
	case w.api.lost == "" && len(v.Members) > 2:
		// One more than wanted, of a replacement that was cancelled, or that a restore forgot.
		if more := surplus(v.Record); more != "" {
			retire(more)
		}
	case w.api.lost == "":
		w.beginReplacement(v, served)
	case !is:
		w.api.lost, w.api.replacement = "", ""
	case filled && !lost.Foreign:
		retire(lost.Replica)
	case filled: // the lost one stays until a person has decided what becomes of it
	case lost.State == v1alpha1.MemberInSync:
		w.endReplacement("in sync again")
	case served(lost.Replica) && lost.LastInSyncEpoch > 0 && w.chance(50):
		w.endReplacement("served again")
	case lost.Foreign:
		w.endReplacement("refused")
	case joined && !served(by.Replica) && w.chance(20):
		w.endReplacement("lost replacement")
	case !joined:
		w.add(v, store)
	}
}

// surplus is the member that leaves when there is one too many: one that is not in sync, or the last. One that was
// refused is left to a person. It is empty if none leaves.
func surplus(r mirror.Record) string {
	var inSync, lacking string
	for _, m := range r.Members {
		switch {
		case m.Foreign:
		case m.State == v1alpha1.MemberInSync:
			inSync = m.Replica
		default:
			lacking = m.Replica
		}
	}
	return cmp.Or(lacking, inSync)
}

// beginReplacement of a member that is lost, if there is one, and another one has everything.
func (w *world) beginReplacement(v Version, served func(string) bool) {
	for _, m := range v.Members {
		other := slices.ContainsFunc(v.Members, func(o mirror.Member) bool {
			return o.Replica != m.Replica && o.State == v1alpha1.MemberInSync && !o.Suspect && served(o.Replica)
		})
		if m.State != v1alpha1.MemberInSync && !m.Foreign && !served(m.Replica) && other && !w.calm && w.chance(20) {
			w.say("%s is to be replaced", m.Replica)
			w.api.lost, w.api.replacement = m.Replica, ""
			w.api.bump()
			return
		}
	}
}

// endReplacement of a member that stays. If its replacement has joined, there is one member too many.
func (w *world) endReplacement(why string) {
	w.say("%s is not replaced any more: %s", w.api.lost, why)
	w.tally["not replaced: "+why]++
	w.api.lost, w.api.replacement = "", ""
	w.api.bump()
}

// add a replica, as the replacement of the one that is lost.
func (w *world) add(v Version, store func(mirror.Record)) {
	if w.restored {
		return // see move
	}
	for _, name := range []string{"a", "b", "c"} {
		_, is := mirror.Get(v.Record, name)
		if _, exists := mirror.Get(w.api.mirror.Record, name); is || exists || w.inUse(name) {
			continue
		}
		w.backup = nil // which does not know of the replica that is created
		if next, err := mirror.Add(v.Record, w.create(name), w.now); err == nil {
			store(next)
			w.api.replacement = name
		}
		return
	}
}

// replace a member that is out and does not return: a person moves it.
func (w *world) replace() {
	for _, m := range w.api.mirror.Members {
		if m.State != v1alpha1.MemberOut || m.Retired {
			continue
		}
		if next, err := mirror.Retire(w.api.mirror.Record, m.Replica); err == nil {
			w.say("a person replaces %s", m.Replica)
			_ = w.api.store(w.api.mirror, next)
		}
	}
}

// noneStays tells whether all replicas are to leave: what has been replaced was one too many before. They stay until
// another one is filled, for which there is no target here.
func (w *world) noneStays() bool {
	return len(w.api.mirror.Members) == len(w.targets) &&
		!slices.ContainsFunc(w.api.mirror.Members, func(m mirror.Member) bool { return !m.Retired })
}

// inUse tells whether a node still has a connection to a replica that is to be created again.
func (w *world) inUse(name string) bool {
	for _, n := range w.nodes {
		if n.legs[name] != nil || n.array != nil && n.array.members[name] != MemberAbsent {
			return true
		}
	}
	return false
}

// restore the API from the backup. A person does that, and looks that all agents are connected: one that is not cannot
// tell what it knows of the time since.
func (w *world) restore() {
	if w.backup == nil || w.restored || len(w.cut) > 0 {
		return
	}
	for _, t := range w.targets {
		if !t.powered {
			return
		}
	}
	wish, node := w.api.wish, w.api.node
	w.say("the API is restored from epoch %d to epoch %d", w.api.mirror.Epoch, w.backup.mirror.Epoch)
	w.api, w.backup, w.restored = w.backup, nil, true
	w.api.moving = false
	if w.api.wish != wish || w.api.node != node {
		w.tally["restored to another attachment"]++
	}
	w.tally["restored"]++
	for _, name := range sorted(w.targets) {
		w.targets[name].agent()
	}
}

// recover the record: a person declares the restore, and asks for it. Whoever still writes goes on until the record is
// doubted, or the target lets the reader in.
func (w *world) recover() {
	if !w.restored {
		return
	}
	headers, doubtful := w.headers(), w.chance(30)
	for _, m := range w.api.mirror.Members {
		mark := headers[m.Replica].Mark
		doubtful = doubtful || !slices.Contains(m.Marks, mark) && (len(m.Marks) > 0 || mark != mirror.NoMark)
	}
	w.api.history = nil
	// The controller has seen the agents' suspicions before a person declares the restore.
	for _, name := range sorted(w.api.replicas) {
		t := w.targets[name]
		t.kept = t.kept || w.api.replicas[name].version < t.seen
	}
	if slices.ContainsFunc(w.api.mirror.Members, func(m mirror.Member) bool { return w.api.replicas[m.Replica] == nil || w.targets[m.Replica].kept }) {
		w.api.mirror.Record = mirror.Uncertain(w.api.mirror.Record)
		w.api.mirror.ResourceVersion = fmt.Sprint(w.api.bump())
	}
	for _, name := range sorted(w.targets) {
		t := w.targets[name]
		// The versions go on from what the agents have seen.
		w.api.version = max(w.api.version, t.seen)
		t.latched = false
	}
	for _, name := range sorted(w.api.replicas) {
		w.api.replicas[name].version = w.api.bump()
		w.api.replicas[name].past = false
	}
	for range w.rng.IntN(2 * stepsBetween) {
		if w.step(); w.problem != "" {
			return
		}
	}
	if doubtful && !w.recoverRecord(func(headers map[string]mirror.Header) (mirror.Record, error) {
		return mirror.Recover(w.api.mirror.Record, headers, w.now)
	}) {
		return
	}
	w.restored = false
	w.attach(w.api.node)
}

func (w *world) headers() map[string]mirror.Header {
	all := map[string]mirror.Header{}
	for _, m := range w.api.mirror.Members {
		disk := w.targets[m.Replica].disk
		h := disk.header
		h.Blank = disk.blank()
		all[m.Replica] = h
	}
	return all
}

// recoverRecord as the CSI controller does: the record is doubted, a reader is let in by each target, and then the
// headers tell. Nodes do what they do in the meantime.
func (w *world) recoverRecord(from func(headers map[string]mirror.Header) (mirror.Record, error)) bool {
	node := w.api.node
	w.attach("")
	w.api.mirror = Version{Record: mirror.Doubt(w.api.mirror.Record), ResourceVersion: fmt.Sprint(w.api.bump())}
	w.api.history = nil
	w.say("the record is doubted: %s", mirror.String(w.api.mirror.Record))
	for range w.rng.IntN(stepsBetween) {
		w.step()
	}
	for _, m := range w.api.mirror.Members {
		r := w.api.replicas[m.Replica]
		r.wanted, r.version = w.id("reader"), w.api.bump()
		w.targets[m.Replica].agent()
		if r.admitted != r.wanted {
			w.wrong("%s does not let the reader in", m.Replica)
			return false
		}
	}
	headers := w.headers()
	for range w.rng.IntN(stepsBetween) {
		w.step()
	}
	if !maps.EqualFunc(headers, w.headers(), func(a, b mirror.Header) bool { return a.Mark == b.Mark && a.Epoch == b.Epoch }) {
		w.wrong("a header was written after the reader was let in")
		return false
	}
	next, err := from(headers)
	if err != nil && w.anyKept() && (errors.Is(err, mirror.ErrUnasked) || w.ranLast() == "") {
		w.tally["needs a replica that was kept"]++
		w.over = true
		return false
	}
	if err != nil {
		// The headers are not enough: one was lost before it was written, or the newest names a replica that has left
		// since. A person chooses: of a mirror that never ran, any.
		w.tally["chosen in a recovery"]++
		next, err = mirror.Choose(w.api.mirror.Record, cmp.Or(w.ranLast(), w.api.mirror.Members[0].Replica), headers, w.now)
	}
	if err != nil {
		w.wrong("the record cannot be recovered: %v", err)
		return false
	}
	w.tally["recovered"]++
	w.api.history = nil
	w.api.mirror = Version{Record: next, ResourceVersion: fmt.Sprint(w.api.bump())}
	w.say("recovered %s", mirror.String(next))
	w.attach(node)
	return true
}

// anyKept tells whether a replica that has left the volume was kept, because its agent suspected a restore.
func (w *world) anyKept() bool {
	for name, t := range w.targets {
		if _, is := mirror.Get(w.api.mirror.Record, name); !is && t.kept {
			return true
		}
	}
	return false
}

// allFailed tells whether the targets of all members in sync returned errors: two replicas do not survive that.
func (w *world) allFailed() bool {
	for _, replica := range mirror.InSync(w.api.mirror.Record) {
		if !w.targets[replica].erred() {
			return false
		}
	}
	return true
}

// ranLast is the member with which a kernel ran last, by the members' metadata.
func (w *world) ranLast() string {
	newest := ""
	for _, m := range w.api.mirror.Members {
		s := w.targets[m.Replica].disk.super
		left := slices.ContainsFunc(w.api.mirror.Members, func(o mirror.Member) bool {
			by := w.targets[o.Replica].disk.super
			return by.valid && by.active[o.Replica] && by.faulty[m.Replica] && by.events > s.events
		})
		if s.valid && s.active[m.Replica] && !left && (newest == "" || s.events > w.targets[newest].disk.super.events) {
			newest = m.Replica
		}
	}
	return newest
}

// lastInSync is the member that was in sync last, by the members' headers.
func (w *world) lastInSync() string {
	newest, headers := "", w.headers()
	for _, name := range sorted(headers) {
		if h := headers[name]; h.Members[name] == v1alpha1.MemberInSync && (newest == "" || h.Epoch > headers[newest].Epoch) {
			newest = name
		}
	}
	return newest
}

// looksInto the data of members, where neither metadata nor headers tell, and finds the one that has everything; the
// first if none has.
func (w *world) looksInto(names ...string) string {
	for _, name := range names {
		whole := true
		for region, value := range w.targets[name].disk.data {
			whole = whole && w.allowed[region][value]
		}
		if whole {
			return name
		}
	}
	return names[0]
}

// promote the member that ran last: a person does, because the record has others in sync, and the members' metadata
// says that a kernel left those behind.
func (w *world) promote() {
	newest := w.ranLast()
	if last := w.lastInSync(); last != "" && last != newest && newest != "" {
		w.tally["metadata and headers disagree"]++
		newest = w.looksInto(newest, last)
	}
	w.tally["promoted"]++
	w.say("a person chooses %s", newest)
	w.recoverRecord(func(headers map[string]mirror.Header) (mirror.Record, error) {
		return mirror.Choose(w.api.mirror.Record, newest, headers, w.now)
	})
}
