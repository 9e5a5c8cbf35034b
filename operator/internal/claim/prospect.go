// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// A Verdict says whether a node can hold a target.
type Verdict string

// Verdicts.
const (
	// Fits: the node has all that the target asks for.
	Fits Verdict = "Fits"
	// CannotHold: it has not; the reasons say what is missing.
	CannotHold Verdict = "CannotHold"
	// Unknown: it cannot be said yet; the reasons say what is waited for.
	Unknown Verdict = "Unknown"
)

// A Prospect is how one node would fare with a target.
type Prospect struct {
	// Node is its name.
	Node string
	// Matches: the target's selector chooses the node.
	Matches bool
	// Serves: the node has a plan of the target now, and keeps it while it cannot follow a new one.
	Serves bool
	// Nvmf is the node's NvmfNode; nil if it has none.
	Nvmf    *v1alpha1.NvmfNode
	Verdict Verdict
	// Plan that the node would follow. With verdict Fits always; with another one when
	// only another target's claim is in the way.
	Plan *v1alpha1.Plan
	// Reasons why it does not fit, or why that is unknown.
	Reasons []sizing.Reason
}

// Prospects says of every node, by name, how it would fare if the target were applied as it is given: a new one,
// or a change of the one of that name among targets. It is what Decide would find once the target has its
// finalizer and agents have no news.
func Prospects(target *v1alpha1.NvmfTarget, targets []v1alpha1.NvmfTarget, nodes []Node) []Prospect {
	candidates := byAge(applied(target, targets), func(name string) bool { return holdData(nodes, name) })
	proposed, _ := find(candidates, target.Name)
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	prospects := make([]Prospect, 0, len(nodes))
	for _, n := range nodes {
		p := Prospect{Node: n.Name, Matches: proposed.matches(n), Serves: n.Claimant() == target.Name && n.Nvmf.Spec.Plan != nil, Nvmf: n.Nvmf, Verdict: Fits}
		p.Plan, p.Reasons = sizing.Plan(sizingNode(n, target.Name), target.Spec)
		p.judge(claimant(n, candidates), target.Name, candidates)
		prospects = append(prospects, p)
	}
	return prospects
}

// Worse says whether a change leaves a target without a node that can hold it, where there was one, or one may have
// been. Before and after are the Prospects of the target as it is and as it would be. What no node could hold anyway is
// not made worse: each node that serves it keeps the plan that it has, and a change may be one step of several that
// mend it.
func Worse(before, after []Prospect) bool {
	could := false
	for i, was := range before {
		is := after[i]
		could = could || (was.Matches || was.Serves) && was.Verdict != CannotHold
		// A node that the selector did not choose before either goes on as it did.
		concerned := is.Matches || is.Serves && !was.Matches
		if concerned && is.Verdict != CannotHold {
			return false
		}
	}
	return could
}

// judge: what the node lacks is known whoever has it now. A target that is being deleted gives its nodes back.
func (p *Prospect) judge(owner, name string, candidates []candidate) {
	switch {
	case slices.ContainsFunc(p.Reasons, func(r sizing.Reason) bool { return r.Reason == v1alpha1.ReasonNoInventory }):
		p.Verdict = Unknown
	case len(p.Reasons) > 0:
		p.Verdict = CannotHold
	}
	if owner == "" || owner == name {
		return
	}
	p.Reasons = append([]sizing.Reason{claimedBy(owner)}, p.Reasons...)
	if c, ok := find(candidates, owner); !ok || !c.deleting() {
		p.Verdict = CannotHold
	} else if p.Verdict == Fits {
		p.Verdict = Unknown
	}
}

// applied are the targets as they would be, each with the finalizer that it is about to get. A new one is the youngest.
func applied(target *v1alpha1.NvmfTarget, targets []v1alpha1.NvmfTarget) []v1alpha1.NvmfTarget {
	changed := *target.DeepCopy()
	changed.ObjectMeta = metav1.ObjectMeta{Name: target.Name}
	var youngest time.Time
	all := make([]v1alpha1.NvmfTarget, 0, len(targets)+1)
	found := false
	for _, t := range targets {
		if t.Name == target.Name {
			changed.ObjectMeta, found = *t.ObjectMeta.DeepCopy(), true
			continue
		}
		if t.CreationTimestamp.After(youngest) {
			youngest = t.CreationTimestamp.Time
		}
		all = append(all, t)
	}
	if !found {
		changed.CreationTimestamp = metav1.NewTime(youngest.Add(time.Second))
	}
	all = append(all, changed)
	for i := range all {
		all[i].Finalizers = []string{v1alpha1.TargetFinalizer}
	}
	return all
}
