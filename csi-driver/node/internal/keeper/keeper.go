// SPDX-License-Identifier: Apache-2.0

// Package keeper keeps the record of one mirror true, on the node that holds it: NvmfMirror lists a replica as in sync
// only if it has every write that was acknowledged. docs/design/mirror-record.md has the rules.
//
// A Keeper is a state machine over narrow interfaces. Each Step looks at the record, the kernel and the headers, and
// does the next thing; nothing that it remembers is needed to go on after a restart. What can block in the kernel
// runs in the background, one call for each leg at a time. Step itself waits for the API only.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

const (
	// DefaultGrace is how long a leg may not answer before it is given up. A target that was restarted is back within a
	// second, and hosts try to reconnect every 2 s (v1alpha1.ReconnectDelay): they try twice. The kernel notices a
	// silent target after its keep-alive timeout, which is not part of the grace.
	//
	// It ends when the first attempt to connect to a silent target has: the kernel deletes a controller only between
	// attempts. They begin 2 s after the leg was lost, and again 2 s after each has failed, which takes silentAttempt.
	// So there are 2 s to record the loss; with a grace of 6 s there was 1 s, and writes then waited for 3 s more.
	DefaultGrace = v1alpha1.ReconnectDelay + silentAttempt
	// silentAttempt is how long the kernel tries to connect to an address that does not answer. Over TCP, it sends a
	// second SYN after 1 s, and waits 2 s for its answer (tcp_sock_set_syncnt in nvme_tcp_alloc_queue), or asks for the
	// address of a neighbour three times, a second each. Over RDMA, it is NVME_RDMA_CM_TIMEOUT_MS.
	silentAttempt = 3 * time.Second
	// DefaultCopyBytesPerSecond bounds what copying to one leg takes from the users' I/O: the kernel's own default
	// (speed_limit_max, 200,000 KiB a second).
	DefaultCopyBytesPerSecond = 200_000 << 10
	// DefaultTimeout of one call of the API. A call that takes longer has no answer, and is tried again.
	DefaultTimeout = 5 * time.Second
	// interval in which a keeper looks although nothing told it to: for changes of which there is no event, such as a
	// replica's fresh identity.
	interval = 10 * time.Second
	// retry of what failed, or has not happened yet.
	retry = time.Second
)

// Errors that Status has.
var (
	// ErrPast says that the record is older than what the headers have: the API was restored to an earlier state. I/O
	// goes on, and nothing is changed, until a person has recovered the record.
	ErrPast = errors.New("the mirror's record is older than its headers")
	// ErrLastLeg says that the only leg that has everything does not answer. Writes wait.
	ErrLastLeg = errors.New("the last replica in sync does not answer; writes wait for it")
)

// Mode is what a keeper is to do.
type Mode int

const (
	// Keep a mirror that runs.
	Keep Mode = iota
	// Start the mirror, if it does not run, then keep it.
	Start
	// Stop the mirror, whose top device is gone, and record that it was stopped cleanly.
	Stop
)

// Phase of a mirror on this node.
type Phase int

const (
	// Waiting says that it does not run, or has to be looked at by a person.
	Waiting Phase = iota
	// Starting says that it is being assembled or made equal. Its device must not be used yet.
	Starting
	// Running says that its device may be used.
	Running
	// Leaving says that another attachment holds it, or none does. Its users are killed.
	Leaving
	// Stopped says that nothing of it is left in this node's kernel but the top device, which fails.
	Stopped
)

// Status of a mirror after a step.
type Status struct {
	Phase Phase
	// Err says what it waits for; nil if nothing is wrong.
	Err error
	// Next step at the latest.
	Next time.Duration
	// Record that the step saw; zero if it could not be read.
	Record mirror.Record
}

// Keeper of one mirror. Its methods are not safe for concurrent use, but for Notify.
type Keeper struct {
	// Attachment that this node uses the volume by.
	Attachment string
	Mode       Mode
	Record     Records
	Legs       Legs
	Array      Arrays
	Headers    Headers
	Top        Top
	Users      Users
	Agents     Agents
	// Grace, CopyBytesPerSecond and Timeout; 0 is the default.
	Grace, Timeout     time.Duration
	CopyBytesPerSecond int64
	Now                func() time.Time
	// NewMark gives a fresh UUID.
	NewMark func() string
	// Spawn runs a function in a goroutine; nil is one that nobody waits for.
	Spawn func(func())

	tasks  tasks
	notify chan struct{}
	// What this process saw. Losing it costs time, nothing else.
	seen     int64                    // highest epoch
	hung     map[string]time.Time     // legs that do not answer
	headers  map[string]mirror.Header // read or written over the present connection
	failed   map[string]error         // what reading or writing one of them ended with
	mine     map[string]bool          // marks of records that this process stored
	out      map[string]bool          // members that were out in a record that this process stored
	returned map[string]bool          // members whose return this process stored
	asked    map[string]bool          // legs of which the agent said that nothing acknowledged was lost
	started  bool                     // this process stored a start, and nobody was told since that the mirror runs
	ran      int                      // in how many steps it was told that the mirror runs
	unmade   bool                     // the array could not be made since: the members' metadata may differ
	fenced   bool                     // the record that was read last has another holder
	kicked   []string                 // members that others' metadata says were left behind
	compared []string                 // members that were compared with each other
	clean    bool                     // the array was stopped with all members in sync
	speed    bool
	since    time.Time // of the start
	stopping time.Time // since it began to stop
}

// view is what one step looks at.
type view struct {
	Version
	legs  map[string]Leg
	array ArrayState
	// ending: the array was being stopped when it was looked at, and its members leave it one after the other.
	ending bool
	// making: a connection or the array was being made when everything was looked at, and may be there since.
	making bool
	// deleting are the members whose controllers were being deleted then, because of a record that was read before. A
	// leg that is there may be gone when an array is made of it. What it has not answered is acknowledged without it.
	deleting map[string]bool
	// busy: a call in the kernel or to an agent had not ended then. The mirror has not stopped before it has: it could
	// be acting on what the next attachment makes.
	busy bool
}

func (k *Keeper) init(ctx context.Context) {
	k.tasks.ctx = context.WithoutCancel(ctx)
	if k.hung != nil {
		return
	}
	k.hung, k.headers = map[string]time.Time{}, map[string]mirror.Header{}
	k.mine, k.failed = map[string]bool{}, map[string]error{}
	k.out, k.returned, k.asked = map[string]bool{}, map[string]bool{}, map[string]bool{}
	k.since = k.Now()
	k.tasks.spawn, k.tasks.done = k.Spawn, k.Notify
	if k.Grace == 0 {
		k.Grace = DefaultGrace
	}
	if k.Timeout == 0 {
		k.Timeout = DefaultTimeout
	}
	if k.CopyBytesPerSecond == 0 {
		k.CopyBytesPerSecond = DefaultCopyBytesPerSecond
	}
}

// Step does the next thing.
func (k *Keeper) Step(ctx context.Context) Status {
	k.init(ctx)
	v, err := k.look(ctx)
	if err != nil {
		return Status{Phase: Waiting, Err: err, Next: retry}
	}
	if k.Mode != Stop {
		k.stopping, k.clean = time.Time{}, false
	}
	status := k.act(ctx, v)
	if status.Phase == Running {
		k.started = false // it may be written from now on
		k.ran++
	}
	status.Record = v.Record
	if status.Err != nil && status.Next == 0 {
		status.Next = retry
	}
	return status
}

// look at everything.
func (k *Keeper) look(ctx context.Context) (*view, error) {
	call, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	version, err := k.Record.Get(call)
	if err != nil {
		return nil, fmt.Errorf("read the mirror's record: %w", err)
	}
	v := &view{Version: version, legs: map[string]Leg{}, ending: k.tasks.busy(stopTask),
		making: k.tasks.runs(assembleTask, connectTask), deleting: k.tasks.of(deleteTask), busy: k.tasks.runs("")}
	if v.array, err = k.Array.State(); err != nil {
		return nil, err
	}
	all, err := k.Legs.All()
	if err != nil {
		return nil, err
	}
	v.legs = all
	k.observe(v)
	k.harvest(v)
	return v, nil
}

// observe legs that come and go.
func (k *Keeper) observe(v *view) {
	now := k.Now()
	for _, replica := range v.replicas() {
		switch v.legs[replica].State {
		case LegLive:
			if _, was := k.hung[replica]; was {
				delete(k.hung, replica)
				delete(k.asked, replica)
			}
		case LegHanging:
			if _, was := k.hung[replica]; !was {
				k.hung[replica] = now
			}
		default:
			delete(k.hung, replica)
			delete(k.headers, replica)
			delete(k.asked, replica)
			delete(k.returned, replica)
			_, _ = k.tasks.result(deleteTask + replica) // of a deletion that nobody waited for
		}
	}
}

// replicas that are members of the record or of the array, or have a leg.
func (v *view) replicas() []string {
	all := map[string]bool{}
	for _, m := range v.Members {
		all[m.Replica] = true
	}
	for replica := range v.array.Members {
		all[replica] = true
	}
	for replica := range v.legs {
		all[replica] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// live legs answer, and stay.
func (v *view) live(replica string) bool {
	return v.legs[replica].State == LegLive && !v.deleting[replica]
}

// goes tells whether a replica has no controllers, or they are being deleted.
func (v *view) goes(replica string) bool {
	return v.legs[replica].State == LegGone || v.deleting[replica]
}

func (v *view) is(replica string, state v1alpha1.MirrorMemberState) bool {
	return mirror.StateOf(v.Record, replica) == state
}

// answers tells whether the legs to all these replicas are live.
func (v *view) answers(replicas []string) bool {
	return !slices.ContainsFunc(replicas, func(replica string) bool { return !v.live(replica) })
}

// works tells whether the kernel has everything on a member that answers.
func (v *view) works(replica string) bool {
	return v.is(replica, v1alpha1.MemberInSync) && v.array.Members[replica] == MemberInSync && v.live(replica)
}

func (k *Keeper) act(ctx context.Context, v *view) Status {
	if v.Epoch < k.seen {
		return k.ofThePast(ctx, v, fmt.Errorf("%w: epoch %d was read after %d", ErrPast, v.Epoch, k.seen))
	}
	if fenced := v.Holder != k.Attachment; fenced != k.fenced {
		// Another holder may have written the headers since. Those of legs that still answer are read again.
		k.fenced, k.headers = fenced, map[string]mirror.Header{}
	}
	if err := k.past(v); err != nil {
		return k.ofThePast(ctx, v, err)
	}
	if v.Holder != k.Attachment {
		return k.leave(v)
	}
	k.seen = v.Epoch
	switch {
	case v.ending && v.answers(mirror.InSync(v.Record)):
		return Status{Phase: Waiting, Next: interval} // what it shows now says nothing of its members
	case k.Mode == Stop:
		return k.stop(ctx, v)
	case v.array.Exists:
		return k.keep(ctx, v)
	case k.Mode == Start:
		return k.start(ctx, v)
	}
	return Status{Phase: Waiting, Err: errors.New("the mirror does not run"), Next: interval}
}

// ofThePast changes nothing: what runs, or is being made, goes on, and waits for a person, as does a clean end, which
// has to be recorded. If nothing ran and nothing is to, because the volume is unstaged or the record has another
// holder, the connections go, so that the volume can be detached; the record stays as it is, but for members that are
// foreign to it, and for the word that it cannot be trusted.
func (k *Keeper) ofThePast(ctx context.Context, v *view, past error) Status {
	if foreign := k.foreign(v); foreign != nil {
		past = errors.Join(past, k.refuse(ctx, v, *foreign))
	} else {
		past = errors.Join(past, k.distrust(ctx, v))
	}
	waits := Status{Phase: k.phase(v), Err: past}
	if v.array.Exists || v.making || k.clean || k.Mode != Stop && v.Holder == k.Attachment {
		return waits
	}
	if used, err := k.Top.Exists(); used || err != nil {
		waits.Err = errors.Join(past, err)
		return waits
	}
	return k.disconnected(v)
}

func (k *Keeper) phase(v *view) Phase {
	if v.array.Exists && !v.array.Resyncing && !v.ending && !slices.ContainsFunc(mirror.InSync(v.Record), v.goes) {
		return Running
	}
	return Waiting
}

// past compares the headers that were read with the record. A record that is being recovered knows none of their marks,
// and a person has decided that nobody holds it: only epochs are compared, which say whether it has been recovered
// since.
func (k *Keeper) past(v *view) error {
	for _, replica := range slices.Sorted(maps.Keys(k.headers)) {
		if _, ok := mirror.Get(v.Record, replica); !ok || k.fenced && !v.live(replica) {
			continue
		}
		if v.Recovering && v.Holder != k.Attachment && k.headers[replica].Epoch <= v.Epoch {
			continue
		}
		if err := mirror.Check(v.Record, replica, k.headers[replica]); err != nil {
			return fmt.Errorf("%w: %w", ErrPast, err)
		}
	}
	return nil
}

// foreign is a member to be refused, because the record does not know its header; nil if there is none. If such a one
// is in sync, it is the record that is the past.
func (k *Keeper) foreign(v *view) *mirror.Member {
	for i, m := range v.Members {
		h, read := k.headers[m.Replica]
		if read && !v.Recovering && k.refusable(v, m) && mirror.Check(v.Record, m.Replica, h) != nil {
			return &v.Members[i]
		}
	}
	return nil
}

// distrust a record by which this attachment holds a mirror that runs, and that is the past by its epoch, or by the
// header of a member of the array: one that the array does not have is refused, and says nothing of the others. If the
// record was only read late, nothing is stored.
func (k *Keeper) distrust(ctx context.Context, v *view) error {
	unknown := slices.ContainsFunc(v.Members, func(m mirror.Member) bool {
		h, read := k.headers[m.Replica]
		return read && v.array.Members[m.Replica] != MemberAbsent && mirror.Check(v.Record, m.Replica, h) != nil
	})
	trusted := slices.ContainsFunc(v.Members, func(m mirror.Member) bool { return !m.Suspect })
	if v.Holder != k.Attachment || v.Recovering || !trusted || v.Epoch >= k.seen && !unknown {
		return nil
	}
	mine, out := k.mine, k.out
	err := k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Distrust(v.Record) }).Err
	if err != nil {
		k.mine, k.out = mine, out // no marks were to be stored
	}
	return err
}

func (k *Keeper) refusable(v *view, m mirror.Member) bool {
	return v.Holder == k.Attachment && m.State != v1alpha1.MemberInSync && !m.Foreign
}

// refuse a member: that it is foreign is recorded, because nobody can tell once it does not answer any more, and it
// must not be replaced then as one that is only lost.
func (k *Keeper) refuse(ctx context.Context, v *view, m mirror.Member) error {
	if !k.refusable(v, m) {
		return nil
	}
	return k.swap(ctx, v, func(h mirror.Holder) (mirror.Record, error) { return h.Refuse(v.Record, m.Replica) }).Err
}

// harvest the headers that were read or written. What a write that failed left there is read again.
func (k *Keeper) harvest(v *view) {
	for _, replica := range v.replicas() {
		result, ok := k.tasks.result(headerOf(replica))
		if !ok {
			continue
		}
		delete(k.headers, replica)
		delete(k.failed, replica)
		switch {
		case result.err != nil:
			k.failed[replica] = result.err
		case v.legs[replica].State != LegGone:
			k.headers[replica] = result.header
		}
	}
}

func headerOf(replica string) string { return "header of " + replica }

// read the headers of those legs that answer; it tells whether all have been read, and nothing is being written. One
// that was written since the view was taken is not known before the next one.
func (k *Keeper) read(v *view, replicas []string) (bool, error) {
	ready := true
	var err error
	for _, replica := range replicas {
		if k.tasks.pending(headerOf(replica)) {
			ready = false
			continue
		}
		if _, known := k.headers[replica]; known || !v.live(replica) {
			continue
		}
		ready = false
		err = errors.Join(err, k.failure(replica))
		k.tasks.start(headerOf(replica), func(ctx context.Context) result {
			header, err := k.Headers.Read(ctx, replica)
			return result{err: err, header: header}
		})
	}
	return ready, err
}

// failure of what was tried with a header, once.
func (k *Keeper) failure(replica string) error {
	err := k.failed[replica]
	delete(k.failed, replica)
	if err != nil {
		return fmt.Errorf("the header of %s: %w", replica, err)
	}
	return nil
}

// write the record into the headers of these members; it tells whether all have it.
func (k *Keeper) write(v *view, replicas []string) (bool, error) {
	ready, err := k.read(v, replicas)
	if err != nil {
		return false, err
	}
	for _, replica := range replicas {
		m, _ := mirror.Get(v.Record, replica)
		last := lastMark(m)
		if known, ok := k.headers[replica]; ok && known.Mark == last || k.tasks.pending(headerOf(replica)) {
			continue
		}
		ready = false
		if _, known := k.headers[replica]; !known {
			continue
		}
		header := mirror.HeaderOf(v.Record, last)
		k.tasks.start(headerOf(replica), func(ctx context.Context) result {
			return result{err: k.Headers.Write(ctx, replica, header), header: header}
		})
	}
	return ready, nil
}

func lastMark(m mirror.Member) string {
	if len(m.Marks) == 0 {
		return mirror.NoMark
	}
	return m.Marks[len(m.Marks)-1]
}

// swap stores the record that follows v. Nothing is done in its name unless the API server says that it was stored: a
// timeout is no answer, and neither is a read, which may be older than the change that it misses.
func (k *Keeper) swap(ctx context.Context, v *view, change func(mirror.Holder) (mirror.Record, error)) Status {
	mark := k.NewMark()
	next, err := change(mirror.Holder{Attachment: k.Attachment, Mark: mark, Now: k.Now()})
	if err != nil {
		return Status{Phase: k.phase(v), Err: err}
	}
	call, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	if err := k.Record.Swap(call, v.Version, next); err != nil {
		// If it was stored, a read that is older than it has the record before, whose marks are no longer right.
		k.mine, k.out = map[string]bool{}, map[string]bool{}
		return Status{Phase: k.phase(v), Err: fmt.Errorf("store the mirror's record: %w", err)}
	}
	k.seen, k.mine[mark] = max(k.seen, next.Epoch), true
	for _, replica := range v.replicas() {
		k.out[replica] = mirror.StateOf(next, replica) == v1alpha1.MemberOut
	}
	return Status{Phase: k.phase(v)}
}

// marks of the headers that the next record stamps: of the members that are in use, but not of the one named.
func (k *Keeper) marks(v *view, but string) (map[string]string, bool, error) {
	return k.marksOf(v, v.working(but))
}

func (k *Keeper) marksOf(v *view, replicas []string) (map[string]string, bool, error) {
	ready, err := k.read(v, replicas)
	if !ready || err != nil {
		return nil, false, err
	}
	all := map[string]string{}
	for _, replica := range replicas {
		header, known := k.headers[replica]
		if !known {
			return nil, false, nil // it does not answer any more
		}
		all[replica] = header.Mark
	}
	return all, true, k.past(v)
}
