// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

var now = time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)

const long = time.Hour * 24

// setting of a NIC's rings.
func rings(n string) v1alpha1.PlannedSetting {
	return v1alpha1.PlannedSetting{Setting: "eth0/rings.rx", Value: n}
}

// condition that has been so for a while.
func condition(kind string, status metav1.ConditionStatus, since time.Duration) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: "Because", Message: "of it", ObservedGeneration: 3, LastTransitionTime: metav1.NewTime(now.Add(-since))}
}

// kernelNode serves with nvmet, as its plan says, and is then changed.
func kernelNode(name string, changes ...func(*rollout.Node)) rollout.Node {
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 3}}
	node.Spec = v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, Tuning: []v1alpha1.PlannedSetting{rings("1024")}}}
	node.Status.ObservedGeneration = 3
	node.Status.Conditions = []metav1.Condition{
		condition(v1alpha1.ConditionAgentAlive, "True", long), condition(v1alpha1.ConditionReady, "True", long), condition(v1alpha1.ConditionTuned, "True", long),
	}
	n := rollout.Node{Nvmf: node, Desired: *node.Spec.DeepCopy()}
	for _, change := range changes {
		change(&n)
	}
	return n
}

// spdkNode is the same with a target pod.
func spdkNode(name string, changes ...func(*rollout.Node)) rollout.Node {
	n := kernelNode(name)
	n.Nvmf.Spec.Plan = &v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, SPDK: &v1alpha1.SPDKPlan{LargeBuffers: 256}}
	n.Desired = *n.Nvmf.Spec.DeepCopy()
	n.HasPods, n.Serves, n.ReadySince, n.ImageOnNode = true, true, now.Add(-long), true
	n.PodHash, n.PlannedHash, n.WantedHash = "old", "old", "old"
	for _, change := range changes {
		change(&n)
	}
	return n
}

func retuned(n *rollout.Node) { n.Desired.Plan.Tuning = []v1alpha1.PlannedSetting{rings("4096")} }

func outdated(n *rollout.Node) { n.WantedHash = "new" }

func noImage(n *rollout.Node) { n.ImageOnNode = false }

func busy(n *rollout.Node) { n.Busy = []string{"replica w", "replica v"} }

func evictable(n *rollout.Node, reason string) {
	c := condition(v1alpha1.ConditionEvictable, "False", long)
	c.Reason = reason
	n.Nvmf.Status.Conditions = append(n.Nvmf.Status.Conditions, c)
}

func onlyInSync(n *rollout.Node) { evictable(n, v1alpha1.ReasonOnlyInSyncReplica) }

func silent(since time.Duration) func(*rollout.Node) {
	return set(condition(v1alpha1.ConditionAgentAlive, "False", since))
}

func set(c metav1.Condition) func(*rollout.Node) {
	return func(n *rollout.Node) {
		for i, is := range n.Nvmf.Status.Conditions {
			if is.Type == c.Type {
				n.Nvmf.Status.Conditions[i] = c
			}
		}
	}
}

func kubeletDown(since time.Duration) func(*rollout.Node) {
	return func(n *rollout.Node) { n.NotReadySince = now.Add(-since) }
}

func notReady(n *rollout.Node) { set(condition(v1alpha1.ConditionReady, "False", long))(n) }

func newPlan(n *rollout.Node) { n.Nvmf.Generation++ }

func linkDown(n *rollout.Node) {
	n.Nvmf.Status.Inventory = &v1alpha1.Inventory{NICs: []v1alpha1.NIC{{Name: "eth0"}}}
}

func noPod(n *rollout.Node) { n.Serves, n.ReadySince, n.PodHash = false, time.Time{}, "" }

func strategy(kind v1alpha1.UpdateStrategyType, most string) v1alpha1.UpdateStrategy {
	return v1alpha1.UpdateStrategy{Type: kind, RollingUpdate: &v1alpha1.RollingUpdate{MaxUnavailable: new(intstr.Parse(most))}}
}

func TestTurns(t *testing.T) {
	const rolling, onDelete = v1alpha1.UpdateRollingUpdate, v1alpha1.UpdateOnDelete
	type nodes = []rollout.Node
	three := func(node func(string, ...func(*rollout.Node)) rollout.Node, changes ...func(*rollout.Node)) nodes {
		return nodes{node("a", changes...), node("b", changes...), node("c", changes...)}
	}
	paused := v1alpha1.UpdateStrategy{Type: rolling, Paused: true}
	for name, test := range map[string]struct {
		strategy v1alpha1.UpdateStrategy
		updating []string
		nodes    nodes
		// want the nodes whose turn it is then, and what condition Updated of a node says.
		want []string
		says map[string]string
	}{
		"nothing to do":                        {strategy(rolling, "1"), nil, three(spdkNode), nil, map[string]string{"a": "True/AsExpected"}},
		"one at a time":                        {strategy(rolling, "1"), nil, three(spdkNode, outdated), []string{"a"}, map[string]string{"b": "WaitingForTurn: its target pod must be replaced; waiting: maxUnavailable 1 is reached by other nodes that are being changed or do not serve; see the status of NvmfTarget fast"}},
		"one at a time, by default":            {v1alpha1.UpdateStrategy{Type: rolling}, nil, three(spdkNode, outdated), []string{"a"}, nil},
		"two at a time":                        {strategy(rolling, "2"), nil, three(spdkNode, outdated), []string{"a", "b"}, nil},
		"half of three, rounded up":            {strategy(rolling, "50%"), nil, three(spdkNode, outdated), []string{"a", "b"}, nil},
		"a small part is one":                  {strategy(rolling, "1%"), nil, three(spdkNode, outdated), []string{"a"}, nil},
		"the kernel's target, one at a time":   {strategy("", "1"), nil, three(kernelNode, retuned), []string{"a"}, map[string]string{"b": "WaitingForTurn: settings of its NICs must be changed"}},
		"the kernel's target, two at a time":   {strategy("", "2"), nil, three(kernelNode, retuned), []string{"a", "b"}, nil},
		"tuning of SPDK's nodes":               {strategy(onDelete, "1"), nil, three(spdkNode, retuned), []string{"a"}, nil},
		"tuning in one's turn, pods in none's": {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated), spdkNode("b", retuned)}, []string{"a"}, nil},
		"pods are the user's":                  {strategy(onDelete, "1"), nil, three(spdkNode, outdated), nil, map[string]string{"a": "PodOutdated: the target pod follows an earlier plan or image; delete it"}},
		"paused":                               {paused, nil, three(spdkNode, outdated), nil, map[string]string{"a": "RolloutPaused: spec.updateStrategy.paused of NvmfTarget fast"}},
		"paused before anything was changed":   {paused, []string{"a"}, three(spdkNode, outdated), nil, map[string]string{"a": "RolloutPaused"}},
		"paused in the midst":                  {paused, []string{"a"}, nodes{spdkNode("a", outdated, noPod), spdkNode("b", outdated)}, []string{"a"}, map[string]string{"a": "Updating: the node was changed, and its turn ends when it serves again: its target pod is not ready", "b": "RolloutPaused"}},
		"a turn goes on":                       {strategy(rolling, "1"), []string{"b"}, three(spdkNode, outdated), []string{"b"}, nil},
		"a turn ends, and the next begins":     {strategy(rolling, "1"), []string{"a"}, nodes{spdkNode("a"), spdkNode("b", outdated)}, []string{"b"}, map[string]string{"a": "True/AsExpected"}},
		"a turn that is stuck":                 {strategy(rolling, "1"), []string{"a"}, nodes{spdkNode("a", notReady), spdkNode("b", outdated)}, []string{"a"}, map[string]string{"a": "serves again: Ready is False (Because: of it)", "b": "see the status of NvmfTarget fast"}},
		"another plan in the turn":             {strategy(rolling, "1"), []string{"a"}, nodes{spdkNode("a", notReady, outdated), spdkNode("b", outdated)}, []string{"a"}, nil},
		"not taken up yet":                     {strategy(rolling, "1"), []string{"a"}, nodes{spdkNode("a", newPlan), spdkNode("b", outdated)}, []string{"a"}, map[string]string{"a": "has not applied its plan"}},
		"tuned a moment ago":                   {strategy("", "1"), []string{"a"}, nodes{kernelNode("a", set(condition(v1alpha1.ConditionTuned, "True", time.Second))), kernelNode("b", retuned)}, []string{"a"}, map[string]string{"a": "its tuning has just been written"}},
		"being tuned":                          {strategy("", "1"), []string{"a"}, nodes{kernelNode("a", set(condition(v1alpha1.ConditionTuned, "Unknown", long))), kernelNode("b", retuned)}, []string{"a"}, nil},
		"a setting is refused":                 {strategy("", "1"), []string{"a"}, nodes{kernelNode("a", set(condition(v1alpha1.ConditionTuned, "False", long))), kernelNode("b", retuned)}, []string{"b"}, nil},
		"a link stays down":                    {strategy("", "1"), []string{"a"}, nodes{kernelNode("a", linkDown), kernelNode("b", retuned)}, []string{"a"}, map[string]string{"a": "serves again: the link of eth0 is down"}},
		"another does not serve":               {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated), spdkNode("b", notReady)}, nil, map[string]string{"a": "b:Ready is False"}},
		"itself does not serve: first":         {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated), spdkNode("b", notReady, outdated)}, []string{"b"}, nil},
		"two do not serve, and two may":        {strategy(rolling, "2"), nil, nodes{spdkNode("a", outdated), spdkNode("b", notReady), spdkNode("c", notReady)}, nil, nil},
		"ready a moment ago":                   {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated), spdkNode("b", func(n *rollout.Node) { n.ReadySince = now.Add(-time.Second) })}, nil, map[string]string{"a": "b:its target pod has just become ready"}},
		"silent for a moment":                  {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated), spdkNode("b", silent(time.Minute))}, nil, map[string]string{"a": "b:its agent is silent"}},
		"a kubelet does not answer":            {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated), spdkNode("b", outdated, kubeletDown(time.Minute))}, nil, map[string]string{"a": "b:its Node is not Ready", "b": "it gets a turn once"}},
		"a kubelet does not answer for weeks":  {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated), spdkNode("b", outdated, kubeletDown(14*long))}, []string{"a"}, nil},
		"a plan that cannot be read":           {strategy(rolling, "1"), nil, nodes{spdkNode("a", func(n *rollout.Node) { n.WantedHash = "" })}, nil, map[string]string{"a": "True/AsExpected"}},
		"tuned, and its pod is the user's":     {strategy(onDelete, "1"), []string{"a"}, nodes{spdkNode("a", outdated, newPlan)}, []string{"a"}, map[string]string{"a": "Updating: the node was changed"}},
		"down for weeks":                       {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated), spdkNode("b", outdated, silent(14*long))}, []string{"a"}, map[string]string{"b": "the node gets a turn once the agent is back"}},
		"down for weeks in its turn":           {strategy(rolling, "1"), []string{"b"}, nodes{spdkNode("a", outdated), spdkNode("b", outdated, silent(14*long))}, []string{"a"}, nil},
		"back after weeks":                     {strategy(rolling, "1"), []string{"a"}, nodes{spdkNode("a", noPod), spdkNode("b", outdated)}, []string{"a"}, map[string]string{"b": "WaitingForTurn"}},
		"its image is not there":               {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated, noImage), spdkNode("b", outdated)}, []string{"b"}, map[string]string{"a": "the image of its next target pod is not present on the node (condition TargetImageReady)"}},
		"volumes in the midst of something":    {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated, busy), spdkNode("b", outdated)}, []string{"b"}, nil},
		"busy":                                 {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated, busy)}, nil, map[string]string{"a": "waiting: 2 of the node's replicas and snapshots not ready, such as replica v"}},
		"a mirror's only replica in sync":      {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated, onlyInSync), spdkNode("b", outdated)}, []string{"b"}, nil},
		"mirrors are copied":                   {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated, onlyInSync)}, nil, map[string]string{"a": "waiting: volumes in use have their only in-sync replica on the node (condition Evictable"}},
		"a link, mirrors are copied":           {strategy("", "1"), nil, nodes{kernelNode("a", retuned, onlyInSync)}, nil, map[string]string{"a": "only in-sync replica"}},
		"a mirror waits for a pod that fails":  {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated, onlyInSync, func(n *rollout.Node) { n.ReadySince = time.Time{} })}, []string{"a"}, nil},
		"a volume with one replica":            {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated, func(n *rollout.Node) { evictable(n, v1alpha1.ReasonOnlyReplica) })}, []string{"a"}, nil},
		"no pod serves: nothing to disturb":    {strategy(rolling, "1"), nil, nodes{spdkNode("a", outdated, noPod)}, nil, map[string]string{"a": "True/AsExpected"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := rollout.Decide(rollout.Input{Strategy: test.strategy, Updating: test.updating, Nodes: test.nodes, Now: now})
			if diff := cmp.Diff(test.want, d.Updating); diff != "" {
				t.Errorf("turns: %s", diff)
			}
			for node, want := range test.says {
				c := d.Conditions[node]
				if got := fmt.Sprintf("%s/%s: %s; %v", c.Status, c.Reason, c.Message, d.Unwell); !strings.Contains(got, want) {
					t.Errorf("%s: %q, want %q", node, got, want)
				}
			}
			if int(d.Updated+d.Outdated) != len(test.nodes) || len(d.Conditions) != len(test.nodes) {
				t.Errorf("%d updated and %d outdated of %d, with %d conditions", d.Updated, d.Outdated, len(test.nodes), len(d.Conditions))
			}
		})
	}
}

func TestAgainWhenTimeIsAllThatIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		of   func(*rollout.Node)
		want time.Duration
	}{
		"a pod that has just become ready": {func(n *rollout.Node) { n.ReadySince = now.Add(-4 * time.Second) }, 6 * time.Second},
		"an agent that has fallen silent":  {silent(50 * time.Minute), 10 * time.Minute},
		"a node that is well":              {func(*rollout.Node) {}, 0},
	} {
		d := rollout.Decide(rollout.Input{Strategy: strategy(v1alpha1.UpdateRollingUpdate, "1"), Nodes: []rollout.Node{spdkNode("a", outdated), spdkNode("b", test.of)}, Now: now})
		if d.Again != test.want {
			t.Errorf("%s: again after %s, want %s", name, d.Again, test.want)
		}
	}
}

// Random fleets: never more turns than may be, and never one that was not there for a node that cannot have one.
func TestNeverMoreThanMayBeUnavailable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	changes := []func(*rollout.Node){outdated, noImage, busy, onlyInSync, silent(time.Minute), silent(long), notReady, newPlan, noPod, retuned, linkDown}
	for range 20000 {
		most := 1 + r.IntN(3)
		in := rollout.Input{Strategy: strategy(v1alpha1.UpdateRollingUpdate, fmt.Sprint(most)), Now: now}
		in.Strategy.Paused = r.IntN(5) == 0
		down := map[string]bool{}
		for i := range 1 + r.IntN(6) {
			n := spdkNode(fmt.Sprint(i))
			for range r.IntN(4) {
				changes[r.IntN(len(changes))](&n)
			}
			in.Nodes = append(in.Nodes, n)
			if n.Nvmf.Status.Conditions[0].Status == metav1.ConditionFalse && n.Nvmf.Status.Conditions[0].LastTransitionTime.Time.Equal(now.Add(-long)) {
				continue // absent
			}
			down[n.Nvmf.Name] = notServing(n)
		}
		d := rollout.Decide(in)
		if in.Strategy.Paused && len(d.Granted) > 0 {
			t.Fatalf("paused, and %v get a turn", d.Granted)
		}
		unavailable := 0
		for _, n := range in.Nodes {
			if needed := meta.FindStatusCondition(n.Nvmf.Status.Conditions, v1alpha1.ConditionEvictable); needed != nil && !n.ReadySince.IsZero() && slices.Contains(d.Granted, n.Nvmf.Name) {
				t.Fatalf("%s gets a turn, and has the only replica in sync of a volume", n.Nvmf.Name)
			}
			if slices.Contains(d.Granted, n.Nvmf.Name) || down[n.Nvmf.Name] {
				unavailable++
			}
		}
		if len(d.Granted) > 0 && unavailable > most {
			t.Fatalf("%d unavailable, with %v in turn, and %d may be: %+v", unavailable, d.Granted, most, down)
		}
		for i, n := range in.Nodes {
			in.Nodes[i] = n.Prepared()
		}
		if diff := cmp.Diff(d, rollout.Decide(in)); diff != "" {
			t.Fatalf("of prepared nodes: %s", diff)
		}
		slices.Reverse(in.Nodes)
		if again := rollout.Decide(in); !slices.Equal(again.Updating, d.Updating) {
			t.Fatalf("the order of the nodes matters: %v, %v", d.Updating, again.Updating)
		}
	}
}

// notServing looks at what the changes of the random fleets do.
func notServing(n rollout.Node) bool {
	for _, c := range n.Nvmf.Status.Conditions {
		if c.Type != v1alpha1.ConditionEvictable && c.Status != metav1.ConditionTrue {
			return true
		}
	}
	return n.ReadySince.IsZero() || n.Nvmf.Status.ObservedGeneration < n.Nvmf.Generation
}

func TestRelease(t *testing.T) {
	sysctl := func(v string) v1alpha1.PlannedSetting {
		return v1alpha1.PlannedSetting{Setting: "net.core.somaxconn", Value: v}
	}
	irq := func(v string) v1alpha1.PlannedSetting {
		return v1alpha1.PlannedSetting{Setting: "eth0/interrupts", Value: v}
	}
	choice := func(setting, value string) v1alpha1.Choice { return v1alpha1.Choice{Setting: setting, Value: value} }
	kernel := kernelNode("a", func(n *rollout.Node) {
		n.Nvmf.Spec.Plan.Tuning = []v1alpha1.PlannedSetting{irq("1"), rings("1024"), sysctl("128")}
		n.Nvmf.Spec.Plan.Choices = []v1alpha1.Choice{choice("tuning.net.core.somaxconn", "128"), choice("tuning.rings.rx", "1024")}
		n.Desired.Plan.Tuning = []v1alpha1.PlannedSetting{irq("2"), rings("4096"), sysctl("256")}
		n.Desired.Plan.Choices = []v1alpha1.Choice{choice("tuning.net.core.somaxconn", "256"), choice("tuning.rings.rx", "4096")}
		n.Desired.Plan.OverProvisioningPercent = 150
	})
	before := kernel.Desired.DeepCopy()
	held, gated := rollout.Release(kernel, v1alpha1.UpdateStrategy{}, false)
	want := *kernel.Desired.DeepCopy()
	want.Plan.Tuning = []v1alpha1.PlannedSetting{irq("2"), rings("1024"), sysctl("256")}
	want.Plan.Choices = []v1alpha1.Choice{choice("tuning.net.core.somaxconn", "256"), choice("tuning.rings.rx", "1024")}
	if diff := cmp.Diff(want, held); diff != "" || gated {
		t.Errorf("before its turn (gated %v): %s", gated, diff)
	}
	if diff := cmp.Diff(*before, kernel.Desired); diff != "" {
		t.Errorf("what was given was changed: %s", diff)
	}
	if got, gated := rollout.Release(kernel, v1alpha1.UpdateStrategy{}, true); !cmp.Equal(kernel.Desired, got) || !gated {
		t.Errorf("in its turn (gated %v): %s", gated, cmp.Diff(kernel.Desired, got))
	}
	taken := kernelNode("a", func(n *rollout.Node) { n.Desired.Plan.Tuning = nil })
	if got, _ := rollout.Release(taken, v1alpha1.UpdateStrategy{}, false); !cmp.Equal(got.Plan.Tuning, []v1alpha1.PlannedSetting{rings("1024")}) {
		t.Errorf("what is put back resets links too, and is %v", got.Plan.Tuning)
	}
	fresh := kernelNode("a", retuned, func(n *rollout.Node) { n.Nvmf.Spec = v1alpha1.NvmfNodeSpec{} })
	if got, _ := rollout.Release(fresh, v1alpha1.UpdateStrategy{}, false); got.Plan == nil || len(got.Plan.Tuning) != 0 {
		t.Errorf("a node that is new gets its plan, and no settings of its NICs yet: %+v", got.Plan)
	}
}

func TestReleaseOfAPlanThatNeedsARestart(t *testing.T) {
	node := spdkNode("a", func(n *rollout.Node) {
		n.WantedHash = "new"
		n.Nvmf.Spec.Plan.Portals = []v1alpha1.PlannedPortal{{QueueDepth: 64}}
		n.Desired.Plan = n.Nvmf.Spec.Plan.DeepCopy()
		n.Desired.Plan.SPDK.LargeBuffers, n.Desired.Plan.SPDK.Balance = 512, true
		n.Desired.Plan.OverProvisioningPercent = 150
		n.Desired.Plan.Portals[0].QueueDepth = 128
	})
	rolling, onDelete := v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate}, v1alpha1.UpdateStrategy{}
	got, _ := rollout.Release(node, rolling, false)
	want := *node.Nvmf.Spec.DeepCopy()
	want.Plan.OverProvisioningPercent, want.Plan.SPDK.Balance = 150, true
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("before its turn the node goes on with the plan that its target was started with: %s", diff)
	}
	if got, gated := rollout.Release(node, rolling, true); !cmp.Equal(node.Desired, got) || !gated {
		t.Errorf("in its turn: %s", cmp.Diff(node.Desired, got))
	}
	if got, gated := rollout.Release(node, onDelete, false); !cmp.Equal(node.Desired, got) || gated {
		t.Errorf("with OnDelete the plan is there for the next pod: %s", cmp.Diff(node.Desired, got))
	}
	node.PlannedHash = "new" // only the image is another one, or the plan was given already
	if got, _ := rollout.Release(node, rolling, false); !cmp.Equal(node.Desired, got) {
		t.Errorf("another image holds nothing of the plan back: %s", cmp.Diff(node.Desired, got))
	}
	noPod(&node)
	if got, _ := rollout.Release(node, rolling, false); !cmp.Equal(node.Desired, got) {
		t.Errorf("where no target serves nothing is held back: %s", cmp.Diff(node.Desired, got))
	}
}
