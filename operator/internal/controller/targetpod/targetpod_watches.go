// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
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
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(nodeOfPod)).
		Watches(&v1alpha1.NvmfTarget{}, handler.EnqueueRequestsFromMapFunc(r.nodesOfTarget), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// What kept a pod that nothing else needs. Nothing ever moves to another node.
		Watches(&v1alpha1.NvmfReplica{}, ofNode, builder.WithPredicates(gone())).
		Watches(&v1alpha1.NvmfSnapshot{}, ofNode, builder.WithPredicates(gone())).
		Complete(r)
}

// gone lets through deletions alone.
func gone() predicate.Funcs {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// addIndexes lets the cache answer the same questions as the API server.
func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		field  string
		value  func(client.Object) string
	}{
		{&v1alpha1.NvmfNode{}, "spec.target", func(o client.Object) string { return o.(*v1alpha1.NvmfNode).Spec.Target }},
		{&v1alpha1.NvmfReplica{}, "spec.node", func(o client.Object) string { return o.(*v1alpha1.NvmfReplica).Spec.Node }},
		{&v1alpha1.NvmfSnapshot{}, "spec.node", func(o client.Object) string { return o.(*v1alpha1.NvmfSnapshot).Spec.Node }},
	} {
		extract := func(o client.Object) []string { return []string{index.value(o)} }
		if err := indexer.IndexField(ctx, index.object, index.field, extract); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.object, index.field, err)
		}
	}
	return nil
}

// nodeOfPod is its owner.
func nodeOfPod(_ context.Context, o client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "NvmfNode" {
		return []reconcile.Request{request(owner.Name)}
	}
	return nil
}

func (r *Reconciler) nodesOfTarget(ctx context.Context, o client.Object) []reconcile.Request {
	return r.nodesOf(ctx, o.GetName())
}

func (r *Reconciler) nodesOf(ctx context.Context, target string) []reconcile.Request {
	if target == "" {
		return nil
	}
	var nodes v1alpha1.NvmfNodeList
	if err := r.List(ctx, &nodes, client.MatchingFields{"spec.target": target}, client.UnsafeDisableDeepCopy); err != nil {
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
	case *v1alpha1.NvmfReplica:
		return []reconcile.Request{request(o.Spec.Node)}
	case *v1alpha1.NvmfSnapshot:
		return []reconcile.Request{request(o.Spec.Node)}
	}
	return nil
}

func request(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}
