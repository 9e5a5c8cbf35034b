// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// settle is how long a target pod must have been ready, and tuning been written, before a node is taken to serve. A
	// target answers before it is filled again, and its agent needs a moment to see that it came back empty; a
	// link that is reset needs one to come up again, and the agent one to see that it did not.
	settle = 10 * time.Second
	// AbsentAfter is how long a node's agent is silent, or its Node not Ready, before the others go on without it. A
	// machine that crashed or was moved to another rack is back before that; one that is gone for weeks must not hold
	// up the fleet.
	AbsentAfter = time.Hour
)

func alive(node *v1alpha1.NvmfNode) bool {
	return meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionAgentAlive)
}

// absent: the node's agent has been silent, or its Node not Ready, for longer than AbsentAfter. It also says when that
// will be so.
func absent(n *Node, now time.Time) (bool, time.Duration) {
	since := n.NotReadySince
	is := meta.FindStatusCondition(n.Nvmf.Status.Conditions, v1alpha1.ConditionAgentAlive)
	if is != nil && is.Status != metav1.ConditionTrue && (since.IsZero() || is.LastTransitionTime.Time.Before(since)) {
		since = is.LastTransitionTime.Time
	}
	if since.IsZero() {
		return false, 0
	}
	left := AbsentAfter - now.Sub(since)
	return left <= 0, max(0, left)
}

// unwell says why it cannot be said that the node serves as the plan that it has says, "" when it can; and after
// which time it will, when time is all that is missing. What was said of an earlier plan does not count.
func unwell(n *Node, now time.Time) (string, time.Duration) {
	node := n.Nvmf
	if !alive(node) {
		return "its agent is silent", 0
	}
	if !n.NotReadySince.IsZero() {
		return "its Node is not Ready", 0
	}
	if n.HasPods {
		if n.ReadySince.IsZero() {
			return "its target pod is not ready", 0
		}
		if left := settle - now.Sub(n.ReadySince); left > 0 {
			return "its target pod has just become ready", left
		}
	}
	if node.Status.ObservedGeneration < node.Generation {
		return "its agent has not applied its plan yet", 0
	}
	if is := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionReady); is == nil {
		return "its agent has not reported condition Ready", 0
	} else if is.Status != metav1.ConditionTrue {
		return fmt.Sprintf("Ready is %s (%s: %s)", is.Status, is.Reason, is.Message), 0
	}
	return untuned(node, now)
}

// untuned: the settings of the plan's tuning were not tried yet, or a moment ago, or a link that they were written to
// is down. A setting that was refused keeps nobody from serving: the NvmfTarget is Degraded for that.
func untuned(node *v1alpha1.NvmfNode, now time.Time) (string, time.Duration) {
	is := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionTuned)
	if is == nil && node.Status.Tuning == nil && len(linkSettings(node.Spec.Plan)) == 0 {
		return "", 0 // nothing was ever asked for
	}
	if is == nil || is.ObservedGeneration < node.Generation || is.Status == metav1.ConditionUnknown {
		return "its agent has not written its tuning yet", 0
	}
	if left := settle - now.Sub(is.LastTransitionTime.Time); left > 0 {
		return "its tuning has just been written", left
	}
	if node.Status.Inventory != nil {
		carries := map[string]bool{}
		for _, s := range linkSettings(node.Spec.Plan) {
			carries[nicOf(s.Setting)] = true
		}
		for _, nic := range node.Status.Inventory.NICs {
			if carries[nic.Name] && !nic.Up {
				return "the link of " + nic.Name + " is down", 0
			}
		}
	}
	return "", 0
}
