// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// rig is a cluster whose CSI controller the test plays: each pause of a command is one step of it.
type rig struct {
	t           *testing.T
	api         client.Client
	out, stderr bytes.Buffer
	// format of -o; with one for programs, the result of a command is in results, and its lines are in out.
	format  string
	results bytes.Buffer
	now     time.Time
	// steps of the controller, in order; when none is left, the person interrupts the command.
	steps     []func()
	interrupt context.CancelFunc
	ctx       context.Context
}

// newRig has target fast on the nodes a, b and c of 1Ti each, node d of another target, and these objects.
func newRig(t *testing.T, objects ...client.Object) *rig {
	t.Helper()
	scheme, err := knownKinds()
	if err != nil {
		t.Fatal(err)
	}
	objects = append(objects, &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: "fast"}})
	for _, name := range []string{"a", "b", "c", "d"} {
		objects = append(objects, storageNode(name))
	}
	byUID := func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }
	byPhase := func(o client.Object) []string { return []string{string(o.(*corev1.Pod).Status.Phase)} }
	byNode := func(o client.Object) []string { return []string{o.(*v1alpha1.NvmfReplica).Spec.Node} }
	byTarget := func(o client.Object) []string { return []string{o.(*v1alpha1.NvmfNode).Spec.Target} }
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithIndex(&corev1.Event{}, eventsOf, byUID).WithIndex(&corev1.Pod{}, phaseOfPod, byPhase).
		WithIndex(&v1alpha1.NvmfReplica{}, "spec.node", byNode).WithIndex(&v1alpha1.NvmfNode{}, "spec.target", byTarget).Build()
	r := &rig{t: t, api: api, now: noon}
	r.ctx, r.interrupt = context.WithCancel(t.Context())
	t.Cleanup(r.interrupt)
	return r
}

// inZone is the Kubernetes Node of a storage node, with a label.
func inZone(name, label, value string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: value}}}
}

func storageNode(name string) *v1alpha1.NvmfNode {
	n := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{
		Target: "fast", Plan: &v1alpha1.Plan{Drives: []v1alpha1.PlannedDrive{{ID: "eui." + name}, {ID: "eui." + name + "2"}}}}}
	if name == "d" {
		n.Spec.Target = "slow"
	}
	n.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAsExpected)}
	n.Status.Pools = []v1alpha1.PoolStatus{{Device: "eui." + name, Ready: true, Total: new(resource.MustParse("1Ti")), Promised: new(resource.MustParse("0"))}}
	return n
}

// volume of claim NAMESPACE databases, attached to one node, with a replica on each of the storage nodes.
func volume(name string, on ...string) (*v1alpha1.NvmfVolume, []client.Object) {
	v := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "v-" + name}, Spec: v1alpha1.NvmfVolumeSpec{
		UUID: "u-" + name, Target: "fast", Size: resource.MustParse("100Gi"), Replicas: int32(len(on)),
		Attachments: []v1alpha1.VolumeHost{{NQN: "nqn-" + name, Node: "worker", Access: v1alpha1.AccessExclusive}},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "databases", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "databases", Name: name}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: v.Name}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	objects := []client.Object{v, claim, pv}
	for i, node := range on {
		m := v1alpha1.VolumeMember{Name: fmt.Sprintf("%s-%d", v.Name, i), Node: node}
		v.Spec.Members = append(v.Spec.Members, m)
		objects = append(objects, replicaOf(v, m))
	}
	return v, objects
}

func replicaOf(v *v1alpha1.NvmfVolume, m v1alpha1.VolumeMember) *v1alpha1.NvmfReplica {
	r := &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: m.Name}, Spec: v1alpha1.NvmfReplicaSpec{
		Volume: v1alpha1.ReplicaOf{Name: v.Name}, Target: v.Spec.Target, Node: m.Node, Size: v.Spec.Size}}
	r.Status.Device = "eui." + m.Node
	return r
}

// command runs with this watcher.
func (r *rig) watcher() *watcher {
	w := newWatcher(r.api, &r.out)
	if r.format != "" {
		cmd := &cobra.Command{}
		cmd.SetOut(&r.results)
		cmd.SetErr(&r.out)
		w = verb(r.api, cmd, &output{format: r.format})
	}
	w.now = func() time.Time { return r.now }
	w.pause = func(ctx context.Context) error {
		r.now = r.now.Add(time.Minute)
		if len(r.steps) == 0 {
			r.interrupt()
			return ctx.Err()
		}
		step := r.steps[0]
		r.steps = r.steps[1:]
		step()
		return nil
	}
	return w
}

func (r *rig) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) volume(name string) *v1alpha1.NvmfVolume {
	r.t.Helper()
	v := &v1alpha1.NvmfVolume{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: name}, v))
	return v
}

// add the replacement of a volume's replica on a node, as the controller does.
func (r *rig) add(name, node string) {
	v := r.volume(name)
	m := v1alpha1.VolumeMember{Name: name + "-9", Node: node}
	v.Spec.Members, v.Spec.Move.Replacement, v.Spec.Mirrored = append(v.Spec.Members, m), m.Name, true
	r.do(r.api.Update(r.ctx, v))
	r.do(r.api.Create(r.ctx, replicaOf(v, m)))
	r.do(r.api.Create(r.ctx, &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
		{Replica: v.Spec.Move.Replica, State: v1alpha1.MemberInSync},
		{Replica: m.Name, State: v1alpha1.MemberFilling, Since: new(metav1.NewTime(r.now))},
	}}}))
}

// record what the mirror says of both replicas.
func (r *rig) record(name string, change func(former, fresh *v1alpha1.MirrorMember)) {
	m := &v1alpha1.NvmfMirror{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: name}, m))
	change(&m.Spec.Members[0], &m.Spec.Members[1])
	r.do(r.api.Update(r.ctx, m))
}

// remove the replica that moved, and then the wish.
func (r *rig) remove(name string) {
	v := r.volume(name)
	former := memberOf(v, v.Spec.Move.Replica)
	r.do(r.api.Delete(r.ctx, &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: former.Name}}))
	v.Spec.Members = v.Spec.Members[1:]
	v.Spec.Move = nil
	r.do(r.api.Update(r.ctx, v))
}

// moved in one step.
func (r *rig) moved(name, node string) func() {
	return func() {
		r.add(name, node)
		r.remove(name)
	}
}

// said fails unless all of it was printed, in this order.
func (r *rig) said(want ...string) {
	r.t.Helper()
	rest := r.out.String()
	for _, w := range want {
		_, after, found := strings.Cut(rest, w)
		if !found {
			r.t.Errorf("want %q in this order in:\n%s", w, r.out.String())
			return
		}
		rest = after
	}
}

func exitCode(err error) int {
	var exit *ExitError
	if errors.As(err, &exit) {
		return exit.Code
	}
	return 0
}

func TestMoveIsWatched(t *testing.T) {
	_, objects := volume("data", "a")
	r := newRig(t, objects...)
	copied := func(n int64) func() {
		return func() { r.record("v-data", func(_, fresh *v1alpha1.MirrorMember) { fresh.CopiedBytes = n << 30 }) }
	}
	r.steps = []func(){
		func() {
			v := r.volume("v-data")
			v.Spec.Move.Waiting = "no node has room"
			r.do(r.api.Update(r.ctx, v))
		},
		func() {
			v := r.volume("v-data")
			v.Spec.Move.Waiting = ""
			r.do(r.api.Update(r.ctx, v))
			r.add("v-data", "b")
		},
		copied(50), copied(51),
		func() {
			r.record("v-data", func(_, fresh *v1alpha1.MirrorMember) { fresh.State = v1alpha1.MemberInSync })
		},
		func() { r.remove("v-data") },
	}
	if err := moveClaim(r.ctx, r.watcher(), "databases", "data", moveOptions{to: "b", wait: true}); err != nil {
		t.Fatal(err)
	}
	r.said("volume databases/data: moving replica v-data-0 (100.0Gi) from node a to node b\n", "the volume has a mirror, and can be used by one node at a time only\n",
		"12:01:00  databases/data: a to b: Requested; waiting: no node has room\n", "12:02:00  databases/data: a to b: Filling 0 %\n",
		"12:03:00  databases/data: a to b: Filling 50 % for 60s (894.8 MB/s, 60s left)\n", "12:05:00  databases/data: a to b: Removing", "12:06:00  databases/data: moved from a to b\n")
	if strings.Contains(r.out.String(), "51 %") || strings.Count(r.out.String(), "Requested") != 1 {
		t.Errorf("a line says nothing new:\n%s", r.out.String())
	}
}

// On a terminal, a bar counts the volumes of recover and rotate that are done, if there are several.
func TestVolumesAreCountedOnATerminal(t *testing.T) {
	const none, half = "[------------------------------]   0 %  0 of 2 volumes", "[###############---------------]  50 %  1 of 2 volumes"
	unattached := func(name string) []client.Object {
		v, objects := volume(name, "a", "b")
		v.Spec.Attachments = nil
		return append(objects, &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: v.Name}})
	}
	keyed := func(name string) []client.Object {
		_, objects := keyedVolume(name)
		return objects
	}
	for name, c := range map[string]struct {
		of  func(name string) []client.Object
		run func(*rig, *watcher) error
		// done is what ends the work on a volume.
		done func(r *rig, name string)
	}{
		"recover": {unattached, func(r *rig, w *watcher) error { return recoverAll(r.ctx, w, recoverOptions{all: true, wait: true}) }, func(r *rig, name string) {
			v := r.volume(name)
			v.Spec.Recovery = nil
			r.do(r.api.Update(r.ctx, v))
		}},
		"rotate": {keyed, func(r *rig, w *watcher) error {
			return rotateVolumes(r.ctx, w, "", rotateOptions{all: true, wait: true})
		}, func(r *rig, name string) {
			v := r.volume(name)
			v.Spec.Attachments = nil
			r.do(r.api.Update(r.ctx, v))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, several := range []bool{false, true} {
				objects := c.of("one")
				if several {
					objects = append(objects, c.of("two")...)
				}
				r := newRig(t, objects...)
				v := &terminal{t: t, width: 200, height: 20}
				w := r.watcher()
				w.out, w.bars = v, v.screen()
				ends := func(want, name string) func() {
					return func() {
						if last := v.lines[len(v.lines)-1]; several && last != want || !several && strings.HasPrefix(last, "[") {
							t.Errorf("several volumes: %v; the terminal shows\n%s\nwant %s", several, strings.Join(v.lines, "\n"), want)
						}
						c.done(r, name)
					}
				}
				r.steps = []func(){ends(none, "v-one")}
				if several {
					r.steps = append(r.steps, ends(half, "v-two"))
				}
				r.do(c.run(r, w))
				if shown := strings.Join(v.lines, "\n"); strings.Contains(shown, "[") {
					t.Errorf("at the end, the terminal shows\n%s", shown)
				}
			}
		})
	}
}

// On a terminal a bar shows how far a copy is, below all lines, and lines tell only of what else changes.
func TestCopiesHaveBarsOnATerminal(t *testing.T) {
	_, objects := volume("data", "a")
	r := newRig(t, objects...)
	v := &terminal{t: t, width: 90, height: 8}
	w := r.watcher()
	w.out, w.bars = v, v.screen()
	shows := func(bar string) {
		t.Helper()
		var bars []string
		for _, line := range v.lines {
			if strings.HasPrefix(line, "[") {
				bars = append(bars, line)
			}
		}
		if len(bars) != 1 || bars[0] != bar || v.lines[len(v.lines)-1] != bar {
			t.Errorf("the terminal shows\n%s\nwant one bar, as the last line:\n%s", strings.Join(v.lines, "\n"), bar)
		}
	}
	copied := func(n int64) {
		r.record("v-data", func(_, fresh *v1alpha1.MirrorMember) { fresh.CopiedBytes = n << 30 })
	}
	r.steps = []func(){
		func() { r.add("v-data", "b") },
		func() { shows("[------------------------------]   0 %  databases/data"); copied(50) },
		func() {
			shows("[###############---------------]  50 % (894.8 MB/s, 60s left)  databases/data")
			copied(100)
		},
		func() {
			shows("[##############################] 100 % (894.8 MB/s, 0s left)  databases/data")
			r.record("v-data", func(_, fresh *v1alpha1.MirrorMember) { fresh.State = v1alpha1.MemberInSync })
		},
		func() { r.remove("v-data") },
	}
	if err := moveClaim(r.ctx, w, "databases", "data", moveOptions{to: "b", wait: true}); err != nil {
		t.Fatal(err)
	}
	want := []string{"12:01:00  databases/data: a to b: Filling 0 %", "12:04:00  databases/data: a to b: Removing for 3m", "12:05:00  databases/data: moved from a to b"}
	if got := v.lines[len(v.lines)-len(want):]; !slices.Equal(got, want) {
		t.Errorf("the terminal shows\n%s\nwant at the end\n%s", strings.Join(v.lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestMoveIsWritten(t *testing.T) {
	_, objects := volume("data", "a", "b")
	r := newRig(t, objects...)
	run := func(arg string, o moveOptions) error {
		r.out.Reset()
		return moveClaim(r.ctx, r.watcher(), "databases", arg, o)
	}
	r.do(run("data", moveOptions{from: "b", to: "c", dryRun: true, wait: true}))
	r.said("from node b to node c (dry run)", "would be written into spec.move of NvmfVolume v-data: replica: v-data-1, node: c")
	if r.volume("v-data").Spec.Move != nil {
		t.Fatal("a dry run wrote")
	}
	r.do(run("nv/v-data", moveOptions{from: "b"}))
	r.said("from node b to a node of the controller's choice")
	if got := r.volume("v-data").Spec.Move; got == nil || *got != (v1alpha1.VolumeMove{Replica: "v-data-1"}) {
		t.Fatalf("got %+v", got)
	}
	r.do(run("data", moveOptions{from: "b"}))
	r.said("the replica on node b is already moving to a node of the controller's choice")
	for _, other := range []moveOptions{{from: "a"}, {from: "b", to: "c"}} {
		if err := run("data", other); err == nil || !strings.Contains(err.Error(), "another move is running, from node b to a node of the controller's choice; wait for it, or cancel it: kubectl weft move data -n databases --cancel") {
			t.Errorf("%+v: got %v", other, err)
		}
	}
	if code := exitCode(run("data", moveOptions{from: "b", wait: true})); code != CodeError {
		t.Errorf("an interrupted wait ended with %d", code)
	}
	r.said("interrupted; the move goes on; to see its progress, run: kubectl weft status")
	if r.volume("v-data").Spec.Move == nil {
		t.Error("an interrupted wait cancelled the move")
	}
}

// A replica that is one too many can leave where no node has room for another one.
func TestMoveWithoutANewReplica(t *testing.T) {
	v, objects := volume("data", "a", "b", "c")
	v.Spec.Replicas, v.Spec.Mirrored, v.Spec.DeviceClass = 2, true, "qlc"
	record := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: v1alpha1.NvmfMirrorSpec{Members: []v1alpha1.MirrorMember{
		{Replica: "v-data-0", State: v1alpha1.MemberOut, Foreign: true},
		{Replica: "v-data-1", State: v1alpha1.MemberInSync}, {Replica: "v-data-2", State: v1alpha1.MemberInSync},
	}}}
	r := newRig(t, append(objects, record)...)
	if err := moveClaim(r.ctx, r.watcher(), "databases", "data", moveOptions{from: "b"}); err == nil || !strings.Contains(err.Error(), "no other node of NvmfTarget fast can take it now") {
		t.Errorf("got %v", err)
	}
	r.do(moveClaim(r.ctx, r.watcher(), "databases", "data", moveOptions{from: "a"}))
	r.said("removing replica v-data-0 from node a; enough others are in sync", "it may have data that no other replica has; its data is deleted")
	if got := r.volume("v-data").Spec.Move; got == nil || *got != (v1alpha1.VolumeMove{Replica: "v-data-0"}) {
		t.Fatalf("got %+v", got)
	}
}

// The node that the controller chose for a lost replica is not the last word, until its replacement has everything.
func TestThePersonChoosesTheNodeOfAReplacement(t *testing.T) {
	for name, tc := range map[string]struct {
		o       moveOptions
		change  func(r *rig)
		refused bool
	}{
		"while it is filled":  {moveOptions{to: "d"}, func(*rig) {}, false},
		"of the lost replica": {moveOptions{from: "b", to: "d"}, func(*rig) {}, false},
		"of another replica":  {moveOptions{from: "a", to: "d"}, func(*rig) {}, true},
		"on one that has one": {moveOptions{to: "a"}, func(*rig) {}, true},
		"when it is filled": {moveOptions{to: "d"}, func(r *rig) {
			r.record("v-data", func(_, fresh *v1alpha1.MirrorMember) { fresh.State = v1alpha1.MemberInSync })
		}, true},
		"when the former leaves": {moveOptions{to: "d"}, func(r *rig) { r.record("v-data", func(former, _ *v1alpha1.MirrorMember) { former.Retired = true }) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, objects := volume("data", "a", "b")
			r := newRig(t, objects...)
			d := &v1alpha1.NvmfNode{}
			r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "d"}, d))
			d.Spec.Target = "fast"
			r.do(r.api.Update(r.ctx, d))
			v := r.volume("v-data")
			v.Spec.Move = &v1alpha1.VolumeMove{Replica: "v-data-1", Reason: v1alpha1.MoveReplicaLost}
			r.do(r.api.Update(r.ctx, v))
			r.add("v-data", "c")
			tc.change(r)
			err := moveClaim(r.ctx, r.watcher(), "databases", "data", tc.o)
			if (err != nil) != tc.refused {
				t.Fatalf("got %v", err)
			}
			want := v1alpha1.VolumeMove{Replica: "v-data-1", Reason: v1alpha1.MoveReplicaLost, Replacement: "v-data-9"}
			if !tc.refused {
				want = v1alpha1.VolumeMove{Replica: "v-data-1", Node: "d"}
				r.said("moving replica v-data-1 (100.0Gi) from node b to node d\n", "was being replaced on node c; what was copied there is removed")
			}
			if got := r.volume("v-data").Spec.Move; *got != want {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestMoveIsCancelled(t *testing.T) {
	_, objects := volume("data", "a")
	r := newRig(t, objects...)
	run := func(o moveOptions) error {
		r.out.Reset()
		return moveClaim(r.ctx, r.watcher(), "databases", "data", o)
	}
	r.do(run(moveOptions{cancel: true}))
	r.said("volume databases/data: no move is running")
	r.do(run(moveOptions{}))
	r.add("v-data", "b")
	r.do(run(moveOptions{cancel: true, dryRun: true}))
	r.said("move cancelled (dry run)")
	r.record("v-data", func(former, _ *v1alpha1.MirrorMember) { former.Retired = true })
	if err := run(moveOptions{cancel: true}); err == nil || !strings.Contains(err.Error(), "the former one is already being removed") || r.volume("v-data").Spec.Move == nil {
		t.Fatalf("got %v", err)
	}
	r.record("v-data", func(former, _ *v1alpha1.MirrorMember) { former.Retired = false })
	r.steps = []func(){func() {
		v := r.volume("v-data")
		v.Spec.Move = nil
		r.do(r.api.Update(r.ctx, v))
	}}
	if code := exitCode(run(moveOptions{wait: true})); code != CodeUnwell {
		t.Errorf("waiting for a move that was cancelled ended with %d", code)
	}
	r.said("already moving to node b", "the move was cancelled; replica v-data-0 stays on node a")
	v := r.volume("v-data")
	v.Spec.Move = &v1alpha1.VolumeMove{Replica: "v-data-0", Replacement: "v-data-9"}
	r.do(r.api.Update(r.ctx, v))
	r.do(run(moveOptions{cancel: true}))
	r.said("move cancelled; replica v-data-0 stays on node a", "the new replica v-data-9 on node b is removed")
	if r.volume("v-data").Spec.Move != nil {
		t.Error("the move is still there")
	}
}

func TestMoveIsRefused(t *testing.T) {
	type world struct {
		v       *v1alpha1.NvmfVolume
		objects []client.Object
	}
	node := func(w *world, name string, change func(*v1alpha1.NvmfNode)) {
		n := storageNode(name)
		n.Name = "x"
		change(n)
		w.objects = append(w.objects, n)
	}
	for name, c := range map[string]struct {
		on      []string
		arg     string
		options moveOptions
		change  func(*world)
		want    string
	}{
		"no claim":          {arg: "other", want: "PersistentVolumeClaim other not found in namespace databases; set its namespace with -n, or specify nv/NAME"},
		"no volume":         {arg: "nv/other", want: "NvmfVolume other not found"},
		"not bound":         {change: func(w *world) { w.objects[1].(*corev1.PersistentVolumeClaim).Spec.VolumeName = "" }, want: "is not bound"},
		"another driver's":  {change: func(w *world) { w.objects[2].(*corev1.PersistentVolume).Spec.CSI.Driver = "other" }, want: "is not a volume of weft"},
		"several replicas":  {on: []string{"b", "a"}, want: "it has several replicas; choose one with --from: a, b"},
		"no replica there":  {options: moveOptions{from: "c"}, want: "it has no replica on node c; its replicas are on: a"},
		"already there":     {options: moveOptions{to: "a"}, want: "node a already stores a replica of the volume, v-data-0; choose another node with --to: b, c"},
		"no node":           {options: moveOptions{to: "worker"}, want: "node worker does not serve NvmfTarget fast, which the volume belongs to; choose another node with --to: b, c"},
		"of another target": {options: moveOptions{to: "d"}, want: "node d does not serve NvmfTarget fast"},
		"cordoned": {options: moveOptions{to: "x"}, change: func(w *world) { node(w, "b", func(n *v1alpha1.NvmfNode) { n.Spec.Unschedulable = true }) },
			want: "node x gets no new replicas: it is cordoned; to place volumes on it again, run: kubectl weft uncordon x"},
		"its Kubernetes Node cordoned": {options: moveOptions{to: "b"}, change: func(w *world) {
			w.objects = append(w.objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.NodeSpec{Unschedulable: true}})
		}, want: "run: kubectl uncordon b; choose another node with --to: c"},
		"not ready": {options: moveOptions{to: "x"}, change: func(w *world) {
			node(w, "b", func(n *v1alpha1.NvmfNode) {
				n.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "PoolFailed")}
			})
		}, want: "node x is not ready: PoolFailed: the message of PoolFailed; see kubectl weft status x"},
		"silent": {options: moveOptions{to: "x"}, change: func(w *world) {
			node(w, "b", func(n *v1alpha1.NvmfNode) {
				n.Status.Conditions = append(n.Status.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, "AgentSilent"))
			})
		}, want: "node x is not ready: AgentAlive is False"},
		"no drive of its class": {options: moveOptions{to: "b"}, change: func(w *world) { w.v.Spec.DeviceClass = "qlc" },
			want: "node b has no drive of device class qlc, which the volume requires; no other node can take it now"},
		"outside its zones": {options: moveOptions{to: "b"}, change: func(w *world) {
			w.v.Spec.Zones, w.v.Spec.ZoneLabel = []string{"east", "west"}, "rack"
			w.objects = append(w.objects, inZone("b", "rack", "north"), inZone("c", "rack", "west"))
		}, want: "node b is not in zone east or west, which the volume requires; choose another node with --to: c"},
		"outside its zones, by the usual label": {options: moveOptions{to: "b"}, change: func(w *world) {
			w.v.Spec.Zones = []string{"east"}
			w.objects = append(w.objects, inZone("b", "rack", "east"), inZone("c", corev1.LabelTopologyZone, "east"))
		}, want: "node b is not in zone east, which the volume requires; choose another node with --to: c"},
		"no node takes it": {change: func(w *world) { w.v.Spec.DeviceClass = "qlc" }, want: "no other node of NvmfTarget fast can take it now"},
		"shared": {change: func(w *world) {
			w.v.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: "1", Node: "w1", Access: v1alpha1.AccessSharedRead}, {NQN: "2", Node: "w2", Access: v1alpha1.AccessSharedRead}}
		}, want: "the volume is attached for shared access (nodes w1, w2)"},
		"to be shared": {change: func(w *world) {
			w.objects[2].(*corev1.PersistentVolume).Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, want: "the volume has access mode ReadWriteMany"},
		"being deleted": {change: func(w *world) {
			w.v.DeletionTimestamp, w.v.Finalizers = new(metav1.NewTime(noon)), []string{v1alpha1.ReplicasFinalizer}
		}, want: "the volume is being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.on == nil {
				c.on = []string{"a"}
			}
			v, objects := volume("data", c.on...)
			w := &world{v, objects}
			if c.change != nil {
				c.change(w)
			}
			if c.arg == "" {
				c.arg = "data"
			}
			r := newRig(t, w.objects...)
			err := moveClaim(r.ctx, r.watcher(), "databases", c.arg, c.options)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v; want %q", err, c.want)
			}
			if r.out.Len() > 0 {
				t.Errorf("it printed %s", r.out.String())
			}
			if r.volume(v.Name).Spec.Move != nil {
				t.Error("the move was written")
			}
		})
	}
}

// A volume that was changed after it was looked at is looked at again before anything is written.
func TestMoveIsNotWrittenOverAChange(t *testing.T) {
	v, objects := volume("data", "a")
	r := newRig(t, objects...)
	stale := r.volume(v.Name)
	changed := stale.DeepCopy()
	changed.Spec.Move = &v1alpha1.VolumeMove{Replica: "v-data-0", Node: "c"}
	r.do(r.api.Update(r.ctx, changed))
	if err := writeMove(r.ctx, r.api, stale, &v1alpha1.VolumeMove{Replica: "v-data-0", Node: "b"}, false); err == nil {
		t.Error("a stale volume was written")
	}
	if got := r.volume(v.Name).Spec.Move.Node; got != "c" {
		t.Errorf("the move is to %s", got)
	}
}

func TestMoveOfAnUnattachedVolume(t *testing.T) {
	v, objects := volume("data", "a")
	v.Spec.Attachments = nil
	r := newRig(t, objects...)
	r.do(moveClaim(r.ctx, r.watcher(), "databases", "data", moveOptions{}))
	if r.volume(v.Name).Spec.Move == nil {
		t.Error("no move was requested")
	}
}

// A claim that was deleted no longer names the volume that it left behind.
func TestMoveOfAVolumeThatOutlivedItsClaim(t *testing.T) {
	_, objects := volume("data", "a")
	pv := objects[2].(*corev1.PersistentVolume)
	pv.Status.Phase = corev1.VolumeReleased
	r := newRig(t, objects[0], pv, objects[3])
	r.do(moveClaim(r.ctx, r.watcher(), "databases", "nv/v-data", moveOptions{}))
	r.said("volume nv/v-data: moving replica v-data-0")
	if err := moveClaim(r.ctx, r.watcher(), "databases", "nv/v-data", moveOptions{to: "b"}); err == nil || !strings.Contains(err.Error(), "kubectl weft move nv/v-data --cancel") {
		t.Errorf("got %v", err)
	}
}
