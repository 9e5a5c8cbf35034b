// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
	"github.com/weft-storage/weft/dataplane/tuning"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// tuningManager owns status.tuning and the condition Tuned, apart from the rest of the status: that is written from
	// a cache, which must not bring back an older record of what the node was.
	tuningManager = FieldManager + "-tuning"
	// tuningPeriod is how often a tuned node is looked at for drift.
	tuningPeriod = time.Minute
	// maxNamedSettings bounds what a message names; the rest is counted.
	maxNamedSettings = 5
	// maxWrites of one status while others write the rest of the object.
	maxWrites = 5
)

// TuningConfig of a TuningReconciler. Every field is required.
type TuningConfig struct {
	NodeName string
	// Client writes this node's NvmfNode.
	Client client.Client
	// Live reads it from the API server itself: a record that an older reader does not know of must not be made again,
	// from values that are weft's own.
	Live     client.Reader
	Recorder events.EventRecorder
	Host     tuning.Host
	Clock    clock.PassiveClock
}

// TuningReconciler gives the node the settings of its plan's tuning. It is apart from the Reconciler so that a driver
// that takes its time holds up no volume. It runs one reconciliation at a time.
type TuningReconciler struct{ TuningConfig }

// Reconcile the node's tuning, whatever the request. What the kernel refuses shows in the condition Tuned.
func (r *TuningReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	node := &v1alpha1.NvmfNode{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: r.NodeName}, node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // the Reconciler makes it, and that is an event
	}
	wanted, record := tuningOf(node)
	if len(wanted) == 0 && len(record.Settings) == 0 {
		return reconcile.Result{}, r.conclude(ctx, node, tuning.Result{}, nothingToTune())
	}
	var errStore error
	result, err := tuning.Run(ctx, r.Host, wanted, record, func(ctx context.Context, record v1alpha1.TuningStatus) error {
		errStore = r.store(ctx, node, record)
		return errStore
	})
	if errStore != nil || ctx.Err() != nil {
		return reconcile.Result{}, err
	}
	if result.Writes > 0 {
		log.FromContext(ctx).Info("Changed settings of the kernel and the NICs", "writes", result.Writes, "onRecord", len(result.Record.Settings))
	}
	if err := r.conclude(ctx, node, result, judgeTuning(wanted, result, err)); err != nil {
		return reconcile.Result{}, err
	}
	if err != nil || len(wanted)+len(result.Record.Settings) == 0 {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: tuningPeriod}, nil
}

// tuningOf a node: what is wanted, and what is on record. An NvmfNode that is being deleted takes its record with it,
// so everything is put back first; its successor starts from nothing.
func tuningOf(node *v1alpha1.NvmfNode) (wanted []v1alpha1.PlannedSetting, record v1alpha1.TuningStatus) {
	if node.Spec.Plan != nil && node.DeletionTimestamp.IsZero() {
		wanted = node.Spec.Plan.Tuning
	}
	if node.Status.Tuning != nil {
		record = *node.Status.Tuning
	}
	return wanted, record
}

// store a record, on an NvmfNode that will not go before it is empty again.
func (r *TuningReconciler) store(ctx context.Context, node *v1alpha1.NvmfNode, record v1alpha1.TuningStatus) error {
	if node.DeletionTimestamp.IsZero() {
		if err := r.patchFinalizer(ctx, node, controllerutil.AddFinalizer); err != nil {
			return err
		}
	}
	// What is said of this generation is said after the settings were written: a rollout goes by it.
	is := tuned(metav1.ConditionUnknown, v1alpha1.ReasonPending, "the previous settings are recorded; applying the new ones")
	if was := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionTuned); was != nil && was.Reason != v1alpha1.ReasonNotNeeded &&
		was.ObservedGeneration == node.Generation {
		is = *was
	}
	return r.write(ctx, node, record, is)
}

// conclude with the record and the condition in the status, and Events for what is new.
func (r *TuningReconciler) conclude(ctx context.Context, node *v1alpha1.NvmfNode, result tuning.Result, is metav1.Condition) error {
	if len(result.Drifted) > 0 {
		r.Recorder.Eventf(node, nil, corev1.EventTypeWarning, v1alpha1.ReasonSettingDrifted, actionReconcile,
			"settings of the target's tuning were changed by something else and have been restored: %s", text.Few(result.Drifted, maxNamedSettings, "; "))
	}
	was := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionTuned)
	if err := r.write(ctx, node, result.Record, is); err != nil {
		return ignoreGone(err)
	}
	if is.Status != metav1.ConditionTrue && (was == nil || was.Reason != is.Reason || was.Status != is.Status) {
		r.Recorder.Eventf(node, nil, corev1.EventTypeWarning, is.Reason, actionReconcile, "%s is %s: %s", is.Type, is.Status, is.Message)
	}
	if len(result.Record.Settings) == 0 {
		return ignoreGone(r.patchFinalizer(ctx, node, controllerutil.RemoveFinalizer))
	}
	return nil
}

// tuningStatus is the part of an NvmfNode's status that tuningManager owns.
type tuningStatus struct {
	Tuning     *v1alpha1.TuningStatus `json:"tuning,omitempty"`
	Conditions []metav1.Condition     `json:"conditions"`
}

// write the status where it differs, and only over the version that it was decided from.
func (r *TuningReconciler) write(ctx context.Context, node *v1alpha1.NvmfNode, record v1alpha1.TuningStatus, is metav1.Condition) error {
	status := tuningStatus{Conditions: decide.Conditions(node.Status.Conditions, node.Generation, r.Clock.Now(), is)}
	if len(record.Settings) > 0 {
		status.Tuning = &record
	}
	was := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionTuned)
	if was != nil && equality.Semantic.DeepEqual(*was, status.Conditions[0]) && equality.Semantic.DeepEqual(node.Status.Tuning, status.Tuning) {
		return nil
	}
	for attempt := 1; ; attempt++ {
		err := applyStatusAs(ctx, r.Client, tuningManager, node.ResourceVersion, "NvmfNode", node, node, &status)
		if attempt == maxWrites || !apierrors.IsConflict(err) {
			return err
		}
		// Others write the rest of the NvmfNode meanwhile, which matters only if it became another, or has another
		// record.
		now := &v1alpha1.NvmfNode{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(node), now); err != nil {
			return fmt.Errorf("get NvmfNode %s: %w", node.Name, err)
		}
		if now.UID != node.UID || !equality.Semantic.DeepEqual(now.Status.Tuning, node.Status.Tuning) {
			return err
		}
		node.ResourceVersion = now.ResourceVersion
	}
}

func (r *TuningReconciler) patchFinalizer(ctx context.Context, node *v1alpha1.NvmfNode, change func(client.Object, string) bool) error {
	return patchFinalizer(ctx, r.Client, tuningManager, node, change, v1alpha1.TuningFinalizer)
}

// tuned is the condition Tuned, without its times.
func tuned(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionTuned, Status: status, Reason: reason, Message: message}
}

func nothingToTune() metav1.Condition {
	return tuned(metav1.ConditionTrue, v1alpha1.ReasonNotNeeded, "the plan has no tuning, and the node has its original settings")
}

// judgeTuning sums a run up. err is why the node could not be looked at.
func judgeTuning(wanted []v1alpha1.PlannedSetting, result tuning.Result, err error) metav1.Condition {
	if err != nil {
		return tuned(metav1.ConditionUnknown, v1alpha1.ReasonSettingsUnknown, "nothing was changed: "+err.Error())
	}
	var refused, notPutBack []string
	applied := 0
	for _, t := range result.Record.Settings {
		switch t.State {
		case v1alpha1.TuningApplied:
			applied++
		case v1alpha1.TuningNotPutBack:
			notPutBack = append(notPutBack, t.Setting+": "+t.Message)
		default:
			refused = append(refused, strings.TrimSuffix(t.Setting+": "+t.Message, ": "))
		}
	}
	refused = append(refused, result.Problems...)
	few := func(settings []string) string { return text.Few(settings, maxNamedSettings, "; ") }
	switch {
	case len(notPutBack) > 0:
		return tuned(metav1.ConditionFalse, v1alpha1.ReasonSettingNotPutBack, few(append(notPutBack, refused...)))
	case len(refused) > 0:
		return tuned(metav1.ConditionFalse, v1alpha1.ReasonSettingRefused, few(refused))
	case len(wanted) == 0:
		return nothingToTune()
	}
	return tuned(metav1.ConditionTrue, v1alpha1.ReasonAsExpected, text.Plural(applied, "setting")+" as requested")
}
