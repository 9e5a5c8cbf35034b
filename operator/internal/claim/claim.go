// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// claimRule names the target that shall have the node, or "" when the rule has nothing to say.
type claimRule func(Node, []candidate) string

// claimRules are asked in this order; the first answer counts.
var claimRules = []claimRule{whoHoldsData, whoHasIt, oldestMatching}

// claimant is the target that shall have the node; "" when none.
func claimant(n Node, candidates []candidate) string {
	for _, rule := range claimRules {
		if name := rule(n, candidates); name != "" {
			return name
		}
	}
	return ""
}

// whoHoldsData: data decides before labels do. The present claimant goes
// first, even when its NvmfTarget was removed by force: to stop
// serving would fail the I/O of its volumes. Else (an NvmfNode that was deleted and made
// again) it is the oldest target with volumes here.
func whoHoldsData(n Node, candidates []candidate) string {
	if n.Holds(n.Claimant()) {
		return n.Claimant()
	}
	for _, c := range candidates {
		if n.Holds(c.name()) {
			return c.name()
		}
	}
	return ""
}

// whoHasIt: an empty node stays with its target while that matches, or while it
// cannot be said that it does not. A target that is being deleted keeps its nodes until
// its last volume is gone, so that all of them are deleted on live targets.
func whoHasIt(n Node, candidates []candidate) string {
	c, ok := find(candidates, n.Claimant())
	switch {
	case !ok:
		return ""
	case c.deleting() && !c.holdsData:
		return ""
	case c.deleting(), c.selectorErr != nil, !n.Exists, c.matches(n):
		return c.name()
	}
	return ""
}

// oldestMatching: the oldest target waits for its finalizer, and the younger ones for it: else whichever
// finalizer was written first would decide.
func oldestMatching(n Node, candidates []candidate) string {
	for _, c := range candidates {
		if c.deleting() || !c.matches(n) {
			continue
		}
		if c.mayClaim() {
			return c.name()
		}
		return ""
	}
	return ""
}

// plan resolves the owner's spec for the node. With reasons it returns what the
// node has now from the same owner, or nothing: a new claim needs a plan. While
// another target still has the node, it returns what releases it.
func plan(n Node, owner string, candidates []candidate) (v1alpha1.NvmfNodeSpec, []sizing.Reason) {
	var current v1alpha1.NvmfNodeSpec
	if owner != "" && n.Claimant() == owner {
		current = *n.Nvmf.Spec.DeepCopy()
	}
	c, ok := find(candidates, owner)
	if !ok {
		return current, nil
	}
	planned, reasons := sizing.Plan(sizingNode(n, owner), c.Spec)
	if planned != nil && (n.Claimant() == "" || n.Claimant() == owner) {
		current, reasons = v1alpha1.NvmfNodeSpec{Target: owner, Plan: planned}, nil
	}
	current.Leaving = current.Target != "" && c.letsGo(n)
	return current, reasons
}

// sizingNode is what sizing knows of the node when the target plans for it.
func sizingNode(n Node, target string) sizing.Node {
	input := sizing.Node{Name: n.Name, InternalIPs: n.InternalIPs, Allocatable: n.Allocatable}
	if n.Nvmf != nil {
		input.Inventory = n.Nvmf.Status.Inventory
		for _, d := range n.Nvmf.Spec.DroppedDrives {
			if n.Nvmf.Dropped(d.ID) {
				input.Dropped = append(input.Dropped, d.ID)
			}
		}
		for _, p := range n.Nvmf.Status.Pools {
			if p.ClusterSize != nil {
				input.ClusterBytes = max(input.ClusterBytes, p.ClusterSize.Value())
			}
		}
		if n.Claimant() == target {
			input.Current = n.Nvmf.Spec.Plan.DeepCopy()
		}
	}
	return input
}

// judge how a node stands with a target; not ok when they have nothing to do with each other. The reasons are the
// owner's.
func judge(n Node, c candidate, owner string, reasons []sizing.Reason) (s standing, ok bool) {
	s.target = c.name()
	owned := owner == c.name()
	switch {
	case !c.matches(n):
		s.as = kept
		return s, owned && n.Claimant() == owner
	case owned && len(reasons) == 0:
		s.as = capable
	case owned:
		s.as, s.lacks = notCapable, lacking(n.Name, reasons)
	case owner != "":
		s.as, s.lacks = notCapable, lacking(n.Name, []sizing.Reason{claimedBy(owner)})
	}
	return s, true
}

func claimedBy(owner string) sizing.Reason {
	return sizing.Reason{
		Reason: v1alpha1.ReasonClaimedByAnother,
		Message: fmt.Sprintf("NvmfTarget %s already claims the node, and a node can serve only one target; "+
			"change one of the two node selectors", owner),
	}
}

// lacking gives the first reason, and says all of them.
func lacking(node string, reasons []sizing.Reason) v1alpha1.NotCapableNode {
	messages := make([]string, 0, len(reasons))
	for _, r := range reasons {
		messages = append(messages, r.Message)
	}
	return v1alpha1.NotCapableNode{Node: node, Reason: reasons[0].Reason, Message: strings.Join(messages, "; ")}
}
