// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

func TestAPodGoesOnlyInItsNodesTurn(t *testing.T) {
	updating := func(reason string, generation int64) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionUpdated, Status: metav1.ConditionFalse, Reason: reason, ObservedGeneration: generation}
	}
	for name, test := range map[string]struct {
		turns     []string
		paused    bool
		condition metav1.Condition
		pull      *corev1.Pod
		act       action
		says      string
	}{
		"its turn":                        {[]string{"m", "n"}, false, updating(v1alpha1.ReasonUpdating, 4), pullPod("r/t:v2", succeeded), replaceOutdated, "it is being replaced"},
		"another's turn":                  {[]string{"m"}, false, updating(v1alpha1.ReasonUpdating, 4), pullPod("r/t:v2", succeeded), keep, "see condition Updated"},
		"its turn, without the plan":      {[]string{"n"}, false, updating(v1alpha1.ReasonUpdating, 3), pullPod("r/t:v2", succeeded), keep, "see condition Updated"},
		"its turn, not told yet":          {[]string{"n"}, false, updating(v1alpha1.ReasonWaitingForTurn, 4), pullPod("r/t:v2", succeeded), keep, "see condition Updated"},
		"its turn, paused":                {[]string{"n"}, true, updating(v1alpha1.ReasonUpdating, 4), pullPod("r/t:v2", succeeded), keep, "see condition Updated"},
		"its turn, without its image":     {[]string{"n"}, false, updating(v1alpha1.ReasonUpdating, 4), pullPod("r/t:v2"), keep, "see condition TargetImageReady"},
		"its turn, with another's image":  {[]string{"n"}, false, updating(v1alpha1.ReasonUpdating, 4), pullPod("r/t:v1", succeeded), keep, "see condition TargetImageReady"},
		"its turn, and the image is gone": {[]string{"n"}, false, updating(v1alpha1.ReasonUpdating, 4), nil, keep, "see condition TargetImageReady"},
	} {
		t.Run(name, func(t *testing.T) {
			target := &v1alpha1.NvmfTarget{}
			target.Spec.UpdateStrategy = &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate, Paused: test.paused}
			target.Status.Rollout.Updating = test.turns
			node := nodeNamed("n")
			node.Generation = 4
			node.Status.Conditions = append(node.Status.Conditions, test.condition)
			d := decideRoll(view{node: node, pod: running(0, old), pull: test.pull, turn: hasTurn(target, node)}, manifest.TargetPods{Image: "r/t:v2"})
			if d.act != test.act || !strings.Contains(d.condition.Message, test.says) {
				t.Errorf("%s, %q; want %s, %q", d.act, d.condition.Message, test.act, test.says)
			}
		})
	}
}
