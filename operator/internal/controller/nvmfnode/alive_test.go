// SPDX-License-Identifier: Apache-2.0

package nvmfnode

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	lease := func(age time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			RenewTime: new(metav1.NewMicroTime(now.Add(-age))), LeaseDurationSeconds: new(int32(40)),
		}}
	}
	tests := map[string]struct {
		lease  *coordinationv1.Lease
		status metav1.ConditionStatus
		reason string
		says   string
		again  time.Duration
	}{
		"no lease":                           {nil, metav1.ConditionUnknown, v1alpha1.ReasonAgentSilent, "has no Lease", 0},
		"never renewed":                      {&coordinationv1.Lease{}, metav1.ConditionUnknown, v1alpha1.ReasonAgentSilent, "has no Lease", 0},
		"just renewed":                       {lease(0), metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "renews", 41 * time.Second},
		"about to run out":                   {lease(39 * time.Second), metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "renews", 2 * time.Second},
		"ran out this moment":                {lease(40 * time.Second), metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "since 2026-11-20T07:59:20Z", 0},
		"ran out long ago":                   {lease(time.Hour), metav1.ConditionFalse, v1alpha1.ReasonAgentSilent, "since 2026-11-20T07:00:00Z", 0},
		"the node's clock is a little ahead": {lease(-3 * time.Second), metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "renews", 44 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, again := judge("n1", test.lease, now)
			if c.Type != v1alpha1.ConditionAgentAlive || c.Status != test.status || c.Reason != test.reason || again != test.again {
				t.Errorf("got %s=%s/%s, again after %s", c.Type, c.Status, c.Reason, again)
			}
			if !strings.Contains(c.Message, test.says) {
				t.Errorf("message %q does not say %q", c.Message, test.says)
			}
		})
	}
}
