// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
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
	b := ctrl.NewControllerManagedBy(mgr).
		Named("nvmftarget").
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		For(&v1alpha1.NvmfTarget{}).
		// Another target's selector or age may change who has a node.
		Watches(&v1alpha1.NvmfTarget{}, handler.EnqueueRequestsFromMapFunc(r.allTargets), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// Volumes keep a target that is being deleted, and matter for nothing else. Whose they are does not change.
		Watches(&v1alpha1.NvmfVolume{}, r.soon(targetOfVolume), builder.WithPredicates(comesOrGoes())).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	for _, w := range r.watches() {
		b.Watches(w.kind, w.handler)
	}
	return b.Complete(r)
}

type watch struct {
	kind    client.Object
	handler handler.Funcs
}

// watches of what nodes are made of. Each event is noted whether or not it calls for a look, so predicates are asked
// after that.
func (r *Reconciler) watches() []watch {
	all := r.soon(r.allTargets)
	return []watch{
		{&corev1.Node{}, r.noted(all, nodeChanged())},
		{&v1alpha1.NvmfNode{}, r.noted(r.ofChangedNode(), judgedAnew())},
		{&v1alpha1.NvmfReplica{}, r.noted(r.soon(targetOfReplica), settled())},
		{&v1alpha1.NvmfSnapshot{}, r.noted(all, settled())},
		{&corev1.Pod{}, r.noted(r.soon(targetOfPod), predicate.Funcs{})}, // what a rollout waits for
	}
}

// noted notes the nodes that an event is about, and handles it if the predicate lets it through.
func (r *Reconciler) noted(handle handler.Funcs, when predicate.Predicate) handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if r.fleet.note(e.Object); when.Create(e) {
				handle.Create(ctx, e, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if r.fleet.note(e.ObjectOld, e.ObjectNew); when.Update(e) {
				handle.Update(ctx, e, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if r.fleet.note(e.Object); when.Delete(e) {
				handle.Delete(ctx, e, q)
			}
		},
	}
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// A look costs something for each node, whichever of them changed, and more for those that did. So that a fleet in
// which something always changes costs no more than a part of a core, an event waits until pauseShare times as long has
// passed as the last look took, but no longer than longestPause, and all events of that time lead to one look. What a
// person does to a target does not wait.
const (
	pauseShare   = 10
	longestPause = 5 * time.Second
)

// soon queues the targets that an event is mapped to, after the pause.
func (r *Reconciler) soon(to handler.MapFunc) handler.Funcs {
	add := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, o := range objects {
			for _, req := range to(ctx, o) {
				q.AddAfter(req, r.pause())
			}
		}
	}
	return handler.Funcs{
		CreateFunc:  func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, q, e.Object) },
		UpdateFunc:  func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc:  func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, q, e.Object) },
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q queue) { add(ctx, q, e.Object) },
	}
}

// pause after a look.
func (r *Reconciler) pause() time.Duration {
	return min(pauseShare*time.Duration(r.took.Load()), longestPause)
}

// ofChangedNode: a node that came or went may be anybody's, and one that changed is of its claimant's and of those
// whose selector chooses it.
func (r *Reconciler) ofChangedNode() handler.Funcs {
	funcs := r.soon(r.allTargets)
	funcs.UpdateFunc = r.soon(r.targetsOfNode).UpdateFunc
	return funcs
}

// judgedAnew lets through what a target is judged by: not how much hosts have written, how many are connected, what was
// found without an object, or what the operator's other controllers conclude. What is added to a status counts until
// it is named here.
func judgedAnew() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*v1alpha1.NvmfNode)
		after, ok2 := e.ObjectNew.(*v1alpha1.NvmfNode)
		return !ok1 || !ok2 || before.UID != after.UID || before.Generation != after.Generation ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			!slices.Equal(before.Finalizers, after.Finalizers) ||
			!equality.Semantic.DeepEqual(judged(before.Status), judged(after.Status))
	}}
}

// judged is what of a node's status targets are judged by.
func judged(s v1alpha1.NvmfNodeStatus) v1alpha1.NvmfNodeStatus {
	s.AgentVersion, s.Portals, s.Orphans, s.Attachments, s.Volumes = "", nil, nil, nil, nil
	s.Pools = slices.Clone(s.Pools)
	for i := range s.Pools {
		s.Pools[i].Free, s.Pools[i].Clearing = nil, nil
	}
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c metav1.Condition) bool {
		return c.Type == v1alpha1.ConditionVersionSkew || c.Type == v1alpha1.ConditionSchedulable ||
			c.Type == v1alpha1.ConditionEvictable && c.Reason != v1alpha1.ReasonOnlyInSyncReplica
	})
	if is := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionEvictable); is != nil {
		*is = metav1.Condition{Type: is.Type} // which volumes it names changes all the time
	}
	return s
}

// targetsOfNode that a change of it concerns. A node without a claimant may get one that its labels do not choose, for
// the data that it holds.
func (r *Reconciler) targetsOfNode(ctx context.Context, o client.Object) []reconcile.Request {
	node, ok := o.(*v1alpha1.NvmfNode)
	if !ok || node.Spec.Target == "" {
		return r.allTargets(ctx, o)
	}
	requests := []reconcile.Request{request(node.Spec.Target)}
	var kube corev1.Node
	if err := r.Get(ctx, client.ObjectKeyFromObject(node), &kube, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		return requests // no selector chooses it
	} else if err != nil {
		return r.allTargets(ctx, o)
	}
	var targets v1alpha1.NvmfTargetList
	if err := r.List(ctx, &targets, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "list NvmfTargets for an event", "object", o.GetName())
		return requests
	}
	for i := range targets.Items {
		t := &targets.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(&t.Spec.NodeSelector)
		if t.Name != node.Spec.Target && (err != nil || selector.Matches(labels.Set(kube.Labels))) {
			requests = append(requests, request(t.Name))
		}
	}
	return requests
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

// comesOrGoes lets no updates through.
func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
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
	if err := r.List(ctx, &targets, client.UnsafeDisableDeepCopy); err != nil {
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
