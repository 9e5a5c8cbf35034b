// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
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

// healthOf reads what the agent and the operator wrote about a claimed node. What the agent
// said about an earlier plan does not count.
func healthOf(node *v1alpha1.NvmfNode, desired v1alpha1.NvmfNodeSpec) health {
	if alive := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionAgentAlive); alive != nil && alive.Status == metav1.ConditionFalse {
		return health{failing, alive.Reason, alive.Message}
	}
	if !equality.Semantic.DeepEqual(node.Spec, desired) || node.Status.ObservedGeneration < node.Generation {
		return health{pending, v1alpha1.ReasonPending, "its agent has not taken up the plan yet"}
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
	return health{failing, is.Reason, cmp.Or(is.Message, "its agent gives no message")}
}
