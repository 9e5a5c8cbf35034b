// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// pullPod of the node n for an image, in the state that the changes make.
func pullPod(image string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "weft-pull-n", OwnerReferences: []metav1.OwnerReference{{UID: "uid-of-n", Controller: new(true)}}}}
	pod.Spec.Containers = []corev1.Container{{Image: image}}
	pod.Status.Phase = corev1.PodPending
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func succeeded(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

func waitsBecause(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: manifest.PullContainer,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

func runsImage(image string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Image: image}} }
}

func TestDecidePull(t *testing.T) {
	wanted := corev1ac.Pod("weft-target-n", "weft-system").WithAnnotations(map[string]string{manifest.StartupAnnotation: "new"})
	// What an earlier look said of an image, in its own words.
	failedWith := func(image string) *metav1.Condition {
		before := view{node: nodeNamed("n"), pod: running(0, old), pull: pullPod(image, waitsBecause("ErrImagePull", "not found")), wanted: wanted}
		return new(decidePull(before, manifest.TargetPods{Image: image}).condition)
	}
	const always = corev1.PullAlways
	for name, test := range map[string]struct {
		pod, pull *corev1.Pod
		policy    corev1.PullPolicy
		was       *metav1.Condition
		act       action
		says      string
		onNode    bool
	}{
		"no pod yet":                      {nil, nil, "", nil, keep, "True/AsExpected: the next target pod pulls", false},
		"follows the plan":                {running(0), nil, "", nil, keep, "True/AsExpected: no new image", false},
		"follows the plan again":          {running(0), pullPod("r/t:v2", succeeded), "", nil, release, "True/AsExpected: no new image", true},
		"starts with the image":           {running(0, unready), pullPod("r/t:v2", succeeded), "", nil, keep, "True/AsExpected", true},
		"gone, on its way":                {nil, pullPod("r/t:v2", succeeded), "", nil, keep, "True/AsExpected", true},
		"never served":                    {running(0, old, pendingPod), nil, "", nil, keep, "True/AsExpected: the next target pod pulls", false},
		"another plan, the same image":    {running(0, old, runsImage("r/t:v2")), nil, "", nil, keep, "True/AsExpected: image r/t:v2 is present on the node", true},
		"the same, to be asked for again": {running(0, old, runsImage("r/t:v2")), nil, always, nil, create, "Unknown/Pending: image r/t:v2 is about", false},
		"another image":                   {running(0, old, runsImage("r/t:v1")), nil, "", nil, create, "Unknown/Pending: image r/t:v2 is about", false},
		"is being pulled":                 {running(0, old), pullPod("r/t:v2", waitsBecause("ContainerCreating", "")), "", nil, keep, "Unknown/Pending: image r/t:v2 is being pulled", false},
		"pulled":                          {running(0, old), pullPod("r/t:v2", succeeded), "", nil, keep, "True/AsExpected: image r/t:v2 is present on the node", true},
		"an earlier one was pulled":       {running(0, old), pullPod("r/t:v1", succeeded), "", nil, release, "Unknown/Pending", false},
		"cannot be pulled": {running(0, old), pullPod("r/t:v2", waitsBecause("ErrImagePull", "not\nfound")), "", nil, keep,
			"False/ImagePullFailed: the target pod is not replaced, because image r/t:v2 cannot be pulled on the node (ErrImagePull): not found", false},
		"still not": {running(0, old), pullPod("r/t:v2", waitsBecause("ImagePullBackOff", "Back-off")), "", failedWith("r/t:v2"), keep,
			"False/ImagePullFailed: the target pod is not replaced, because image r/t:v2 cannot be pulled on the node (ErrImagePull): not found", false},
		"tried again":        {running(0, old), nil, "", failedWith("r/t:v2"), create, "False/ImagePullFailed: the target pod is not replaced, because image r/t:v2 cannot", false},
		"another one failed": {running(0, old), nil, "", failedWith("r/t:v1"), create, "Unknown/Pending: image r/t:v2 is about", false},
		"does not run":       {running(0, old), pullPod("r/t:v2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), "", nil, replaceFailed, "False/ImageUnusable: the target pod is not replaced, because image r/t:v2", false},
		"somebody else's":    {running(0, old), pullPod("r/t:v2", succeeded, foreign), "", nil, keep, "False/ImagePullFailed: pod weft-pull-n does not belong to weft", false},
		"the pod is going":   {running(0, old), pullPod("r/t:v2", succeeded, ending), "", nil, keep, "Unknown/Pending", false},
	} {
		t.Run(name, func(t *testing.T) {
			pods := manifest.TargetPods{Image: "r/t:v2", ImagePullPolicy: test.policy}
			node := nodeNamed("n")
			if test.was != nil {
				node.Status.Conditions = append(node.Status.Conditions, *test.was)
			}
			v := view{node: node, pod: test.pod, pull: test.pull, wanted: wanted}
			p := decidePull(v, pods)
			if says := string(p.condition.Status) + "/" + p.condition.Reason + ": " + p.condition.Message; p.act != test.act || !strings.HasPrefix(says, test.says) {
				t.Errorf("%s, %q; want %s, %q", p.act, says, test.act, test.says)
			}
			if is := pods.ImageOnNode(node, test.pod, test.pull); is != test.onNode {
				t.Errorf("the image is on the node: %v, want %v", is, test.onNode)
			}
		})
	}
	engine := view{node: nodeNamed("n"), pull: pullPod("r/t:v2")}
	if p := decidePull(engine, manifest.TargetPods{}); p.act != release || p.condition.Reason != v1alpha1.ReasonNotNeeded {
		t.Errorf("without a target pod: %s, %s", p.act, p.condition.Reason)
	}
}
