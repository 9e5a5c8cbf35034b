// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/weft-storage/weft/operator/internal/manifest"
)

// applied is what an apply configuration makes of an empty object.
func applied[T any](t *testing.T, config any) *T {
	t.Helper()
	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	o := new(T)
	if err := json.Unmarshal(data, o); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestAGuardPodHasNoRightsAndStaysOnItsNode(t *testing.T) {
	guards := manifest.Guards{Namespace: "weft-system", Image: "registry.example/weft:v1", ImagePullPolicy: corev1.PullNever}
	pod := applied[corev1.Pod](t, guards.Pod(node()))
	spec, container := pod.Spec, pod.Spec.Containers[0]
	if *spec.AutomountServiceAccountToken || !*spec.SecurityContext.RunAsNonRoot || spec.HostNetwork || spec.HostPID || len(spec.Volumes) > 0 {
		t.Errorf("the pod has rights: %+v", spec)
	}
	if c := container.SecurityContext; *c.Privileged || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || len(c.Capabilities.Drop) != 1 || c.Capabilities.Drop[0] != "ALL" {
		t.Errorf("the container has rights: %+v", c)
	}
	if container.Image != guards.Image || container.ImagePullPolicy != guards.ImagePullPolicy || !guards.IsCurrent(pod) {
		t.Errorf("image %s, %s", container.Image, container.ImagePullPolicy)
	}
	guards.Image = "registry.example/weft:v2"
	if guards.IsCurrent(pod) {
		t.Error("a pod with an earlier image is current")
	}
	term := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0]
	if term.Key != metav1.ObjectNameField || term.Values[0] != "n1" {
		t.Errorf("it may run on another node: %+v", term)
	}
}

func TestABudgetIsForTheGuardAndTheTargetPodOfItsNode(t *testing.T) {
	guards := manifest.Guards{Namespace: "weft-system", Image: "registry.example/weft:v1"}
	budget := applied[policyv1.PodDisruptionBudget](t, guards.Budget(node(), false))
	if manifest.BudgetOpen(budget) || budget.Spec.MinAvailable.IntValue() != 2 {
		t.Errorf("closed: %+v", budget.Spec)
	}
	if open := applied[policyv1.PodDisruptionBudget](t, guards.Budget(node(), true)); !manifest.BudgetOpen(open) {
		t.Errorf("open: %+v", open.Spec)
	}
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := node()
	elsewhere.Name = "n2"
	for name, test := range map[string]struct {
		labels map[string]string
		want   bool
	}{
		"guard":                   {applied[corev1.Pod](t, guards.Pod(node())).Labels, true},
		"target pod":              {podOf(t, spdkNode()).Labels, true},
		"guard of another node":   {applied[corev1.Pod](t, guards.Pod(elsewhere)).Labels, false},
		"pod that pulls an image": {applied[corev1.Pod](t, pods.PullPod(spdkNode())).Labels, false},
	} {
		if got := selector.Matches(labels.Set(test.labels)); got != test.want {
			t.Errorf("%s: selected %t, want %t: %v", name, got, test.want, test.labels)
		}
	}
}
