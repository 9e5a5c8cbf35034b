// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A StatusReport is what `kubectl weft status -o json` prints: all targets and nodes, or those of one name.
type StatusReport struct {
	Targets []TargetReport `json:"targets"`
	Nodes   []NodeReport   `json:"nodes"`
	Moves   []MoveReport   `json:"moves,omitempty"`
	// OldKeys are the attached volumes whose keys are older than security.keyLifetimeHours, in words.
	OldKeys []string `json:"oldKeys,omitempty"`
	// Problems in words, as the table has them.
	Problems []string `json:"problems"`
	// Unknown: what could not be read.
	Unknown []string `json:"unknown,omitempty"`
}

// TargetReport is one NvmfTarget.
type TargetReport struct {
	Name       string                 `json:"name"`
	Engine     string                 `json:"engine"`
	Nodes      v1alpha1.NodeCounts    `json:"nodes"`
	Rollout    v1alpha1.RolloutStatus `json:"rollout"`
	Volumes    int                    `json:"volumes"`
	Capacity   v1alpha1.Capacity      `json:"capacity"`
	Conditions []metav1.Condition     `json:"conditions,omitempty"`
}

// NodeReport is one NvmfNode. Its pools are in `kubectl weft pools -o json`.
type NodeReport struct {
	Name        string             `json:"name"`
	Target      string             `json:"target,omitempty"`
	AgentSilent bool               `json:"agentSilent,omitempty"`
	Engine      string             `json:"engine,omitempty"`
	Version     string             `json:"engineVersion,omitempty"`
	Replicas    int                `json:"replicas"`
	Attachments *v1alpha1.Places   `json:"attachments,omitempty"`
	PoolsReady  int                `json:"poolsReady"`
	Pools       int                `json:"pools"`
	Free        *resource.Quantity `json:"free,omitempty"`
	Portals     []string           `json:"portals,omitempty"`
	Conditions  []metav1.Condition `json:"conditions,omitempty"`
}

// MoveReport is one move of a replica.
type MoveReport struct {
	// Volume by its claim, NAMESPACE/NAME, or nv/NAME.
	Volume  string `json:"volume"`
	Replica string `json:"replica"`
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	State   string `json:"state"`
	// Reason is ReplicaLost if the replica is lost and is being replaced; absent for a move that a person requested.
	Reason string `json:"reason,omitempty"`
	// CopiedPercent is absent while nothing is being copied, the others while they are not known.
	CopiedPercent  *int   `json:"copiedPercent,omitempty"`
	BytesPerSecond int64  `json:"bytesPerSecond,omitempty"`
	SecondsLeft    int64  `json:"secondsLeft,omitempty"`
	Waiting        string `json:"waiting,omitempty"`
}

// report on all, or on the target and node of a name. It notes whether something is unwell.
func (s *status) report(args []string) StatusReport {
	all := len(args) == 0
	is := func(name string) bool { return all || name == args[0] }
	r := StatusReport{Targets: []TargetReport{}, Nodes: []NodeReport{}, Problems: []string{}, Unknown: s.unread}
	var targets []v1alpha1.NvmfTarget
	var nodes []v1alpha1.NvmfNode
	for _, t := range s.targets {
		if is(t.Name) {
			targets, r.Targets = append(targets, t), append(r.Targets, s.reportTarget(t))
		}
	}
	for _, n := range s.nodes {
		if is(n.Name) || slices.ContainsFunc(targets, func(t v1alpha1.NvmfTarget) bool { return t.Name == n.Spec.Target }) {
			nodes, r.Nodes = append(nodes, n), append(r.Nodes, s.reportNode(n))
		}
	}
	for i := range s.volumes {
		p, moves := s.moving(&s.volumes[i])
		if moves && (all || is(s.volumes[i].Spec.Target) || is(p.from) || is(p.to)) {
			r.Moves = append(r.Moves, p.report())
		}
	}
	r.OldKeys = s.oldKeys(func(v *v1alpha1.NvmfVolume) bool {
		return all || is(v.Spec.Target) || memberOn(v, args[0]) != nil
	})
	r.Problems = append(r.Problems, s.problems(targets, nodes, func(target, node string) bool { return all || is(target) || is(node) })...)
	s.unwell = s.unwell || len(r.Problems) > 0
	return r
}

func (s *status) reportTarget(t v1alpha1.NvmfTarget) TargetReport {
	r := TargetReport{Name: t.Name, Engine: string(t.Spec.Engine), Nodes: t.Status.Nodes, Rollout: t.Status.Rollout, Capacity: t.Status.Capacity, Conditions: t.Status.Conditions}
	for _, v := range s.volumes {
		if v.Spec.Target == t.Name {
			r.Volumes++
		}
	}
	return r
}

func (s *status) reportNode(n v1alpha1.NvmfNode) NodeReport {
	r := NodeReport{Name: n.Name, Target: n.Spec.Target, AgentSilent: silent(&n), Attachments: n.Status.Attachments, Pools: len(n.Status.Pools), Free: n.Status.Capacity.Free, Conditions: n.Status.Conditions}
	if e := n.Status.Engine; e != nil {
		r.Engine, r.Version = string(e.Type), e.Version
	}
	for _, replica := range s.replicas {
		if replica.Spec.Node == n.Name {
			r.Replicas++
		}
	}
	for _, p := range n.Status.Pools {
		if p.Ready {
			r.PoolsReady++
		}
	}
	for _, p := range n.Status.Portals {
		r.Portals = append(r.Portals, portalOf(p))
	}
	return r
}

// reports on moves; no moves are an empty list.
func reports(moves []progress) []MoveReport {
	all := make([]MoveReport, len(moves))
	for i, p := range moves {
		all[i] = p.report()
	}
	return all
}

func (p progress) report() MoveReport {
	r := MoveReport{Volume: p.called, Replica: p.replica, From: p.from, To: p.to, State: p.state, Reason: string(p.reason), BytesPerSecond: int64(p.rate), SecondsLeft: int64(p.left.Seconds()), Waiting: p.waiting}
	if p.percent >= 0 {
		r.CopiedPercent = &p.percent
	}
	return r
}
