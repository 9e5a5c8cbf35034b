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
	"github.com/weft-storage/weft/operator/internal/gather"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// updateStatus writes the status when it differs, and then the Events for what changed.
func (r *Reconciler) updateStatus(ctx context.Context, v *view) error {
	target := v.target
	before := target.Status
	after := status(observe(target, v.all, v.decision, v.gate), metav1.NewTime(r.Clock.Now()))
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
	// volumes of the target and snapshots in its pools, by name.
	volumes, snapshots []string
	capacity           v1alpha1.Capacity
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

// observe picks what concerns the target.
func observe(target *v1alpha1.NvmfTarget, all *gather.Objects, decision claim.Decision, gate rollout.Decision) observation {
	o := observation{target: target, placed: decision.Targets[target.Name], gate: gate}
	claimed := decision.Claimed(target.Name)
	var total, allocated, free int64
	for _, v := range all.Volumes {
		if v.Spec.Target == target.Name {
			o.volumes = append(o.volumes, v.Name)
		}
	}
	for _, r := range all.Replicas {
		if r.Spec.Target == target.Name {
			o.volumes = append(o.volumes, r.Spec.Volume.Name) // whose own object may be gone
			allocated += v1alpha1.WithHeader(r.Spec.Size.Value())
		}
	}
	for _, s := range all.Snapshots {
		if _, ok := slices.BinarySearch(claimed, s.Spec.Node); ok {
			o.snapshots = append(o.snapshots, s.Name)
			allocated += valueOf(s.Status.Allocated)
		}
	}
	for _, n := range all.Nodes {
		if n.HostUnable != "" {
			o.unable.hosts = append(o.unable.hosts, fmt.Sprintf("%s (%s)", n.Name, n.HostUnable))
		}
		_, serves := slices.BinarySearch(claimed, n.Name)
		_, capable := slices.BinarySearch(o.placed.Capable, n.Name)
		if !serves {
			if capable { // its former target is just releasing it
				o.nodes = append(o.nodes, servingNode{
					name: n.Name, capable: true, health: health{pending, v1alpha1.ReasonPending, "another target is still releasing it"},
				})
			}
			continue
		}
		o.nodes = append(o.nodes, servingNode{
			name: n.Name, capable: capable, health: healthOf(n.Nvmf, decision.Nodes[n.Name]),
			podOutdated: podHealth(n.Nvmf).reason == v1alpha1.ReasonPodOutdated,
			untuned:     untuned(n.Nvmf),
		})
		if why := n.Nvmf.CannotAuthenticate(); why != "" && n.Nvmf.Status.Engine != nil {
			o.unable.storage = append(o.unable.storage, fmt.Sprintf("%s (%s)", n.Name, why))
		}
		// What is left is for the agent to say: it knows which of its pools take something now.
		total += valueOf(n.Nvmf.Status.Capacity.Total)
		free += valueOf(n.Nvmf.Status.Capacity.Free)
		o.overPromised = append(o.overPromised, n.OverPromised(target.Spec.OverProvisioningPercent)...)
	}
	o.capacity = v1alpha1.Capacity{Total: bytes(total), Allocated: bytes(allocated), Free: bytes(free)}
	slices.Sort(o.volumes)
	o.volumes = slices.Compact(o.volumes)
	slices.Sort(o.snapshots)
	return o
}

// valueOf what may not have been reported yet.
func valueOf(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return q.Value()
}

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

// status is a pure function of the observation; now is the transition time of conditions that change.
func status(o observation, now metav1.Time) v1alpha1.NvmfTargetStatus {
	s := v1alpha1.NvmfTargetStatus{
		ObservedGeneration: o.target.Generation,
		Nodes: v1alpha1.NodeCounts{
			Matching: int32(len(o.placed.Matching)),
			Capable:  int32(len(o.placed.Capable)),
			Ready:    int32(len(o.with(ready))),
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
