// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/internal/text"
)

// Actions that Events speak of.
const (
	actionReconcile = "Reconcile"
	actionReport    = "Report"
)

// reasonOrphans is the Event about things in the engine that have no object. No
// condition goes with it: the node serves all the same.
const reasonOrphans = "OrphansFound"

// reasonDropped and reasonNotDropped are the Events about drives that a person gave up.
const (
	reasonDropped    = "DriveDropped"
	reasonNotDropped = "DriveNotDropped"
)

// changedDrops writes an Event for each drive that was dropped just now, or of which something else is to be said: why
// it is not dropped, or that it is back.
func (r *Reconciler) changedDrops(node runtime.Object, before, after []v1alpha1.DroppedDriveStatus) {
	for _, is := range after {
		var was v1alpha1.DroppedDriveStatus
		if at := slices.IndexFunc(before, func(d v1alpha1.DroppedDriveStatus) bool { return d.ID == is.ID }); at >= 0 {
			was = before[at]
		}
		switch {
		case is.Dropped && !was.Dropped:
			r.warn(node, reasonDropped, fmt.Sprintf("drive %s and its data were given up; %s", is.ID, is.Message))
		case is.Message != was.Message && is.Message != "" && is.Dropped:
			r.warn(node, reasonDropped, fmt.Sprintf("drive %s: %s", is.ID, is.Message))
		case is.Message != was.Message && is.Message != "":
			r.warn(node, reasonNotDropped, fmt.Sprintf("drive %s: %s", is.ID, is.Message))
		}
	}
}

// changedConditions writes an Event for each of the conditions whose reason became another, with that reason: for what
// is wrong, and for Ready when what was wrong is mended. A step on the way (Pending, Deleting) is not worth one, nor is
// what went well at once: a thousand new volumes would be a thousand Events.
func (r *Reconciler) changedConditions(obj runtime.Object, before, after []metav1.Condition, types ...string) {
	for _, t := range types {
		is, was := meta.FindStatusCondition(after, t), meta.FindStatusCondition(before, t)
		if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
			continue
		}
		switch {
		case is.Status == metav1.ConditionUnknown && (t == v1alpha1.ConditionRestartNeeded || t == v1alpha1.ConditionRestoreSuspected || t == v1alpha1.ConditionQoSApplied || t == v1alpha1.ConditionBuffersSufficient ||
			t == v1alpha1.ConditionWritesDurable && is.Reason != v1alpha1.ReasonWriteCacheUnknown):
			// Ready says why.
		case is.Reason == v1alpha1.ReasonPending || is.Reason == v1alpha1.ReasonDeleting:
		case is.Status != v1alpha1.QuietStatus(t):
			r.warn(obj, is.Reason, fmt.Sprintf("%s is %s: %s", t, is.Status, is.Message))
		case t == v1alpha1.ConditionReady && was != nil && was.Reason != v1alpha1.ReasonPending,
			t == v1alpha1.ConditionBuffersSufficient && was != nil && was.Reason == v1alpha1.ReasonBuffersExhausted,
			t == v1alpha1.ConditionWritesDurable && was != nil && was.Reason == v1alpha1.ReasonVolatileWriteCache:
			r.recorder.Eventf(obj, nil, corev1.EventTypeNormal, is.Reason, actionReconcile, "%s is %s", t, is.Status)
		}
	}
}

// warn with a note of a length that the API server takes, 1024 bytes as a condition's message.
func (r *Reconciler) warn(regarding runtime.Object, reason, note string) {
	r.recorder.Eventf(regarding, nil, corev1.EventTypeWarning, reason, actionReconcile, "%s", text.Clip(note, decide.MaxMessageBytes))
}

// changedPools writes an Event for each pool that has become worse. It is about the pool's part of the node: Events
// with the same reason about the same thing are counted in a series, of which only the first tells its note.
func (r *Reconciler) changedPools(node *v1alpha1.NvmfNode, before, after []v1alpha1.PoolStatus) {
	for _, is := range after {
		var was v1alpha1.PoolStatus
		if at := slices.IndexFunc(before, func(p v1alpha1.PoolStatus) bool { return p.Device == is.Device }); at >= 0 {
			was = before[at]
		}
		if !worse(was, is) {
			continue
		}
		r.warn(&corev1.ObjectReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "NvmfNode", Name: node.Name, UID: node.UID, FieldPath: fmt.Sprintf("status.pools{%s}", is.Device),
		}, is.Reason, fmt.Sprintf("pool %s: %s", is.Device, is.Message))
	}
}

// worse tells whether something is wrong with a pool that was not before. One that is nearly full and was full has
// become better.
func worse(was, is v1alpha1.PoolStatus) bool {
	switch is.Reason {
	case "", was.Reason, v1alpha1.ReasonPending, v1alpha1.ReasonNotClaimed:
		return false
	case v1alpha1.ReasonPoolNearlyFull:
		return was.Reason != v1alpha1.ReasonPoolFull
	default:
		return true
	}
}

// reportOrphans once for each set of them.
func (r *Reconciler) reportOrphans(node *v1alpha1.NvmfNode, found decide.Orphans) {
	if found.Equal(r.orphans) {
		return
	}
	r.orphans = found
	if found.Count() > 0 {
		r.recorder.Eventf(node, nil, corev1.EventTypeWarning, reasonOrphans, actionReport,
			"the engine contains replicas, snapshots or subsystems without an object; they are not changed: %s", found)
	}
}
