// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/gather"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

var (
	now   = metav1.NewTime(time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC))
	later = metav1.NewTime(now.Add(time.Hour))
)

func fresh() *v1alpha1.NvmfTarget {
	return &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: "fast", Generation: 3}}
}

func serving(name string, state healthState, reason string) servingNode {
	return servingNode{name: name, capable: true, health: health{state, reason, "because"}}
}

func refused(reasons ...string) []v1alpha1.NotCapableNode {
	var out []v1alpha1.NotCapableNode
	for i, r := range reasons {
		out = append(out, v1alpha1.NotCapableNode{Node: fmt.Sprintf("x%02d", i), Reason: r, Message: "because"})
	}
	return out
}

func TestConditions(t *testing.T) {
	gone := fresh()
	gone.DeletionTimestamp = &now
	tests := map[string]struct {
		o    observation
		want [3]string // Ready, Progressing, Degraded
	}{
		"no node matches": {
			observation{target: fresh()},
			[3]string{"False/NoNodeMatches", "False/AsExpected", "False/AsExpected"},
		},
		"all serve": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a"}, Capable: []string{"a"}}, nodes: []servingNode{serving("a", ready, "AsExpected")}},
			[3]string{"True/AsExpected", "False/AsExpected", "False/AsExpected"},
		},
		"one serves, one is not capable": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a", "x00"}, Capable: []string{"a"}, NotCapable: refused("NoDevice")}, nodes: []servingNode{serving("a", ready, "AsExpected")}},
			[3]string{"True/AsExpected", "False/AsExpected", "True/NodesNotCapable"},
		},
		"one serves, one is failing": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a", "b"}, Capable: []string{"a", "b"}}, nodes: []servingNode{serving("a", ready, "AsExpected"), serving("b", failing, "PoolFailed")}},
			[3]string{"False/NodesNotReady", "False/AsExpected", "True/NodesNotReady"},
		},
		"one serves, one is about to": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a", "b"}, Capable: []string{"a", "b"}}, nodes: []servingNode{serving("a", ready, "AsExpected"), serving("b", pending, "Pending")}},
			[3]string{"False/Pending", "True/Pending", "True/Pending"},
		},
		"no agent reported": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"x00"}, NotCapable: refused("NoInventory")}},
			[3]string{"False/Pending", "True/Pending", "True/Pending"},
		},
		"one agent did not report, another's node is not capable": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"x00", "x01"}, NotCapable: refused("NoInventory", "NoDevice")}},
			[3]string{"False/NoNodeCapable", "True/Pending", "True/NodesNotCapable"},
		},
		"a kept node is failing: not the target's concern any more": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a"}, Capable: []string{"a"}, Kept: []string{"k"}},
				nodes: []servingNode{serving("a", ready, "AsExpected"), {name: "k", health: health{failing, "AgentSilent", "because"}}}},
			[3]string{"True/AsExpected", "False/AsExpected", "False/AsExpected"},
		},
		"a selector that cannot be read": {
			observation{target: fresh(), placed: claim.Target{SelectorError: errors.New("bad")}},
			[3]string{"False/InvalidNodeSelector", "False/AsExpected", "False/AsExpected"},
		},
		"a pod is outdated": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a"}, Capable: []string{"a"}}, nodes: []servingNode{{name: "a", capable: true, podOutdated: true, health: health{ready, "AsExpected", "serving"}}}},
			[3]string{"True/AsExpected", "True/PodOutdated", "False/AsExpected"},
		},
		"a node has its turn, and another waits": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a"}, Capable: []string{"a"}}, nodes: []servingNode{serving("a", pending, "Pending")},
				gate: rollout.Decision{Conditions: map[string]metav1.Condition{"a": {Reason: v1alpha1.ReasonUpdating}, "b": {Reason: v1alpha1.ReasonWaitingForTurn}}}},
			[3]string{"False/Pending", "True/Updating", "True/Pending"},
		},
		"a rollout is paused": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a"}, Capable: []string{"a"}}, nodes: []servingNode{serving("a", ready, "AsExpected")},
				gate: rollout.Decision{Conditions: map[string]metav1.Condition{"a": {Reason: v1alpha1.ReasonRolloutPaused}}}},
			[3]string{"True/AsExpected", "True/RolloutPaused", "False/AsExpected"},
		},
		"a node is not tuned as asked for": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a"}, Capable: []string{"a"}}, nodes: []servingNode{{name: "a", capable: true, health: health{ready, "AsExpected", "serving"},
				untuned: &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonSettingRefused, Message: "eth0/rings.rx: no"}}}},
			[3]string{"True/AsExpected", "False/AsExpected", "True/SettingRefused"},
		},
		"more is promised of a pool than may be": {
			observation{target: fresh(), placed: claim.Target{Matching: []string{"a"}, Capable: []string{"a"}}, nodes: []servingNode{serving("a", ready, "AsExpected")},
				overPromised: []string{"a (12Gi promised of pool d, 10Gi allowed)"}},
			[3]string{"True/AsExpected", "False/AsExpected", "True/OverPromised"},
		},
		"deleting, with volumes": {
			observation{target: gone, placed: claim.Target{Matching: []string{"a"}, Capable: []string{"a"}}, nodes: []servingNode{serving("a", ready, "AsExpected")}, remains: remains{volumes: []string{"v"}}},
			[3]string{"False/Deleting", "True/VolumesRemain", "False/AsExpected"},
		},
		"deleting, with a snapshot": {
			observation{target: gone, remains: remains{snapshots: []string{"s"}}},
			[3]string{"False/Deleting", "True/VolumesRemain", "False/AsExpected"},
		},
		"deleting, empty": {
			observation{target: gone},
			[3]string{"False/Deleting", "True/Deleting", "False/AsExpected"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := status(test.o, now)
			if len(s.Conditions) != 4 {
				t.Fatalf("%d conditions, want 4: all are always set", len(s.Conditions))
			}
			for i, kind := range []string{"Ready", "Progressing", "Degraded", "AuthenticationReady"} {
				c := s.Conditions[i]
				want := append(test.want[:], "True/AsExpected")[i]
				if got := string(c.Status) + "/" + c.Reason; c.Type != kind || got != want {
					t.Errorf("%s is %s, want %s is %s", c.Type, got, kind, want)
				}
				if c.Message == "" || c.ObservedGeneration != 3 || c.LastTransitionTime != now {
					t.Errorf("%s is not complete: %+v", kind, c)
				}
			}
		})
	}
}

// seen is a look at these nodes, of which those that have a target keep it.
func seen(target *v1alpha1.NvmfTarget, placed claim.Target, nodes ...gather.Node) *view {
	v := &view{target: target, placed: placed}
	for _, is := range nodes {
		n := &node{facts: &facts{Node: is}, placement: &claim.Placement{}}
		if n.Nvmf != nil {
			n.placement.Spec = n.Nvmf.Spec
			n.gated = (&Reconciler{}).rolloutNode(n.facts, n.Nvmf.Spec)
			n.release(target, v1alpha1.UpdateStrategy{}, false)
		}
		v.nodes = append(v.nodes, n)
	}
	return v
}

func TestNoNodeMatchesSaysWhatToLabel(t *testing.T) {
	target := fresh()
	target.Spec.NodeSelector.MatchLabels = map[string]string{"weft.storage/target": "fast"}
	s := status(observation{target: target}, now)
	for kind, says := range map[string]string{
		v1alpha1.ConditionReady:    "no node matches spec.nodeSelector (weft.storage/target=fast); label the nodes that should serve: kubectl label node NODE weft.storage/target=fast",
		v1alpha1.ConditionDegraded: "no node matches, so none is degraded",
	} {
		if is := meta.FindStatusCondition(s.Conditions, kind); is.Message != says {
			t.Errorf("%s: got %q, want %q", kind, is.Message, says)
		}
	}
}

// Who cannot authenticate is told before a volume is refused.
func TestAuthenticationReady(t *testing.T) {
	storageNode := func(name, publicKey string, running *v1alpha1.EngineStatus) gather.Node {
		return gather.Node{Node: claim.Node{Name: name, Nvmf: &v1alpha1.NvmfNode{
			Spec:   v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{}},
			Status: v1alpha1.NvmfNodeStatus{PublicKey: publicKey, Engine: running},
		}}}
	}
	host := func(name, unable string) gather.Node {
		return gather.Node{Node: claim.Node{Name: name, HostUnable: unable}}
	}
	can, cannot := &v1alpha1.EngineStatus{Type: v1alpha1.EngineNvmet, Version: "6.12", Authentication: true}, &v1alpha1.EngineStatus{Type: v1alpha1.EngineNvmet, Version: "5.15"}
	well := []gather.Node{storageNode("a", "key", can), host("worker", "")}
	for name, c := range map[string]struct {
		mode   v1alpha1.AuthenticationMode
		nodes  []gather.Node
		status string
		says   []string
	}{
		"all can":                        {v1alpha1.AuthenticationRequired, well, "True/AsExpected", nil},
		"an engine cannot":               {v1alpha1.AuthenticationRequired, []gather.Node{storageNode("a", "key", cannot)}, "False/NodesCannotAuthenticate", []string{"1 storage node", "a (its engine Nvmet 5.15", "no volumes are attached there"}},
		"an agent of an earlier version": {v1alpha1.AuthenticationRequired, []gather.Node{storageNode("a", "", can)}, "False/NodesCannotAuthenticate", []string{"a (its agent reports no public key"}},
		"an agent that has not begun":    {v1alpha1.AuthenticationRequired, []gather.Node{storageNode("a", "", nil)}, "True/AsExpected", nil},
		"a kernel of a host cannot":      {v1alpha1.AuthenticationRequired, append(well, host("old", "this kernel cannot")), "False/NodesCannotAuthenticate", []string{"1 node cannot authenticate when using volumes: old (this kernel cannot)"}},
		"where it is preferred":          {v1alpha1.AuthenticationPreferred, append(well, host("old", "this kernel cannot")), "True/NodesCannotAuthenticate", []string{"old (this kernel cannot)", "attached there without"}},
		"where it is disabled":           {v1alpha1.AuthenticationDisabled, append(well, host("old", "this kernel cannot")), "True/NotNeeded", nil},
	} {
		t.Run(name, func(t *testing.T) {
			target := fresh()
			target.Spec.Security = &v1alpha1.Security{Authentication: c.mode}
			placed := claim.Target{Matching: []string{"a"}, Capable: []string{"a"}}
			s := status(observe(seen(target, placed, c.nodes...)), now)
			is := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAuthenticationReady)
			if got := string(is.Status) + "/" + is.Reason; got != c.status {
				t.Errorf("%s: %s, want %s", got, is.Message, c.status)
			}
			for _, says := range c.says {
				if !strings.Contains(is.Message, says) {
					t.Errorf("%q does not say %q", is.Message, says)
				}
			}
			if events := eventsFor(v1alpha1.NvmfTargetStatus{}, s); slices.ContainsFunc(events, func(n notice) bool {
				return n.reason == v1alpha1.ReasonNodesCannotAuthenticate && n.kind == "Warning"
			}) != (is.Status == metav1.ConditionFalse) {
				t.Errorf("Events: %+v", events)
			}
		})
	}
}

func TestStatusIsUnchangedWhileNothingHappens(t *testing.T) {
	target := fresh()
	o := observation{target: target, placed: claim.Target{Matching: []string{"a", "x00"}, Capable: []string{"a"}, NotCapable: refused("NoDevice")}, nodes: []servingNode{serving("a", ready, "AsExpected")}}
	target.Status = status(o, now)
	if diff := cmp.Diff(target.Status, status(o, later)); diff != "" {
		t.Errorf("the status changed:\n%s", diff)
	}
	if n := eventsFor(target.Status, status(o, later)); len(n) != 0 {
		t.Errorf("Events for nothing: %+v", n)
	}
}

func TestNotCapableIsBounded(t *testing.T) {
	o := observation{target: fresh(), placed: claim.Target{NotCapable: refused(strings.Fields(strings.Repeat("NoDevice ", 70))...)}}
	for _, n := range o.placed.NotCapable {
		o.placed.Matching = append(o.placed.Matching, n.Node)
	}
	s := status(o, now)
	if len(s.NotCapable) != 50 || s.NotCapable[0].Node != "x00" || s.NotCapable[49].Node != "x49" {
		t.Errorf("%d nodes are listed, from %v", len(s.NotCapable), s.NotCapable[0])
	}
	if s.Nodes.Matching != 70 {
		t.Errorf("%d nodes match, want all 70 counted", s.Nodes.Matching)
	}
	if n := eventsFor(v1alpha1.NvmfTargetStatus{}, s); len(n) != 52 { // 50 nodes, Ready, Degraded
		t.Errorf("%d Events, want 52", len(n))
	}
}

func TestEvents(t *testing.T) {
	before := status(observation{target: fresh(), placed: claim.Target{Matching: []string{"x00", "x01"}, NotCapable: refused("NoDevice", "NoAddress")}}, now)
	o := observation{target: fresh(), placed: claim.Target{Matching: []string{"a", "x00", "x01"}, Capable: []string{"a"}, NotCapable: refused("NoDevice", "NoRDMADevice")},
		nodes: []servingNode{serving("a", ready, "AsExpected")}}
	got := eventsFor(before, status(o, later))
	want := []notice{
		{kind: "Warning", reason: "NoRDMADevice", message: "x01: because", node: "x01"},
		{kind: "Normal", reason: "AsExpected", message: "1 of 3 matching nodes serving"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(notice{})); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

func TestHealthOf(t *testing.T) {
	spec := v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet}}
	condition := func(kind string, s metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: s, Reason: reason}
	}
	isReady := condition("Ready", metav1.ConditionTrue, "AsExpected")
	cordoned, retired, dropped := *spec.DeepCopy(), *spec.DeepCopy(), *spec.DeepCopy()
	cordoned.Unschedulable = true
	retired.UnschedulableDrives = []string{"a"}
	dropped.DroppedDrives = []v1alpha1.DroppedDrive{{ID: "a"}}
	tests := map[string]struct {
		observed   int64
		spec       v1alpha1.NvmfNodeSpec
		conditions []metav1.Condition
		want       healthState
		reason     string
	}{
		"serves":                            {2, spec, []metav1.Condition{isReady}, ready, "AsExpected"},
		"serves, no lease seen":             {2, spec, []metav1.Condition{isReady, condition("AgentAlive", metav1.ConditionUnknown, "AgentSilent")}, ready, "AsExpected"},
		"serves, cordoned":                  {2, cordoned, []metav1.Condition{isReady}, ready, "AsExpected"},
		"serves, with a retired drive":      {2, retired, []metav1.Condition{isReady}, ready, "AsExpected"},
		"serves, without a drive":           {2, dropped, []metav1.Condition{isReady}, ready, "AsExpected"},
		"serves an earlier plan":            {1, spec, []metav1.Condition{isReady}, pending, "Pending"},
		"the plan is just being written":    {2, v1alpha1.NvmfNodeSpec{}, []metav1.Condition{isReady}, pending, "Pending"},
		"no word yet":                       {2, spec, nil, pending, "Pending"},
		"at work":                           {2, spec, []metav1.Condition{condition("Ready", metav1.ConditionFalse, "Pending")}, pending, "Pending"},
		"failed":                            {2, spec, []metav1.Condition{condition("Ready", metav1.ConditionFalse, "PoolFailed")}, failing, "PoolFailed"},
		"does not know":                     {2, spec, []metav1.Condition{condition("Ready", metav1.ConditionUnknown, "EngineNotAnswering")}, failing, "EngineNotAnswering"},
		"silent, whatever it said before":   {2, spec, []metav1.Condition{isReady, condition("AgentAlive", metav1.ConditionFalse, "AgentSilent")}, failing, "AgentSilent"},
		"silent, and has not seen the plan": {1, spec, []metav1.Condition{condition("AgentAlive", metav1.ConditionFalse, "AgentSilent")}, failing, "AgentSilent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: test.spec}
			node.Status.ObservedGeneration, node.Status.Conditions = test.observed, test.conditions
			if got := healthOf(node, spec); got.state != test.want || got.reason != test.reason {
				t.Errorf("got %s/%s, want %s/%s", got.state, got.reason, test.want, test.reason)
			}
		})
	}
}

// What a pod lacks explains what the agent sees of it.
func TestHealthOfANodeWithATargetPod(t *testing.T) {
	spec := v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, SPDK: &v1alpha1.SPDKPlan{}}}
	condition := func(kind string, s metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: s, Reason: reason, Message: "because of " + reason, ObservedGeneration: 2}
	}
	pod := func(s metav1.ConditionStatus, reason string) metav1.Condition {
		return condition(v1alpha1.ConditionTargetPodReady, s, reason)
	}
	agent := func(s metav1.ConditionStatus, reason string) metav1.Condition {
		return condition(v1alpha1.ConditionReady, s, reason)
	}
	earlier := pod(metav1.ConditionTrue, "AsExpected")
	earlier.ObservedGeneration = 1
	tests := map[string]struct {
		observed   int64
		conditions []metav1.Condition
		want       healthState
		reason     string
	}{
		"serves":                             {2, []metav1.Condition{pod("True", "AsExpected"), agent("True", "AsExpected")}, ready, "AsExpected"},
		"serves, with an earlier plan's pod": {2, []metav1.Condition{pod("True", "PodOutdated"), agent("True", "AsExpected")}, ready, "AsExpected"},
		"no word on the pod":                 {2, []metav1.Condition{agent("True", "AsExpected")}, pending, "Pending"},
		"only on an earlier plan's":          {2, []metav1.Condition{earlier, agent("True", "AsExpected")}, pending, "Pending"},
		"the pod starts":                     {2, []metav1.Condition{pod("False", "PodNotReady"), agent("Unknown", "EngineNotAnswering")}, pending, "PodNotReady"},
		"the pod is not scheduled":           {1, []metav1.Condition{pod("False", "PodPending"), agent("Unknown", "EngineNotAnswering")}, pending, "PodPending"},
		"the launcher refuses":               {2, []metav1.Condition{pod("False", "HugepagesMissing"), agent("Unknown", "EngineNotAnswering")}, failing, "HugepagesMissing"},
		"the launcher refuses, unseen plan":  {1, []metav1.Condition{pod("False", "HugepagesMissing"), agent("True", "AsExpected")}, failing, "HugepagesMissing"},
		"the pod runs, the pool does not":    {2, []metav1.Condition{pod("True", "AsExpected"), agent("False", "PoolFailed")}, failing, "PoolFailed"},
		"silent":                             {2, []metav1.Condition{pod("False", "HugepagesMissing"), condition("AgentAlive", "False", "AgentSilent")}, failing, "AgentSilent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: spec}
			node.Status.ObservedGeneration, node.Status.Conditions = test.observed, test.conditions
			if got := healthOf(node, spec); got.state != test.want || got.reason != test.reason {
				t.Errorf("got %s/%s, want %s/%s", got.state, got.reason, test.want, test.reason)
			}
		})
	}
}

// What a target can still take is what the agents of its nodes say; which of its pools have promised too much follows
// from its own spec.
func TestCapacity(t *testing.T) {
	q := func(gib int64) *resource.Quantity { return resource.NewQuantity(gib<<30, resource.BinarySI) }
	node := func(name string, total, promised, free int64) v1alpha1.NvmfNode {
		nn := v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{Target: "fast"}}
		nn.Status.Capacity = v1alpha1.Capacity{Total: q(total), Free: q(free)}
		nn.Status.Pools = []v1alpha1.PoolStatus{
			{Device: "d", Ready: true, Total: q(total), Promised: q(promised)},
			{Device: "unread", Ready: true}, {Device: "left", Total: q(1), Promised: q(5)},
		}
		return nn
	}
	volume := func(name, target string) v1alpha1.NvmfVolume {
		return v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfVolumeSpec{Target: target}}
	}
	replica := func(of, target, node, size string) v1alpha1.NvmfReplica {
		return v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: of + "-0"}, Spec: v1alpha1.NvmfReplicaSpec{
			Volume: v1alpha1.ReplicaOf{Name: of}, Target: target, Node: node, Size: resource.MustParse(size),
		}}
	}
	s := newStore(t)
	for _, v := range []v1alpha1.NvmfVolume{volume("v0", "fast"), volume("v1", "fast"), volume("v3", "other")} {
		s.put(&v)
	}
	replicas := []v1alpha1.NvmfReplica{replica("v1", "fast", "a", "3Gi"), replica("v2", "fast", "b", "6Gi"), replica("v3", "other", "a", "1Gi")}
	for _, r := range replicas {
		s.put(&r)
	}
	snapshots := []v1alpha1.NvmfSnapshot{{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: v1alpha1.NvmfSnapshotSpec{Node: "a"}, Status: v1alpha1.NvmfSnapshotStatus{Allocated: q(2)}}}
	s.put(&snapshots[0])
	nodes := gather.Nodes(nil, []v1alpha1.NvmfNode{node("a", 10, 5, 7), node("b", 4, 6, 0)}, replicas, snapshots)
	v := seen(fresh(), claim.Target{}, nodes...)
	o := observe(v)
	if got := fmt.Sprint(o.capacity.Total, o.capacity.Allocated, o.capacity.Free); got != "14Gi 11280Mi 7Gi" { // two headers and trailers
		t.Errorf("total, allocated, free are %s, want 14Gi 11280Mi 7Gi", got)
	}
	is, err := remaining(t.Context(), s, "fast", v.nodes)
	if diff := cmp.Diff(fmt.Sprint([]string{"v0", "v1", "v2"}, []string{"s"}, nil), fmt.Sprint(is.volumes, is.snapshots, err)); diff != "" {
		t.Errorf("what keeps the target from being deleted: a volume without a replica, one with, a replica without its volume:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"b (6Gi promised of pool d, 4Gi allowed)"}, o.overPromised); diff != "" {
		t.Error(diff)
	}
	target := fresh()
	target.Spec.OverProvisioningPercent = 150
	if o := observe(seen(target, claim.Target{}, nodes...)); len(o.overPromised) != 0 {
		t.Errorf("at 150 %%: %v", o.overPromised)
	}
}
