// SPDX-License-Identifier: Apache-2.0

// Package claim decides which NvmfTarget claims which node, and with what plan.
//
// It is pure: from the objects as they are to the objects as they should be,
// with a reason for each node that cannot serve. It holds these invariants:
//
//   - A node is claimed by at most one target.
//   - A claim is never taken from a node that holds data of the target that claims
//     it, whatever became of labels, of the target, or of the Kubernetes Node: whoever
//     serves the data goes on serving it.
//   - What cannot be known is not read as absent: a selector that cannot be
//     read, or a Node that is gone, takes no claim away.
//   - A node goes from one target to another in two steps: released, then claimed. Its
//     plan is never changed from one pool to another in place, which the API refuses.
//   - A claimed node that cannot follow its target's spec any more keeps the plan that it has.
package claim

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Decision is what should be.
type Decision struct {
	// Nodes has the spec that each NvmfNode shall have, by name. Nodes without an NvmfNode are not in it.
	Nodes map[string]v1alpha1.NvmfNodeSpec
	// Targets has the result of every target that was given, by name.
	Targets map[string]Target
}

// Target is what became of one target. All lists are sorted by node name.
type Target struct {
	// Matching nodes: the selector chooses them.
	Matching []string
	// Capable nodes match, are claimed by the target, and can do all that it asks for.
	Capable []string
	// NotCapable nodes match, and are not capable; each has the reason.
	NotCapable []v1alpha1.NotCapableNode
	// Kept nodes are claimed although the selector does not choose them (any
	// more): their data is still there, or it is not known that they are gone for good.
	Kept []string
	// SelectorError is set when the selector cannot be read; then nothing matches, and nothing is released.
	SelectorError error
}

// Claimed lists the nodes that serve the target, capable or not, by name.
func (d Decision) Claimed(target string) []string {
	var names []string
	for name, spec := range d.Nodes {
		if spec.Target == target {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Decide places all targets on all nodes. The same input gives the same
// answer, whatever the order of its lists.
func Decide(targets []v1alpha1.NvmfTarget, nodes []Node) Decision {
	c := Prepare(targets, func(target string) bool { return holdData(nodes, target) })
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	d := Decision{Nodes: map[string]v1alpha1.NvmfNodeSpec{}}
	placements := make([]*Placement, len(nodes))
	for i, n := range nodes {
		placements[i] = c.Place(n)
		if n.Nvmf != nil {
			d.Nodes[n.Name] = placements[i].Spec
		}
	}
	d.Targets = c.Sum(placements)
	return d
}

func holdData(nodes []Node, target string) bool {
	return slices.ContainsFunc(nodes, func(n Node) bool { return n.Holds(target) })
}

// Candidates are all targets, prepared for placing one node after the other.
type Candidates struct {
	byAge []candidate
}

// Prepare targets. That some node holds data of a target is asked only of those that are being deleted: it does not
// matter for others.
func Prepare(targets []v1alpha1.NvmfTarget, holdsData func(target string) bool) *Candidates {
	return &Candidates{byAge(targets, holdsData)}
}

// Equal reports whether every node is placed alike with both. It compares all of a target that Place looks at; the
// generation tells apart what is equal and not written alike, such as 1Gi and 1024Mi.
func (c *Candidates) Equal(other *Candidates) bool {
	return slices.EqualFunc(c.byAge, other.byAge, func(a, b candidate) bool {
		return a.name() == b.name() && a.deleting() == b.deleting() && a.mayClaim() == b.mayClaim() && a.holdsData == b.holdsData &&
			a.UID == b.UID && a.Generation == b.Generation && equality.Semantic.DeepEqual(a.Spec, b.Spec)
	})
}

// Placement is what follows for one node.
type Placement struct {
	// Spec that the NvmfNode of the node should have, if there is one.
	Spec v1alpha1.NvmfNodeSpec

	node      string
	standings []standing
}

// standing of a node with one target.
type standing struct {
	target string
	as     state
	// lacks says why the node is notCapable.
	lacks v1alpha1.NotCapableNode
}

// state of a node in a target's result, see Target.
type state int

const (
	// matching, and not claimed yet.
	matching state = iota
	// capable and notCapable nodes match too; kept ones do not.
	capable
	notCapable
	kept
)

// Place a node. What follows depends on nothing but the node and the candidates.
func (c *Candidates) Place(n Node) *Placement {
	owner := claimant(n, c.byAge)
	spec, reasons := plan(n, owner, c.byAge)
	p := &Placement{Spec: spec, node: n.Name}
	for _, of := range c.byAge {
		if s, ok := judge(n, of, owner, reasons); ok {
			p.standings = append(p.standings, s)
		}
	}
	return p
}

// Sum of placements, which are sorted by the names of their nodes, into the result of each target, by its name.
func (c *Candidates) Sum(placements []*Placement) map[string]Target {
	results := make(map[string]*Target, len(c.byAge))
	for _, of := range c.byAge {
		results[of.name()] = &Target{SelectorError: of.selectorErr}
	}
	for _, p := range placements {
		for _, s := range p.standings {
			results[s.target].add(p.node, s)
		}
	}
	targets := make(map[string]Target, len(results))
	for name, t := range results {
		targets[name] = *t
	}
	return targets
}

func (t *Target) add(node string, s standing) {
	switch s.as {
	case kept:
		t.Kept = append(t.Kept, node)
		return
	case capable:
		t.Capable = append(t.Capable, node)
	case notCapable:
		t.NotCapable = append(t.NotCapable, s.lacks)
	case matching:
	}
	t.Matching = append(t.Matching, node)
}

// candidate is a target, prepared for being asked often.
type candidate struct {
	*v1alpha1.NvmfTarget
	selector    labels.Selector
	selectorErr error
	// holdsData: it is being deleted, and some node holds data of it.
	holdsData bool
}

func (c candidate) name() string   { return c.Name }
func (c candidate) deleting() bool { return !c.DeletionTimestamp.IsZero() }

func (c candidate) matches(n Node) bool {
	return n.Exists && c.selectorErr == nil && c.selector.Matches(labels.Set(n.Labels))
}

// letsGo: the target keeps the node, if at all, only for what it holds.
func (c candidate) letsGo(n Node) bool {
	return c.deleting() || n.Exists && c.selectorErr == nil && !c.matches(n)
}

// mayClaim: a target takes new nodes only once its finalizer is on it, so
// that it cannot vanish while a node is claimed for it, and until it is deleted.
func (c candidate) mayClaim() bool {
	return !c.deleting() && slices.Contains(c.Finalizers, v1alpha1.TargetFinalizer)
}

// byAge prepares the targets, oldest first; those made within the same second go by name.
func byAge(targets []v1alpha1.NvmfTarget, holdsData func(target string) bool) []candidate {
	candidates := make([]candidate, 0, len(targets))
	for i := range targets {
		t := &targets[i]
		selector, err := metav1.LabelSelectorAsSelector(&t.Spec.NodeSelector)
		candidates = append(candidates, candidate{
			NvmfTarget:  t,
			selector:    selector,
			selectorErr: err,
			holdsData:   !t.DeletionTimestamp.IsZero() && holdsData(t.Name),
		})
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return candidates
}

func find(candidates []candidate, name string) (candidate, bool) {
	i := slices.IndexFunc(candidates, func(c candidate) bool { return c.name() == name })
	if i < 0 {
		return candidate{}, false
	}
	return candidates[i], true
}
