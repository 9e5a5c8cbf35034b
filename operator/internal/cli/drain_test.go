// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func (r *rig) drain(from source, o drainOptions) int {
	r.t.Helper()
	r.out.Reset()
	err := drain(r.ctx, r.watcher(), from, o)
	if code := exitCode(err); code != 0 {
		return code
	}
	r.do(err)
	return 0
}

// volumes with one replica each on node a.
func volumesOnA(names ...string) []client.Object {
	var all []client.Object
	for _, name := range names {
		_, objects := volume(name, "a")
		all = append(all, objects...)
	}
	return all
}

func (r *rig) moves() int {
	var all v1alpha1.NvmfVolumeList
	r.do(r.api.List(r.ctx, &all))
	n := 0
	for _, v := range all.Items {
		if v.Spec.Move != nil {
			n++
		}
	}
	return n
}

func TestDrainGoesOnUntilTheNodeIsEmpty(t *testing.T) {
	r := newRig(t, volumesOnA("one", "two", "three")...)
	r.steps = []func(){r.moved("v-one", "b"), r.moved("v-three", "c"), r.moved("v-two", "b")}
	if code := r.drain(source{node: "a"}, drainOptions{wait: true, max: 2}); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, r.out.String())
	}
	r.said("node a cordoned\n", "volume databases/one: moving replica v-one-0 (100.0Gi) from node a to a node of the controller's choice\n",
		"volume databases/three: moving", "volume databases/two: moving", "databases/one: moved from a to", "node a serves no replica and can be switched off\n")
	if strings.Contains(r.out.String(), "cannot move") {
		t.Error(r.out.String())
	}
	node := &v1alpha1.NvmfNode{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "a"}, node))
	if !node.Spec.Unschedulable {
		t.Error("the node is not cordoned")
	}
}

// The operator alone decides whether a node can be drained for its pods while it stores replicas.
func TestDrainTellsWhetherKubernetesMayDrainMeanwhile(t *testing.T) {
	for reason, status := range map[string]metav1.ConditionStatus{
		v1alpha1.ReasonAsExpected: metav1.ConditionTrue, v1alpha1.ReasonOnlyReplica: metav1.ConditionFalse, v1alpha1.ReasonNotNeeded: metav1.ConditionTrue,
	} {
		r := newRig(t, volumesOnA("one")...)
		node := &v1alpha1.NvmfNode{}
		r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "a"}, node))
		node.Status.Conditions = append(node.Status.Conditions, condition(v1alpha1.ConditionEvictable, status, reason))
		r.do(r.api.Update(r.ctx, node))
		if code := r.drain(source{node: "a"}, drainOptions{max: 1}); code != CodeUnwell {
			t.Fatalf("exit code %d:\n%s", code, r.out.String())
		}
		told := strings.Contains(r.out.String(), "kubectl drain a is allowed meanwhile: the message of "+reason+"\n")
		if told != (reason == v1alpha1.ReasonAsExpected) {
			t.Errorf("%s:\n%s", reason, r.out.String())
		}
	}
}

func TestDrainStartsAFewMovesAndCanBeRepeated(t *testing.T) {
	r := newRig(t, volumesOnA("one", "two", "three")...)
	if code := r.drain(source{node: "a"}, drainOptions{dryRun: true, max: 2}); code != 0 || r.moves() != 0 {
		t.Fatalf("a dry run ended with %d and requested %d moves:\n%s", code, r.moves(), r.out.String())
	}
	r.said("node a cordoned (dry run)", "databases/one", "databases/three", "databases/two", "node a stores 3 replicas and 0 snapshots: 0 moving, 3 can move, 0 cannot move")
	for range 2 {
		if code := r.drain(source{node: "a"}, drainOptions{max: 2}); code != CodeUnwell || r.moves() != 2 {
			t.Fatalf("exit code %d, %d moves:\n%s", code, r.moves(), r.out.String())
		}
		r.said("node a stores 3 replicas and 0 snapshots: 2 moving, 1 can move, 0 cannot move\nto continue, repeat: kubectl weft drain a\n")
	}
	r.said("node a already cordoned")
	if code := r.drain(source{node: "a"}, drainOptions{max: 2, wait: true}); code != CodeError {
		t.Errorf("an interrupted drain ended with %d", code)
	}
	r.said("interrupted; the moves that are running go on; to continue, run: kubectl weft drain a --wait")
}

func TestDrainTellsWhatStays(t *testing.T) {
	shared, objects := volume("shared", "a")
	shared.Spec.Attachments[0].Access = v1alpha1.AccessSharedWrite
	idle, more := volume("idle", "a")
	idle.Spec.Attachments = nil
	both, others := volume("both", "b", "a")
	both.Spec.Move = &v1alpha1.VolumeMove{Replica: "v-both-0", Node: "c"}
	wide, fourth := volume("wide", "a", "b")
	wide.Spec.Members = append(wide.Spec.Members, v1alpha1.VolumeMember{Name: "v-wide-2", Node: "c"})
	listed, _ := volume("listed", "a") // without its replica's object
	lost, _ := volume("lost", "a")
	snapshot := &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap"}, Spec: v1alpha1.NvmfSnapshotSpec{Node: "a", Volume: "gone"}}
	objects = append(append(append(append(objects, more...), others...), fourth...), listed, replicaOf(lost, lost.Spec.Members[0]), snapshot)
	former := replicaOf(both, v1alpha1.VolumeMember{Name: "v-both-former", Node: "a"})
	r := newRig(t, append(objects, former)...)
	if code := r.drain(source{node: "a"}, drainOptions{max: 4}); code != CodeUnwell {
		t.Errorf("exit code %d", code)
	}
	r.said("cannot move:\n",
		"- volume databases/both: another move is running, from node b to node c; when it is complete, repeat the command\n",
		"- volume nv/v-listed: its NvmfReplica v-listed-0 does not exist; see kubectl weft status a\n",
		"- NvmfReplica v-lost-0: its NvmfVolume v-lost does not exist",
		"- volume databases/shared: the volume is attached for shared access (nodes worker)",
		"- volume databases/wide: no other node of NvmfTarget fast can take its replica now; see kubectl weft status fast\n",
		"being removed or added: v-both-former\n",
		"snapshots do not move; delete their VolumeSnapshots: snap\n",
		"node a stores 7 replicas and 1 snapshot: 1 moving, 0 can move, 5 cannot move\n", "to continue, repeat: kubectl weft drain a\n")
	if strings.Contains(r.out.String(), "switched off") {
		t.Error(r.out.String())
	}
}

// A replica that its volume no longer lists is waited for until its object is gone, too.
func TestDrainWaitsForTheRemoval(t *testing.T) {
	v, objects := volume("data", "b")
	r := newRig(t, append(objects, replicaOf(v, v1alpha1.VolumeMember{Name: "v-data-former", Node: "a"}))...)
	r.steps = []func(){func() {}, func() {
		r.do(r.api.Delete(r.ctx, &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: "v-data-former"}}))
	}}
	if code := r.drain(source{node: "a"}, drainOptions{max: 4, wait: true}); code != 0 || strings.Count(r.out.String(), "waiting") != 1 {
		t.Errorf("exit code %d", code)
	}
	r.said("12:00:00  waiting for replicas that are being removed or added: v-data-former\n", "node a serves no replica and can be switched off\n")
}

// The node can be switched off only if neither a replica nor a snapshot is left, whatever there is else.
func TestDrainVerdict(t *testing.T) {
	listed, _ := volume("listed", "a")
	orphan, _ := volume("gone", "a")
	for name, c := range map[string]struct {
		objects []client.Object
		code    int
	}{
		"nothing":                     {nil, 0},
		"others' replicas":            {func() []client.Object { _, o := volume("data", "b"); return o }(), 0},
		"a snapshot":                  {[]client.Object{&v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: v1alpha1.NvmfSnapshotSpec{Node: "a"}}}, CodeUnwell},
		"a replica without a volume":  {[]client.Object{replicaOf(orphan, orphan.Spec.Members[0])}, CodeUnwell},
		"a replica not yet created":   {[]client.Object{listed}, CodeUnwell},
		"a replica that is to follow": {volumesOnA("data"), CodeUnwell},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.objects...)
			if r.drain(source{node: "a"}, drainOptions{max: 1, dryRun: true}); strings.Contains(r.out.String(), "switched off") || strings.Contains(r.out.String(), "repeat") {
				t.Errorf("a dry run said:\n%s", r.out.String())
			}
			code := r.drain(source{node: "a"}, drainOptions{max: 1})
			if said := strings.Contains(r.out.String(), "can be switched off"); code != c.code || said != (c.code == 0) {
				t.Errorf("exit code %d:\n%s", code, r.out.String())
			}
		})
	}
}

func TestRetireMovesTheReplicasOfOneDrive(t *testing.T) {
	_, other := volume("other", "a")
	other[3].(*v1alpha1.NvmfReplica).Status.Device = "eui.a2"
	_, unknown := volume("unknown", "a")
	unknown[3].(*v1alpha1.NvmfReplica).Status.Device = ""
	r := newRig(t, append(append(volumesOnA("data"), other...), unknown...)...)
	drive := source{node: "a", drive: "eui.a"}
	r.steps = []func(){r.moved("v-data", "b")}
	if code := r.drain(drive, drainOptions{max: 4, wait: true}); code != CodeUnwell {
		t.Errorf("exit code %d", code)
	}
	r.said("drive eui.a of node a now gets no new replicas\n", "volume databases/data: moving replica",
		"cannot move:\n- volume databases/unknown: its replica v-unknown-0 has not reported which drive stores it",
		"drive eui.a of node a stores 1 replica and 0 snapshots: 0 moving, 0 can move, 1 cannot move\n")
	if r.volume("v-other").Spec.Move != nil || r.volume("v-unknown").Spec.Move != nil {
		t.Error("the replica of another drive moves")
	}
	replica := &v1alpha1.NvmfReplica{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "v-unknown-0"}, replica))
	replica.Status.Device = "eui.a2"
	r.do(r.api.Update(r.ctx, replica))
	if code := r.drain(drive, drainOptions{max: 4}); code != 0 {
		t.Errorf("exit code %d", code)
	}
	r.said("drive eui.a of node a stores no replica and no snapshot\n")
	node := &v1alpha1.NvmfNode{}
	r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "a"}, node))
	if node.Spec.Unschedulable || !slices.Equal(node.Spec.UnschedulableDrives, []string{"eui.a"}) {
		t.Errorf("retire left %+v", node.Spec)
	}
}

// The wish to retire a drive stays with the node: a command that is interrupted leaves it, a repeated one finds it, and
// --undo takes it back. A dry run writes nothing.
func TestRetireKeepsNewReplicasOff(t *testing.T) {
	r := newRig(t, volumesOnA("data")...)
	drive := source{node: "a", drive: "eui.a"}
	cordoned := func(want ...string) {
		t.Helper()
		node := &v1alpha1.NvmfNode{}
		r.do(r.api.Get(context.Background(), client.ObjectKey{Name: "a"}, node))
		if !slices.Equal(node.Spec.UnschedulableDrives, want) {
			t.Errorf("cordoned drives are %v, want %v", node.Spec.UnschedulableDrives, want)
		}
	}
	r.drain(drive, drainOptions{max: 1, dryRun: true})
	r.said("drive eui.a of node a now gets no new replicas (dry run)\n")
	cordoned()
	r.drain(drive, drainOptions{max: 1})
	r.drain(source{node: "a", drive: "eui.a2"}, drainOptions{max: 1})
	cordoned("eui.a", "eui.a2")
	r.drain(drive, drainOptions{max: 1})
	r.said("drive eui.a of node a gets no new replicas\n")
	r.drain(drive, drainOptions{max: 1, undo: true})
	r.said("drive eui.a of node a now gets new replicas\n")
	cordoned("eui.a2")
	// No pause is left: the person interrupts it at once.
	if err := drain(r.ctx, r.watcher(), drive, drainOptions{max: 1, wait: true}); err == nil {
		t.Error("it was not interrupted")
	}
	cordoned("eui.a2", "eui.a")
}

func TestDrainErrors(t *testing.T) {
	for name, c := range map[string]struct {
		from source
		max  int
		want string
	}{
		"no node":           {source{node: "x"}, 1, "node x: nvmfnodes.weft.storage \"x\" not found; existing nodes: a, b, c, d"},
		"no node of drives": {source{"x", "eui.a"}, 1, "existing nodes: a, b, c, d"},
		"no drive":          {source{"a", "eui.b"}, 1, "drive eui.b of node a: the drive is not in the node's pool; drives in the pool: eui.a, eui.a2"},
		"no moves":          {source{node: "a"}, 0, "--max is 0; must be at least 1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if err := drain(r.ctx, r.watcher(), c.from, drainOptions{max: c.max}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v; want %q", err, c.want)
			}
		})
	}
}
