// SPDX-License-Identifier: Apache-2.0

package nvmfnode

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestJudgeSkew(t *testing.T) {
	now := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		operator, agent string
		status          metav1.ConditionStatus
		reason, says    string
	}{
		"the same":              {"0.1.0", "0.1.0", metav1.ConditionFalse, v1alpha1.ReasonAsExpected, "0.1.0 works with"},
		"during an upgrade":     {"0.2.0", "0.1.4", metav1.ConditionFalse, v1alpha1.ReasonAsExpected, "0.1.4 works with the operator's, 0.2.0"},
		"an upgrade too far":    {"0.3.0", "0.1.4", metav1.ConditionTrue, v1alpha1.ReasonVersionSkew, "version 0.1.4 and the operator 0.3.0, which are not supported together"},
		"a rollback too far":    {"0.1.0", "0.3.0", metav1.ConditionTrue, v1alpha1.ReasonVersionSkew, "not supported together"},
		"it never said":         {"0.1.0", "", metav1.ConditionUnknown, v1alpha1.ReasonPending, "has not reported"},
		"a development build":   {"development", "0.1.0", metav1.ConditionFalse, v1alpha1.ReasonAsExpected, "not compared"},
		"an agent of one's own": {"0.1.0", "mine", metav1.ConditionFalse, v1alpha1.ReasonAsExpected, "not compared"},
	} {
		t.Run(name, func(t *testing.T) {
			c := judgeSkew(test.operator, test.agent, now)
			if c.Type != v1alpha1.ConditionVersionSkew || c.Status != test.status || c.Reason != test.reason || !strings.Contains(c.Message, test.says) {
				t.Errorf("got %+v", c)
			}
		})
	}
}
