// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func testReplica(name, node string) *v1alpha1.NvmfReplica {
	r := &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-uid")}}
	r.Spec.Node, r.Spec.Volume.Name = node, "vol"
	r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	return r
}

// pair is a volume with replica a on node n, which is asked about, and b on node m.
func pair(a, b v1alpha1.MirrorMemberState, change func(*v1alpha1.NvmfMirror, *other)) copied {
	mirror := &v1alpha1.NvmfMirror{}
	mirror.Spec.Members = []v1alpha1.MirrorMember{
		{Replica: "a", ReplicaUID: "a-uid", State: a}, {Replica: "b", ReplicaUID: "b-uid", State: b},
	}
	o := other{replica: testReplica("b", "m"), alive: true}
	if change != nil {
		change(mirror, &o)
	}
	return copied{replica: testReplica("a", "n"), mirror: mirror, others: map[string]other{"b": o}}
}

// used by a pod.
func used(c copied) copied {
	c.mirror.Spec.Holder = "pod"
	return c
}

func TestDecide(t *testing.T) {
	in, out, filling := v1alpha1.MemberInSync, v1alpha1.MemberOut, v1alpha1.MemberFilling
	unknown := copied{replica: testReplica("a", "n")}
	single := copied{replica: testReplica("a", "n"), single: true}
	moved := pair(in, filling, nil)
	moved.single = true
	of := func(change func(*v1alpha1.NvmfMirror, *other)) copied { return pair(in, in, change) }
	unrecorded := of(func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Members = m.Spec.Members[1:] })
	unrecorded.replica.Status.Written = true
	now := metav1.Now()
	deleted := func(mark string) copied {
		c := copied{replica: testReplica("a", "n"), single: true}
		c.replica.DeletionTimestamp, c.replica.Spec.DeletionMark = &now, mark
		return c
	}
	guarded := func(phase corev1.PodPhase) view {
		return view{exists: true, cordoned: true, guards: true, guard: &corev1.Pod{Status: corev1.PodStatus{Phase: phase}}}
	}
	cordon := view{exists: true, cordoned: true}
	uncordoned := view{exists: true}
	annotated := view{exists: true, node: &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AllowEvictionAnnotation: "kernel update"}}}}
	allow := view{exists: true, cordoned: true, single: SingleReplicaAllow}
	tests := map[string]struct {
		view
		copies       []copied
		needed, open bool
		reason, says string
	}{
		"no replica":                   {cordon, nil, false, false, v1alpha1.ReasonNotNeeded, "stores no replica"},
		"no Kubernetes Node":           {view{}, []copied{single}, false, false, v1alpha1.ReasonNotNeeded, "does not exist"},
		"one replica":                  {cordon, []copied{single}, true, false, v1alpha1.ReasonOnlyReplica, "its only replica"},
		"no guard pod":                 {view{exists: true, guards: true}, []copied{single}, true, false, v1alpha1.ReasonOnlyReplica, "its guard pod does not run, so that drains are not refused yet; 1 volume would"},
		"a guard pod that waits":       {guarded(corev1.PodPending), []copied{single}, true, false, v1alpha1.ReasonOnlyReplica, "its guard pod does not run"},
		"a guard pod that runs":        {guarded(corev1.PodRunning), []copied{single}, true, false, v1alpha1.ReasonOnlyReplica, ""},
		"one replica, annotated":       {annotated, []copied{single}, true, true, v1alpha1.ReasonEvictionAllowed, "(kernel update), and 1 volume would wait"},
		"one replica may wait":         {allow, []copied{single}, true, true, v1alpha1.ReasonAsExpected, "1 volume with one replica would wait"},
		"one replica, which is moved":  {allow, []copied{moved}, true, true, v1alpha1.ReasonAsExpected, "1 volume with one replica would wait"},
		"the volume is not known":      {allow, []copied{unknown}, true, false, v1alpha1.ReasonOnlyReplica, "its only replica"},
		"two replicas may not wait":    {allow, []copied{single, pair(in, out, nil)}, true, false, v1alpha1.ReasonOnlyReplica, "1 volume would"},
		"the volume is deleted":        {cordon, []copied{deleted("a-uid")}, true, true, v1alpha1.ReasonAsExpected, ""},
		"its object is deleted":        {cordon, []copied{deleted("")}, true, false, v1alpha1.ReasonOnlyReplica, "its only replica"},
		"both in sync":                 {cordon, []copied{of(nil)}, true, true, v1alpha1.ReasonAsExpected, ""},
		"both in sync, not cordoned":   {uncordoned, []copied{of(nil)}, true, false, v1alpha1.ReasonAsExpected, ""},
		"one of two volumes holds":     {cordon, []copied{of(nil), single}, true, false, v1alpha1.ReasonOnlyReplica, "1 volume would"},
		"the other is out":             {cordon, []copied{pair(in, out, nil)}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica is in sync"},
		"the other is out, in use":     {cordon, []copied{used(pair(in, out, nil))}, true, false, v1alpha1.ReasonOnlyInSyncReplica, "no other replica is in sync"},
		"both in sync, and in use":     {cordon, []copied{used(of(nil)), single}, true, false, v1alpha1.ReasonOnlyReplica, "its only replica"},
		"in use, and one replica":      {cordon, []copied{used(pair(in, out, nil)), single}, true, false, v1alpha1.ReasonOnlyInSyncReplica, "2 volumes would"},
		"moved, and in use":            {cordon, []copied{func() copied { c := used(pair(in, filling, nil)); c.single = true; return c }()}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica is in sync"},
		"the other is drained, in use": {cordon, []copied{used(of(func(_ *v1alpha1.NvmfMirror, o *other) { o.open = true }))}, true, false, v1alpha1.ReasonOnlyReplica, "is being drained"},
		"suspect, in use":              {cordon, []copied{used(pair(filling, in, func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Members[0].Suspect = true }))}, true, false, v1alpha1.ReasonOnlyReplica, "until they have been compared"},
		"the other is filled":          {cordon, []copied{pair(in, filling, nil)}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica is in sync"},
		"this one is out":              {cordon, []copied{pair(out, in, nil)}, true, true, v1alpha1.ReasonAsExpected, ""},
		"this one is being filled":     {cordon, []copied{pair(filling, in, nil)}, true, true, v1alpha1.ReasonAsExpected, ""},
		"the other's node is drained":  {cordon, []copied{of(func(_ *v1alpha1.NvmfMirror, o *other) { o.open = true })}, true, false, v1alpha1.ReasonOnlyReplica, "node m, which has the other replica, is being drained"},
		"the other's agent is silent":  {cordon, []copied{of(func(_ *v1alpha1.NvmfMirror, o *other) { o.alive = false })}, true, false, v1alpha1.ReasonOnlyReplica, "on node m is not ready"},
		"the other is not ready":       {cordon, []copied{of(func(_ *v1alpha1.NvmfMirror, o *other) { o.replica.Status.Conditions = nil })}, true, false, v1alpha1.ReasonOnlyReplica, "on node m is not ready"},
		"the other is gone":            {cordon, []copied{of(func(_ *v1alpha1.NvmfMirror, o *other) { *o = other{} })}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica"},
		"the other was made again":     {cordon, []copied{of(func(_ *v1alpha1.NvmfMirror, o *other) { o.replica.UID = "b2" })}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica"},
		"the other is being deleted":   {cordon, []copied{of(func(_ *v1alpha1.NvmfMirror, o *other) { o.replica.DeletionTimestamp = &now })}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica"},
		"the other is on the node too": {cordon, []copied{of(func(_ *v1alpha1.NvmfMirror, o *other) { o.replica.Spec.Node = "n" })}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica"},
		"the other is to leave":        {cordon, []copied{of(func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Members[1].Retired = true })}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica"},
		"detached by a lost node":      {cordon, []copied{of(func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Dirty = true })}, true, false, v1alpha1.ReasonOnlyReplica, "was not detached cleanly"},
		"in use":                       {cordon, []copied{of(func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Dirty, m.Spec.Holder = true, "pod" })}, true, true, v1alpha1.ReasonAsExpected, ""},
		"the other is suspect":         {cordon, []copied{of(func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Members[1].Suspect = true })}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica"},
		"this one was restored":        {cordon, []copied{pair(in, out, func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Members[0].ReplicaUID = "a0" })}, true, false, v1alpha1.ReasonOnlyReplica, "no other replica"},
		"the record may be the past":   {cordon, []copied{pair(filling, in, func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Dirty, m.Spec.Members[0].Suspect = true, true })}, true, false, v1alpha1.ReasonOnlyReplica, "was not detached cleanly"},
		"a holder suspects this one":   {cordon, []copied{pair(filling, in, func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Holder, m.Spec.Members[0].Suspect = "pod", true })}, true, false, v1alpha1.ReasonOnlyReplica, "until they have been compared"},
		"this one was refused":         {cordon, []copied{pair(out, in, func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Members[0].Foreign = true })}, true, false, v1alpha1.ReasonOnlyReplica, "has refused this replica"},
		"a lost node copied to it":     {cordon, []copied{pair(filling, in, func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Dirty, m.Spec.Members[0].Identity = true, "i" })}, true, false, v1alpha1.ReasonOnlyReplica, "was not detached cleanly"},
		"a node copies to it": {cordon, []copied{pair(filling, in, func(m *v1alpha1.NvmfMirror, _ *other) {
			m.Spec.Dirty, m.Spec.Holder, m.Spec.Members[0].Identity = true, "pod", "i"
		})}, true, true, v1alpha1.ReasonAsExpected, ""},
		"a lost node had let go of it": {cordon, []copied{pair(out, in, func(m *v1alpha1.NvmfMirror, _ *other) {
			m.Spec.Dirty = true
			m.Spec.Members[0].Identity, m.Spec.Members[0].Released = "i", true
		})}, true, true, v1alpha1.ReasonAsExpected, ""},
		"the record knows it not": {cordon, []copied{unrecorded}, true, false, v1alpha1.ReasonOnlyReplica, "does not know it"},
		"this one is no member":   {cordon, []copied{pair(in, out, func(m *v1alpha1.NvmfMirror, _ *other) { m.Spec.Members = m.Spec.Members[1:] })}, true, true, v1alpha1.ReasonAsExpected, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := test.view
			if v.node == nil {
				v.node = &v1alpha1.NvmfNode{}
			}
			v.node.Name, v.copies = "n", test.copies
			d := decide(v)
			if d.needed != test.needed || d.open != test.open || d.condition.Reason != test.reason {
				t.Errorf("needed %t, open %t, %s: %s", d.needed, d.open, d.condition.Reason, d.condition.Message)
			}
			if test.says == "" && strings.Contains(d.condition.Message, "does not run") {
				t.Errorf("message %q", d.condition.Message)
			}
			if !strings.Contains(d.condition.Message, test.says) {
				t.Errorf("message %q does not say %q", d.condition.Message, test.says)
			}
			if (d.condition.Status == metav1.ConditionTrue) != !strings.HasPrefix(test.reason, "Only") {
				t.Errorf("status %s with reason %s", d.condition.Status, d.condition.Reason)
			}
		})
	}
}

// The cache lists in any order, and a message that differs is written, and leads to the next look.
func TestTheMessageDoesNotDependOnTheOrder(t *testing.T) {
	a, b := copied{replica: testReplica("a", "n")}, copied{replica: testReplica("b", "n")}
	b.replica.Spec.Volume.Name = "another"
	message := func(copies ...copied) string {
		return decide(view{node: &v1alpha1.NvmfNode{}, exists: true, copies: copies}).condition.Message
	}
	if one, two := message(a, b), message(b, a); one != two {
		t.Errorf("%q, and %q", one, two)
	}
}
