// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

const (
	// ReportInterval is between looks.
	ReportInterval = 10 * time.Second
	// fieldManager of the condition.
	fieldManager = "weft-csi-node"
	// writeTimeout bounds the reports of one look: the next must not wait for an API server that hangs.
	writeTimeout = 10 * time.Second
	// actionWatch is what Events say was done.
	actionWatch = "Watch"
	// nothingStuck is the condition's message while all is well.
	nothingStuck = "no connection of this node is stuck"
)

// Connecting is what a Reporter asks how it gets on; *fabrics.Host.
type Connecting interface {
	Ready(ctx context.Context) error
	HeldUp() *fabrics.HeldUpError
}

// Reporter tells the API what this node's kernel does not finish. What holds up connections to all targets is a
// condition of the Node, v1alpha1.ConditionInitiatorStuck; while that is True the node takes no further volume. All
// else concerns one volume, and is an Event of that.
type Reporter struct {
	// Client reads the Node and volumes, applies the Node's status, and creates Events. It has no cache.
	Client client.Client
	// Node is its name, and UID its UID: another Node that took the name is left alone.
	Node string
	UID  types.UID
	// Clock for the looks, and for the times in the condition.
	Clock clock.WithTicker

	// written is the condition as it is, once it was read.
	written *corev1.NodeCondition
	read    bool
	// told of each volume.
	told map[string]doing.Step
}

// Run looks at once and then at each ReportInterval until the context ends, and reports what changed. A process that has just
// begun does not know what an earlier one left the kernel with: until the kernel has answered, or was not heard of for
// doing.Limit, the condition stays as it is.
func (r *Reporter) Run(ctx context.Context, initiator Connecting, overdue func() map[string]doing.Step) error {
	log := logr.FromContextOrDiscard(ctx).WithName("stuck")
	ticker := r.Clock.NewTicker(ReportInterval)
	defer ticker.Stop()
	ready := make(chan error, 1)
	go func() { ready <- initiator.Ready(ctx) }()
	known := false
	for {
		held := initiator.HeldUp()
		known = known || held != nil
		if err := r.report(ctx, known, held, overdue()); err != nil && ctx.Err() == nil {
			log.Error(err, "Cannot report that this node's kernel is stuck; trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ready:
			known = known || err == nil
		case <-ticker.C():
		}
	}
}

func (r *Reporter) report(ctx context.Context, known bool, held *fabrics.HeldUpError, overdue map[string]doing.Step) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var err error
	if known {
		err = r.Write(ctx, held)
	}
	return errors.Join(err, r.tell(ctx, overdue))
}

// Write the condition, with an Event for each change: what holds up connections, nil for nothing. It is idempotent.
func (r *Reporter) Write(ctx context.Context, held *fabrics.HeldUpError) error {
	if !r.read {
		var node corev1.Node
		if err := r.Client.Get(ctx, client.ObjectKey{Name: r.Node}, &node); err != nil {
			return fmt.Errorf("read Node %s: %w", r.Node, err)
		}
		r.written, r.read = v1alpha1.InitiatorStuck(&node), true
	}
	now := metav1.NewTime(r.Clock.Now())
	want := corev1.NodeCondition{
		Type: v1alpha1.ConditionInitiatorStuck, Status: corev1.ConditionFalse, Reason: v1alpha1.ReasonAsExpected, Message: nothingStuck,
		LastTransitionTime: now, LastHeartbeatTime: now,
	}
	if held != nil {
		want.Status, want.Reason, want.Message = corev1.ConditionTrue, v1alpha1.ReasonConnectStuck, held.String()
	}
	was := r.written
	if was != nil && was.Status == want.Status {
		if was.Reason == want.Reason && was.Message == want.Message {
			return nil
		}
		want.LastTransitionTime = was.LastTransitionTime
	}
	node := corev1ac.Node(r.Node).WithUID(r.UID).WithStatus(corev1ac.NodeStatus().WithConditions(corev1ac.NodeCondition().
		WithType(want.Type).WithStatus(want.Status).WithReason(want.Reason).WithMessage(want.Message).
		WithLastTransitionTime(want.LastTransitionTime).WithLastHeartbeatTime(want.LastHeartbeatTime)))
	if err := r.Client.Status().Apply(ctx, node, client.FieldOwner(fieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("write condition %s of Node %s: %w", want.Type, r.Node, err)
	}
	r.written = &want
	if held == nil && (was == nil || was.Status != corev1.ConditionTrue) {
		return nil
	}
	kind := corev1.EventTypeNormal
	if held != nil {
		kind = corev1.EventTypeWarning
	}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.Node, UID: r.UID}
	if err := r.event(ctx, about, kind, want.Reason, want.Message); err != nil {
		// It is not tried again: the condition says it all.
		logr.FromContextOrDiscard(ctx).Error(err, "Cannot write an Event", "node", r.Node, "reason", want.Reason)
	}
	return nil
}

// tell of each step that is overdue in an Event of its volume, once.
func (r *Reporter) tell(ctx context.Context, overdue map[string]doing.Step) error {
	var errs []error
	told := map[string]doing.Step{}
	for name, step := range overdue {
		if r.told[name] != step {
			if err := r.overdue(ctx, name, step); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		told[name] = step
	}
	r.told = told
	return errors.Join(errs...)
}

func (r *Reporter) overdue(ctx context.Context, name string, step doing.Step) error {
	var volume v1alpha1.NvmfVolume
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &volume); apierrors.IsNotFound(err) {
		return nil // nobody looks at it
	} else if err != nil {
		return fmt.Errorf("read NvmfVolume %s to report that on this node %s: %w", name, step, err)
	}
	about := corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NvmfVolume", Name: name, UID: volume.UID}
	return r.event(ctx, about, corev1.EventTypeWarning, v1alpha1.ReasonOverdue, "node "+r.Node+": "+step.String())
}

func (r *Reporter) event(ctx context.Context, about corev1.ObjectReference, kind, reason, note string) error {
	now := r.Clock.Now()
	return r.Client.Create(ctx, &eventsv1.Event{
		// Events about objects without a namespace are kept in namespace default.
		ObjectMeta:          metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: fieldManager, ReportingInstance: r.Node,
		Type: kind, Reason: reason, Action: actionWatch, Note: note, Regarding: about,
	})
}
