// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// faults are rules that are left out.
type faults struct {
	// acknowledgesFirst: the controllers of a leg that hangs are deleted before it is recorded.
	acknowledgesFirst bool
	// countsTimeouts: a swap that timed out counts as stored.
	countsTimeouts bool
	// forgetsFormer: an agent admits a host while an earlier one is on.
	forgetsFormer bool
	// returnsFilling: a member that was only being filled is taken back by bitmap.
	returnsFilling bool
	// trustsStale: headers and agents are not asked whether the API is the past.
	trustsStale bool
	// releasesFenced: a fenced keeper takes its array down without killing the users first.
	releasesFenced bool
	// refusesForGood: a target answers a host that it dismissed with "do not retry", and its kernel gives the leg up.
	refusesForGood bool
	// acceptsUnconfirmed: a copy is accepted in its epoch, before the holder has confirmed it.
	acceptsUnconfirmed bool
	// acceptsEarlier: a copy is accepted by a confirmation that was made before it was frozen.
	acceptsEarlier bool
	// takesForBlank: a replica that admits a mover counts as blank, whatever was written to it.
	takesForBlank bool
}

// replicaObject is an NvmfReplica: the host that is wanted, and what its agent said.
type replicaObject struct {
	uid, wanted, admitted string
	// blank: nothing had been written to it when it admitted the host.
	blank, past bool
	version     int
}

// api is the API server's store.
type api struct {
	version  int
	mirror   Version
	history  []Version
	replicas map[string]*replicaObject
	// wish is the attachment that there is to be, and its node.
	wish, node string
	since      time.Time
	moving     bool
	// lost is a member that the controller replaces, and replacement the one that it has added for that.
	lost, replacement string
	// mover: the attachment is one that no pod uses.
	mover bool
}

func (a *api) clone() *api {
	c := *a
	c.mirror.Record = *a.mirror.DeepCopy()
	c.history = slices.Clone(a.history)
	c.replicas = map[string]*replicaObject{}
	for name, r := range a.replicas {
		o := *r
		c.replicas[name] = &o
	}
	return &c
}

func (a *api) bump() int {
	a.version++
	return a.version
}

// store a record, as the API server would: by compare and swap, and by the rules of the schema that matter most.
func (a *api) store(old Version, next mirror.Record) error {
	if old.ResourceVersion != a.mirror.ResourceVersion {
		return errors.New("conflict")
	}
	if next.Epoch < a.mirror.Epoch || len(mirror.InSync(next)) == 0 {
		return errors.New("invalid")
	}
	a.history = append(a.history, a.mirror)
	a.mirror = Version{Record: *next.DeepCopy(), ResourceVersion: fmt.Sprint(a.bump())}
	return nil
}

// world is a cluster with one volume.
type world struct {
	rng     *rand.Rand
	faults  faults
	often   []int
	now     time.Time
	api     *api
	backup  *api
	targets map[string]*target
	nodes   map[string]*node
	cut     map[[2]string]bool
	log     []string
	problem string
	ids     int
	arrays  int
	copied  int
	calm    bool
	// slow: it takes a while to delete controllers.
	slow bool
	// needsPerson: the controller cannot admit a holder by itself.
	needsPerson bool
	// erroring: a target is answering an error.
	erroring bool
	steps    int
	// over: a person has to look into a replica that was kept, which is not played here.
	over bool
	// restored: the API was restored, and no person has recovered the record yet.
	restored bool
	tally    map[string]int

	seq int
	// allowed values of a region: what was acknowledged last, and what was asked for since then and may be there or
	// not.
	allowed [regions]map[int]bool
	// failed regions: the last member in sync answered an error to a write. Until the next one, replicas may differ
	// there.
	failed [regions]bool
	// lost: MD went on without a member, could not write that down, and nobody can record it because the API was
	// restored; or it could not write down what that member lacks. Two replicas that fail do not survive that.
	lost bool
	// seen values of a region, when an attachment started.
	seen [regions]map[int]bool
	// copying: copies are made; copies are those that are being made.
	copying bool
	copies  []*snapshot
	// baseline: the attachment that has read everything, and found it right.
	baseline string
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *world) id(kind string) string {
	w.ids++
	return fmt.Sprintf("%s%d", kind, w.ids)
}

func (w *world) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%6.1fs ", w.now.Sub(epoch).Seconds())+fmt.Sprintf(format, args...))
}

// wrong notes what must not be.
func (w *world) wrong(format string, args ...any) {
	if w.lost {
		w.tally["after a double fault"]++
		return
	}
	if w.problem == "" {
		w.problem = fmt.Sprintf(format, args...)
		w.say("WRONG: %s", w.problem)
	}
}

func (w *world) linked(a, b string) bool { return !w.cut[[2]string{a, b}] && !w.cut[[2]string{b, a}] }

func (w *world) refresh() {
	for _, name := range sorted(w.nodes) {
		for _, replica := range sorted(w.nodes[name].legs) {
			if l := w.nodes[name].legs[replica]; l != nil {
				l.refresh()
				t := w.targets[replica]
				if w.faults.refusesForGood && !l.live && t.powered && !t.admitted[l.identity] && w.linked(name, replica) {
					l.delete()
				}
			}
		}
	}
}

var epoch = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

func newWorld(seed uint64, f faults) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 14)), faults: f, now: epoch, targets: map[string]*target{},
		nodes: map[string]*node{}, cut: map[[2]string]bool{}, tally: map[string]int{}}
	w.api = &api{replicas: map[string]*replicaObject{}}
	var all []mirror.Replica
	for _, name := range []string{"a", "b"} {
		all = append(all, w.create(name))
	}
	var fill []mirror.Replica
	unwritten := seed%10 == 0 // it is being moved before anybody has written to it
	if unwritten {
		fill = append(fill, w.create("c"))
	}
	r, err := mirror.New("", all, fill, w.now)
	if err != nil {
		panic(err)
	}
	w.api.mirror = Version{Record: r, ResourceVersion: "0"}
	for _, name := range []string{"n1", "n2"} {
		w.nodes[name] = &node{w: w, name: name, legs: map[string]*leg{}}
	}
	for i := range w.allowed {
		w.allowed[i], w.seen[i] = map[int]bool{0: true}, map[int]bool{}
	}
	w.attach("n1")
	w.api.moving, w.api.mover = unwritten, unwritten
	return w
}

// create a blank replica.
func (w *world) create(name string) mirror.Replica {
	uid := w.id("u")
	w.targets[name] = &target{w: w, name: name, uid: uid, powered: true, admitted: map[string]bool{}, disk: disk{header: mirror.Header{Mark: mirror.NoMark}}}
	w.api.replicas[name] = &replicaObject{uid: uid, version: w.api.bump()}
	return mirror.Replica{Name: name, UID: uid}
}

// attach the volume to a node, or to none, from now on.
func (w *world) attach(node string) {
	w.api.node, w.api.wish, w.api.since, w.api.mover = node, "", w.now, false
	if node != "" {
		w.api.wish = w.id("attachment")
	}
	w.api.bump()
}

func show(r mirror.Record) string {
	text := mirror.String(r)
	for _, m := range r.Members {
		text += fmt.Sprintf(" %s%v", m.Replica, m.Marks)
	}
	return text
}

// What the keeper sees of the API.

type records struct {
	n       *node
	pretend *Version // what a swap that timed out would have stored
}

func (r *records) Get(context.Context) (Version, error) {
	w := r.n.w
	if !w.linked("api", r.n.name) {
		return Version{}, errors.New("timeout")
	}
	if r.pretend != nil && r.pretend.Epoch > w.api.mirror.Epoch {
		return *r.pretend, nil
	}
	v := w.api.mirror
	if n := len(w.api.history); n > 0 && !w.calm && w.chance(5) {
		v = w.api.history[max(0, n-1-w.rng.IntN(3))]
	}
	v.Record = *v.DeepCopy()
	return v, nil
}

func (r *records) Swap(_ context.Context, old Version, next mirror.Record) error {
	w := r.n.w
	if w.faults.returnsFilling {
		for i, m := range next.Members {
			if before, _ := mirror.Get(old.Record, m.Replica); before.State == v1alpha1.MemberFilling && m.State == v1alpha1.MemberOut {
				next.Members[i].LastInSyncEpoch = old.Epoch
			}
		}
	}
	if !w.linked("api", r.n.name) || !w.calm && w.chance(5) {
		return r.timeout(next)
	}
	if err := w.api.store(old, next); err != nil {
		return err
	}
	w.say("%s stores %s", r.n.name, show(next))
	if !w.calm && w.chance(5) {
		return r.timeout(next)
	}
	return nil
}

func (r *records) timeout(next mirror.Record) error {
	if r.n.w.faults.countsTimeouts {
		r.pretend = &Version{Record: next, ResourceVersion: "pretended"}
		return nil
	}
	return errors.New("timeout")
}

type agents struct{ n *node }

func (a agents) Ask(_ context.Context, replica, uid string) (Answer, error) {
	w := a.n.w
	a.n.meanwhile()
	r := w.api.replicas[replica]
	switch {
	case !w.linked("api", a.n.name):
		return Answer{}, errors.New("timeout")
	case r == nil || r.uid != uid:
		return Answer{}, errors.New("another replica")
	case r.past:
		return Answer{}, errors.New("its agent found that the API was restored")
	}
	var answer Answer
	if r.admitted == r.wanted {
		answer.Identity = r.admitted
	}
	return answer, nil
}

// keep starts the node plugin's part for the volume.
func (n *node) keep() {
	mode := Start
	if n.top.exists {
		mode = Keep
	}
	if n.stopping {
		mode = Stop
	}
	n.plugin = &Keeper{Attachment: n.attachment, Mode: mode, Record: &records{n: n}, Legs: kernelLegs{n}, Array: kernelArray{n},
		Headers: kernelHeaders{n}, Top: kernelTop{n}, Users: kernelUsers{n}, Agents: agents{n},
		Now: func() time.Time { return n.w.now }, NewMark: func() string { return n.w.id("mark") },
		Spawn: func(f func()) {
			n.meanwhile()
			n.tasks = append(n.tasks, n.patiently(f))
		}}
}

// kill the node plugin. What it had asked of the kernel happens or not.
func (n *node) kill() {
	for _, f := range n.tasks {
		if n.w.chance(50) {
			f()
		}
	}
	n.plugin, n.tasks = nil, nil
	if n.array != nil && n.array.making {
		n.array.making = false
	}
}

// crash of the node.
func (n *node) crash() {
	for _, name := range sorted(n.legs) {
		for _, c := range n.legs[name].sent {
			c.orphan = true
		}
	}
	n.legs, n.array, n.top, n.pod = map[string]*leg{}, nil, topState{}, nil
	n.plugin, n.tasks, n.ready, n.stopping, n.restages = nil, nil, false, false, false
}

// step of the node plugin: the kubelet asks it to stage what is attached here, and to unstage what is not.
func (n *node) step() {
	w := n.w
	wanted := ""
	if w.linked("api", n.name) && w.api.node == n.name {
		wanted = w.api.wish
	}
	if n.attachment == "" && wanted != "" && w.api.mirror.Holder == wanted {
		n.attachment, n.mover, n.ready, n.stopping = wanted, w.api.mover, false, false
	}
	if n.attachment == "" {
		return
	}
	if n.plugin == nil {
		n.keep()
	}
	if n.attachment == wanted && n.ready && !n.mover && !w.calm && w.chance(1) {
		n.restages = true
	}
	if (n.attachment != wanted && w.linked("api", n.name) || n.restages) && w.linked("kubelet", n.name) && !n.stopping {
		n.unstage()
	}
	if n.stopping && n.attachment == wanted && w.chance(10) {
		// The volume is to be staged again for the same attachment, before it has been unstaged.
		n.stopping, n.restages, n.ready, n.plugin.Mode = false, false, false, Start
		w.tally["staged again in the middle of a stop"]++
	}
	status := n.plugin.Step(context.Background())
	if text := fmt.Sprint(status.Err); status.Err != nil && !slices.Contains(n.said, text) {
		n.said = append(n.said, text)
		w.say("%s: %s", n.name, text)
	}
	settled := status.Phase == Running || status.Phase == Stopped
	n.needsPerson = errors.Is(status.Err, mirror.ErrNeedsPerson) || n.needsPerson && !settled // also while it asks again
	n.alone = !mirror.Whole(status.Record) && (n.alone || errors.Is(status.Err, mirror.ErrForeign) && !errors.Is(status.Err, ErrPast))
	if status.Phase == Stopped {
		w.say("%s has left", n.name)
		n.top, n.pod, n.attachment, n.plugin, n.tasks, n.stopping, n.ready = topState{}, nil, "", nil, nil, false, false
		n.restages = false
		return
	}
	if status.Phase == Running && !n.stopping && !n.top.exists && !n.mover {
		n.top.exists, n.ready = true, true
		n.pod = &pod{n: n, attachment: n.attachment, outstanding: map[int]int{}, waiting: map[int]int{}}
		n.verify()
	}
	if w.faults.acknowledgesFirst {
		for _, replica := range sorted(n.plugin.hung) {
			if l := n.legs[replica]; l != nil && w.now.Sub(n.plugin.hung[replica]) > 2*time.Second {
				l.delete()
			}
		}
	}
}

// unstage: the pod ends, then the device goes. A volume whose attachment is gone stays to the keeper.
func (n *node) unstage() {
	if n.pod != nil {
		n.pod.killed = true
		if len(n.pod.outstanding) > len(n.pod.waiting) {
			return
		}
		n.pod = nil
	}
	if n.w.api.mirror.Holder == n.attachment {
		n.top, n.stopping = topState{}, true
		n.plugin.Mode = Stop
	}
}

// verify what a pod reads first: every acknowledged write. From then on nothing else may appear.
func (n *node) verify() {
	w := n.w
	w.tally["attached"]++
	for region := range regions {
		value, ok := n.array.read(region)
		if !ok {
			continue
		}
		if !w.allowed[region][value] {
			w.wrong("%s reads write %d in region %d, but only %v can be there", n.name, value, region, sorted2(w.allowed[region]))
		}
		if !w.failed[region] {
			w.allowed[region] = map[int]bool{value: true}
		}
		w.seen[region][value] = true
	}
	w.baseline = n.attachment
	w.say("%s has started, with %v", n.name, n.array.members)
}

// issue a write.
func (p *pod) issue() {
	w := p.n.w
	region := w.rng.IntN(regions)
	if _, busy := p.outstanding[region]; busy || p.killed {
		return
	}
	w.seq++
	p.outstanding[region] = w.seq
	if p.attachment == w.baseline {
		w.allowed[region][w.seq] = true
	}
	if p.n.top.blocked || p.n.array == nil {
		p.waiting[region] = w.seq
		return
	}
	p.n.array.begin(region, w.seq)
}

// ended: the array has answered a write. MD acknowledges a write that one member had carried out before it was lost,
// when the last one answers an error to it: twice says that no member has it that is left. Two replicas do not
// survive that.
func (n *node) ended(region, seq int, ok, twice bool) {
	p := n.pod
	if p == nil || p.outstanding[region] != seq {
		return
	}
	delete(p.outstanding, region)
	if !ok || p.killed || n.top.failing {
		n.w.failed[region] = n.w.failed[region] || !ok
		return
	}
	if twice {
		n.w.tally["acknowledged in a double fault"]++
		return
	}
	n.w.tally["acknowledged"]++
	if p.attachment != n.w.baseline {
		// Another attachment has started. It is well if that found the write, and maybe wrote over it since.
		n.w.tally["acknowledged after another started"]++
		if !n.w.seen[region][seq] {
			n.w.wrong("%s: write %d in region %d is acknowledged, but who started since has not found it", n.name, seq, region)
		}
		return
	}
	n.w.allowed[region], n.w.failed[region] = map[int]bool{seq: true}, false
}

func sorted2(m map[int]bool) []int { return slices.Sorted(maps.Keys(m)) }

// inSync holds the record against what is there.
func (w *world) inSync() {
	if w.restored {
		return
	}
	for _, m := range w.api.mirror.Members {
		t := w.targets[m.Replica]
		if m.State != v1alpha1.MemberInSync || t.uid != m.ReplicaUID || m.Suspect || t.erred() {
			continue
		}
		for region, value := range t.disk.data {
			if !w.allowed[region][value] && !w.unequal() {
				w.wrong("%s is listed as in sync, but has write %d in region %d, where only %v can be", m.Replica, value, region, sorted2(w.allowed[region]))
			}
		}
	}
}

// unequal tells whether members in sync may differ in writes that were not acknowledged: they were not made equal yet.
func (w *world) unequal() bool {
	n := w.nodes[w.api.node]
	return n == nil || n.array == nil || n.array.resyncing || w.baseline != w.api.mirror.Holder
}
