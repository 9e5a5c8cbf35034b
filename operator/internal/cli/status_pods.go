// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// podGrace within which a pod of weft need not be Ready.
const podGrace = time.Minute

// unreadyPod is a pod of weft that is not Ready.
type unreadyPod struct {
	pod   *corev1.Pod
	since time.Time
	// why, after a colon; "" if nothing says it.
	why string
}

// readPods of weft that are not Ready, and with which target pods it is because of their image.
func (s *status) readPods(ctx context.Context, api client.Reader) {
	var pods corev1.PodList
	s.read(ctx, api, "weft's pods", &pods, client.MatchingLabels{"app.kubernetes.io/name": "weft"})
	s.imageless = map[string]string{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		component := pod.Labels[v1alpha1.ComponentLabel]
		isTarget := component == v1alpha1.ComponentTarget
		if !isTarget && !slices.Contains(scrapedComponents, component) || pod.DeletionTimestamp != nil || manifest.PodEnded(pod) || manifest.PodReady(pod) != nil {
			continue
		}
		if container, why := lacksImage(pod); container != "" && isTarget {
			s.imageless[pod.Spec.NodeName] = why
			continue
		}
		since := pod.CreationTimestamp.Time
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && !c.LastTransitionTime.IsZero() {
				since = c.LastTransitionTime.Time
			}
		}
		if s.now.Sub(since) >= podGrace {
			s.unready = append(s.unready, unreadyPod{pod: pod, since: since})
		}
	}
}

// explainPods says why the pods that will be told are not Ready: what their images, the scheduler or the newest Warning
// Event tell, else what a container waits for.
func (s *status) explainPods(ctx context.Context, api client.Reader) {
	readable := true
	for i := range s.unready[:min(len(s.unready), maxProblemVolumes)] {
		u := &s.unready[i]
		if container, why := lacksImage(u.pod); container != "" {
			u.why = fmt.Sprintf(": the image of container %s cannot be pulled: %s", container, why)
			continue
		}
		waiting := reportPod(u.pod).Waiting
		if readable && unscheduled(u.pod) == "" {
			var events corev1.EventList
			readable = s.read(ctx, api, "Events of weft's pods", &events, client.InNamespace(u.pod.Namespace), client.MatchingFields{eventsOf: string(u.pod.UID)})
			waiting = cmp.Or(newestWarning(events.Items), waiting)
		}
		u.why = of(":", waiting)
	}
}

// newestWarning of Events; "" if there is none.
func newestWarning(events []corev1.Event) string {
	for _, e := range slices.Backward(telling(events)) {
		if e.Type == corev1.EventTypeWarning {
			return e.Reason + ": " + oneLine(e.Message)
		}
	}
	return ""
}

// podProblems are told of the first pods that are not Ready.
func (s *status) podProblems(concern func(target, node string) bool) []string {
	var all [][]string
	for _, u := range s.unready {
		if concern("", u.pod.Spec.NodeName) {
			all = append(all, []string{fmt.Sprintf("pod %s/%s on node %s is not Ready for %s%s", u.pod.Namespace, u.pod.Name, orUnknown(u.pod.Spec.NodeName),
				duration.HumanDuration(s.now.Sub(u.since)), u.why)})
		}
	}
	return firstFew(all, "pods of weft that are not Ready (kubectl get pods -A -l app.kubernetes.io/name=weft)")
}

// follows says of a condition whether it is so only because the node's target pod does not start for lack of its image.
func (s *status) follows(node string, c metav1.Condition) bool {
	return s.imageless[node] != "" && (c.Type == v1alpha1.ConditionTargetPodReady || c.Reason == v1alpha1.ReasonEngineNotAnswering)
}

// notFollowing are the conditions but those that follow.
func (s *status) notFollowing(node string, conditions []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(conditions), func(c metav1.Condition) bool { return s.follows(node, c) })
}

// imageProblem of a node's target pod, with the number of the conditions that follow from it.
func (s *status) imageProblem(n *v1alpha1.NvmfNode) []string {
	image := s.imageless[n.Name]
	if image == "" {
		return nil
	}
	conditions := amiss(relevant(*n))
	for i := range s.replicas {
		if s.replicas[i].Spec.Node == n.Name {
			conditions = append(conditions, amiss(s.replicas[i].Status.Conditions)...)
		}
	}
	left := len(slices.DeleteFunc(conditions, func(c metav1.Condition) bool { return !s.follows(n.Name, c) }))
	said := fmt.Sprintf("NvmfNode %s: the target pod does not start, because its image cannot be pulled: %s; set target.image in the chart's values, see %s", n.Name, image, pageTargetImage)
	if left > 0 {
		said += fmt.Sprintf(" (conditions of the node and its replicas that follow from it, not listed: %d)", left)
	}
	return []string{said}
}

// reasonsOfImages are those of a container that waits because of its image.
var reasonsOfImages = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}

// lacksImage says which container of a pod waits for its image, and why; "" if none does.
func lacksImage(pod *corev1.Pod) (container, why string) {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && slices.Contains(reasonsOfImages, w.Reason) {
			return c.Name, oneLine(cmp.Or(w.Message, w.Reason))
		}
	}
	return "", ""
}

// unscheduled says why the scheduler has no node for a pod; "" if it has one.
func unscheduled(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return strings.TrimSpace(c.Reason + ": " + c.Message)
		}
	}
	return ""
}
