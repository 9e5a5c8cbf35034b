// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
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
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// SetupWithManager registers the controller. The manager's cache should hold only target pods.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.failures = flowcontrol.NewBackOff(firstDelay, mostDelay)
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	ofNode := handler.EnqueueRequestsFromMapFunc(nodeOfData)
	return ctrl.NewControllerManagedBy(mgr).
		Named("targetpod").
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		For(&v1alpha1.NvmfNode{}).
		// A node that has become available again gives the turn to the next.
		Watches(&v1alpha1.NvmfNode{}, handler.EnqueueRequestsFromMapFunc(r.nodesOfItsTarget), builder.WithPredicates(availabilityChanged())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.nodesOfPod)).
		Watches(&v1alpha1.NvmfTarget{}, handler.EnqueueRequestsFromMapFunc(r.nodesOfTarget), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// What an update waits for, or what kept a pod that nothing else needs.
		Watches(&v1alpha1.NvmfVolume{}, ofNode).
		Watches(&v1alpha1.NvmfSnapshot{}, ofNode).
		Complete(r)
}

// addIndexes lets the cache answer the same questions as the API server.
func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		field  string
		value  func(client.Object) string
	}{
		{&v1alpha1.NvmfNode{}, "spec.target", func(o client.Object) string { return o.(*v1alpha1.NvmfNode).Spec.Target }},
		{&v1alpha1.NvmfVolume{}, "spec.node", func(o client.Object) string { return o.(*v1alpha1.NvmfVolume).Spec.Node }},
		{&v1alpha1.NvmfSnapshot{}, "spec.node", func(o client.Object) string { return o.(*v1alpha1.NvmfSnapshot).Spec.Node }},
	} {
		extract := func(o client.Object) []string { return []string{index.value(o)} }
		if err := indexer.IndexField(ctx, index.object, index.field, extract); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.object, index.field, err)
		}
	}
	return nil
}

// availabilityChanged lets through what an update of other nodes looks at.
func availabilityChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*v1alpha1.NvmfNode)
		after, ok2 := e.ObjectNew.(*v1alpha1.NvmfNode)
		if !ok1 || !ok2 || before.Generation != after.Generation {
			return true
		}
		for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAgentAlive} {
			if meta.IsStatusConditionTrue(before.Status.Conditions, kind) != meta.IsStatusConditionTrue(after.Status.Conditions, kind) {
				return true
			}
		}
		return false
	}}
}

// nodesOfPod: its own, and the others of its target, which may wait for it.
func (r *Reconciler) nodesOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.nodesOf(ctx, o.GetLabels()[manifest.TargetLabel])
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "NvmfNode" {
		requests = append(requests, request(owner.Name))
	}
	return requests
}

func (r *Reconciler) nodesOfItsTarget(ctx context.Context, o client.Object) []reconcile.Request {
	node, ok := o.(*v1alpha1.NvmfNode)
	if !ok {
		return nil
	}
	return r.nodesOf(ctx, node.Spec.Target)
}

func (r *Reconciler) nodesOfTarget(ctx context.Context, o client.Object) []reconcile.Request {
	return r.nodesOf(ctx, o.GetName())
}

func (r *Reconciler) nodesOf(ctx context.Context, target string) []reconcile.Request {
	if target == "" {
		return nil
	}
	var nodes v1alpha1.NvmfNodeList
	if err := r.List(ctx, &nodes, client.MatchingFields{"spec.target": target}); err != nil {
		log.FromContext(ctx).Error(err, "list the nodes of a target for an event", "target", target)
		return nil
	}
	var requests []reconcile.Request
	for i := range nodes.Items {
		if servesWithSPDK(&nodes.Items[i]) {
			requests = append(requests, request(nodes.Items[i].Name))
		}
	}
	return requests
}

func nodeOfData(_ context.Context, o client.Object) []reconcile.Request {
	switch o := o.(type) {
	case *v1alpha1.NvmfVolume:
		return []reconcile.Request{request(o.Spec.Node)}
	case *v1alpha1.NvmfSnapshot:
		return []reconcile.Request{request(o.Spec.Node)}
	}
	return nil
}

func request(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}
