// SPDX-License-Identifier: Apache-2.0

// Package nvmftarget reconciles NvmfTargets: it claims nodes for them, gives
// each node its plan, and keeps their status true.
package nvmftarget

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// Reconciler reconciles NvmfTargets. It must run with one worker: a decision is about
// all targets and nodes together, and is applied as a whole.
type Reconciler struct {
	// Client reads from the cache and writes.
	client.Client
	// Live reads from the API server: what would be given up is looked at once more.
	Live client.Reader
	// Recorder of Events.
	Recorder events.EventRecorder
	// Clock for transition times of conditions.
	Clock clock.PassiveClock
	// Pods is what target pods have in common: here their budgets are kept, and what a plan would start is compared
	// with what runs.
	Pods manifest.TargetPods
	// Guarded: each storage node has a budget of its own (package guard), and targets have none.
	Guarded bool

	// fleet and candidates are what the last look found; nothing of them outlives the operator.
	fleet      fleet
	candidates *claim.Candidates
	// took is how many nanoseconds the last look at everything took.
	took atomic.Int64
}

// Reconcile gathers, decides and acts. Whichever target it is called for, the
// decision is about all of them; only the status, and turns, are that target's. No turn is given on the cache's word.
//
// The status comes first: it is about what was found, and says of nodes that do not have their plans yet that they are
// waited for. Claims of thousands of nodes take a while, one write after the other. The status is refused where another
// operator has written it since the look; then what was decided is not carried out either. Only of a target that is
// being deleted, it comes last: it says what is left once its nodes were released.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("target", req.Name))

	target, err := r.get(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	if added, err := r.ensureFinalizer(ctx, target); added || err != nil {
		return ctrl.Result{}, manifest.IgnoreStale(ctx, err)
	}
	begun := r.Clock.Now()
	v, err := r.look(ctx, req.Name)
	r.took.Store(int64(r.Clock.Now().Sub(begun)))
	if err == nil && len(v.gate.Granted) > 0 {
		v, err = r.lookLive(ctx, req.Name, v.gate.Granted)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	ends := v.target == nil || !v.target.DeletionTimestamp.IsZero()
	// A status that the API server refuses must not keep plans back.
	var refused error
	if !ends {
		if refused = r.updateStatus(ctx, v); manifest.IsStale(refused) {
			return v.again(0), manifest.IgnoreStale(ctx, refused)
		}
	}
	if err := r.applyNodes(ctx, v); err != nil {
		return ctrl.Result{}, errors.Join(refused, err)
	}
	if err := r.applyBudget(ctx, v); err != nil {
		return ctrl.Result{}, errors.Join(refused, err)
	}
	if ends {
		if gone, err := r.finalize(ctx, v.target); gone || err != nil {
			return v.again(0), manifest.IgnoreStale(ctx, err)
		}
		if err := r.updateStatus(ctx, v); err != nil {
			return v.again(0), manifest.IgnoreStale(ctx, err)
		}
	}
	err = errors.Join(refused, r.updateNodes(ctx, v))
	return v.again(v.gate.Again), err
}

// get returns the target, or nil when it is gone. What a target that is gone
// leaves behind is still cleared up.
func (r *Reconciler) get(ctx context.Context, key types.NamespacedName) (*v1alpha1.NvmfTarget, error) {
	target := &v1alpha1.NvmfTarget{}
	if err := r.Get(ctx, key, target); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("get NvmfTarget %s: %w", key.Name, err)
	}
	return target, nil
}

// ensureFinalizer adds the finalizer and says whether it did; the change comes back as an event.
func (r *Reconciler) ensureFinalizer(ctx context.Context, target *v1alpha1.NvmfTarget) (added bool, err error) {
	if target == nil || !target.DeletionTimestamp.IsZero() || controllerutil.ContainsFinalizer(target, v1alpha1.TargetFinalizer) {
		return false, nil
	}
	return true, r.patchFinalizers(ctx, target, func(t *v1alpha1.NvmfTarget) {
		controllerutil.AddFinalizer(t, v1alpha1.TargetFinalizer)
	})
}

// patchFinalizers sends the change with the resourceVersion it was computed from: a
// merge patch replaces the whole list, others' finalizers included.
func (r *Reconciler) patchFinalizers(ctx context.Context, target *v1alpha1.NvmfTarget, change func(*v1alpha1.NvmfTarget)) error {
	changed := target.DeepCopy()
	change(changed)
	patch := client.MergeFromWithOptions(target, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, changed, patch, client.FieldOwner(v1alpha1.OperatorFieldManager)); err != nil {
		return fmt.Errorf("patch the finalizers of NvmfTarget %s: %w", target.Name, err)
	}
	return nil
}
