// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// action on a node's target pod.
type action string

const (
	// keep what there is, be it a pod or none.
	keep action = "keep"
	// create the pod: there is none.
	create action = "create"
	// release: the pod is not needed any more.
	release action = "release"
	// replaceFailed: the pod ended for good, and will not start again by itself.
	replaceFailed action = "replaceFailed"
	// replaceOutdated: the pod follows an earlier plan, and may go now.
	replaceOutdated action = "replaceOutdated"
	// roll: the pod follows an earlier plan, and may go when it is its turn.
	roll action = "roll"
)

// decision is what to do, and the condition TargetPodReady as it is before it is done.
type decision struct {
	act       action
	condition metav1.Condition
	// again is after how long to decide again when nothing happens before; 0: not at all.
	again time.Duration
}

// foreignRetry is how often a pod is looked at that has the node's target pod's name, and
// is not weft's: its end need not be noticed otherwise.
const foreignRetry = time.Minute

// decide is pure, and total over the states of a pod.
func decide(v view) decision {
	switch {
	case v.wanted == nil:
		return decideUnneeded(v)
	case v.pod == nil:
		return decision{act: create, condition: notReady(v1alpha1.ReasonPodPending, "creating the target pod")}
	case !metav1.IsControlledBy(v.pod, v.node):
		return decision{act: keep, again: foreignRetry, condition: notReady(v1alpha1.ReasonPodPending,
			fmt.Sprintf("pod %s does not belong to weft; delete it so that the operator can create the target pod", v.pod.Name))}
	case !v.pod.DeletionTimestamp.IsZero():
		return decision{act: keep, condition: notReady(v1alpha1.ReasonPodNotReady, "the target pod is terminating; a new one will be created")}
	case manifest.PodEnded(v.pod):
		return decision{act: replaceFailed, condition: condition(v.pod)}
	}
	is := condition(v.pod)
	switch {
	case !outdated(v):
		return decision{act: keep, condition: is}
	case manifest.TargetNeverServed(v.pod):
		return decision{act: replaceOutdated, condition: is}
	case v.strategy.Type == v1alpha1.UpdateRollingUpdate:
		return decision{act: roll, condition: is}
	}
	return decision{act: keep, condition: markOutdated(is, "delete pod "+v.pod.Name+" when a short I/O pause of its volumes is acceptable")}
}

// decideUnneeded: a pod that is not wanted goes once no data lies on the node. An NvmfNode without a plan
// may be about to get one back.
func decideUnneeded(v view) decision {
	message := "no target claims the node"
	if v.node.Spec.Plan != nil {
		message = fmt.Sprintf("engine %s has no target pod", v.node.Spec.Plan.Engine)
	}
	d := decision{act: keep, condition: metav1.Condition{
		Type: v1alpha1.ConditionTargetPodReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNotNeeded, Message: message,
	}}
	if v.pod != nil && !v.holdsData && v.pod.DeletionTimestamp.IsZero() && metav1.IsControlledBy(v.pod, v.node) {
		d.act = release
	}
	return d
}

func outdated(v view) bool {
	return v.pod.Annotations[manifest.StartupAnnotation] != v.wanted.Annotations[manifest.StartupAnnotation]
}

// markOutdated says of a pod that is ready that it is outdated, and how that ends. What keeps a pod from
// being ready matters more.
func markOutdated(is metav1.Condition, how string) metav1.Condition {
	if is.Status != metav1.ConditionTrue {
		return is
	}
	is.Reason = v1alpha1.ReasonPodOutdated
	is.Message = "the target is serving with an outdated plan or image: " + how
	return is
}

// condition reads a pod that is not ending.
func condition(pod *corev1.Pod) metav1.Condition {
	status := manifest.ContainerStatus(pod, manifest.TargetContainer)
	last := lastEnd(status)
	switch {
	case manifest.PodEnded(pod):
		return failed(pod, last)
	case manifest.PodReady(pod) != nil:
		return metav1.Condition{
			Type: v1alpha1.ConditionTargetPodReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected, Message: "the target pod is ready",
		}
	case last != nil: // also while it is being tried again: the reason stays until it works
		return failed(pod, last)
	case status != nil && status.State.Running != nil:
		return notReady(v1alpha1.ReasonPodNotReady, "the target is running, but does not answer (yet)")
	}
	return notReady(v1alpha1.ReasonPodPending, pendingBecause(pod, status))
}

// pendingBecause tells what the scheduler or the kubelet says of a pod that was not started yet.
func pendingBecause(pod *corev1.Pod, status *corev1.ContainerStatus) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return clean("the target pod is not scheduled: " + cmp.Or(c.Message, c.Reason))
		}
	}
	if status != nil && status.State.Waiting != nil && status.State.Waiting.Message != "" {
		return clean(fmt.Sprintf("the target pod is not started (%s): %s", status.State.Waiting.Reason, status.State.Waiting.Message))
	}
	return "the target pod is not started yet"
}

func notReady(reason, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionTargetPodReady, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}
