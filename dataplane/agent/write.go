// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
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

// kind of objects with a status of type S that are written alike.
type kind[T client.Object, S any] struct {
	name       string
	empty      func() T
	status     func(T) S
	conditions func(T) []metav1.Condition
	// told are the conditions that Events go with.
	told []string
}

var (
	volumeKind = kind[*v1alpha1.NvmfReplica, v1alpha1.NvmfReplicaStatus]{
		name:       "NvmfReplica",
		empty:      func() *v1alpha1.NvmfReplica { return &v1alpha1.NvmfReplica{} },
		status:     func(v *v1alpha1.NvmfReplica) v1alpha1.NvmfReplicaStatus { return v.Status },
		conditions: func(v *v1alpha1.NvmfReplica) []metav1.Condition { return v.Status.Conditions },
		told:       []string{v1alpha1.ConditionReady, v1alpha1.ConditionDegraded, v1alpha1.ConditionQoSApplied},
	}
	snapshotKind = kind[*v1alpha1.NvmfSnapshot, v1alpha1.NvmfSnapshotStatus]{
		name:       "NvmfSnapshot",
		empty:      func() *v1alpha1.NvmfSnapshot { return &v1alpha1.NvmfSnapshot{} },
		status:     func(s *v1alpha1.NvmfSnapshot) v1alpha1.NvmfSnapshotStatus { return s.Status },
		conditions: func(s *v1alpha1.NvmfSnapshot) []metav1.Condition { return s.Status.Conditions },
		told:       []string{v1alpha1.ConditionReady},
	}
)

// writeStatuses writes those that differ from what the objects bear, and puts the objects as they then are into
// objects. It answers what failed. One that is gone by now needs no status. With gate's end no write begins any more;
// one that began goes on, for without its answer the next reconciliation would judge from what was before it.
func writeStatuses[T client.Object, S any](ctx, gate context.Context, r *Reconciler, k kind[T, S], objects []T, statuses map[string]S) []error {
	differs := func(obj T) bool {
		status, ok := statuses[obj.GetName()]
		return ok && !decide.Same(k.status(obj), status)
	}
	return writeEach(gate, objects, differs, func(i int, obj T) error {
		now, status := k.empty(), statuses[obj.GetName()]
		if err := applyStatus(ctx, r.client, k.name, obj, now, &status); err != nil {
			return ignoreGone(err)
		}
		r.changedConditions(now, k.conditions(obj), k.conditions(now), k.told...)
		r.own.remember(now)
		objects[i] = now
		return nil
	})
}

// writeNode writes the node's status when it differs, other writers' conditions aside.
func (r *Reconciler) writeNode(ctx context.Context, s *decide.Observed, status v1alpha1.NvmfNodeStatus) error {
	status.AgentVersion, status.SnapshotMetadata = r.Version, r.SnapshotMetadata
	bears := *s.Node.Status.DeepCopy()
	bears.Tuning = nil // the TuningReconciler's
	bears.Conditions = slices.DeleteFunc(bears.Conditions, func(c metav1.Condition) bool {
		return !slices.ContainsFunc(status.Conditions, func(own metav1.Condition) bool { return own.Type == c.Type })
	})
	slices.SortFunc(bears.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	if decide.Same(bears, status) {
		return nil
	}
	now := &v1alpha1.NvmfNode{}
	if err := applyStatus(ctx, r.client, "NvmfNode", s.Node, now, &status); err != nil {
		return ignoreGone(err)
	}
	r.changedDrops(now, bears.DroppedDrives, status.DroppedDrives)
	r.changedConditions(now, bears.Conditions, status.Conditions, v1alpha1.ConditionReady, v1alpha1.ConditionPortalsReady, v1alpha1.ConditionRestartNeeded, v1alpha1.ConditionRestoreSuspected, v1alpha1.ConditionBuffersSufficient, v1alpha1.ConditionWritesDurable)
	r.changedPools(now, bears.Pools, status.Pools)
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionPoolReady)
	if !slices.ContainsFunc(status.Pools, func(p v1alpha1.PoolStatus) bool { return p.Reason == ready.Reason }) {
		r.changedConditions(now, bears.Conditions, status.Conditions, v1alpha1.ConditionPoolReady) // else its pools have said it
	}
	r.own.remember(now)
	s.Node = now
	return nil
}

// release takes the finalizer off the named objects, which the engine no longer lists, and answers what failed.
func release[T client.Object](ctx, gate context.Context, r *Reconciler, objects []T, names []string) []error {
	released := sets.New(names...)
	return writeEach(gate, objects, func(obj T) bool { return released.Has(obj.GetName()) }, func(_ int, obj T) error {
		changed := obj.DeepCopyObject().(client.Object)
		if err := patchFinalizer(ctx, r.client, FieldManager, changed, controllerutil.RemoveFinalizer, v1alpha1.EngineFinalizer); err != nil {
			return ignoreGone(err)
		}
		r.own.remember(changed)
		return nil
	})
}

// patchFinalizer adds or removes a finalizer, as change does. The patch names the version that was decided on.
func patchFinalizer(ctx context.Context, c client.Client, manager string, obj client.Object, change func(client.Object, string) bool, finalizer string) error {
	before := obj.DeepCopyObject().(client.Object)
	if !change(obj, finalizer) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, obj, patch, client.FieldOwner(manager)); err != nil {
		return fmt.Errorf("change finalizer %s of %s: %w", finalizer, obj.GetName(), err)
	}
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// writeEach calls write for the objects that are due, several at a time, until gate ends, and collects the errors. What
// was not written because gate ended failed.
func writeEach[T any](gate context.Context, objects []T, due func(T) bool, write func(int, T) error) []error {
	errs := make([]error, len(objects))
	var group errgroup.Group
	group.SetLimit(writers)
	for i, obj := range objects {
		if !due(obj) {
			continue
		}
		group.Go(func() error {
			if errs[i] = gate.Err(); errs[i] == nil {
				errs[i] = write(i, obj)
			}
			return nil
		})
	}
	_ = group.Wait() // every error is in errs
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}
