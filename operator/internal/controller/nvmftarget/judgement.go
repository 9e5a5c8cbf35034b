// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/gather"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// node is one node with what was concluded from its facts. Each conclusion is a pure function of the facts, of the
// settings of the operator, and of what is kept beside it; it is drawn again when one of these differs. It belongs to
// one worker.
type node struct {
	*facts

	// placement among the candidates, and what the gate of rollouts knows of the node if a target serves there, or is
	// about to.
	candidates *claim.Candidates
	placement  *claim.Placement
	gated      rollout.Node

	released *released
	told     told
}

// released is what the node may have now, given whether it is its turn. The strategy is in the spec of one of the
// candidates.
type released struct {
	turn bool

	spec v1alpha1.NvmfNodeSpec
	// inTurn: the spec may be written only while it is the node's turn.
	inTurn bool
	// differs: the NvmfNode has another spec.
	differs bool
	share   share
}

// share is what the node adds to the status of the target that serves there.
type share struct {
	serving       servingNode
	unableStorage string
	total, free   int64
	overPromised  []string
}

// told is the condition that the node was last compared with, and whether it has it.
type told struct {
	is  metav1.Condition
	has bool
}

// place the node among the candidates.
func (r *Reconciler) place(n *node, among *claim.Candidates) {
	if n.candidates == among {
		return
	}
	*n = node{facts: n.facts, candidates: among, placement: among.Place(n.Node.Node)}
	if n.served() {
		n.gated = r.rolloutNode(n.facts, n.placement.Spec).Prepared()
	}
}

// served: the NvmfNode has a target, or is about to get one.
func (n *node) served() bool { return n.Nvmf != nil && n.placement.Spec.Target != "" }

// serves the target, or is about to.
func (n *node) serves(target string) bool { return n.served() && n.placement.Spec.Target == target }

// release what the node may have now. Its placement is by candidates of which the target is one.
func (n *node) release(target *v1alpha1.NvmfTarget, strategy v1alpha1.UpdateStrategy, turn bool) {
	if n.released != nil && n.released.turn == turn {
		return
	}
	spec, inTurn := rollout.Release(n.gated, strategy, turn)
	n.released = &released{
		turn: turn, spec: spec, inTurn: inTurn, differs: manifest.ForNodeSpec(n.Nvmf, spec) != nil,
		share: shareOf(n.facts, spec, target),
	}
}

// keep what was placed, when no target that exists has to say when.
func (n *node) keep() {
	if n.released == nil && n.Nvmf != nil {
		n.released = &released{spec: n.placement.Spec, differs: manifest.ForNodeSpec(n.Nvmf, n.placement.Spec) != nil}
	}
}

func shareOf(n *facts, spec v1alpha1.NvmfNodeSpec, target *v1alpha1.NvmfTarget) share {
	s := share{
		serving: servingNode{
			name: n.Name, health: healthOf(n.Nvmf, spec), podOutdated: podHealth(n.Nvmf).reason == v1alpha1.ReasonPodOutdated, untuned: untuned(n.Nvmf),
		},
		// What is left is for the agent to say: it knows which of its pools take something now.
		total:        gather.Value(n.Nvmf.Status.Capacity.Total),
		free:         gather.Value(n.Nvmf.Status.Capacity.Free),
		overPromised: n.OverPromised(target.Spec.OverProvisioningPercent),
	}
	if why := n.Nvmf.CannotAuthenticate(); why != "" && n.Nvmf.Status.Engine != nil {
		s.unableStorage = fmt.Sprintf("%s (%s)", n.Name, why)
	}
	return s
}

// has reports whether the NvmfNode has the condition, whatever the time of its last transition.
func (n *node) has(is metav1.Condition) bool {
	if n.told.is != is {
		n.told = told{is: is, has: manifest.ForNodeCondition(n.Nvmf, is) == nil}
	}
	return n.told.has
}
