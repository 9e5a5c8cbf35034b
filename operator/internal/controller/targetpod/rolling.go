// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// decideRoll decides about a pod that is outdated, and that the operator may replace in its node's turn.
func decideRoll(v view, pods manifest.TargetPods) decision {
	is := condition(v.pod)
	switch {
	case !v.turn:
		return decision{act: keep, condition: markOutdated(is, "it is replaced when it is the node's turn; see condition Updated")}
	case !pods.ImageOnNode(v.node, v.pod, v.pull):
		return decision{act: keep, condition: markOutdated(is, "it is the node's turn, and the pod is replaced once its image is pulled; see condition TargetImageReady")}
	}
	return decision{act: replaceOutdated, condition: markOutdated(is, "it is being replaced")}
}

// hasTurn: nothing is paused, the NvmfTarget's status says that it is the node's turn, and the node has the plan that
// is to be carried out in it.
func hasTurn(target *v1alpha1.NvmfTarget, node *v1alpha1.NvmfNode) bool {
	is := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionUpdated)
	paused := target.Spec.UpdateStrategy != nil && target.Spec.UpdateStrategy.Paused
	return !paused && slices.Contains(target.Status.Rollout.Updating, node.Name) && is != nil &&
		is.Reason == v1alpha1.ReasonUpdating && is.ObservedGeneration == node.Generation
}
