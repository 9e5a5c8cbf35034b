// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// notice is an Event to be.
type notice struct {
	kind, reason, message string
	// node it is about; "" when it is about the target as a whole.
	node string
}

// eventsFor compares two states of the status. The status is the memory: an
// operator that restarts repeats nothing, and of the nodes that are not capable those beyond
// the list's bound have no Event.
func eventsFor(before, after v1alpha1.NvmfTargetStatus) []notice {
	var notices []notice
	for _, n := range after.NotCapable {
		if !slices.Contains(before.NotCapable, n) {
			notices = append(notices, notice{kind: corev1.EventTypeWarning, reason: n.Reason, message: n.Node + ": " + n.Message, node: n.Node})
		}
	}
	for _, c := range after.Conditions {
		was := meta.FindStatusCondition(before.Conditions, c.Type)
		if was != nil && was.Status == c.Status && was.Reason == c.Reason {
			continue
		}
		if kind := eventType(c); kind != "" && !slices.ContainsFunc(notices, func(n notice) bool { return n.node == "" && n.reason == c.Reason }) {
			notices = append(notices, notice{kind: kind, reason: c.Reason, message: c.Message})
		}
	}
	return notices
}

// eventType of a condition that changed; "" for changes nobody needs to be told
// of: what ends being degraded or under way shows in Ready.
func eventType(c metav1.Condition) string {
	switch c.Type {
	case v1alpha1.ConditionReady:
		if c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.ReasonPending || c.Reason == v1alpha1.ReasonDeleting {
			return corev1.EventTypeNormal
		}
		return corev1.EventTypeWarning
	case v1alpha1.ConditionDegraded:
		if c.Status == metav1.ConditionTrue && c.Reason != v1alpha1.ReasonPending {
			return corev1.EventTypeWarning
		}
	case v1alpha1.ConditionAuthenticationReady:
		if c.Status == metav1.ConditionFalse {
			return corev1.EventTypeWarning
		}
	case v1alpha1.ConditionProgressing:
		switch c.Reason {
		case v1alpha1.ReasonVolumesRemain:
			return corev1.EventTypeWarning
		case v1alpha1.ReasonUpdating, v1alpha1.ReasonRolloutPaused, v1alpha1.ReasonWaitingForTurn:
			return corev1.EventTypeNormal
		}
	}
	return ""
}

func (r *Reconciler) emit(target *v1alpha1.NvmfTarget, notices []notice) {
	for _, n := range notices {
		// The recorder takes Events of one reason about one object for a
		// series unless they name different related objects.
		var related runtime.Object
		if n.node != "" {
			related = &corev1.Node{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: n.node},
			}
		}
		r.Recorder.Eventf(target, related, n.kind, n.reason, "Reconcile", "%s", text.Clip(n.message, text.MaxEventNote))
	}
}
