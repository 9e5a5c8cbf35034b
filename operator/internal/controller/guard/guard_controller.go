// SPDX-License-Identifier: Apache-2.0

// Package guard keeps drains of Kubernetes from taking away the only in-sync replica of a volume. A node that stores
// replicas has a guard pod, and a PodDisruptionBudget for it and the node's target pod.
//
// It holds these invariants:
//
//   - A budget allows nothing unless the operator opens it: what the operator has not seen, or cannot see while it is
//     down, keeps a node as it is.
//   - A node is opened only when each volume that needs one has an in-sync replica on a node that is not open. Nodes
//     are opened one after the other, by one worker that reads the budgets from the API server, so that the nodes of a
//     volume's two replicas are not open at once.
//   - Closing a budget takes effect with the write: the eviction API refuses a budget whose status is of an earlier
//     generation.
//
// What it cannot promise: the record of a mirror follows a lost replica after seconds, and a leader that lost its lease
// may write once more. Either costs availability for a time, never data.
package guard

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

const (
	// remindAfter is how often a drain that is refused is told of again. Events are kept for an hour by default.
	remindAfter = 5 * time.Minute
	// A guard pod that failed is replaced at once, and ever more slowly while its successors fail too.
	firstDelay, mostDelay = time.Second, 5 * time.Minute
)

// Reconciler reconciles guards, by the names of their nodes. It must run with one worker.
type Reconciler struct {
	// Client reads from the cache and writes.
	client.Client
	// Live reads from the API server.
	Live client.Reader
	// Recorder of Events.
	Recorder events.EventRecorder
	// Clock for transition times and delays.
	Clock clock.PassiveClock
	// Guards is what all guard pods have in common. Without an image there are none, and those that exist are deleted.
	Guards manifest.Guards
	// Single says whether volumes with one replica keep their node from being drained.
	Single SingleReplica

	failures *flowcontrol.Backoff
}

// Reconcile gathers, decides and acts, for one node. A budget is opened only after a look at the others in the API
// server, and a budget is closed without one.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("node", req.Name))
	node := &v1alpha1.NvmfNode{}
	if err := r.Get(ctx, req.NamespacedName, node); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	v, err := r.gather(ctx, node, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	budget, err := r.budget(ctx, r.Client, node.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	d := decide(v)
	if d.open && r.Guards.Image != "" && (budget == nil || !manifest.BudgetOpen(budget)) {
		if v, err = r.gather(ctx, node, r.Live); err != nil {
			return ctrl.Result{}, err
		}
		d = decide(v)
	}
	// The condition is written first: a node that changed since it was read is not opened.
	if err := r.updateCondition(ctx, node, d.condition); manifest.IsStale(err) {
		return ctrl.Result{RequeueAfter: manifest.StaleAgain}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if !d.needed || r.Guards.Image == "" {
		return ctrl.Result{}, r.remove(ctx, v, budget)
	}
	if budget == nil || manifest.BudgetOpen(budget) != d.open {
		if err := r.Apply(ctx, r.Guards.Budget(node, d.open), client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
			return ctrl.Result{}, fmt.Errorf("apply the PodDisruptionBudget of node %s: %w", node.Name, err)
		}
		log.FromContext(ctx).Info("set the node's budget", "evictions", d.open, "reason", d.condition.Message)
	}
	again, err := r.keepPod(ctx, v, d)
	if v.cordoned && !d.open {
		r.tell(budget, node, d.condition)
		again = sooner(again, remindAfter)
	}
	return ctrl.Result{RequeueAfter: again}, err
}

// sooner of two times; 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// tell of a drain that is refused, where a person looks who is told of the budget, and at the node.
func (r *Reconciler) tell(budget *policyv1.PodDisruptionBudget, node *v1alpha1.NvmfNode, is metav1.Condition) {
	if budget != nil {
		r.Recorder.Eventf(budget, node, corev1.EventTypeWarning, v1alpha1.ReasonEvictionRefused, "Reconcile", "%s", is.Message)
	}
	r.Recorder.Eventf(node, nil, corev1.EventTypeWarning, v1alpha1.ReasonEvictionRefused, "Reconcile", "%s", is.Message)
}

// keepPod makes the guard pod where there is none, and replaces one that ended or has an earlier image. One that was
// evicted from a node that is open does not return. A cordoned node's is not replaced by a newer one: the drain of the
// node would not see either.
func (r *Reconciler) keepPod(ctx context.Context, v view, d decision) (time.Duration, error) {
	pod := v.guard
	switch {
	case pod == nil && d.open:
		return 0, nil
	case pod == nil:
		if err := r.Apply(ctx, r.Guards.Pod(v.node), client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
			return 0, fmt.Errorf("create the guard pod of node %s: %w", v.node.Name, err)
		}
		return 0, nil
	case !pod.DeletionTimestamp.IsZero(), !metav1.IsControlledBy(pod, v.node):
		return 0, nil
	case manifest.PodEnded(pod):
		now := r.Clock.Now()
		if r.failures.IsInBackOffSinceUpdate(v.node.Name, now) {
			return r.failures.Get(v.node.Name), nil
		}
		r.failures.Next(v.node.Name, now)
	case r.Guards.IsCurrent(pod) || v.cordoned:
		return 0, nil
	}
	return 0, r.deletePod(ctx, pod)
}

func (r *Reconciler) deletePod(ctx context.Context, pod *corev1.Pod) error {
	if err := r.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete guard pod %s: %w", pod.Name, err)
	}
	return nil
}

// remove a guard that is not needed: the pod first, since the budget alone refuses to evict the target pod.
func (r *Reconciler) remove(ctx context.Context, v view, budget *policyv1.PodDisruptionBudget) error {
	if v.guard != nil && v.guard.DeletionTimestamp.IsZero() && metav1.IsControlledBy(v.guard, v.node) {
		if err := r.deletePod(ctx, v.guard); err != nil {
			return err
		}
	}
	if budget == nil || !metav1.IsControlledBy(budget, v.node) {
		return nil
	}
	if err := r.Delete(ctx, budget, client.Preconditions{UID: &budget.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete PodDisruptionBudget %s: %w", budget.Name, err)
	}
	return nil
}

// pod is what has the name of a node's guard pod, or nil when there is none.
func (r *Reconciler) pod(ctx context.Context, node string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: r.Guards.Namespace, Name: manifest.GuardName(node)}
	if err := r.Get(ctx, key, pod); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get Pod %s: %w", key, err)
	}
	return pod, nil
}

// budget of a node, or nil when there is none.
func (r *Reconciler) budget(ctx context.Context, from client.Reader, node string) (*policyv1.PodDisruptionBudget, error) {
	budget := &policyv1.PodDisruptionBudget{}
	key := client.ObjectKey{Namespace: r.Guards.Namespace, Name: manifest.GuardName(node)}
	if err := from.Get(ctx, key, budget); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get PodDisruptionBudget %s: %w", key, err)
	}
	return budget, nil
}

// gather reads a node's replicas and the others of their volumes from the cache, which is as old as the record of a
// mirror may be anyway, and which nodes are open from the given reader.
func (r *Reconciler) gather(ctx context.Context, node *v1alpha1.NvmfNode, budgets client.Reader) (view, error) {
	v := view{node: node, single: r.Single, guards: r.Guards.Image != ""}
	var err error
	if v.guard, err = r.pod(ctx, node.Name); err != nil {
		return v, err
	}
	kube := &corev1.Node{}
	if err = r.Get(ctx, client.ObjectKeyFromObject(node), kube); client.IgnoreNotFound(err) != nil {
		return v, fmt.Errorf("get Node %s: %w", node.Name, err)
	}
	v.exists, v.cordoned = err == nil, kube.Spec.Unschedulable
	var replicas v1alpha1.NvmfReplicaList
	if err := r.List(ctx, &replicas, client.MatchingFields{"spec.node": node.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return v, fmt.Errorf("list the replicas of node %s: %w", node.Name, err)
	}
	alive, open := map[string]bool{}, map[string]bool{}
	for i := range replicas.Items {
		c := copied{replica: &replicas.Items[i], others: map[string]other{}}
		of := client.ObjectKey{Name: c.replica.Spec.Volume.Name}
		volume, mirror := &v1alpha1.NvmfVolume{}, &v1alpha1.NvmfMirror{}
		err := r.Get(ctx, of, volume)
		if client.IgnoreNotFound(err) != nil {
			return v, fmt.Errorf("get NvmfVolume %s: %w", of.Name, err)
		}
		c.single = err == nil && volume.Spec.Replicas <= 1
		if err = r.Get(ctx, of, mirror); client.IgnoreNotFound(err) != nil {
			return v, fmt.Errorf("get NvmfMirror %s: %w", of.Name, err)
		}
		if err == nil {
			c.mirror = mirror
			if err := r.gatherOthers(ctx, &c, budgets, alive, open); err != nil {
				return v, err
			}
		}
		v.copies = append(v.copies, c)
	}
	return v, nil
}

// gatherOthers adds the other replicas of a mirror. What is known of their nodes is kept in alive and open.
func (r *Reconciler) gatherOthers(ctx context.Context, c *copied, budgets client.Reader, alive, open map[string]bool) error {
	for _, m := range c.mirror.Spec.Members {
		if m.Replica == c.replica.Name {
			continue
		}
		replica := &v1alpha1.NvmfReplica{}
		if err := r.Get(ctx, client.ObjectKey{Name: m.Replica}, replica); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("get NvmfReplica %s: %w", m.Replica, err)
		}
		on := replica.Spec.Node
		if _, known := alive[on]; !known {
			node, kube := &v1alpha1.NvmfNode{}, &corev1.Node{}
			if err := r.Get(ctx, client.ObjectKey{Name: on}, node); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("get NvmfNode %s: %w", on, err)
			}
			err := r.Get(ctx, client.ObjectKey{Name: on}, kube)
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("get Node %s: %w", on, err)
			}
			exists := err == nil
			budget, err := r.budget(ctx, budgets, on)
			if err != nil {
				return err
			}
			// Of a node that was drained and deleted, the budget is gone at once, and the agent's lease later.
			alive[on] = exists && meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionAgentAlive)
			open[on] = budget != nil && manifest.BudgetOpen(budget)
		}
		c.others[m.Replica] = other{replica: replica, alive: alive[on], open: open[on]}
	}
	return nil
}

// updateCondition writes it when it differs, and an Event when its reason does.
func (r *Reconciler) updateCondition(ctx context.Context, node *v1alpha1.NvmfNode, is metav1.Condition) error {
	is.LastTransitionTime = metav1.NewTime(r.Clock.Now())
	config := manifest.ForNodeCondition(node, is)
	if config == nil {
		return nil
	}
	was := meta.FindStatusCondition(node.Status.Conditions, is.Type)
	if err := r.Status().Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply condition %s of NvmfNode %s: %w", is.Type, node.Name, err)
	}
	if is.Reason == v1alpha1.ReasonEvictionAllowed && (was == nil || was.Reason != is.Reason) {
		r.Recorder.Eventf(node, nil, corev1.EventTypeWarning, is.Reason, "Reconcile", "%s", is.Message)
	}
	return nil
}
