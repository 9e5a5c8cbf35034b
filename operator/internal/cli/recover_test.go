// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// newRecoverRig has volume data with replicas on a and b, detached, and a record of epoch 7 in which both are current.
func newRecoverRig(t *testing.T, change func(*v1alpha1.NvmfVolume, *v1alpha1.NvmfMirror)) *rig {
	t.Helper()
	v, objects := volume("data", "a", "b")
	v.Spec.Attachments = nil
	m := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: v1alpha1.NvmfMirrorSpec{Epoch: 7, Members: []v1alpha1.MirrorMember{
		{Replica: "v-data-0", State: v1alpha1.MemberInSync, Since: new(metav1.NewTime(noon))}, {Replica: "v-data-1", State: v1alpha1.MemberInSync},
	}}}
	if change != nil {
		change(v, m)
	}
	if m.Name != "" {
		objects = append(objects, m)
	}
	return newRig(t, objects...)
}

func (r *rig) recover(o recoverOptions) error {
	r.out.Reset()
	return recoverOne(r.ctx, r.watcher(), "databases", "data", o)
}

func (r *rig) wish() *v1alpha1.VolumeRecovery { return r.volume("v-data").Spec.Recovery }

// edited volume, as the CSI controller edits it.
func (r *rig) edited(change func(*v1alpha1.NvmfVolume)) func() {
	return func() {
		v := r.volume("v-data")
		change(v)
		r.do(r.api.Update(r.ctx, v))
	}
}

func TestRecoverIsRequested(t *testing.T) {
	r := newRecoverRig(t, nil)
	r.do(r.recover(recoverOptions{dryRun: true}))
	r.said("volume databases/data: record of epoch 7, held by nobody; the last node stopped cleanly", "v-data-0", "a", "InSync", "2026-", "not read", "v-data-1",
		"recovery of the record would be requested (dry run)")
	if r.wish() != nil {
		t.Fatal("a dry run wrote")
	}
	r.do(r.recover(recoverOptions{}))
	first := r.wish()
	if first == nil || first.ID == "" || first.Current != "" || first.AcceptLossUntil != nil || first.Attachments == v1alpha1.RecoveryEnds {
		t.Fatalf("got %+v", first)
	}
	// Repeated, it is another request: the headers are read again.
	r.do(r.recover(recoverOptions{current: "b"}))
	r.said("with replica v-data-1 on node b as the current one; only if nothing is lost with it")
	if wish := r.wish(); wish.ID == first.ID || wish.Current != "v-data-1" || wish.AcceptLossUntil != nil {
		t.Fatalf("got %+v", wish)
	}
	n := storageNode("b")
	r.do(r.api.Get(r.ctx, client.ObjectKeyFromObject(n), n))
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.RestoredAnnotation, "declared")
	r.do(r.api.Update(r.ctx, n))
	r.do(r.recover(recoverOptions{current: "v-data-0", acceptLoss: true}))
	r.said("with replica v-data-0 on node a as the current one; writes that only other replicas have are lost")
	if wish := r.wish(); wish.AcceptLossUntil == nil || !wish.AcceptLossUntil.Equal(new(metav1.NewTime(noon.Add(time.Hour)))) ||
		!slices.Equal(wish.DeclaredRestores, []v1alpha1.DeclaredRestore{{Node: "b", ID: "declared"}}) {
		t.Fatalf("got %+v", wish)
	}
}

// Each state of what is known has words of its own.
func TestRecoverSaysWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.NvmfVolume, *v1alpha1.NvmfMirror)
		rig    func(*rig)
		says   []string
	}{
		"lost": {change: func(_ *v1alpha1.NvmfVolume, m *v1alpha1.NvmfMirror) { m.Name = "" },
			says: []string{"the record of its replicas (NvmfMirror v-data) does not exist", "v-data-0", "-"}},
		"being recovered": {change: func(v *v1alpha1.NvmfVolume, m *v1alpha1.NvmfMirror) {
			v.Spec.Recovery = &v1alpha1.VolumeRecovery{ID: "1", Waiting: "v-data-0 and v-data-1 have different histories"}
			m.Spec.Recovering = true
			m.Spec.Members[0].Header = &v1alpha1.MirrorHeader{Epoch: 9, Mark: "8b5d2f43-2d0b", Members: []v1alpha1.MirrorHeaderMember{
				{Replica: "v-data-0", State: v1alpha1.MemberInSync}, {Replica: "v-data-1", State: v1alpha1.MemberOut}}}
			m.Spec.Members[1].Header = &v1alpha1.MirrorHeader{Error: "no route to host"}
		}, says: []string{"is being recovered; what it says of them may be wrong", "epoch 9, mark 8b5d2f43", "v-data-0", "v-data-1", "unreadable: no route to host",
			"a recovery was requested, and waits: v-data-0 and v-data-1 have different histories"}},
		"never used": {change: func(_ *v1alpha1.NvmfVolume, m *v1alpha1.NvmfMirror) {
			m.Spec.Members[0].Header, m.Spec.Dirty = &v1alpha1.MirrorHeader{}, true
		}, says: []string{"held by nobody; the last node did not stop cleanly", "never used in a mirror"}},
		"a node is away": {rig: func(r *rig) {
			n := &v1alpha1.NvmfNode{}
			r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "b"}, n))
			n.Status.Conditions = append(n.Status.Conditions, condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, "AgentSilent"))
			r.do(r.api.Update(r.ctx, n))
		}, says: []string{"v-data-0", "answers", "v-data-1", "does not answer since"}},
		"a restore is suspected": {rig: func(r *rig) {
			rep := &v1alpha1.NvmfReplica{}
			r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "v-data-0"}, rep))
			rep.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonRestoreSuspected)}
			r.do(r.api.Update(r.ctx, rep))
		}, says: []string{"v-data-0", "suspects a restore: declare it first", "v-data-1", "answers"}},
		"a replica has no object": {rig: func(r *rig) {
			r.do(r.api.Delete(r.ctx, &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: "v-data-1"}}))
		}, says: []string{"v-data-1", "NvmfReplica does not exist"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecoverRig(t, c.change)
			if c.rig != nil {
				c.rig(r)
			}
			r.do(r.recover(recoverOptions{dryRun: true}))
			r.said(c.says...)
		})
	}
}

func TestRecoverIsRefused(t *testing.T) {
	attached := func(v *v1alpha1.NvmfVolume, m *v1alpha1.NvmfMirror) {
		v.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: "nqn-data", Node: "worker"}}
		m.Spec.Holder, m.Spec.HolderNode = "h", "worker"
	}
	r := newRecoverRig(t, attached)
	if code := exitCode(r.recover(recoverOptions{})); code != CodeUnwell || r.wish() != nil {
		t.Errorf("an attached volume: exit code %d, %+v", code, r.wish())
	}
	r.said("record of epoch 7, held by node worker", "attached to node worker; nothing was requested", "--detach")
	r.do(r.recover(recoverOptions{detach: true}))
	r.said("what still uses the volume on node worker is killed")
	if wish := r.wish(); wish == nil || wish.Attachments != v1alpha1.RecoveryEnds {
		t.Errorf("got %+v", wish)
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.NvmfVolume, *v1alpha1.NvmfMirror)
		o      recoverOptions
		want   string
	}{
		"one replica": {func(v *v1alpha1.NvmfVolume, _ *v1alpha1.NvmfMirror) {
			v.Spec.Members, v.Spec.Replicas = v.Spec.Members[:1], 1
		}, recoverOptions{}, "there is nothing to recover"},
		"no replica": {nil, recoverOptions{current: "c"}, "it has no replica c, nor one on a node of that name; its replicas: v-data-0 (node a), v-data-1 (node b)"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecoverRig(t, c.change)
			if err := r.recover(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			if r.wish() != nil {
				t.Error("it was requested")
			}
		})
	}
	for name, args := range map[string][]string{
		"what is lost, and not from which": {"data", "--accept-loss"},
		"all, with one current":            {"--all", "--current", "a"},
		"all, and one":                     {"--all", "data"},
		"nothing":                          {},
		"another format":                   {"data", "-o", "yaml"},
	} {
		cmd := Command("test")
		cmd.SetArgs(append([]string{"recover"}, args...))
		if err := cmd.Execute(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// The command tells what the recovery waits for, once, and ends with it. Interrupted, it takes nothing back.
func TestRecoverIsWatched(t *testing.T) {
	r := newRecoverRig(t, nil)
	waits := func(why string) func() {
		return r.edited(func(v *v1alpha1.NvmfVolume) { v.Spec.Recovery.Waiting = why })
	}
	r.steps = []func(){
		waits("node b is reading the headers"), waits("node b is reading the headers"),
		func() {
			m := &v1alpha1.NvmfMirror{}
			r.do(r.api.Get(r.ctx, client.ObjectKey{Name: "v-data"}, m))
			m.Spec.Members[0].State, m.Spec.Members[0].Reason, m.Spec.Dirty = v1alpha1.MemberOut, "Behind", true
			m.Spec.Members[1].Header = &v1alpha1.MirrorHeader{Epoch: 9, Mark: "m", Members: []v1alpha1.MirrorHeaderMember{{Replica: "v-data-1", State: v1alpha1.MemberInSync}}}
			r.do(r.api.Update(r.ctx, m))
			r.edited(func(v *v1alpha1.NvmfVolume) { v.Spec.Recovery = nil })()
		},
	}
	r.do(r.recover(recoverOptions{wait: true}))
	r.said("recovery of the record is requested", "12:01:00  databases/data: waiting: node b is reading the headers\n", "12:03:00  databases/data: the record is recovered",
		"v-data-0", "Out (Behind)", "v-data-1", "InSync", "epoch 9, mark m", "v-data-1")
	if n := strings.Count(r.out.String(), "is reading the headers"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
	if code := exitCode(r.recover(recoverOptions{wait: true})); code != CodeError || r.wish() == nil {
		t.Errorf("interrupted: exit code %d, request %+v", code, r.wish())
	}
	r.said("interrupted; the recovery goes on")
}

// All volumes with replicas that nobody uses. What a person decided about one of them stays.
func TestRecoverAll(t *testing.T) {
	r := newRecoverRig(t, nil)
	used, objects := volume("used", "a", "b")
	plain, more := volume("plain", "a")
	decided, last := volume("decided", "a", "b")
	decided.Spec.Attachments, decided.Spec.Recovery = nil, &v1alpha1.VolumeRecovery{ID: "1", Current: "v-decided-0"}
	for _, o := range slices.Concat(objects, more, last) {
		r.do(r.api.Create(r.ctx, o))
	}
	r.do(recoverAll(r.ctx, r.watcher(), recoverOptions{dryRun: true}))
	r.said("volume databases/data: recovery of the record would be requested (dry run)")
	if r.wish() != nil {
		t.Fatal("a dry run wrote")
	}
	r.out.Reset()
	r.do(recoverAll(r.ctx, r.watcher(), recoverOptions{}))
	for _, says := range []string{"volume databases/data: recovery of the record is requested", "volume databases/used: skipped, because it is attached to node worker", "report what does not fit (Event MirrorWaits of the pod)"} {
		r.said(says)
	}
	if r.wish() == nil || r.volume(used.Name).Spec.Recovery != nil || r.volume(plain.Name).Spec.Recovery != nil {
		t.Error("others were asked for")
	}
	if wish := r.volume(decided.Name).Spec.Recovery; wish == nil || wish.Current != "v-decided-0" {
		t.Errorf("a person's decision became %+v", wish)
	}
}

func TestRecoverAsJSON(t *testing.T) {
	r := newRecoverRig(t, nil)
	r.do(r.recover(recoverOptions{dryRun: true, output: output{format: outputJSON}}))
	var got recordView
	r.do(json.Unmarshal(r.out.Bytes(), &got))
	if got.Volume != "databases/data" || got.Record != recordFree || got.Epoch != 7 || len(got.Replicas) != 2 || got.Replicas[1].Agent != "answers" {
		t.Errorf("got %+v", got)
	}
}
