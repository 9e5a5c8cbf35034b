// SPDX-License-Identifier: Apache-2.0

package nvmfnode

import (
	"context"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// SetupWithManager registers the controller. The manager's cache should hold only the agents' Leases.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("nvmfnode").
		For(&v1alpha1.NvmfNode{}).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(r.nodeOfLease)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(sameName), builder.WithPredicates(deletedOrCordoned())).
		Watches(&v1alpha1.NvmfReplica{}, handler.EnqueueRequestsFromMapFunc(nodeOfData), builder.WithPredicates(onlyDeleted())).
		Watches(&v1alpha1.NvmfSnapshot{}, handler.EnqueueRequestsFromMapFunc(nodeOfData), builder.WithPredicates(onlyDeleted())).
		Complete(r)
}

// onlyDeleted: a Node, replica or snapshot matters here when it goes; it may have been what kept an NvmfNode.
func onlyDeleted() predicate.Funcs {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// deletedOrCordoned: or uncordoned.
func deletedOrCordoned() predicate.Predicate {
	p := onlyDeleted()
	p.UpdateFunc = func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Node)
		after, ok2 := e.ObjectNew.(*corev1.Node)
		return ok && ok2 && before.Spec.Unschedulable != after.Spec.Unschedulable
	}
	return p
}

func (r *Reconciler) nodeOfLease(_ context.Context, o client.Object) []reconcile.Request {
	node, ok := strings.CutPrefix(o.GetName(), v1alpha1.AgentLeasePrefix)
	if !ok || o.GetNamespace() != r.Namespace {
		return nil
	}
	return request(node)
}

func sameName(_ context.Context, o client.Object) []reconcile.Request { return request(o.GetName()) }

func nodeOfData(_ context.Context, o client.Object) []reconcile.Request {
	switch o := o.(type) {
	case *v1alpha1.NvmfReplica:
		return request(o.Spec.Node)
	case *v1alpha1.NvmfSnapshot:
		return request(o.Spec.Node)
	}
	return nil
}

func request(node string) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: node}}}
}
