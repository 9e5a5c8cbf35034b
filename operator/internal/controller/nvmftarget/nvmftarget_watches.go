// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// SetupWithManager registers the controller. Its options are the manager's but for the number of workers.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(r.allTargets)
	return ctrl.NewControllerManagedBy(mgr).
		Named("nvmftarget").
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		For(&v1alpha1.NvmfTarget{}).
		// Another target's selector or age may change who has a node.
		Watches(&v1alpha1.NvmfTarget{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Node{}, all, builder.WithPredicates(nodeChanged())).
		Watches(&v1alpha1.NvmfNode{}, all).
		Watches(&v1alpha1.NvmfVolume{}, handler.EnqueueRequestsFromMapFunc(targetOfVolume), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.NvmfReplica{}, handler.EnqueueRequestsFromMapFunc(targetOfReplica), builder.WithPredicates(settled())).
		Watches(&v1alpha1.NvmfSnapshot{}, all, builder.WithPredicates(settled())).
		// What a rollout waits for.
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(targetOfPod)).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// nodeChanged lets through what claims are decided from: kubelets renew a Node's
// status every few minutes even when nothing happens.
func nodeChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*corev1.Node)
		after, ok2 := e.ObjectNew.(*corev1.Node)
		return !ok1 || !ok2 ||
			!maps.Equal(before.Labels, after.Labels) ||
			claim.NotReadySince(before).IsZero() != claim.NotReadySince(after).IsZero() ||
			!slices.Equal(claim.InternalIPs(before), claim.InternalIPs(after)) ||
			claim.HostUnable(before) != claim.HostUnable(after) ||
			!equality.Semantic.DeepEqual(claim.Allocatable(before), claim.Allocatable(after))
	}}
}

// settled lets through changes of a replica's or snapshot's spec, and of whether it is in the midst of something, which
// a rollout waits for. How full it is changes all the time.
func settled() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || isBusy(e.ObjectOld) != isBusy(e.ObjectNew)
	}}
}

func isBusy(o client.Object) bool {
	switch o := o.(type) {
	case *v1alpha1.NvmfReplica:
		return len(rollout.Busy(nil, []v1alpha1.NvmfReplica{*o}, nil)) > 0
	case *v1alpha1.NvmfSnapshot:
		return len(rollout.Busy(nil, nil, []v1alpha1.NvmfSnapshot{*o})) > 0
	}
	return false
}

func targetOfPod(_ context.Context, o client.Object) []reconcile.Request {
	target := o.GetLabels()[manifest.TargetLabel]
	if target == "" {
		return nil
	}
	return []reconcile.Request{request(target)}
}

func (r *Reconciler) allTargets(ctx context.Context, o client.Object) []reconcile.Request {
	var targets v1alpha1.NvmfTargetList
	if err := r.List(ctx, &targets); err != nil {
		log.FromContext(ctx).Error(err, "list NvmfTargets for an event", "object", o.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range targets.Items {
		requests = append(requests, request(targets.Items[i].Name))
	}
	// The last target may have gone by force; its claim is then cleared up on its own name.
	if node, ok := o.(*v1alpha1.NvmfNode); ok && node.Spec.Target != "" && len(requests) == 0 {
		requests = append(requests, request(node.Spec.Target))
	}
	return requests
}

func targetOfVolume(_ context.Context, o client.Object) []reconcile.Request {
	volume, ok := o.(*v1alpha1.NvmfVolume)
	if !ok {
		return nil
	}
	return []reconcile.Request{request(volume.Spec.Target)}
}

func targetOfReplica(_ context.Context, o client.Object) []reconcile.Request {
	replica, ok := o.(*v1alpha1.NvmfReplica)
	if !ok {
		return nil
	}
	return []reconcile.Request{request(replica.Spec.Target)}
}

func request(target string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: target}}
}
