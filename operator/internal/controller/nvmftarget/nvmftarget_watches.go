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
		Watches(&v1alpha1.NvmfVolume{}, handler.EnqueueRequestsFromMapFunc(targetOfVolume),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.NvmfSnapshot{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
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
			!slices.Equal(claim.InternalIPs(before), claim.InternalIPs(after)) ||
			!equality.Semantic.DeepEqual(claim.Allocatable(before), claim.Allocatable(after))
	}}
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

func request(target string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: target}}
}
