// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	// eventReporter is who reports Events.
	eventReporter = "weft-csi-node"
	// actionWatch is what Events say was done.
	actionWatch = "Watch"
)

// ConditionWriter writes one of the conditions of this machine's Kubernetes Node that are weft's, with its Events. For
// all of them False is the quiet state, as for the Node's own. It is not safe for concurrent use.
type ConditionWriter struct {
	// Client reads the Node, applies its status, and creates Events. It has no cache.
	Client client.Client
	// Node is its name, and UID its UID: another Node that took the name is left alone.
	Node string
	UID  types.UID
	// Clock for the times in the condition.
	Clock clock.PassiveClock
	// Type of the condition.
	Type corev1.NodeConditionType
	// FieldManager that the condition has for itself.
	FieldManager string
	// Quiet has no Events written.
	Quiet bool

	// written is the condition as it is, once it was read.
	written *corev1.NodeCondition
	read    bool
}

// Write the condition if it differs, with an Event for each change: True with reason and message, or False, which is
// quiet, with the message. It is idempotent.
func (w *ConditionWriter) Write(ctx context.Context, status corev1.ConditionStatus, reason, message string) error {
	if !w.read {
		var node corev1.Node
		if err := w.Client.Get(ctx, client.ObjectKey{Name: w.Node}, &node); err != nil {
			return fmt.Errorf("read Node %s: %w", w.Node, err)
		}
		w.written, w.read = v1alpha1.NodeCondition(&node, w.Type), true
	}
	now := metav1.NewTime(w.Clock.Now())
	want := corev1.NodeCondition{
		Type: w.Type, Status: status, Reason: reason, Message: message, LastTransitionTime: now, LastHeartbeatTime: now,
	}
	was := w.written
	if was != nil && was.Status == want.Status {
		if was.Reason == want.Reason && was.Message == want.Message {
			return nil
		}
		want.LastTransitionTime = was.LastTransitionTime
	}
	node := corev1ac.Node(w.Node).WithUID(w.UID).WithStatus(corev1ac.NodeStatus().WithConditions(corev1ac.NodeCondition().
		WithType(want.Type).WithStatus(want.Status).WithReason(want.Reason).WithMessage(want.Message).
		WithLastTransitionTime(want.LastTransitionTime).WithLastHeartbeatTime(want.LastHeartbeatTime)))
	if err := w.Client.Status().Apply(ctx, node, client.FieldOwner(w.FieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("write condition %s of Node %s: %w", want.Type, w.Node, err)
	}
	w.written = &want
	if w.Quiet {
		return nil
	}
	kind := corev1.EventTypeWarning
	if status != corev1.ConditionTrue {
		if was == nil || was.Status != corev1.ConditionTrue {
			return nil
		}
		kind = corev1.EventTypeNormal
	}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: w.Node, UID: w.UID}
	if err := w.Event(ctx, about, kind, reason, message); err != nil {
		// It is not tried again: the condition says it all.
		logr.FromContextOrDiscard(ctx).Error(err, "Cannot write an Event", "node", w.Node, "reason", reason)
	}
	return nil
}

// Event about an object without a namespace.
func (w *ConditionWriter) Event(ctx context.Context, about corev1.ObjectReference, kind, reason, note string) error {
	now := w.Clock.Now()
	return w.Client.Create(ctx, &eventsv1.Event{
		// Events about objects without a namespace are kept in namespace default.
		ObjectMeta:          metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: eventReporter, ReportingInstance: w.Node,
		Type: kind, Reason: reason, Action: actionWatch, Note: note, Regarding: about,
	})
}
