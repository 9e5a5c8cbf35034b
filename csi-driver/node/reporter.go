// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
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

	node *ConditionWriter
	// told of each volume.
	told        map[string]doing.Step
	toldMissing map[string]string
}

// Run looks at once and then at each ReportInterval until the context ends, and reports what changed. A process that
// has just begun does not know what an earlier one left the kernel with: until the kernel has answered, or was not
// heard of for doing.Limit, the condition stays as it is.
func (r *Reporter) Run(ctx context.Context, initiator Connecting, overdue func() map[string]doing.Step, missing func() map[string]string) error {
	log := logr.FromContextOrDiscard(ctx).WithName("stuck")
	ticker := r.Clock.NewTicker(ReportInterval)
	defer ticker.Stop()
	ready := make(chan error, 1)
	go func() { ready <- initiator.Ready(ctx) }()
	known := false
	for {
		held := initiator.HeldUp()
		known = known || held != nil
		if err := r.report(ctx, known, held, overdue(), missing()); err != nil && ctx.Err() == nil {
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

func (r *Reporter) report(ctx context.Context, known bool, held *fabrics.HeldUpError, overdue map[string]doing.Step, missing map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var err error
	if known {
		err = r.Write(ctx, held)
	}
	return errors.Join(err, r.tell(ctx, overdue), r.tellMissing(ctx, missing))
}

// Write the condition, with an Event for each change: what holds up connections, nil for nothing. It is idempotent.
func (r *Reporter) Write(ctx context.Context, held *fabrics.HeldUpError) error {
	if held == nil {
		return r.writer().Write(ctx, corev1.ConditionFalse, v1alpha1.ReasonAsExpected, nothingStuck)
	}
	return r.writer().Write(ctx, corev1.ConditionTrue, v1alpha1.ReasonConnectStuck, held.String())
}

func (r *Reporter) writer() *ConditionWriter {
	if r.node == nil {
		r.node = &ConditionWriter{
			Client: r.Client, Node: r.Node, UID: r.UID, Clock: r.Clock, Type: v1alpha1.ConditionInitiatorStuck, FieldManager: fieldManager,
		}
	}
	return r.node
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
	return r.event(ctx, name, corev1.EventTypeWarning, v1alpha1.ReasonOverdue, step.String())
}

// event about a volume.
func (r *Reporter) event(ctx context.Context, name, kind, reason, note string) error {
	var volume v1alpha1.NvmfVolume
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, &volume); apierrors.IsNotFound(err) {
		return nil // nobody looks at it
	} else if err != nil {
		return fmt.Errorf("read NvmfVolume %s to report that on this node %s: %w", name, note, err)
	}
	about := corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NvmfVolume", Name: name, UID: volume.UID}
	return r.writer().Event(ctx, about, kind, reason, "node "+r.Node+": "+note)
}

// tellMissing replicas of mirrored volumes, in an Event for each change, and that they are all in sync again.
func (r *Reporter) tellMissing(ctx context.Context, missing map[string]string) error {
	var errs []error
	told := map[string]string{}
	for name, words := range missing {
		if r.toldMissing[name] != words {
			if err := r.event(ctx, name, corev1.EventTypeWarning, reasonReplicaMissing, words); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		told[name] = words
	}
	for name := range r.toldMissing {
		if _, still := missing[name]; still {
			continue
		}
		if err := r.event(ctx, name, corev1.EventTypeNormal, v1alpha1.ReasonAsExpected, "all replicas are in sync, or the volume was unstaged"); err != nil {
			errs = append(errs, err)
			told[name] = r.toldMissing[name]
		}
	}
	r.toldMissing = told
	return errors.Join(errs...)
}
