// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	corev1 "k8s.io/api/core/v1"
)

// PodReady returns the pod's condition Ready when it is True and the pod is not ending, else nil.
func PodReady(pod *corev1.Pod) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && pod.DeletionTimestamp.IsZero() {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// PodEnded reports that the kubelet starts nothing in the pod again. It was evicted, or refused by the kubelet, or has
// done its work.
func PodEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// TargetNeverServed reports that nothing is lost when the target pod goes. It was not started yet (what it asks for may
// not be there), or its target ends again and again. A target that crashed once is not meant:
// the kubelet has it back in place sooner than any other pod could be there.
func TargetNeverServed(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "" {
		return true
	}
	c := ContainerStatus(pod, TargetContainer)
	return c != nil && c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff"
}

// ContainerStatus returns the status of a pod's container, or nil as long as there is none.
func ContainerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}
