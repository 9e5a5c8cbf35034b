// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelNodes says what a nodeSelector that matches no node asks for, and how to label a node so that it does.
func LabelNodes(selector *metav1.LabelSelector) string {
	said := "(" + metav1.FormatLabelSelector(selector) + "); label the nodes that should serve"
	if len(selector.MatchExpressions) > 0 || len(selector.MatchLabels) == 0 {
		return said
	}
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		labels = append(labels, key+"="+selector.MatchLabels[key])
	}
	return said + ": kubectl label node NODE " + strings.Join(labels, " ")
}
