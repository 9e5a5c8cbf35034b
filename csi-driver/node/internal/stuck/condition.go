// SPDX-License-Identifier: Apache-2.0

package stuck

import (
	"context"
	"fmt"
	"time"

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
	// fieldManager of the condition.
	fieldManager = "weft-csi-node"
	// writeTimeout bounds one report: the next look must not wait for an API server that hangs.
	writeTimeout = 10 * time.Second
	// actionWatch is what Events say was done.
	actionWatch = "Watch"
	// nothingStuck is the condition's message while all is well.
	nothingStuck = "nothing that this node's kernel was asked for is overdue"
)

// NodeReport reports as condition v1alpha1.ConditionInitiatorStuck of the Kubernetes Node, with an Event for each
// change.
type NodeReport struct {
	// Client reads the Node, applies its status, and creates Events. It has no cache.
	Client client.Client
	// Node is its name, and UID its UID: another Node that took the name is left alone.
	Node string
	UID  types.UID
	// Clock for the times in the condition.
	Clock clock.PassiveClock

	written *corev1.NodeCondition
}

// Stuck implements Report.
func (r *NodeReport) Stuck(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var node corev1.Node
	if err := r.Client.Get(ctx, client.ObjectKey{Name: r.Node}, &node); err != nil {
		return false, fmt.Errorf("read Node %s: %w", r.Node, err)
	}
	r.written = v1alpha1.InitiatorStuck(&node)
	return r.written != nil && r.written.Status == corev1.ConditionTrue, nil
}

// Write implements Report. Call Stuck before.
func (r *NodeReport) Write(ctx context.Context, what *Error) error {
	now := metav1.NewTime(r.Clock.Now())
	want := corev1.NodeCondition{
		Type: v1alpha1.ConditionInitiatorStuck, Status: corev1.ConditionFalse, Reason: v1alpha1.ReasonAsExpected, Message: nothingStuck,
		LastTransitionTime: now, LastHeartbeatTime: now,
	}
	if what != nil {
		want.Status, want.Reason, want.Message = corev1.ConditionTrue, what.Reason, what.Message
	}
	was := r.written
	if was != nil && was.Status == want.Status {
		if was.Reason == want.Reason && was.Message == want.Message {
			return nil
		}
		want.LastTransitionTime = was.LastTransitionTime
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	node := corev1ac.Node(r.Node).WithUID(r.UID).WithStatus(corev1ac.NodeStatus().WithConditions(corev1ac.NodeCondition().
		WithType(want.Type).WithStatus(want.Status).WithReason(want.Reason).WithMessage(want.Message).
		WithLastTransitionTime(want.LastTransitionTime).WithLastHeartbeatTime(want.LastHeartbeatTime)))
	if err := r.Client.Status().Apply(ctx, node, client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("write condition %s of Node %s: %w", want.Type, r.Node, err)
	}
	r.written = &want
	if what != nil || was != nil && was.Status == corev1.ConditionTrue {
		r.event(ctx, want)
	}
	return nil
}

// event tells of the condition. One that cannot be written is not tried again: the condition says it all.
func (r *NodeReport) event(ctx context.Context, c corev1.NodeCondition) {
	kind := corev1.EventTypeNormal
	if c.Status == corev1.ConditionTrue {
		kind = corev1.EventTypeWarning
	}
	now := r.Clock.Now()
	err := r.Client.Create(ctx, &eventsv1.Event{
		// Events about objects without a namespace are kept in namespace default.
		ObjectMeta:          metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", r.Node, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: fieldManager, ReportingInstance: r.Node,
		Type: kind, Reason: c.Reason, Action: actionWatch, Note: c.Message,
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.Node, UID: r.UID},
	})
	if err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "Cannot write an Event", "node", r.Node, "reason", c.Reason)
	}
}
