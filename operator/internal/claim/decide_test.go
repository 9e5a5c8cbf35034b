// SPDX-License-Identifier: Apache-2.0

package claim_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
)

var epoch = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

type targetOption func(*v1alpha1.NvmfTarget)

// target selects nodes with the label pool=<pool>. Options can change everything.
func target(name, pool string, options ...targetOption) v1alpha1.NvmfTarget {
	t := v1alpha1.NvmfTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch), Finalizers: []string{v1alpha1.TargetFinalizer}},
		Spec: v1alpha1.NvmfTargetSpec{
			Engine:       v1alpha1.EngineNvmet,
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": pool}},
			Transports:   []v1alpha1.Transport{{Type: v1alpha1.TransportTCP, Port: 4420}},
			Devices:      v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: "/var/lib/weft/" + name, Size: resource.MustParse("10Gi")}},
		},
	}
	for _, o := range options {
		o(&t)
	}
	return t
}

func age(hours int) targetOption {
	return func(t *v1alpha1.NvmfTarget) {
		t.CreationTimestamp = metav1.NewTime(epoch.Add(-time.Duration(hours) * time.Hour))
	}
}

func deleting(t *v1alpha1.NvmfTarget)    { t.DeletionTimestamp = new(metav1.NewTime(epoch)) }
func unfinalized(t *v1alpha1.NvmfTarget) { t.Finalizers = nil }
func overRDMA(t *v1alpha1.NvmfTarget) {
	t.Spec.Transports = append(t.Spec.Transports, v1alpha1.Transport{Type: v1alpha1.TransportRDMA, Port: 4421})
}
func badSelector(t *v1alpha1.NvmfTarget) {
	t.Spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "pool", Operator: "Like"}}
}

type nodeOption func(*claim.Node)

// node exists, has the label pool=<pool>, and its agent reported what a TCP target on a file needs.
func node(name, pool string, options ...nodeOption) claim.Node {
	n := claim.Node{
		Name: name, Exists: true,
		Labels:      map[string]string{"pool": pool},
		InternalIPs: []string{"192.0.2.1"},
		Replicas:    map[string]int{},
		Nvmf: &v1alpha1.NvmfNode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     v1alpha1.NvmfNodeStatus{Inventory: &v1alpha1.Inventory{Modules: []string{"loop", "nvmet", "nvmet_tcp", "xfs"}}},
		},
	}
	for _, o := range options {
		o(&n)
	}
	return n
}

// claimedBy gives the node a plan of that target, recognizable by an odd port.
func claimedBy(target string) nodeOption {
	return func(n *claim.Node) { n.Nvmf.Spec = v1alpha1.NvmfNodeSpec{Target: target, Plan: oldPlan(target)} }
}

func oldPlan(target string) *v1alpha1.Plan {
	return &v1alpha1.Plan{
		Engine:  v1alpha1.EngineNvmet,
		Portals: []v1alpha1.PlannedPortal{{Portal: v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 999}}},
		File:    &v1alpha1.DeviceFile{Path: "/var/lib/weft/" + target, Size: resource.MustParse("10Gi")},
	}
}

func replicas(target string, n int) nodeOption {
	return func(node *claim.Node) { node.Replicas[target] = n }
}
func snapshots(n int) nodeOption { return func(node *claim.Node) { node.Snapshots = n } }
func gone(n *claim.Node)         { n.Exists, n.Labels, n.InternalIPs = false, nil, nil }
func noAgent(n *claim.Node)      { n.Nvmf = nil }
func noInventory(n *claim.Node)  { n.Nvmf.Status.Inventory = nil }
func modules(names ...string) nodeOption {
	return func(n *claim.Node) { n.Nvmf.Status.Inventory.Modules = names }
}

// Ports tell whose plan a node has: 999 is the one it had, 4420 a fresh one.
type claimed struct {
	target  string
	port    int32
	leaving bool
}

func claims(d claim.Decision) map[string]claimed {
	out := map[string]claimed{}
	for name, spec := range d.Nodes {
		c := claimed{target: spec.Target, leaving: spec.Leaving}
		if spec.Plan != nil {
			c.port = spec.Plan.Portals[0].Port
		}
		out[name] = c
	}
	return out
}

func TestClaims(t *testing.T) {
	free := claimed{}
	tests := map[string]struct {
		targets []v1alpha1.NvmfTarget
		nodes   []claim.Node
		want    map[string]claimed
	}{
		"a matching node is claimed, another is not": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a")},
			nodes:   []claim.Node{node("n1", "a"), node("n2", "b")},
			want:    map[string]claimed{"n1": {target: "fast", port: 4420}, "n2": free},
		},
		"the oldest of two that match": {
			targets: []v1alpha1.NvmfTarget{target("a-young", "a"), target("z-old", "a", age(1))},
			nodes:   []claim.Node{node("n1", "a")},
			want:    map[string]claimed{"n1": {target: "z-old", port: 4420}},
		},
		"of the same age: the first by name": {
			targets: []v1alpha1.NvmfTarget{target("z", "a"), target("b", "a")},
			nodes:   []claim.Node{node("n1", "a")},
			want:    map[string]claimed{"n1": {target: "b", port: 4420}},
		},
		"an older one does not take a node that has a target": {
			targets: []v1alpha1.NvmfTarget{target("old", "a", age(1)), target("young", "a")},
			nodes:   []claim.Node{node("n1", "a", claimedBy("young"))},
			want:    map[string]claimed{"n1": {target: "young", port: 4420}},
		},
		"a node that no longer matches is released": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a")},
			nodes:   []claim.Node{node("n1", "b", claimedBy("fast"))},
			want:    map[string]claimed{"n1": free},
		},
		"a node that no longer matches is released before the one that does gets it": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a"), target("slow", "b")},
			nodes:   []claim.Node{node("n1", "b", claimedBy("fast")), node("n2", "b")},
			want:    map[string]claimed{"n1": free, "n2": {target: "slow", port: 4420}},
		},
		"a node that no longer matches is kept while volumes are on it, and follows the spec": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a"), target("slow", "b", age(1))},
			nodes:   []claim.Node{node("n1", "b", claimedBy("fast"), replicas("fast", 1))},
			want:    map[string]claimed{"n1": {target: "fast", port: 4420, leaving: true}},
		},
		"snapshots keep a claim as volumes do": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a")},
			nodes:   []claim.Node{node("n1", "b", claimedBy("fast"), snapshots(1))},
			want:    map[string]claimed{"n1": {target: "fast", port: 4420, leaving: true}},
		},
		"a target that vanished keeps nodes with volumes as they are": {
			nodes: []claim.Node{node("n1", "a", claimedBy("gone"), replicas("gone", 1)), node("n2", "a", claimedBy("gone"))},
			want:  map[string]claimed{"n1": {target: "gone", port: 999}, "n2": free},
		},
		"an NvmfNode that was made again returns to the target whose volumes are there": {
			targets: []v1alpha1.NvmfTarget{target("old", "a", age(1)), target("young", "b")},
			nodes:   []claim.Node{node("n1", "a", replicas("young", 3))},
			want:    map[string]claimed{"n1": {target: "young", port: 4420, leaving: true}},
		},
		"data decides before an empty claim": {
			targets: []v1alpha1.NvmfTarget{target("old", "a", age(1)), target("young", "a")},
			nodes:   []claim.Node{node("n1", "a", claimedBy("old"), replicas("young", 3))},
			want:    map[string]claimed{"n1": free}, // and then young's, as above
		},
		"a target being deleted keeps all its nodes while one has volumes, and takes no new one": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a", deleting)},
			nodes:   []claim.Node{node("n1", "a", claimedBy("fast"), replicas("fast", 1)), node("n2", "a", claimedBy("fast")), node("n3", "a")},
			want:    map[string]claimed{"n1": {target: "fast", port: 4420, leaving: true}, "n2": {target: "fast", port: 4420, leaving: true}, "n3": free},
		},
		"a target being deleted without volumes releases its nodes, and takes none": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a", deleting, age(1)), target("next", "a")},
			nodes:   []claim.Node{node("n1", "a", claimedBy("fast")), node("n2", "a")},
			want:    map[string]claimed{"n1": free, "n2": {target: "next", port: 4420}},
		},
		"a target without its finalizer claims nothing yet": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a", unfinalized)},
			nodes:   []claim.Node{node("n1", "a")},
			want:    map[string]claimed{"n1": free},
		},
		"nor does a younger one in its place": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a", unfinalized), target("next", "a"), target("other", "b")},
			nodes:   []claim.Node{node("n1", "a"), node("n2", "b")},
			want:    map[string]claimed{"n1": free, "n2": {target: "other", port: 4420}},
		},
		"a Kubernetes Node that is gone takes no claim away": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a")},
			nodes:   []claim.Node{node("n1", "a", claimedBy("fast"), gone), node("n2", "a", gone)},
			want:    map[string]claimed{"n1": {target: "fast", port: 999}, "n2": free},
		},
		"a selector that cannot be read takes no claim away, and claims nothing": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a", badSelector)},
			nodes:   []claim.Node{node("n1", "a", claimedBy("fast")), node("n2", "a")},
			want:    map[string]claimed{"n1": {target: "fast", port: 4420}, "n2": free},
		},
		"a node that is not capable is not claimed, and not given to a younger target": {
			targets: []v1alpha1.NvmfTarget{target("old", "a", age(1), overRDMA), target("young", "a")},
			nodes:   []claim.Node{node("n1", "a")},
			want:    map[string]claimed{"n1": free},
		},
		"a claimed node that is not capable any more keeps its plan": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a", overRDMA)},
			nodes:   []claim.Node{node("n1", "a", claimedBy("fast")), node("n2", "a", claimedBy("fast"), noInventory)},
			want:    map[string]claimed{"n1": {target: "fast", port: 999}, "n2": {target: "fast", port: 999}},
		},
		"a node without an NvmfNode cannot be written": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a")},
			nodes:   []claim.Node{node("n1", "a", noAgent)},
			want:    map[string]claimed{},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := claims(claim.Decide(test.targets, test.nodes))
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(claimed{})); diff != "" {
				t.Errorf("claims (-want +got):\n%s", diff)
			}
		})
	}
}

// A second decision from what the first one wrote changes nothing, whatever the order of the lists.
func TestDecideIsStable(t *testing.T) {
	targets := []v1alpha1.NvmfTarget{target("a", "a"), target("b", "a", age(1)), target("c", "c", deleting), target("d", "d", overRDMA)}
	nodes := []claim.Node{
		node("n1", "a"), node("n2", "a", claimedBy("a")), node("n3", "c", claimedBy("c"), replicas("c", 1)),
		node("n4", "d"), node("n5", "x", claimedBy("d"), replicas("d", 1)), node("n6", "c"), node("n7", "a", noAgent),
	}
	first := claim.Decide(targets, nodes)
	for i := range nodes {
		if nodes[i].Nvmf != nil {
			nodes[i].Nvmf.Spec = first.Nodes[nodes[i].Name]
		}
	}
	slices.Reverse(targets)
	slices.Reverse(nodes)
	second := claim.Decide(targets, nodes)
	if diff := cmp.Diff(first.Nodes, second.Nodes); diff != "" {
		t.Errorf("the second decision differs (-first +second):\n%s", diff)
	}
}

func TestResults(t *testing.T) {
	type why struct{ node, reason string }
	type result struct {
		Matching, Capable, Kept []string
		NotCapable              []why
		BadSelector             bool
	}
	tests := map[string]struct {
		targets []v1alpha1.NvmfTarget
		nodes   []claim.Node
		want    map[string]result
	}{
		"each node that is not capable has a reason": {
			targets: []v1alpha1.NvmfTarget{target("fast", "a")},
			nodes: []claim.Node{
				node("n5", "b"), node("n4", "a"), node("n3", "a", modules("loop", "nvmet", "xfs")),
				node("n2", "a", noInventory), node("n1", "a", noAgent),
			},
			want: map[string]result{"fast": {
				Matching:   []string{"n1", "n2", "n3", "n4"},
				Capable:    []string{"n4"},
				NotCapable: []why{{"n1", v1alpha1.ReasonNoInventory}, {"n2", v1alpha1.ReasonNoInventory}, {"n3", v1alpha1.ReasonModuleMissing}},
			}},
		},
		"a node of another target is named so": {
			targets: []v1alpha1.NvmfTarget{target("a", "a"), target("b", "a")},
			nodes:   []claim.Node{node("n1", "a"), node("n2", "a", claimedBy("b"))},
			want: map[string]result{
				"a": {Matching: []string{"n1", "n2"}, Capable: []string{"n1"}, NotCapable: []why{{"n2", v1alpha1.ReasonClaimedByAnother}}},
				"b": {Matching: []string{"n1", "n2"}, Capable: []string{"n2"}, NotCapable: []why{{"n1", v1alpha1.ReasonClaimedByAnother}}},
			},
		},
		"kept nodes do not count as matching": {
			targets: []v1alpha1.NvmfTarget{target("a", "a")},
			nodes:   []claim.Node{node("n1", "b", claimedBy("a"), replicas("a", 1)), node("n2", "a", claimedBy("a"), gone)},
			want:    map[string]result{"a": {Kept: []string{"n1", "n2"}}},
		},
		"a claimed node that lost what it needs is not capable": {
			targets: []v1alpha1.NvmfTarget{target("a", "a", overRDMA)},
			nodes:   []claim.Node{node("n1", "a", claimedBy("a"))},
			want:    map[string]result{"a": {Matching: []string{"n1"}, NotCapable: []why{{"n1", v1alpha1.ReasonModuleMissing}}}},
		},
		"a selector that cannot be read": {
			targets: []v1alpha1.NvmfTarget{target("a", "a", badSelector)},
			nodes:   []claim.Node{node("n1", "a", claimedBy("a")), node("n2", "a")},
			want:    map[string]result{"a": {Kept: []string{"n1"}, BadSelector: true}},
		},
		"a target being deleted has no complaint about nodes it does not take": {
			targets: []v1alpha1.NvmfTarget{target("a", "a", deleting)},
			nodes:   []claim.Node{node("n1", "a"), node("n2", "a", claimedBy("a"), replicas("a", 1))},
			want:    map[string]result{"a": {Matching: []string{"n1", "n2"}, Capable: []string{"n2"}}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := map[string]result{}
			for name, r := range claim.Decide(test.targets, test.nodes).Targets {
				res := result{Matching: r.Matching, Capable: r.Capable, Kept: r.Kept, BadSelector: r.SelectorError != nil}
				for _, n := range r.NotCapable {
					if n.Message == "" {
						t.Errorf("node %s of %s: reason %s has no message", n.Node, name, n.Reason)
					}
					res.NotCapable = append(res.NotCapable, why{n.Node, n.Reason})
				}
				got[name] = res
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(why{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
		})
	}
}
