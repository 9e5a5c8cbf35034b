// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
)

// byVolume is the index of replicas by the name of their volume.
const byVolume = "spec.volume.name"

// SetupWithManager registers the controller. It needs the index of replicas by spec.node, which package targetpod adds.
// An event leads to the nodes of the volumes that it concerns, and to no others.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	r.failures = flowcontrol.NewBackOff(firstDelay, mostDelay)
	volume := func(o client.Object) []string { return []string{o.(*v1alpha1.NvmfReplica).Spec.Volume.Name} }
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.NvmfReplica{}, byVolume, volume); err != nil {
		return fmt.Errorf("index NvmfReplicas by %s: %w", byVolume, err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("guard").
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		For(&v1alpha1.NvmfNode{}, builder.WithPredicates(changed(standing))).
		Watches(&v1alpha1.NvmfNode{}, handler.EnqueueRequestsFromMapFunc(r.partners), builder.WithPredicates(changed(alive))).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(sameName), builder.WithPredicates(changed(cordoned))).
		Watches(&v1alpha1.NvmfReplica{}, handler.EnqueueRequestsFromMapFunc(r.nodesOfReplica), builder.WithPredicates(changed(serving))).
		Watches(&v1alpha1.NvmfVolume{}, handler.EnqueueRequestsFromMapFunc(r.nodesOfVolume), builder.WithPredicates(changed(replicas))).
		Watches(&v1alpha1.NvmfMirror{}, handler.EnqueueRequestsFromMapFunc(r.nodesOfVolume), builder.WithPredicates(changed(members))).
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(r.nodeOfBudget), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(owner)).
		Complete(r)
}

// changed lets updates pass that change what of tells of an object: values without unexported fields, which cannot be
// compared.
func changed(of func(client.Object) any) predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(of(e.ObjectOld), of(e.ObjectNew))
	}}
}

// standing of a node is all of it but what its agent reports in figures and lists: what it stores, its replicas tell.
func standing(o client.Object) any {
	node := o.(*v1alpha1.NvmfNode)
	return []any{node.UID, node.Generation, node.DeletionTimestamp, node.Finalizers, node.Labels, node.Annotations, node.Status.Conditions}
}

func alive(o client.Object) any {
	return meta.IsStatusConditionTrue(o.(*v1alpha1.NvmfNode).Status.Conditions, v1alpha1.ConditionAgentAlive)
}

func cordoned(o client.Object) any { return o.(*corev1.Node).Spec.Unschedulable }

func serving(o client.Object) any {
	r := o.(*v1alpha1.NvmfReplica)
	return []any{r.UID, r.DeletionTimestamp.IsZero(), r.Marked(), r.Status.Written, meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady)}
}

func replicas(o client.Object) any { return o.(*v1alpha1.NvmfVolume).Spec.Replicas }

// members of a mirror without the progress of copies, whether it is used, and whether it was left uncleanly.
func members(o client.Object) any {
	type member struct {
		replica, uid                     string
		state                            v1alpha1.MirrorMemberState
		suspect, foreign, ahead, retired bool
	}
	spec := &o.(*v1alpha1.NvmfMirror).Spec
	is := map[member]bool{}
	for _, m := range spec.Members {
		is[member{m.Replica, m.ReplicaUID, m.State, m.Suspect, m.Foreign, m.MayBeAhead(), m.Retired}] = true
	}
	return []any{is, spec.Holder != "", spec.Dirty}
}

func sameName(_ context.Context, o client.Object) []reconcile.Request {
	return requests(map[string]bool{o.GetName(): true})
}

func owner(_ context.Context, o client.Object) []reconcile.Request {
	if of := metav1.GetControllerOf(o); of != nil && of.Kind == "NvmfNode" {
		return requests(map[string]bool{of.Name: true})
	}
	return nil
}

func (r *Reconciler) nodesOfReplica(ctx context.Context, o client.Object) []reconcile.Request {
	replica := o.(*v1alpha1.NvmfReplica)
	nodes := map[string]bool{replica.Spec.Node: true}
	r.addNodes(ctx, nodes, replica.Spec.Volume.Name)
	return requests(nodes)
}

// nodesOfVolume is for objects that have the volume's name: itself, and its mirror.
func (r *Reconciler) nodesOfVolume(ctx context.Context, o client.Object) []reconcile.Request {
	nodes := map[string]bool{}
	r.addNodes(ctx, nodes, o.GetName())
	return requests(nodes)
}

// nodeOfBudget is its owner, and those that share volumes with it.
func (r *Reconciler) nodeOfBudget(ctx context.Context, o client.Object) []reconcile.Request {
	of := metav1.GetControllerOf(o)
	if of == nil || of.Kind != "NvmfNode" {
		return nil
	}
	nodes := map[string]bool{of.Name: true}
	r.addPartners(ctx, nodes, of.Name)
	return requests(nodes)
}

func (r *Reconciler) partners(ctx context.Context, o client.Object) []reconcile.Request {
	nodes := map[string]bool{}
	r.addPartners(ctx, nodes, o.GetName())
	return requests(nodes)
}

// addPartners adds the nodes that have replicas of the volumes that the node has replicas of.
func (r *Reconciler) addPartners(ctx context.Context, nodes map[string]bool, node string) {
	var replicas v1alpha1.NvmfReplicaList
	if err := r.List(ctx, &replicas, client.MatchingFields{"spec.node": node}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "list the replicas of a node for an event", "node", node)
		return
	}
	for i := range replicas.Items {
		r.addNodes(ctx, nodes, replicas.Items[i].Spec.Volume.Name)
	}
}

// addNodes adds the nodes that have replicas of the volume.
func (r *Reconciler) addNodes(ctx context.Context, nodes map[string]bool, volume string) {
	var replicas v1alpha1.NvmfReplicaList
	if err := r.List(ctx, &replicas, client.MatchingFields{byVolume: volume}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "list the replicas of a volume for an event", "volume", volume)
		return
	}
	for i := range replicas.Items {
		nodes[replicas.Items[i].Spec.Node] = true
	}
}

func requests(nodes map[string]bool) []reconcile.Request {
	all := make([]reconcile.Request, 0, len(nodes))
	for node := range nodes {
		all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
	}
	return all
}
