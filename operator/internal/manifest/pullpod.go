// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// ComponentPull is the v1alpha1.ComponentLabel's value on pods that pull the target image.
	ComponentPull = "target-pull"
	// PullContainer is the name of such a pod's only container.
	PullContainer = "pull"

	pullPodPrefix = "weft-pull-"
	// nobody is the user of weft's unprivileged pods.
	nobody = 65532
)

// PullPodName is the name of the pod that pulls the target image on a node.
func PullPodName(node string) string { return fit(pullPodPrefix+node, maxPodName) }

// PullPod returns a pod that succeeds once the target image is on the node and its launcher runs there. It asks for
// nothing of the node's that a target has, may do nothing, and pulls as the target pod would: with the same image, pull
// policy and ServiceAccount, whose pull secrets it has. While it is there the kubelet keeps the image.
func (p TargetPods) PullPod(node *v1alpha1.NvmfNode) *corev1ac.PodApplyConfiguration {
	container := corev1ac.Container().
		WithName(PullContainer).
		WithImage(p.Image).
		WithCommand(launcher, "--version").
		WithResources(corev1ac.ResourceRequirements().
			WithRequests(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")}).
			WithLimits(corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")})).
		WithSecurityContext(corev1ac.SecurityContext().
			WithPrivileged(false).WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError)
	if p.ImagePullPolicy != "" {
		container.WithImagePullPolicy(p.ImagePullPolicy)
	}
	return corev1ac.Pod(PullPodName(node.Name), p.Namespace).
		WithLabels(map[string]string{
			"app.kubernetes.io/name": "weft", "app.kubernetes.io/part-of": "weft",
			v1alpha1.ComponentLabel: ComponentPull,
			TargetLabel:             node.Spec.Target,
			NodeLabel:               fit(node.Name, maxLabelValue),
		}).
		WithOwnerReferences(ownedBy(node)).
		WithSpec(unprivilegedPod(node.Name, corev1.RestartPolicyNever, container))
}

// unprivilegedPod has no rights, and stays on its node with any taint.
func unprivilegedPod(node string, restart corev1.RestartPolicy, container *corev1ac.ContainerApplyConfiguration) *corev1ac.PodSpecApplyConfiguration {
	return corev1ac.PodSpec().
		WithServiceAccountName(TargetServiceAccount).
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithPriorityClassName("system-node-critical").
		WithRestartPolicy(restart).
		WithTerminationGracePeriodSeconds(1).
		WithSecurityContext(corev1ac.PodSecurityContext().
			WithRunAsUser(nobody).WithRunAsGroup(nobody).WithRunAsNonRoot(true).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithAffinity(onNode(node)).
		WithTolerations(corev1ac.Toleration().WithOperator(corev1.TolerationOpExists)).
		WithContainers(container)
}

// PodSelector finds all pods that the operator makes: target pods, those that pull their image, and guards.
func PodSelector() (labels.Selector, error) {
	component, err := labels.NewRequirement(v1alpha1.ComponentLabel, selection.In, []string{v1alpha1.ComponentTarget, ComponentPull, ComponentGuard})
	if err != nil {
		return nil, fmt.Errorf("select the operator's pods: %w", err)
	}
	return labels.SelectorFromSet(labels.Set{"app.kubernetes.io/name": "weft"}).Add(*component), nil
}

// ownedBy makes a pod go with its NvmfNode.
func ownedBy(node *v1alpha1.NvmfNode) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("NvmfNode").
		WithName(node.Name).WithUID(node.UID).WithController(true)
}

// ImageOnNode reports whether the next target pod's image is known to be on the node: the running target pod has it, or
// a pod that pulled it has succeeded. With pull policy Always a start asks the registry again, so that only the latter
// counts. Pods that are not the node's say nothing of it. Either pod may be nil.
func (p TargetPods) ImageOnNode(node *v1alpha1.NvmfNode, target, pull *corev1.Pod) bool {
	if target != nil && metav1.IsControlledBy(target, node) && p.ImagePullPolicy != corev1.PullAlways && imageOf(target) == p.Image {
		return true
	}
	return pull != nil && metav1.IsControlledBy(pull, node) && pull.DeletionTimestamp.IsZero() &&
		pull.Status.Phase == corev1.PodSucceeded && imageOf(pull) == p.Image
}

// PullsImage reports whether the pod pulls the image that target pods have now.
func (p TargetPods) PullsImage(pull *corev1.Pod) bool { return imageOf(pull) == p.Image }

// imageOf a pod with one container.
func imageOf(pod *corev1.Pod) string {
	if len(pod.Spec.Containers) != 1 {
		return ""
	}
	return pod.Spec.Containers[0].Image
}
