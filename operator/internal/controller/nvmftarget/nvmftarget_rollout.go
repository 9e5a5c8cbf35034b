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
	"github.com/weft-storage/weft/operator/internal/gather"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// view is one look at everything, and what follows from it.
type view struct {
	// target that the look is for; nil when it is gone.
	target *v1alpha1.NvmfTarget
	all    *gather.Objects
	// decision with the specs that nodes may have now: what disturbs I/O is in them only in the node's turn.
	decision claim.Decision
	// inTurn are the nodes whose spec may be written only while it is their turn.
	inTurn map[string]bool
	// gate is what was decided about the target's rollout.
	gate rollout.Decision
	// stale: an NvmfNode could not be written because it was newer than the look. It may differ in what leads to no
	// reconcile alone (judgedAnew), so there has to be another look.
	stale bool
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

// look gathers and decides, from the cache or from the API server.
func (r *Reconciler) look(ctx context.Context, reader client.Reader, name string) (*view, error) {
	all, err := gather.All(ctx, reader)
	if err != nil {
		return nil, err
	}
	pods, err := r.pods(ctx, reader)
	if err != nil {
		return nil, err
	}
	v := &view{all: all, decision: claim.Decide(all.Targets, all.Nodes), inTurn: map[string]bool{}}
	nodes := map[string]*v1alpha1.NvmfNode{}
	for _, n := range all.Nodes {
		nodes[n.Name] = n.Nvmf
	}
	busy := rollout.Busy(nodes, all.Replicas, all.Snapshots)
	for i := range all.Targets {
		target := &all.Targets[i]
		gate := r.release(v, target, pods, busy)
		if target.Name == name {
			v.target, v.gate = target, gate
		}
	}
	return v, nil
}

// pods that the operator made, by name.
func (r *Reconciler) pods(ctx context.Context, reader client.Reader) (map[string]*corev1.Pod, error) {
	selector, err := manifest.PodSelector()
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := reader.List(ctx, &list, client.InNamespace(r.Pods.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("list target pods: %w", err)
	}
	pods := make(map[string]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods, nil
}

// release decides about the target's rollout, and what its nodes may have now. A turn that was not on record yet
// releases nothing.
func (r *Reconciler) release(v *view, target *v1alpha1.NvmfTarget, pods map[string]*corev1.Pod, busy map[string][]string) rollout.Decision {
	var strategy v1alpha1.UpdateStrategy
	if s := target.Spec.UpdateStrategy; s != nil {
		strategy = *s
	}
	in := rollout.Input{Strategy: strategy, Updating: target.Status.Rollout.Updating, Now: r.Clock.Now()}
	for _, n := range v.all.Nodes {
		if desired, ok := v.decision.Nodes[n.Name]; ok && desired.Target == target.Name {
			node := r.rolloutNode(n.Nvmf, desired, pods)
			node.Busy, node.NotReadySince = busy[n.Name], n.NotReadySince
			in.Nodes = append(in.Nodes, node)
		}
	}
	gate := rollout.Decide(in)
	for _, n := range in.Nodes {
		turn := slices.Contains(in.Updating, n.Nvmf.Name) && slices.Contains(gate.Updating, n.Nvmf.Name)
		v.decision.Nodes[n.Nvmf.Name], v.inTurn[n.Nvmf.Name] = rollout.Release(n, strategy, turn)
	}
	return gate
}

// rolloutNode is what the gate knows of a node.
func (r *Reconciler) rolloutNode(node *v1alpha1.NvmfNode, desired v1alpha1.NvmfNodeSpec, pods map[string]*corev1.Pod) rollout.Node {
	n := rollout.Node{Nvmf: node, Desired: desired}
	if desired.Plan == nil || desired.Plan.SPDK == nil {
		return n
	}
	n.HasPods = true
	n.PlannedHash, n.WantedHash = r.startup(node, node.Spec), r.startup(node, desired)
	pod, pull := pods[manifest.TargetPodName(node.Name)], pods[manifest.PullPodName(node.Name)]
	n.ImageOnNode = r.Pods.ImageOnNode(node, pod, pull)
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

// startup is the hash of what the node's target would be started with; "" when that cannot be said.
func (r *Reconciler) startup(node *v1alpha1.NvmfNode, spec v1alpha1.NvmfNodeSpec) string {
	if spec.Plan == nil || spec.Plan.SPDK == nil {
		return ""
	}
	with := node.DeepCopy()
	with.Spec = spec
	pod, err := r.Pods.Pod(with)
	if err != nil { // the controller of target pods says so
		return ""
	}
	return pod.Annotations[manifest.StartupAnnotation]
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
	for _, n := range v.all.Nodes {
		if n.Nvmf == nil {
			continue
		}
		is, ok := v.gate.Conditions[n.Name]
		switch {
		case ok && slices.Contains(v.gate.Granted, n.Name):
			continue
		case ok && manifest.ForNodeSpec(n.Nvmf, v.decision.Nodes[n.Name]) != nil:
			continue // it was just written, or could not be
		case !ok && (n.Claimant() != "" || meta.FindStatusCondition(n.Nvmf.Status.Conditions, v1alpha1.ConditionUpdated) == nil):
			continue
		case !ok:
			is = metav1.Condition{
				Type: v1alpha1.ConditionUpdated, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNotNeeded, Message: "no target claims the node",
			}
		}
		errs = append(errs, v.noteStale(ctx, r.updateNode(ctx, n.Nvmf, is)))
	}
	return errors.Join(errs...)
}

func (r *Reconciler) updateNode(ctx context.Context, node *v1alpha1.NvmfNode, is metav1.Condition) error {
	is.ObservedGeneration = node.Generation
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
