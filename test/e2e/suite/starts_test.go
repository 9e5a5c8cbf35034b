// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStartsOfPods(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	after := func(seconds int) metav1.Time {
		return metav1.NewTime(created.Add(time.Duration(seconds) * time.Second))
	}
	running := func(seconds int) corev1.ContainerState {
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: after(seconds)}}
	}
	pods := []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "slow", CreationTimestamp: metav1.NewTime(created)},
		Spec:       corev1.PodSpec{NodeName: "node1"},
		Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: after(61)},
				{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: after(6)},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: running(20)}, {Name: "b", State: running(25), RestartCount: 2}},
		},
	}, {
		ObjectMeta: metav1.ObjectMeta{Name: "waits", CreationTimestamp: metav1.NewTime(created)},
		Spec:       corev1.PodSpec{NodeName: "node2"},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: after(1)}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "a"}},
		},
	}, {
		ObjectMeta: metav1.ObjectMeta{Name: "fast", CreationTimestamp: metav1.NewTime(created)},
		Spec:       corev1.PodSpec{NodeName: "node2"},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: after(9)}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "a", State: running(7)}},
		},
	}}
	const want = `waits on node2, a does not run
fast on node2, a 7s, ready 9s
slow on node1, network 6s, a 20s, b 25s after 2 restarts, ready 1m1s
`
	if got := starts(pods); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
