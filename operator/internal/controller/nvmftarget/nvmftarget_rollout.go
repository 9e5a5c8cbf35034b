// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// view is one look at everything, and what follows from it.
type view struct {
	// target that the look is for; nil when it is gone.
	target *v1alpha1.NvmfTarget
	// nodes by name, each with the spec that it may have now: what disturbs I/O is in it only in the node's turn.
	nodes []*node
	// placed is what became of the target, and gate what was decided about its rollout.
	placed claim.Target
	gate   rollout.Decision
	// remains is what keeps the target, which is being deleted.
	remains remains
	// stale: an NvmfNode could not be written because it was newer than the look. It may differ in what leads to no
	// reconcile alone (judgedAnew), so there has to be another look.
	stale bool
}

// remains of a target.
type remains struct {
	// volumes of the target and snapshots in its pools, by name.
	volumes, snapshots []string
}

// noteStale drops the error of a write of an NvmfNode that was newer than the look.
func (v *view) noteStale(ctx context.Context, err error) error {
	v.stale = v.stale || manifest.IsStale(err)
	return manifest.IgnoreStale(ctx, err)
}

// again after a time, 0 for never, or sooner.
func (v *view) again(after time.Duration) ctrl.Result {
	if v.stale && (after == 0 || after > manifest.StaleAgain) {
		after = manifest.StaleAgain
	}
	return ctrl.Result{RequeueAfter: after}
}

// look gathers from the cache, and decides. It reads the nodes that have changed, and keeps what was concluded for the
// others. As in lookLive, targets are read before nodes: a target's status is written with the version that was read,
// so it is refused if anybody has written it since, from nodes that are as new as those here or newer.
func (r *Reconciler) look(ctx context.Context, name string) (*view, error) {
	var targets v1alpha1.NvmfTargetList
	if err := r.List(ctx, &targets); err != nil {
		return nil, fmt.Errorf("list NvmfTargets: %w", err)
	}
	nodes, err := r.refreshed(ctx)
	if err != nil {
		return nil, err
	}
	return r.lookAt(ctx, r.Client, targets.Items, nodes, name)
}

// lookLive gathers from the API server all that turns of these nodes depend on, and decides. Where others are to get a
// turn by that, it looks once more, for them too. So it does for nodes that have the target's claim and serve it no
// longer: as long as they have data, they count among its nodes.
func (r *Reconciler) lookLive(ctx context.Context, name string, turns []string) (*view, error) {
	for {
		targets, nodes, err := r.readLive(ctx, turns)
		if err != nil {
			return nil, err
		}
		v, err := r.lookAt(ctx, r.Live, targets, nodes, name)
		if err != nil {
			return nil, err
		}
		var others []string
		for _, n := range nodes {
			decides := slices.Contains(v.gate.Granted, n.Name) || n.Claimant() == name && !n.serves(name)
			if decides && !slices.Contains(turns, n.Name) {
				others = append(others, n.Name)
			}
		}
		if len(others) == 0 || len(v.gate.Granted) == 0 {
			return v, nil
		}
		turns = slices.Concat(turns, others)
	}
}

func (r *Reconciler) lookAt(ctx context.Context, reader client.Reader, targets []v1alpha1.NvmfTarget, nodes []*node, name string) (*view, error) {
	v := r.decide(targets, nodes, name)
	if v.target == nil || v.target.DeletionTimestamp.IsZero() {
		return v, nil
	}
	var err error
	v.remains, err = remaining(ctx, reader, name, nodes)
	return v, err
}

// decide about all targets and nodes, for the one target.
func (r *Reconciler) decide(targets []v1alpha1.NvmfTarget, nodes []*node, name string) *view {
	among := claim.Prepare(targets, func(target string) bool {
		return slices.ContainsFunc(nodes, func(n *node) bool { return n.Holds(target) })
	})
	if r.candidates != nil && r.candidates.Equal(among) {
		among = r.candidates
	}
	r.candidates = among
	placements := make([]*claim.Placement, len(nodes))
	served := map[string][]*node{}
	for i, n := range nodes {
		r.place(n, among)
		placements[i] = n.placement
		if n.served() {
			served[n.placement.Spec.Target] = append(served[n.placement.Spec.Target], n)
		}
	}
	v := &view{nodes: nodes, placed: among.Sum(placements)[name]}
	for i := range targets {
		target := &targets[i]
		gate := r.release(target, served[target.Name])
		if target.Name == name {
			v.target, v.gate = target, gate
		}
	}
	for _, n := range nodes {
		n.keep()
	}
	return v
}

// release decides about the target's rollout, and what its nodes may have now. A turn that was not on record yet
// releases nothing.
func (r *Reconciler) release(target *v1alpha1.NvmfTarget, nodes []*node) rollout.Decision {
	var strategy v1alpha1.UpdateStrategy
	if s := target.Spec.UpdateStrategy; s != nil {
		strategy = *s
	}
	in := rollout.Input{Strategy: strategy, Updating: target.Status.Rollout.Updating, Now: r.Clock.Now(), Nodes: make([]rollout.Node, len(nodes))}
	for i, n := range nodes {
		in.Nodes[i] = n.gated
	}
	gate := rollout.Decide(in)
	for _, n := range nodes {
		turn := slices.Contains(in.Updating, n.Name) && slices.Contains(gate.Updating, n.Name)
		n.release(target, strategy, turn)
	}
	return gate
}

// remaining lists what keeps a target that is being deleted.
func remaining(ctx context.Context, reader client.Reader, target string, nodes []*node) (remains, error) {
	var (
		volumes   v1alpha1.NvmfVolumeList
		replicas  v1alpha1.NvmfReplicaList
		snapshots v1alpha1.NvmfSnapshotList
		is        remains
	)
	for _, list := range []client.ObjectList{&volumes, &replicas, &snapshots} {
		if err := reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return is, fmt.Errorf("list %T: %w", list, err)
		}
	}
	for i := range volumes.Items {
		if volumes.Items[i].Spec.Target == target {
			is.volumes = append(is.volumes, volumes.Items[i].Name)
		}
	}
	for i := range replicas.Items {
		if replicas.Items[i].Spec.Target == target {
			is.volumes = append(is.volumes, replicas.Items[i].Spec.Volume.Name) // whose own object may be gone
		}
	}
	claimed := map[string]bool{}
	for _, n := range nodes {
		claimed[n.Name] = n.serves(target)
	}
	for i := range snapshots.Items {
		if claimed[snapshots.Items[i].Spec.Node] {
			is.snapshots = append(is.snapshots, snapshots.Items[i].Name)
		}
	}
	slices.Sort(is.volumes)
	is.volumes = slices.Compact(is.volumes)
	slices.Sort(is.snapshots)
	return is, nil
}

// rolloutNode is what the gate knows of a node.
func (r *Reconciler) rolloutNode(is *facts, desired v1alpha1.NvmfNodeSpec) rollout.Node {
	node, pod := is.Nvmf, is.pod
	n := rollout.Node{Nvmf: node, Desired: desired, Busy: is.Busy, NotReadySince: is.NotReadySince}
	if desired.Plan == nil || desired.Plan.SPDK == nil {
		return n
	}
	n.HasPods = true
	n.PlannedHash, n.WantedHash = r.Pods.Startup(node, node.Spec.Plan), r.Pods.Startup(node, desired.Plan)
	n.ImageOnNode = r.Pods.ImageOnNode(node, pod, is.pull)
	if pod == nil || !metav1.IsControlledBy(pod, node) {
		return n
	}
	n.PodHash = pod.Annotations[manifest.StartupAnnotation]
	n.Serves = pod.DeletionTimestamp.IsZero() && !manifest.PodEnded(pod) && !manifest.TargetNeverServed(pod)
	if is := manifest.PodReady(pod); is != nil {
		n.ReadySince = is.LastTransitionTime.Time
	}
	return n
}

// isItsTurn asks the API server: the turn may have been taken back since the cache was filled.
func (r *Reconciler) isItsTurn(ctx context.Context, target, node string) (bool, error) {
	now := &v1alpha1.NvmfTarget{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: target}, now); err != nil {
		return false, fmt.Errorf("get NvmfTarget %s: %w", target, err)
	}
	paused := now.Spec.UpdateStrategy != nil && now.Spec.UpdateStrategy.Paused
	return !paused && slices.Contains(now.Status.Rollout.Updating, node), nil
}

// updateNodes writes condition Updated of the target's nodes where it differs. A turn is told only once it is on record
// and the node has the plan for it: what ends a target pod goes by that.
func (r *Reconciler) updateNodes(ctx context.Context, v *view) error {
	var errs []error
	for _, n := range v.nodes {
		if n.Nvmf == nil {
			continue
		}
		is, ok := v.gate.Conditions[n.Name]
		switch {
		case ok && slices.Contains(v.gate.Granted, n.Name):
			continue
		case ok && n.released.differs:
			continue // it was just written, or could not be
		case !ok && (n.Claimant() != "" || meta.FindStatusCondition(n.Nvmf.Status.Conditions, v1alpha1.ConditionUpdated) == nil):
			continue
		case !ok:
			is = metav1.Condition{
				Type: v1alpha1.ConditionUpdated, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNotNeeded, Message: "no target claims the node",
			}
		}
		is.ObservedGeneration = n.Nvmf.Generation
		if !n.has(is) {
			errs = append(errs, v.noteStale(ctx, r.updateNode(ctx, n.Nvmf, is)))
		}
	}
	return errors.Join(errs...)
}

func (r *Reconciler) updateNode(ctx context.Context, node *v1alpha1.NvmfNode, is metav1.Condition) error {
	is.LastTransitionTime = metav1.NewTime(r.Clock.Now())
	config := manifest.ForNodeCondition(node, is)
	if config == nil {
		return nil
	}
	was := meta.FindStatusCondition(node.Status.Conditions, is.Type)
	if err := r.Status().Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply condition %s of NvmfNode %s: %w", is.Type, node.Name, err)
	}
	if was != nil && was.Reason == is.Reason || is.Reason == v1alpha1.ReasonNotNeeded || was == nil && is.Status == metav1.ConditionTrue {
		return nil
	}
	log.FromContext(ctx).Info("continuing the node's rollout", "node", node.Name, "reason", is.Reason)
	r.Recorder.Eventf(node, nil, corev1.EventTypeNormal, is.Reason, "Reconcile", "%s", text.Clip(is.Message, text.MaxEventNote))
	return nil
}
