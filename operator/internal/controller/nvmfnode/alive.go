// SPDX-License-Identifier: Apache-2.0

package nvmfnode

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// judge says whether the agent that renews the lease is alive at the given time, and after
// how long to ask again when nothing happens before (0: not at all).
//
//   - True: the lease holds.
//   - False: it ran out. The message says since when, and does not change
//     while the agent stays silent.
//   - Unknown: there is no lease, or it was never renewed. An agent that never
//     spoke is not one that fell silent.
func judge(node string, lease *coordinationv1.Lease, now time.Time) (metav1.Condition, time.Duration) {
	c := metav1.Condition{
		Type:               v1alpha1.ConditionAgentAlive,
		LastTransitionTime: metav1.NewTime(now),
	}
	if lease == nil || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonAgentSilent
		c.Message = fmt.Sprintf("the agent of node %s has no Lease; check that a weft-agent pod runs on the node", node)
		return c, 0
	}
	renewed := lease.Spec.RenewTime.Time
	left := renewed.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second).Sub(now)
	if left <= 0 {
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonAgentSilent
		c.Message = fmt.Sprintf("the agent of node %s has not renewed its Lease since %s; existing volumes may still be served, but nothing can change on the node; "+
			"check that the node is up and that its weft-agent pod runs", node, renewed.UTC().Format(time.RFC3339))
		return c, 0
	}
	c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "the agent renews its Lease"
	// Just after the end, so that the answer is then a different one.
	return c, left + time.Second
}
