// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/tracing"
)

// engineTimeout bounds one bulk call, so that a drive that hangs does not keep the rest of the node from being served.
const engineTimeout = 2 * time.Minute

// act does the operations of a decision in bulk and records the outcome of each in s.Attempts.
// The order is safe to be interrupted anywhere: what takes away comes before
// what gives, exports come after the volumes in them, and portals last. Nothing in it undoes anything.
func (r *Reconciler) act(ctx context.Context, e engine.Engine, s *decide.Observed, d decide.Decision, n *round) {
	ops := d.Operations
	a := attempter{ctx: ctx, attempts: s.Attempts, metrics: r.metrics, round: n}
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
	round    *round
}

// do one bulk call, if there is something to do and the agent is not being stopped.
func do[T any](a attempter, verb decide.Verb, items []T, key func(T) string, call func(context.Context, []T) []error) {
	if len(items) == 0 || a.ctx.Err() != nil {
		return
	}
	keys := make([]string, len(items))
	for i, item := range items {
		keys[i] = key(item)
	}
	ctx, cancel := context.WithTimeout(a.round.begin(a.ctx, keys), engineTimeout)
	defer cancel()
	inside, span := a.round.call(ctx, verb, len(items))
	errs := call(inside, items)
	var failed []error
	var volumes, failedVolumes []string
	for i, key := range keys {
		var err error
		if i < len(errs) {
			err = errs[i]
		} else {
			err = fmt.Errorf("%s: %w: %d answers to %d items", verb, engine.ErrUnavailable, len(errs), len(items))
		}
		a.attempts.Record(verb, key, err)
		volume := a.round.note(verb, key, err)
		if err != nil {
			a.metrics.engineErrors.WithLabelValues(string(verb)).Inc()
			failed, failedVolumes = append(failed, err), append(failedVolumes, volume)
		} else {
			volumes = append(volumes, volume)
		}
	}
	logger := log.FromContext(ctx).WithValues("method", verb, "items", len(items))
	for of := range eachLine(failedVolumes) {
		logger.Error(firstFew(failed), "The engine rejected operations", append(of, "failed", len(failed))...)
	}
	for of := range eachLine(volumes) {
		logger.Info("The engine completed operations", of...)
	}
	span.SetAttributes(tracing.FailedKey.Int(len(failed)))
	tracing.End(span, firstFew(failed))
}

// volumesPerLine of the log bounds a line to about 4 KiB; container runtimes cut lines at 16 KiB.
const volumesPerLine = 100

// eachLine of the log about operations on these volumes, as keys and values. Each volume is named, so that it can be
// searched for: a target that comes back with thousands takes several lines. An empty name is of what is no volume's.
func eachLine(volumes []string) iter.Seq[[]any] {
	return func(yield func([]any) bool) {
		for part := range slices.Chunk(volumes, volumesPerLine) {
			named := slices.DeleteFunc(slices.Clone(part), func(volume string) bool { return volume == "" })
			slices.Sort(named)
			named = slices.Compact(named)
			var of []any
			switch len(named) {
			case 0:
			case 1:
				of = []any{"volume", named[0]}
			default:
				of = []any{"volume", named}
			}
			if !yield(of) {
				return
			}
		}
	}
}
