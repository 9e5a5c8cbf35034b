// SPDX-License-Identifier: Apache-2.0

// Package targetpod gives every node whose plan is for SPDK its target pod, says in the NvmfNode how that
// does, and replaces it when its target has to be started anew.
//
// It holds these invariants:
//
//   - A node has at most one target pod: its name follows from the node's.
//   - A target that runs is ended only when its node serves nothing any more, or in the node's turn (package rollout),
//     and then not before its successor's image is on the node.
//   - Nothing is made or ended on the cache's word: the API server itself is asked once more.
package targetpod

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// A pod that failed is replaced at once, and ever more slowly while its successors fail
// too; the same times as a DaemonSet's.
const (
	firstDelay = time.Second
	mostDelay  = 15 * time.Minute
)

// Reconciler reconciles target pods, by the names of their nodes. It must run with one worker.
type Reconciler struct {
	// Client reads from the cache and writes.
	client.Client
	// Live reads from the API server.
	Live client.Reader
	// Recorder of Events.
	Recorder events.EventRecorder
	// Clock for transition times, and for how long a pod has been ready.
	Clock clock.PassiveClock
	// Pods is what all target pods have in common.
	Pods manifest.TargetPods

	// failures slow down the replacement of pods that fail one after the other. A restart
	// of the operator forgets them, and then replaces once at once.
	failures *flowcontrol.Backoff
}

// Reconcile gathers, decides and acts, for one node. What it is about to end is told first, so
// that the reason is on record.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("node", req.Name))

	v, d, err := r.look(ctx, r.Client, req.Name)
	if err == nil && v != nil && d.act != keep {
		v, d, err = r.look(ctx, r.Live, req.Name)
	}
	if v == nil || err != nil {
		return ctrl.Result{}, err
	}
	pull := decidePull(*v, r.Pods)
	if err := r.updateConditions(ctx, v.node, d.condition, pull.condition); err != nil {
		return ctrl.Result{}, manifest.IgnoreStale(ctx, err)
	}
	again, err := r.act(ctx, *v, d)
	againPull, errPull := r.actPull(ctx, *v, pull)
	return ctrl.Result{RequeueAfter: sooner(again, againPull)},
		errors.Join(manifest.IgnoreStale(ctx, err), manifest.IgnoreStale(ctx, errPull))
}

// sooner of two times; 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// look gathers and decides, from the cache or from the API server. The view is nil when there is no
// such NvmfNode: what it had goes with it.
func (r *Reconciler) look(ctx context.Context, reader client.Reader, name string) (*view, decision, error) {
	v, err := r.gather(ctx, reader, name)
	if v == nil || err != nil {
		return nil, decision{}, err
	}
	d := decide(*v)
	if d.act != roll {
		return v, d, nil
	}
	return v, decideRoll(*v, r.Pods), nil
}

// view is all that is decided from.
type view struct {
	node *v1alpha1.NvmfNode
	// pod is what has the name of the node's target pod, and pull that of the one that pulls its image; nil when there
	// is none.
	pod, pull *corev1.Pod
	// wanted pod; nil when the plan is for another engine, or there is none.
	wanted   *corev1ac.PodApplyConfiguration
	strategy v1alpha1.UpdateStrategy
	// turn: it is the node's, to be changed in a way that disturbs I/O; package rollout says when.
	turn bool
	// holdsData: replicas or snapshots lie on the node. Looked at only when a pod is there that is not wanted.
	holdsData bool
}

// gather returns nil when there is no such NvmfNode.
func (r *Reconciler) gather(ctx context.Context, reader client.Reader, name string) (*view, error) {
	v := &view{node: &v1alpha1.NvmfNode{}}
	if err := reader.Get(ctx, client.ObjectKey{Name: name}, v.node); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get NvmfNode %s: %w", name, err)
	}
	var err error
	if v.pod, err = r.pod(ctx, reader, manifest.TargetPodName(name)); err != nil {
		return nil, err
	}
	if v.pull, err = r.pod(ctx, reader, manifest.PullPodName(name)); err != nil {
		return nil, err
	}
	if !servesWithSPDK(v.node) {
		if v.pod != nil {
			v.holdsData, err = holdsData(ctx, reader, name)
		}
		return v, err
	}
	if v.wanted, err = r.Pods.Pod(v.node); err != nil {
		return nil, err
	}
	target := &v1alpha1.NvmfTarget{}
	if err := reader.Get(ctx, client.ObjectKey{Name: v.node.Spec.Target}, target); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get NvmfTarget %s: %w", v.node.Spec.Target, err)
	}
	if s := target.Spec.UpdateStrategy; s != nil {
		v.strategy = *s
	}
	v.turn = hasTurn(target, v.node)
	return v, nil
}

// pod of this name, or nil when there is none.
func (r *Reconciler) pod(ctx context.Context, reader client.Reader, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: r.Pods.Namespace, Name: name}
	if err := reader.Get(ctx, key, pod); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get Pod %s: %w", key, err)
	}
	return pod, nil
}

func servesWithSPDK(node *v1alpha1.NvmfNode) bool {
	return node.Spec.Plan != nil && node.Spec.Plan.SPDK != nil
}

// holdsData reports whether a replica or snapshot lies on the node.
func holdsData(ctx context.Context, reader client.Reader, node string) (bool, error) {
	for _, list := range []client.ObjectList{&v1alpha1.NvmfReplicaList{}, &v1alpha1.NvmfSnapshotList{}} {
		if err := reader.List(ctx, list, client.MatchingFields{"spec.node": node}, client.Limit(1)); err != nil {
			return false, fmt.Errorf("list %T of node %s: %w", list, node, err)
		}
		if meta.LenList(list) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// act does what was decided, and says after how long to come back when nothing happens before.
func (r *Reconciler) act(ctx context.Context, v view, d decision) (time.Duration, error) {
	switch d.act {
	case keep:
		return d.again, nil
	case create:
		return 0, r.create(ctx, v)
	case replaceFailed:
		now := r.Clock.Now()
		if r.failures.IsInBackOffSinceUpdate(v.node.Name, now) {
			return r.failures.Get(v.node.Name), nil
		}
		r.failures.Next(v.node.Name, now)
	}
	return 0, r.delete(ctx, v, d)
}

// create makes the pod. There is none: an apply to one that follows an earlier plan would
// write the new plan's mark on it.
func (r *Reconciler) create(ctx context.Context, v view) error {
	if err := r.Apply(ctx, v.wanted, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("create the target pod of node %s: %w", v.node.Name, err)
	}
	log.FromContext(ctx).Info("created the node's target pod", "target", v.node.Spec.Target)
	return nil
}

// delete ends the very pod that was looked at; the event of its end makes the next one.
func (r *Reconciler) delete(ctx context.Context, v view, d decision) error {
	if err := r.Delete(ctx, v.pod, client.Preconditions{UID: &v.pod.UID}); err != nil {
		return fmt.Errorf("delete the target pod of node %s: %w", v.node.Name, err)
	}
	log.FromContext(ctx).Info("deleted the node's target pod", "target", v.node.Spec.Target, "reason", d.act)
	r.Recorder.Eventf(v.node, v.pod, corev1.EventTypeNormal, deletedBecause[d.act], "Reconcile", "deleted target pod %s", v.pod.Name)
	return nil
}

// deletedBecause is the reason of the Event.
var deletedBecause = map[action]string{
	release:         v1alpha1.ReasonNotNeeded,
	replaceFailed:   v1alpha1.ReasonPodFailed,
	replaceOutdated: v1alpha1.ReasonPodOutdated,
}

// updateConditions writes those conditions that differ, and an Event where status or reason does.
func (r *Reconciler) updateConditions(ctx context.Context, node *v1alpha1.NvmfNode, conditions ...metav1.Condition) error {
	for i := range conditions {
		conditions[i].ObservedGeneration = node.Generation
		conditions[i].LastTransitionTime = metav1.NewTime(r.Clock.Now())
	}
	config := manifest.ForNodeCondition(node, conditions...)
	if config == nil {
		return nil
	}
	before := node.Status.Conditions
	if err := r.Status().Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the conditions of the target pod of NvmfNode %s: %w", node.Name, err)
	}
	for _, c := range conditions {
		if kind := eventType(meta.FindStatusCondition(before, c.Type), c); kind != "" {
			r.Recorder.Eventf(node, nil, kind, c.Reason, "Reconcile", "%s", text.Clip(c.Message, text.MaxEventNote))
		}
	}
	return nil
}

// eventType of a condition that was written; "" when nobody needs to be told.
func eventType(was *metav1.Condition, is metav1.Condition) string {
	switch {
	case was != nil && was.Status == is.Status && was.Reason == is.Reason:
		return ""
	case is.Reason == v1alpha1.ReasonNotNeeded:
		return ""
	case is.Type == v1alpha1.ConditionTargetImageReady && is.Status != metav1.ConditionFalse:
		return ""
	case is.Status == metav1.ConditionTrue, is.Reason == v1alpha1.ReasonPodPending, is.Reason == v1alpha1.ReasonPodNotReady:
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}
