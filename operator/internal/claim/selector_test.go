// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLabelNodes(t *testing.T) {
	in := []metav1.LabelSelectorRequirement{{Key: "rack", Operator: metav1.LabelSelectorOpIn, Values: []string{"1", "2"}}}
	for want, selector := range map[string]metav1.LabelSelector{
		"(a=1,b=2); label the nodes that should serve: kubectl label node NODE a=1 b=2": {MatchLabels: map[string]string{"b": "2", "a": "1"}},
		"(a=1,rack in (1,2)); label the nodes that should serve":                        {MatchLabels: map[string]string{"a": "1"}, MatchExpressions: in},
		"(<none>); label the nodes that should serve":                                   {},
	} {
		if got := LabelNodes(&selector); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
