// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// pulling is what to do about the pod that pulls the target image, and the condition TargetImageReady.
type pulling struct {
	// act is keep, create, release (it is not needed any more), or replaceFailed.
	act       action
	condition metav1.Condition
	again     time.Duration
}

// decidePull is pure. A target pod that serves is replaced only once the image of the next one is on its node, so that
// image is pulled beside it. What was pulled stays until the next target pod serves: the kubelet keeps the images of
// pods that are there.
func decidePull(v view, pods manifest.TargetPods) pulling {
	p := pull(v, pods)
	was := meta.FindStatusCondition(v.node.Status.Conditions, v1alpha1.ConditionTargetImageReady)
	if p.condition.Status == metav1.ConditionUnknown && failedBefore(was, pods.Image) {
		p.condition = imageMissing(was.Reason, was.Message) // it is tried again, and failed when it was tried last
	}
	return p
}

func pull(v view, pods manifest.TargetPods) pulling {
	switch {
	case v.wanted == nil:
		return unneededPull(v, v1alpha1.ReasonNotNeeded, "the node has no target pod")
	case v.pod != nil && metav1.IsControlledBy(v.pod, v.node) && !outdated(v) && manifest.PodReady(v.pod) != nil:
		return unneededPull(v, v1alpha1.ReasonAsExpected, "no new image is needed: the target pod follows the plan")
	case v.pod == nil, !v.pod.DeletionTimestamp.IsZero(), !metav1.IsControlledBy(v.pod, v.node), !outdated(v), manifest.PodEnded(v.pod), manifest.TargetNeverServed(v.pod):
		return pulling{act: keep, condition: imageReady(v1alpha1.ReasonAsExpected, "the next target pod pulls its image itself, because no target pod is running")}
	case pods.ImageOnNode(v.node, v.pod, nil):
		return unneededPull(v, v1alpha1.ReasonAsExpected, fmt.Sprintf("image %s is present on the node: the target pod uses it", pods.Image))
	case v.pull == nil:
		return pulling{act: create, condition: imagePending("image %s is about to be pulled", pods.Image)}
	case !metav1.IsControlledBy(v.pull, v.node):
		return pulling{act: keep, again: foreignRetry, condition: imageMissing(v1alpha1.ReasonImagePullFailed,
			fmt.Sprintf("pod %s does not belong to weft; delete it so that image %s can be pulled", v.pull.Name, pods.Image))}
	case !v.pull.DeletionTimestamp.IsZero():
		return pulling{act: keep, condition: imagePending("image %s is about to be pulled", pods.Image)}
	case !pods.PullsImage(v.pull):
		return pulling{act: release, condition: imagePending("image %s is about to be pulled", pods.Image)}
	}
	return judgePull(v, pods)
}

// judgePull reads the pod that pulls the image.
func judgePull(v view, pods manifest.TargetPods) pulling {
	status := manifest.ContainerStatus(v.pull, manifest.PullContainer)
	switch {
	case pods.ImageOnNode(v.node, nil, v.pull):
		return pulling{act: keep, condition: imageReady(v1alpha1.ReasonAsExpected, fmt.Sprintf("image %s is present on the node", pods.Image))}
	case manifest.PodEnded(v.pull):
		return pulling{act: replaceFailed, condition: imageMissing(v1alpha1.ReasonImageUnusable, fmt.Sprintf(
			"%s does not work as a target image on this node: %s", notReplaced(pods.Image), whyPullEnded(v.pull, status)))}
	case status != nil && status.State.Waiting != nil && !slices.Contains(starting, status.State.Waiting.Reason):
		w := status.State.Waiting
		is := imageMissing(v1alpha1.ReasonImagePullFailed, clean(fmt.Sprintf(
			"%s cannot be pulled on the node (%s): %s", notReplaced(pods.Image), w.Reason, cmp.Or(w.Message, "the kubelet gives no details"))))
		return pulling{act: keep, condition: keepCause(v, pods, w.Reason, is)}
	}
	return pulling{act: keep, condition: imagePending("%s", clean(fmt.Sprintf("image %s is being pulled%s", pods.Image, unscheduled(v.pull))))}
}

// notReplaced begins each message about an image that failed, and failedBefore knows such a message by it: the
// condition is the only record of which image it was.
func notReplaced(image string) string {
	return "the target pod is not replaced, because image " + image
}

func failedBefore(was *metav1.Condition, image string) bool {
	return was != nil && was.Status == metav1.ConditionFalse && strings.HasPrefix(was.Message, notReplaced(image)+" ")
}

// starting are the reasons for which a container that no problems with waits.
var starting = []string{"", "ContainerCreating", "PodInitializing"}

// keepCause: between two tries the kubelet may say no more than that it waits. Then what was said before still holds.
func keepCause(v view, pods manifest.TargetPods, reason string, is metav1.Condition) metav1.Condition {
	was := meta.FindStatusCondition(v.node.Status.Conditions, v1alpha1.ConditionTargetImageReady)
	if reason == "ImagePullBackOff" && failedBefore(was, pods.Image) && was.Reason == v1alpha1.ReasonImagePullFailed {
		is.Message = was.Message
	}
	return is
}

func whyPullEnded(pod *corev1.Pod, status *corev1.ContainerStatus) string {
	end := lastEnd(status)
	switch {
	case end != nil:
		return clean(fmt.Sprintf("weft-launch --version exited with code %d (%s) %s", end.ExitCode, end.Reason, end.Message))
	case pod.Status.Reason != "":
		return clean(fmt.Sprintf("pod %s failed (%s): %s", pod.Name, pod.Status.Reason, pod.Status.Message))
	}
	return "pod " + pod.Name + " failed for an unknown reason"
}

func unscheduled(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "; pod " + pod.Name + " is not scheduled: " + cmp.Or(c.Message, c.Reason)
		}
	}
	return ""
}

// unneededPull takes a pod of the node's away that pulled an image.
func unneededPull(v view, reason, message string) pulling {
	p := pulling{act: keep, condition: imageReady(reason, message)}
	if v.pull != nil && v.pull.DeletionTimestamp.IsZero() && metav1.IsControlledBy(v.pull, v.node) {
		p.act = release
	}
	return p
}

func imageReady(reason, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionTargetImageReady, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func imageMissing(reason, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionTargetImageReady, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func imagePending(format string, args ...any) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionTargetImageReady, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonPending, Message: fmt.Sprintf(format, args...),
	}
}

// actPull does what was decided about the pod that pulls the image. That needs no second look: it disturbs nothing.
func (r *Reconciler) actPull(ctx context.Context, v view, p pulling) (time.Duration, error) {
	switch p.act {
	case keep:
		return p.again, nil
	case create:
		pod := r.Pods.PullPod(v.node)
		if err := r.Apply(ctx, pod, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
			return 0, fmt.Errorf("create the pod that pulls the target image on node %s: %w", v.node.Name, err)
		}
		log.FromContext(ctx).Info("pulling the target image on the node", "target", v.node.Spec.Target, "image", r.Pods.Image)
		return 0, nil
	case replaceFailed:
		id, now := "pull/"+v.node.Name, r.Clock.Now()
		if r.failures.IsInBackOffSinceUpdate(id, now) {
			return r.failures.Get(id), nil
		}
		r.failures.Next(id, now)
	}
	if err := r.Delete(ctx, v.pull, client.Preconditions{UID: &v.pull.UID}); err != nil {
		return 0, fmt.Errorf("delete the pod that pulls the target image on node %s: %w", v.node.Name, err)
	}
	return 0, nil
}
