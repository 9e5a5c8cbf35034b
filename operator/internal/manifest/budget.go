// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// BudgetName is the name of the PodDisruptionBudget of a target's pods.
func BudgetName(target string) string { return fit(v1alpha1.TargetPodPrefix+target, maxPodName) }

// Budget returns what lets evictions take one of the target's pods at a time, when it has
// the given number of them, or nil when the budget that exists says so; nil for none.
//
// It is counted here, because maxUnavailable works only for pods whose owner has a scale, which an NvmfNode has not.
func (p TargetPods) Budget(target *v1alpha1.NvmfTarget, exists *policyv1.PodDisruptionBudget, pods int) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	healthy := intstr.FromInt(max(0, pods-1))
	selector := TargetPodLabels()
	selector[TargetLabel] = target.Name
	if exists != nil && exists.Spec.MinAvailable != nil && *exists.Spec.MinAvailable == healthy &&
		exists.Spec.Selector != nil && equality.Semantic.DeepEqual(exists.Spec.Selector.MatchLabels, selector) {
		return nil
	}
	labels := TargetPodLabels()
	labels["app.kubernetes.io/part-of"] = "weft"
	labels[TargetLabel] = target.Name
	return policyv1ac.PodDisruptionBudget(BudgetName(target.Name), p.Namespace).
		WithLabels(labels).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("NvmfTarget").
			WithName(target.Name).WithUID(target.UID).WithController(true)).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMinAvailable(healthy).
			// A pod that does not serve loses nothing by moving out of a drain's way.
			WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(selector)))
}
