// SPDX-License-Identifier: Apache-2.0

// Package nvmfnode reconciles NvmfNodes: it says whether a node's agent is
// alive, which a silent agent cannot say itself, and whether the node may get new volumes, and deletes the NvmfNodes of
// nodes that are gone.
package nvmfnode

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// Reconciler reconciles NvmfNodes. It is safe with several workers.
type Reconciler struct {
	// Client reads from the cache and writes.
	client.Client
	// Live reads from the API server: before something is deleted it is looked at once more.
	Live client.Reader
	// Recorder of Events.
	Recorder events.EventRecorder
	// Clock that leases are held against. A lease's time is the node's own, so
	// clocks must agree to within a fraction of the lease's duration.
	Clock clock.PassiveClock
	// Namespace of the agents' Leases.
	Namespace string
	// Version of the operator, which those of the agents are compared with.
	Version string
}

// Reconcile deletes the NvmfNode when nothing needs it any more, else keeps its conditions AgentAlive, Schedulable and
// VersionSkew true, and comes back when the agent's lease would run out. Each renewal of a Lease leads here, so what
// the cache has is looked at as it is, and never changed: an NvmfNode has its inventory in it.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("node", req.Name))

	node := &v1alpha1.NvmfNode{}
	if err := r.Get(ctx, req.NamespacedName, node, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if deleted, err := r.deleteOrphan(ctx, node); deleted || err != nil {
		return ctrl.Result{}, manifest.IgnoreStale(ctx, err)
	}
	lease, err := r.lease(ctx, node.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	alive, again := judge(node.Name, lease, r.Clock.Now())
	schedulable, err := r.schedulable(ctx, node)
	if err != nil {
		return ctrl.Result{}, err
	}
	skew := judgeSkew(r.Version, node.Status.AgentVersion, r.Clock.Now())
	return ctrl.Result{RequeueAfter: again}, manifest.IgnoreStale(ctx, r.updateConditions(ctx, node, alive, schedulable, skew))
}

// deleteOrphan deletes the NvmfNode when the API server itself says that its
// Kubernetes Node is gone and that no replica and no snapshot lies on it.
func (r *Reconciler) deleteOrphan(ctx context.Context, node *v1alpha1.NvmfNode) (deleted bool, err error) {
	for _, reader := range []client.Reader{r.Client, r.Live} {
		err := reader.Get(ctx, client.ObjectKeyFromObject(node), &corev1.Node{}, client.UnsafeDisableDeepCopy)
		if err == nil {
			return false, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("get Node %s: %w", node.Name, err)
		}
	}
	for _, list := range []client.ObjectList{&v1alpha1.NvmfReplicaList{}, &v1alpha1.NvmfSnapshotList{}} {
		if err := r.Live.List(ctx, list, client.MatchingFields{"spec.node": node.Name}, client.Limit(1)); err != nil {
			return false, fmt.Errorf("list %T of node %s: %w", list, node.Name, err)
		}
		if meta.LenList(list) > 0 {
			return false, nil
		}
	}
	// The record of what the node's tuning has to be put back to went with the node.
	before := node.DeepCopy()
	node = before.DeepCopy()
	if controllerutil.RemoveFinalizer(node, v1alpha1.TuningFinalizer) {
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := r.Patch(ctx, node, patch, client.FieldOwner(v1alpha1.OperatorFieldManager)); err != nil {
			return false, fmt.Errorf("remove the finalizer of NvmfNode %s: %w", node.Name, err)
		}
		if !node.DeletionTimestamp.IsZero() {
			return true, nil
		}
	}
	if err := r.Delete(ctx, node, client.Preconditions{UID: &node.UID, ResourceVersion: &node.ResourceVersion}); err != nil {
		return false, fmt.Errorf("delete NvmfNode %s: %w", node.Name, err)
	}
	log.FromContext(ctx).Info("deleted the NvmfNode: its Node is gone, and it has no replicas or snapshots")
	return true, nil
}

// lease returns the agent's lease, or nil when there is none.
func (r *Reconciler) lease(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: r.Namespace, Name: v1alpha1.AgentLeasePrefix + node}
	if err := r.Get(ctx, key, lease, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get Lease %s: %w", key, err)
	}
	return lease, nil
}

// schedulable says whether the node may get new volumes, as far as people have a say in it. A Kubernetes Node that is
// gone is not cordoned.
func (r *Reconciler) schedulable(ctx context.Context, node *v1alpha1.NvmfNode) (metav1.Condition, error) {
	kube := &corev1.Node{}
	if err := r.Get(ctx, client.ObjectKeyFromObject(node), kube, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return metav1.Condition{}, fmt.Errorf("get Node %s: %w", node.Name, err)
	}
	c := metav1.Condition{
		Type: v1alpha1.ConditionSchedulable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected,
		Message: "the node may get new volumes", LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	if reason, message := node.Unschedulable(kube.Spec.Unschedulable); reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, message
	}
	return c, nil
}

// updateConditions writes the conditions when one differs, and an Event for each whose status turns bad, or good again.
func (r *Reconciler) updateConditions(ctx context.Context, node *v1alpha1.NvmfNode, alive, schedulable, skew metav1.Condition) error {
	config := manifest.ForNodeCondition(node, alive, schedulable, skew)
	if config == nil {
		return nil
	}
	before := node.Status.Conditions
	if err := r.Status().Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the conditions of NvmfNode %s: %w", node.Name, err)
	}
	r.tell(node, meta.FindStatusCondition(before, alive.Type), alive, metav1.ConditionFalse, corev1.EventTypeWarning)
	r.tell(node, meta.FindStatusCondition(before, schedulable.Type), schedulable, metav1.ConditionFalse, corev1.EventTypeNormal)
	r.tell(node, meta.FindStatusCondition(before, skew.Type), skew, metav1.ConditionTrue, corev1.EventTypeWarning)
	return nil
}

// tell of a condition that turned bad, or good after it was something else. Bad is of a kind: what a person wanted is
// no reason for a warning.
func (r *Reconciler) tell(node *v1alpha1.NvmfNode, was *metav1.Condition, is metav1.Condition, bad metav1.ConditionStatus, kind string) {
	switch {
	case was != nil && was.Status == is.Status:
	case is.Status == bad:
		r.Recorder.Eventf(node, nil, kind, is.Reason, "Reconcile", "%s", is.Message)
	case is.Status != metav1.ConditionUnknown && was != nil:
		r.Recorder.Eventf(node, nil, corev1.EventTypeNormal, is.Reason, "Reconcile", "%s", is.Message)
	}
}
