// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// ComponentGuard is the v1alpha1.ComponentLabel's value on guard pods and their budgets.
	ComponentGuard = "guard"
	guardPrefix    = "weft-guard-"
	// nodePods is the most pods that a node's budget selects: its guard and its target pod. A budget that needs as many
	// to stay allows no eviction, however many there are.
	nodePods = 2
)

// Guards are what all guard pods have in common. A guard pod does nothing. It is there to be evicted: while the node's
// budget refuses that, a drain of the node does not end. Agents cannot do so, because drains skip DaemonSets.
type Guards struct {
	// Namespace they are made in: the operator's own.
	Namespace string
	// Image of the operator, which the node's agent has too. Empty: there are no guards.
	Image string
	// ImagePullPolicy for it. Default: Kubernetes' own.
	ImagePullPolicy corev1.PullPolicy
}

// GuardName is the name of a node's guard pod, and of the budget that protects it and the node's target pod.
func GuardName(node string) string { return fit(guardPrefix+node, maxPodName) }

// GuardLabels are what guard pods and their budgets are found by.
func GuardLabels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: ComponentGuard}
}

func guardLabels(node string) map[string]string {
	labels := GuardLabels()
	labels["app.kubernetes.io/part-of"] = "weft"
	labels[NodeLabel] = fit(node, maxLabelValue)
	return labels
}

// Pod returns the guard pod of a node.
func (g Guards) Pod(node *v1alpha1.NvmfNode) *corev1ac.PodApplyConfiguration {
	container := corev1ac.Container().
		WithName(ComponentGuard).
		WithImage(g.Image).
		WithCommand("/usr/local/bin/weft-operator", "guard").
		WithResources(corev1ac.ResourceRequirements().
			WithRequests(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("16Mi")}).
			WithLimits(corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")})).
		WithSecurityContext(corev1ac.SecurityContext().
			WithPrivileged(false).WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError)
	if g.ImagePullPolicy != "" {
		container.WithImagePullPolicy(g.ImagePullPolicy)
	}
	return corev1ac.Pod(GuardName(node.Name), g.Namespace).
		WithLabels(guardLabels(node.Name)).
		WithOwnerReferences(ownedBy(node)).
		WithSpec(unprivilegedPod(node.Name, corev1.RestartPolicyAlways, container))
}

// IsCurrent reports whether the guard pod has the image that guard pods have now.
func (g Guards) IsCurrent(pod *corev1.Pod) bool { return imageOf(pod) == g.Image }

// Budget returns what refuses evictions of a node's guard and target pod, or, when it is open, allows them.
func (g Guards) Budget(node *v1alpha1.NvmfNode, open bool) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	needed, unhealthy := intstr.FromInt32(nodePods), policyv1.IfHealthyBudget
	if open {
		needed, unhealthy = intstr.FromInt32(0), policyv1.AlwaysAllow
	}
	return policyv1ac.PodDisruptionBudget(GuardName(node.Name), g.Namespace).
		WithLabels(guardLabels(node.Name)).
		WithOwnerReferences(ownedBy(node)).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMinAvailable(needed).
			WithUnhealthyPodEvictionPolicy(unhealthy).
			WithSelector(metav1ac.LabelSelector().
				WithMatchLabels(map[string]string{"app.kubernetes.io/name": "weft", NodeLabel: fit(node.Name, maxLabelValue)}).
				WithMatchExpressions(metav1ac.LabelSelectorRequirement().
					WithKey(v1alpha1.ComponentLabel).WithOperator("In").WithValues(ComponentGuard, v1alpha1.ComponentTarget))))
}

// BudgetOpen reports whether a node's budget allows evictions.
func BudgetOpen(budget *policyv1.PodDisruptionBudget) bool {
	return budget.Spec.MinAvailable != nil && budget.Spec.MinAvailable.IntValue() == 0
}
