// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/agent/decide"
)

// FieldManager of all that the agent applies.
const FieldManager = "weft-agent"

const (
	// writers is how many objects are written at a time.
	writers = 16
	// writeTimeout bounds one write: a target that comes back must not wait for an API server that hangs.
	writeTimeout = 10 * time.Second
)

// applyStatus applies the status of an object with server-side apply and answers the object as it then is. The object's
// UID goes along: a status never lands on another object that took the name.
func applyStatus(ctx context.Context, c client.Client, kind string, obj, into client.Object, status any) error {
	return applyStatusAs(ctx, c, FieldManager, "", kind, obj, into, status)
}

// applyStatusAs applies as another field manager and, where a version is given, only over that one.
func applyStatusAs(ctx context.Context, c client.Client, manager, version, kind string, obj, into client.Object, status any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return fmt.Errorf("encode the status of %s %s: %w", kind, obj.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetName(obj.GetName())
	u.SetUID(obj.GetUID())
	u.SetResourceVersion(version)
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err = c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply the status of %s %s: %w", kind, obj.GetName(), err)
	}
	return fromUnstructured(u, into)
}

func fromUnstructured(u *unstructured.Unstructured, into client.Object) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into); err != nil {
		return fmt.Errorf("decode %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// firstFew of many errors: a thousand objects that fail alike do not need a thousand lines.
func firstFew(errs []error) error {
	const most = 5
	if len(errs) > most {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", len(errs)-most))
	}
	return errors.Join(errs...)
}

// writeVolumes writes the statuses that differ from what the objects bear, and puts
// the objects as they then are into the snapshot. It answers what failed, by UUID. One that is
// gone by now needs no status. With gate's end no write begins any more; one that began goes on, for without
// its answer the next reconciliation would judge from what was before it.
func (r *Reconciler) writeVolumes(ctx, gate context.Context, s *decide.Observed, statuses map[string]v1alpha1.NvmfVolumeStatus) map[string]error {
	return writeEach(gate, s.Volumes, uuidOfVolume, func(i int, v *v1alpha1.NvmfVolume) error {
		status, ok := statuses[v.Name]
		if !ok || equality.Semantic.DeepEqual(v.Status, status) {
			return nil
		}
		now := &v1alpha1.NvmfVolume{}
		if err := applyStatus(ctx, r.client, "NvmfVolume", v, now, &status); err != nil {
			return ignoreGone(err)
		}
		r.changedConditions(now, v.Status.Conditions, now.Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ConditionDegraded, v1alpha1.ConditionQoSApplied)
		s.Volumes[i] = r.own.remember(now).(*v1alpha1.NvmfVolume)
		return nil
	})
}

func uuidOfVolume(v *v1alpha1.NvmfVolume) string     { return v.Spec.UUID }
func uuidOfSnapshot(s *v1alpha1.NvmfSnapshot) string { return s.Spec.UUID }

// writeSnapshots is writeVolumes for snapshots.
func (r *Reconciler) writeSnapshots(ctx, gate context.Context, s *decide.Observed, statuses map[string]v1alpha1.NvmfSnapshotStatus) map[string]error {
	return writeEach(gate, s.Snapshots, uuidOfSnapshot, func(i int, v *v1alpha1.NvmfSnapshot) error {
		status, ok := statuses[v.Name]
		if !ok || equality.Semantic.DeepEqual(v.Status, status) {
			return nil
		}
		now := &v1alpha1.NvmfSnapshot{}
		if err := applyStatus(ctx, r.client, "NvmfSnapshot", v, now, &status); err != nil {
			return ignoreGone(err)
		}
		r.changedConditions(now, v.Status.Conditions, now.Status.Conditions, v1alpha1.ConditionReady)
		s.Snapshots[i] = r.own.remember(now).(*v1alpha1.NvmfSnapshot)
		return nil
	})
}

// writeNode writes the node's status when it differs, other writers' conditions aside.
func (r *Reconciler) writeNode(ctx context.Context, s *decide.Observed, status v1alpha1.NvmfNodeStatus) error {
	bears := *s.Node.Status.DeepCopy()
	bears.Tuning = nil // the TuningReconciler's
	bears.Conditions = slices.DeleteFunc(bears.Conditions, func(c metav1.Condition) bool {
		return !slices.ContainsFunc(status.Conditions, func(own metav1.Condition) bool { return own.Type == c.Type })
	})
	slices.SortFunc(bears.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	if equality.Semantic.DeepEqual(bears, status) {
		return nil
	}
	now := &v1alpha1.NvmfNode{}
	if err := applyStatus(ctx, r.client, "NvmfNode", s.Node, now, &status); err != nil {
		return ignoreGone(err)
	}
	r.changedConditions(now, bears.Conditions, status.Conditions, v1alpha1.ConditionReady, v1alpha1.ConditionPortalsReady, v1alpha1.ConditionRestartNeeded, v1alpha1.ConditionBuffersSufficient)
	r.changedPools(now, bears.Pools, status.Pools)
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionPoolReady)
	if !slices.ContainsFunc(status.Pools, func(p v1alpha1.PoolStatus) bool { return p.Reason == ready.Reason }) {
		r.changedConditions(now, bears.Conditions, status.Conditions, v1alpha1.ConditionPoolReady) // else its pools have said it
	}
	s.Node = r.own.remember(now).(*v1alpha1.NvmfNode)
	return nil
}

// release takes the finalizer off what the engine no longer lists. The patch names the version that was decided on.
func (r *Reconciler) release(ctx, gate context.Context, s *decide.Observed, d decide.Decision) map[string]error {
	failed := writeEach(gate, s.Volumes, uuidOfVolume, func(_ int, v *v1alpha1.NvmfVolume) error {
		if !slices.Contains(d.ReleaseVolumes, v.Name) {
			return nil
		}
		return r.dropFinalizer(ctx, v.DeepCopy())
	})
	maps.Copy(failed, writeEach(gate, s.Snapshots, uuidOfSnapshot, func(_ int, v *v1alpha1.NvmfSnapshot) error {
		if !slices.Contains(d.ReleaseSnapshots, v.Name) {
			return nil
		}
		return r.dropFinalizer(ctx, v.DeepCopy())
	}))
	return failed
}

func (r *Reconciler) dropFinalizer(ctx context.Context, obj client.Object) error {
	before := obj.DeepCopyObject().(client.Object)
	if !controllerutil.RemoveFinalizer(obj, v1alpha1.VolumeFinalizer) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, obj, patch, client.FieldOwner(FieldManager)); err != nil {
		return ignoreGone(fmt.Errorf("take the finalizer off %s: %w", obj.GetName(), err))
	}
	r.own.remember(obj)
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// writeEach calls write for all objects, several at a time, until gate ends, and collects the errors by the objects' keys.
// What was not written because gate ended failed.
func writeEach[T any](gate context.Context, objects []T, key func(T) string, write func(int, T) error) map[string]error {
	var mu sync.Mutex
	failed := map[string]error{}
	var group errgroup.Group
	group.SetLimit(writers)
	for i, obj := range objects {
		group.Go(func() error {
			err := gate.Err()
			if err == nil {
				err = write(i, obj)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[key(obj)] = err
			}
			return nil
		})
	}
	_ = group.Wait() // every error is in failed
	return failed
}
