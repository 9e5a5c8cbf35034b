// SPDX-License-Identifier: Apache-2.0

package nvmfnode

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// judgeSkew says whether the version of an agent works with the operator's. False is the quiet state.
//
//   - True: they are too far apart.
//   - False: they work together, or one of them is a development build, of which that cannot be said.
//   - Unknown: the agent never said its version.
func judgeSkew(operator, agent string, now time.Time) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionVersionSkew, LastTransitionTime: metav1.NewTime(now)}
	verdict := v1alpha1.CompareVersions(operator, agent)
	switch {
	case agent == "":
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonPending
		c.Message = "the agent has not reported its version"
	case verdict == v1alpha1.VersionsUnsupported:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonVersionSkew
		c.Message = fmt.Sprintf("the agent has version %s and the operator %s, which are not supported together; upgrade one minor version at a time, "+
			"and check that the weft-agent pod of the node is replaced", agent, operator)
	case verdict == v1alpha1.VersionsIncomparable:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonAsExpected
		c.Message = fmt.Sprintf("the versions were not compared: agent %s, operator %s", agent, operator)
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonAsExpected
		c.Message = fmt.Sprintf("the agent's version %s works with the operator's, %s", agent, operator)
	}
	return c
}
