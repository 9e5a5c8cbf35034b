// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// updateStatus writes the status when it differs, and then the Events for what changed.
func (r *Reconciler) updateStatus(ctx context.Context, v *view) error {
	target := v.target
	before := target.Status
	after := status(observe(v), metav1.NewTime(r.Clock.Now()))
	config := manifest.ForTargetStatus(target, after)
	if config == nil {
		return nil
	}
	if err := r.Status().Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the status of NvmfTarget %s: %w", target.Name, err)
	}
	r.emit(target, eventsFor(before, after))
	return nil
}

// observation is all that a target's status follows from.
type observation struct {
	target *v1alpha1.NvmfTarget
	placed claim.Target
	// nodes that serve the target, or shall, by name, with how each of them does.
	nodes []servingNode
	remains
	capacity v1alpha1.Capacity
	// overPromised pools, see claim.Node.OverPromised.
	overPromised []string
	// unable lists the nodes that cannot authenticate, each with the reason: those that serve the target, and those
	// that use volumes.
	unable struct{ storage, hosts []string }
	// gate is how far changes that disturb I/O have come.
	gate rollout.Decision
}

// servingNode is a node that is claimed for the target, or about to be.
type servingNode struct {
	name    string
	capable bool
	health  health
	// podOutdated: its target pod serves with an earlier plan or image.
	podOutdated bool
	// untuned says why its tuning is not as asked for; nil when it is, or is still being applied.
	untuned *metav1.Condition
}

// observe picks what concerns the target, and adds up what each of its nodes has.
func observe(v *view) observation {
	target := v.target
	o := observation{target: target, placed: v.placed, gate: v.gate, remains: v.remains}
	var total, allocated, free int64
	capables := v.placed.Capable
	for _, n := range v.nodes {
		allocated += n.ReplicaBytes[target.Name]
		if n.HostUnable != "" {
			o.unable.hosts = append(o.unable.hosts, fmt.Sprintf("%s (%s)", n.Name, n.HostUnable))
		}
		capable := len(capables) > 0 && capables[0] == n.Name // both are sorted
		if capable {
			capables = capables[1:]
		}
		if !n.serves(target.Name) {
			if capable { // its former target is just releasing it
				o.nodes = append(o.nodes, servingNode{
					name: n.Name, capable: true, health: health{pending, v1alpha1.ReasonPending, "another target is still releasing it"},
				})
			}
			continue
		}
		has := &n.released.share
		o.nodes = append(o.nodes, has.serving)
		o.nodes[len(o.nodes)-1].capable = capable
		if has.unableStorage != "" {
			o.unable.storage = append(o.unable.storage, has.unableStorage)
		}
		allocated += n.SnapshotBytes
		total += has.total
		free += has.free
		o.overPromised = append(o.overPromised, has.overPromised...)
	}
	o.capacity = v1alpha1.Capacity{Total: bytes(total), Allocated: bytes(allocated), Free: bytes(free)}
	return o
}

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

// status is a pure function of the observation; now is the transition time of conditions that change.
func status(o observation, now metav1.Time) v1alpha1.NvmfTargetStatus {
	s := v1alpha1.NvmfTargetStatus{
		ObservedGeneration: o.target.Generation,
		Nodes: v1alpha1.NodeCounts{
			Matching: int32(len(o.placed.Matching)),
			Capable:  int32(len(o.placed.Capable)),
			Ready:    int32(o.count(ready)),
		},
		NotCapable: slices.Clone(o.placed.NotCapable[:min(len(o.placed.NotCapable), v1alpha1.MaxNotCapable)]),
		Capacity:   o.capacity,
		Rollout:    v1alpha1.RolloutStatus{Updated: o.gate.Updated, Outdated: o.gate.Outdated, Updating: o.gate.Updating},
		Conditions: slices.Clone(o.target.Status.Conditions),
	}
	for _, c := range conditions(o) {
		c.ObservedGeneration = o.target.Generation
		c.LastTransitionTime = now
		meta.SetStatusCondition(&s.Conditions, c)
	}
	return s
}

// with lists the capable nodes in a state, by name.
func (o observation) with(state healthState) []servingNode {
	var nodes []servingNode
	for _, n := range o.nodes {
		if n.capable && n.health.state == state {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// count the capable nodes in a state.
func (o observation) count(state healthState) int {
	count := 0
	for i := range o.nodes {
		if o.nodes[i].capable && o.nodes[i].health.state == state {
			count++
		}
	}
	return count
}
