// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// healthState of a claimed node.
type healthState string

const (
	// ready: the agent says that the node serves the plan it has now, and is alive.
	ready healthState = "ready"
	// pending: a live agent is about to take up the plan.
	pending healthState = "pending"
	// failing: neither; reason and message say why.
	failing healthState = "failing"
)

type health struct {
	state           healthState
	reason, message string
}

// healthOf reads what the agent and the operator wrote about a claimed node. What they
// said about an earlier plan does not count. Why a target pod does not run explains what the agent
// can only see as an engine that does not answer, so it goes first.
func healthOf(node *v1alpha1.NvmfNode, desired v1alpha1.NvmfNodeSpec) health {
	if alive := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionAgentAlive); alive != nil && alive.Status == metav1.ConditionFalse {
		return health{failing, alive.Reason, alive.Message}
	}
	if manifest.ForNodeSpec(node, desired) != nil { // what a person wishes of the node is no part of the plan
		return health{pending, v1alpha1.ReasonPending, "its agent has not applied the plan yet"}
	}
	if h := podHealth(node); h.state != ready {
		return h
	}
	if node.Status.ObservedGeneration < node.Generation {
		return health{pending, v1alpha1.ReasonPending, "its agent has not applied the plan yet"}
	}
	is := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case is == nil:
		return health{pending, v1alpha1.ReasonPending, "its agent has not reported condition Ready yet"}
	case is.Status == metav1.ConditionTrue:
		return health{ready, is.Reason, is.Message}
	case is.Reason == v1alpha1.ReasonPending:
		return health{pending, is.Reason, is.Message}
	}
	return health{failing, is.Reason, cmp.Or(is.Message, "its agent reports no message")}
}

// podHealth is how the node's target pod does; an engine without one is ready as far as pods go.
func podHealth(node *v1alpha1.NvmfNode) health {
	if node.Spec.Plan == nil || node.Spec.Plan.SPDK == nil {
		return health{state: ready}
	}
	pod := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionTargetPodReady)
	switch {
	case pod == nil || pod.ObservedGeneration < node.Generation:
		return health{pending, v1alpha1.ReasonPending, "its target pod has not been checked yet"}
	case pod.Status == metav1.ConditionTrue:
		return health{ready, pod.Reason, pod.Message}
	case pod.Reason == v1alpha1.ReasonPodPending || pod.Reason == v1alpha1.ReasonPodNotReady:
		return health{pending, pod.Reason, pod.Message}
	}
	return health{failing, pod.Reason, pod.Message}
}

// untuned is why the node's tuning is not as asked for; nil when it is, or when its agent has not come to it yet.
func untuned(node *v1alpha1.NvmfNode) *metav1.Condition {
	is := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionTuned)
	if is == nil || is.Status == metav1.ConditionTrue || is.Reason == v1alpha1.ReasonPending {
		return nil
	}
	return is
}
