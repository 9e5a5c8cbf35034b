// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
)

// engineTimeout bounds one bulk call, so that a drive that hangs does not keep the rest of the node from being served.
const engineTimeout = 2 * time.Minute

// act does the operations of a decision in bulk and records the outcome of each in s.Attempts.
// The order is safe to be interrupted anywhere: what takes away comes before
// what gives, exports come after the volumes in them, and portals last. Nothing in it undoes anything.
func (r *Reconciler) act(ctx context.Context, e engine.Engine, s *decide.Observed, d decide.Decision) {
	ops := d.Operations
	a := attempter{ctx: ctx, attempts: s.Attempts, metrics: r.metrics}
	do(a, decide.VerbOpenPool, ops.OpenPools, func(d engine.Device) string { return d.ID }, e.OpenPools)
	do(a, decide.VerbForgetPool, ops.ForgetPools, func(device string) string { return device }, e.ForgetPools)
	do(a, decide.VerbUnexport, ops.Unexport, func(nqn string) string { return nqn }, e.Unexport)
	do(a, decide.VerbDeleteVolume, ops.DeleteVolumes, keyOfID, r.deleting(e.DeleteVolumes))
	do(a, decide.VerbDeleteSnapshot, ops.DeleteSnapshots, keyOfID, r.deleting(e.DeleteSnapshots))
	do(a, decide.VerbCreateSnapshot, ops.CreateSnapshots, func(s engine.SnapshotSpec) string { return string(s.ID) }, e.CreateSnapshots)
	do(a, decide.VerbCreateVolume, ops.CreateVolumes, func(v engine.VolumeSpec) string { return string(v.ID) }, e.CreateVolumes)
	do(a, decide.VerbGrowVolume, ops.GrowVolumes, func(v engine.VolumeSize) string { return string(v.ID) }, e.GrowVolumes)
	do(a, decide.VerbExport, ops.Export, func(e engine.Export) string { return e.NQN }, e.Export)
	do(a, decide.VerbSetQoS, ops.SetQoS, func(v engine.VolumeQoS) string { return string(v.ID) }, e.SetQoS)
	do(a, decide.VerbClosePortal, ops.ClosePortals, decide.PortalKey, e.ClosePortals)
	do(a, decide.VerbOpenPortal, ops.OpenPortals, func(p engine.Portal) string { return decide.PortalKey(p.Portal) }, e.OpenPortals)
}

// deleting by a call. The notes that the node has about what is gone go, too; one that cannot stays, among those that
// maxNotesLeft bounds.
func (r *Reconciler) deleting(call func(context.Context, []engine.ID) []error) func(context.Context, []engine.ID) []error {
	return func(ctx context.Context, ids []engine.ID) []error {
		errs := call(ctx, ids)
		var gone []engine.ID
		for i, id := range ids {
			if i < len(errs) && errs[i] == nil {
				gone = append(gone, id)
			}
		}
		if err := r.Records.DropNotes(gone); err != nil {
			log.FromContext(ctx).Error(err, "Cannot drop the descriptions of deleted data")
		}
		return errs
	}
}

func keyOfID(id engine.ID) string { return string(id) }

type attempter struct {
	ctx      context.Context
	attempts decide.Attempts
	metrics  *Metrics
}

// do one bulk call, if there is something to do and the agent is not being stopped.
func do[T any](a attempter, verb decide.Verb, items []T, key func(T) string, call func(context.Context, []T) []error) {
	if len(items) == 0 || a.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(a.ctx, engineTimeout)
	defer cancel()
	errs := call(ctx, items)
	var failed []error
	for i, item := range items {
		var err error
		if i < len(errs) {
			err = errs[i]
		} else {
			err = fmt.Errorf("%s: %w: %d answers to %d items", verb, engine.ErrUnavailable, len(errs), len(items))
		}
		a.attempts.Record(verb, key(item), err)
		if err != nil {
			a.metrics.engineErrors.WithLabelValues(string(verb)).Inc()
			failed = append(failed, err)
		}
	}
	logger := log.FromContext(ctx).WithValues("method", verb, "items", len(items))
	if len(failed) > 0 {
		logger.Error(firstFew(failed), "The engine rejected operations", "failed", len(failed))
		return
	}
	logger.Info("The engine completed operations")
}
