// SPDX-License-Identifier: Apache-2.0

// Package rollout is the one gate through which changes that disturb I/O reach the nodes of a target, whichever engine
// serves: another target pod, and settings of NICs whose drivers may reset the link.
//
// It is pure, and holds these invariants:
//
//   - A node is changed in its turn only, and at most maxUnavailable nodes have a turn or do not serve for another
//     reason. A node whose agent has been silent, or whose Node has not been Ready, for longer than AbsentAfter is not
//     counted, and gets no turn.
//   - A turn is on record in the NvmfTarget's status before anything of the node is changed, so that it outlives the
//     operator, and two operators cannot give two: that write carries the version that it was decided from.
//   - A turn ends when the node serves again and follows the spec, or when it is paused before anything was changed.
//   - A target pod goes only when the image of the next one is on its node.
//   - A node that serves gets no turn while a mirror in use is known to have its only replica in sync there. A replica
//     that was lost just now may not be known yet.
package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Node is a node that serves the target, or is about to.
type Node struct {
	// Nvmf is its NvmfNode, as it is.
	Nvmf *v1alpha1.NvmfNode
	// Desired is the spec that its target wants it to have.
	Desired v1alpha1.NvmfNodeSpec
	// NotReadySince is since when its Kubernetes Node is not Ready; zero while it is, or does not say.
	NotReadySince time.Time
	// HasPods: the engine serves from a target pod. The next five are about that.
	HasPods bool
	// Serves: there is a target pod whose end would disturb I/O.
	Serves bool
	// ReadySince is when it became ready; zero while it is not.
	ReadySince time.Time
	// PodHash is of what it was started with, PlannedHash of what the present plan would start, WantedHash of what the
	// desired one would; all as in the manifest.StartupAnnotation.
	PodHash, PlannedHash, WantedHash string
	// ImageOnNode: the next target pod's image is known to be on the node.
	ImageOnNode bool
	// Busy names replicas and snapshots on the node that are in the midst of something.
	Busy []string

	// prepared is what changeOf answers, where that was asked before; see Prepared.
	prepared *change
}

// Prepared returns the node with what is to be done at it worked out, so that no later decision about the same node
// does so. Nothing of it may change from then on.
func (n Node) Prepared() Node {
	c := changeOf(&n)
	n.prepared = &c
	return n
}

func (n *Node) name() string { return n.Nvmf.Name }

// Input is all that is decided from.
type Input struct {
	Strategy v1alpha1.UpdateStrategy
	// Updating are the nodes whose turn it is, as the NvmfTarget's status has them.
	Updating []string
	Nodes    []Node
	Now      time.Time
}

// Decision is what follows.
type Decision struct {
	// Updating are the nodes whose turn it is from now on, by name.
	Updating []string
	// Granted are those of them that had none before.
	Granted []string
	// Conditions are ConditionUpdated of the nodes, by name, without times.
	Conditions map[string]metav1.Condition
	// Unwell says of nodes that have no turn, and count as unavailable, why they do.
	Unwell map[string]string
	// Updated and Outdated count the nodes.
	Updated, Outdated int32
	// Again is after how long to decide again when nothing happens before; 0: not at all.
	Again time.Duration
}

// MaxUnavailable is the strategy's, in nodes: a percentage of all of them is rounded up.
func MaxUnavailable(s v1alpha1.UpdateStrategy, nodes int) int {
	if s.RollingUpdate == nil || s.RollingUpdate.MaxUnavailable == nil {
		return v1alpha1.DefaultMaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(s.RollingUpdate.MaxUnavailable, nodes, true)
	if err != nil { // the API server takes no other
		return v1alpha1.DefaultMaxUnavailable
	}
	return max(n, v1alpha1.DefaultMaxUnavailable)
}

// decider holds what is known of all nodes while turns are given.
type decider struct {
	Input
	states []*state
	most   int
	// counted and turns count the nodes that take part of what may be unavailable, and those that have a turn.
	counted, turns int
	again          time.Duration
}

type state struct {
	*Node
	change change
	// unwell says why the node cannot be taken to serve; "" when it does. absent: it has been silent for so long that
	// nobody waits for it.
	unwell string
	absent bool
	turn   bool
}

// counts: the node takes part of what may be unavailable.
func (s *state) counts() bool { return s.turn || s.unwell != "" && !s.absent }

// Decide who has a turn. The same input gives the same answer, whatever the order of its nodes.
func Decide(in Input) Decision {
	d := &decider{Input: in, most: MaxUnavailable(in.Strategy, len(in.Nodes))}
	states := make([]state, len(in.Nodes))
	for i := range in.Nodes {
		n, s := &in.Nodes[i], &states[i]
		s.Node, s.change = n, changeOf(n)
		var again time.Duration
		s.unwell, again = unwell(n, in.Now)
		d.comeBack(again)
		if s.absent, again = absent(n, in.Now); s.unwell != "" {
			d.comeBack(again)
		}
		s.turn = slices.Contains(in.Updating, n.name()) && d.goesOn(s)
		d.count(s, 1)
		d.states = append(d.states, s)
	}
	// Those that do not serve anyway go first: it costs nobody anything.
	slices.SortFunc(d.states, func(a, b *state) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a.name(), b.name()))
	})
	result := Decision{Conditions: make(map[string]metav1.Condition, len(states)), Unwell: map[string]string{}}
	for _, s := range d.states {
		waits := ""
		if d.gated(s) && !s.turn && !in.Strategy.Paused {
			if waits = d.waitsFor(s); waits == "" {
				d.count(s, -1)
				s.turn = true
				d.count(s, 1)
				result.Granted = append(result.Granted, s.name())
			}
		}
		if s.turn {
			result.Updating = append(result.Updating, s.name())
		} else if s.counts() {
			result.Unwell[s.name()] = s.unwell
		}
		result.Conditions[s.name()] = d.condition(s, waits)
		if s.change.any() || s.turn {
			result.Outdated++
		} else {
			result.Updated++
		}
	}
	slices.Sort(result.Updating)
	result.Again = d.again
	return result
}

func rank(s *state) int {
	if s.unwell != "" {
		return 0
	}
	return 1
}

func (d *decider) comeBack(after time.Duration) {
	if after > 0 && (d.again == 0 || after < d.again) {
		d.again = after
	}
}

// gated: the change needs a turn. With OnDelete a target pod has its turn when somebody deletes it.
func (d *decider) gated(s *state) bool {
	return s.change.links || s.change.restart && d.Strategy.Type == v1alpha1.UpdateRollingUpdate
}

// count the node, once (1), or no more (-1), because it is about to change.
func (d *decider) count(s *state, by int) {
	if s.counts() {
		d.counted += by
	}
	if s.turn {
		d.turns += by
	}
}

// goesOn: the turn that the node has is not over.
func (d *decider) goesOn(s *state) bool {
	if s.absent || d.gated(s) && d.Strategy.Paused {
		return false
	}
	return d.gated(s) || s.unwell != ""
}

// waitsFor says what keeps the node from having its turn; "" when nothing does.
func (d *decider) waitsFor(s *state) string {
	if !alive(s.Nvmf) {
		return "its agent is silent and cannot apply the change; the node gets a turn once the agent is back"
	}
	if !s.NotReadySince.IsZero() {
		return "its Node is not Ready, so that no pod can start there; it gets a turn once the Node is Ready"
	}
	if s.change.restart && !s.ImageOnNode {
		return "the image of its next target pod is not present on the node (condition " + v1alpha1.ConditionTargetImageReady + ")"
	}
	others := d.counted
	if s.counts() {
		others--
	}
	if others >= d.most {
		// Which nodes those are changes all the time, and many may wait: that is said once, in the NvmfTarget.
		return fmt.Sprintf("maxUnavailable %d is reached by other nodes that are being changed or do not serve; see the status of NvmfTarget %s", d.most, s.Desired.Target)
	}
	if d.turns >= v1alpha1.MaxUpdating {
		return fmt.Sprintf("%d nodes are being changed, which is the maximum", d.turns)
	}
	if len(s.Busy) > 0 {
		return fmt.Sprintf("%d of the node's replicas and snapshots not ready, such as %s", len(s.Busy), slices.Min(s.Busy))
	}
	if is := meta.FindStatusCondition(s.Nvmf.Status.Conditions, v1alpha1.ConditionEvictable); serving(s.Node) && is != nil && is.Reason == v1alpha1.ReasonOnlyInSyncReplica {
		return "volumes in use have their only in-sync replica on the node (condition " + v1alpha1.ConditionEvictable + ", which names them); if no other one can be made, " +
			"annotate the NvmfNode with " + v1alpha1.AllowEvictionAnnotation
	}
	return ""
}

// serving: the node's change would keep hosts waiting.
func serving(n *Node) bool { return !n.HasPods || !n.ReadySince.IsZero() }

// condition Updated of a node.
func (d *decider) condition(s *state, waits string) metav1.Condition {
	is := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionUpdated, Status: status, Reason: reason, Message: message}
	}
	switch {
	case s.turn && d.gated(s):
		return is(metav1.ConditionFalse, v1alpha1.ReasonUpdating, "it is the node's turn: "+d.what(s))
	case s.turn:
		return is(metav1.ConditionFalse, v1alpha1.ReasonUpdating, "the node was changed, and its turn ends when it serves again: "+cmp.Or(s.unwell, "checking the node"))
	case d.gated(s) && d.Strategy.Paused:
		return is(metav1.ConditionFalse, v1alpha1.ReasonRolloutPaused, "spec.updateStrategy.paused of NvmfTarget "+s.Desired.Target+" is true, so that changes that disturb I/O wait: "+d.what(s))
	case d.gated(s):
		return is(metav1.ConditionFalse, v1alpha1.ReasonWaitingForTurn, d.what(s)+"; waiting: "+waits)
	case s.change.restart:
		return is(metav1.ConditionFalse, v1alpha1.ReasonPodOutdated, "the target pod follows an earlier plan or image; delete it when a short I/O pause of its volumes is acceptable (updateStrategy OnDelete)")
	}
	return is(metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "the node follows its target's spec")
}

// what is to be done at a node in its turn.
func (d *decider) what(s *state) string {
	var parts []string
	if s.change.restart && d.Strategy.Type == v1alpha1.UpdateRollingUpdate {
		parts = append(parts, "its target pod must be replaced")
	}
	if s.change.links {
		parts = append(parts, "settings of its NICs must be changed, which may reset their links")
	}
	return strings.Join(parts, ", and ")
}
