// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// applyNodes gives every NvmfNode the spec that was decided, and writes only
// those that differ. One node's failure does not stop the others.
func (r *Reconciler) applyNodes(ctx context.Context, v *view) error {
	var errs []error
	for _, n := range v.nodes {
		if n.Nvmf == nil || !n.released.differs {
			continue
		}
		errs = append(errs, v.noteStale(ctx, r.applyNode(ctx, n.Node.Node, n.released.spec, n.released.inTurn)))
	}
	return errors.Join(errs...)
}

// applyNode that has another spec than the desired one.
func (r *Reconciler) applyNode(ctx context.Context, n claim.Node, desired v1alpha1.NvmfNodeSpec, inTurn bool) error {
	if inTurn {
		if is, err := r.isItsTurn(ctx, desired.Target, n.Name); err != nil || !is {
			return err
		}
	}
	if had := n.Claimant(); had != "" && had != desired.Target {
		// The cache may not know a volume that was made a moment ago.
		holds, err := r.holdsData(ctx, n.Name, had)
		if err != nil {
			return err
		}
		if holds {
			log.FromContext(ctx).Info("the node keeps its claim: a volume was just created on it", "node", n.Name, "claimedBy", had)
			return nil
		}
	}
	config := manifest.ForNodeSpec(n.Nvmf, desired)
	if err := r.Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the spec of NvmfNode %s: %w", n.Name, err)
	}
	log.FromContext(ctx).Info("wrote the node's claim and plan", "node", n.Name, "claimedBy", desired.Target, "was", n.Claimant())
	return nil
}

// holdsData asks the API server whether data of the target that claims the node lies on it.
func (r *Reconciler) holdsData(ctx context.Context, node, target string) (bool, error) {
	var replicas v1alpha1.NvmfReplicaList
	if err := r.Live.List(ctx, &replicas, client.MatchingFields{"spec.node": node, "spec.target": target}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the replicas of NvmfTarget %s on node %s: %w", target, node, err)
	}
	var snapshots v1alpha1.NvmfSnapshotList
	if err := r.Live.List(ctx, &snapshots, client.MatchingFields{"spec.node": node}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the snapshots on node %s: %w", node, err)
	}
	return len(replicas.Items)+len(snapshots.Items) > 0, nil
}

// applyBudget keeps the PodDisruptionBudget of a target that has pods: a drain of several nodes takes one
// target after the other. It goes with the target. Where nodes have guards, their budgets cover the target pods.
func (r *Reconciler) applyBudget(ctx context.Context, v *view) error {
	target := v.target
	if target == nil || target.Spec.Engine != v1alpha1.EngineSPDK {
		return nil
	}
	exists := &policyv1.PodDisruptionBudget{}
	key := client.ObjectKey{Namespace: r.Pods.Namespace, Name: manifest.BudgetName(target.Name)}
	if err := r.Get(ctx, key, exists); apierrors.IsNotFound(err) {
		exists = nil
	} else if err != nil {
		return fmt.Errorf("get PodDisruptionBudget %s: %w", key, err)
	}
	if r.Guarded { // a pod that two budgets select cannot be evicted at all
		if exists == nil {
			return nil
		}
		if err := r.Delete(ctx, exists); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete PodDisruptionBudget %s: %w", key, err)
		}
		return nil
	}
	claimed := 0
	for _, n := range v.nodes {
		if n.serves(target.Name) {
			claimed++
		}
	}
	config := r.Pods.Budget(target, exists, claimed)
	if config == nil {
		return nil
	}
	if err := r.Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply PodDisruptionBudget %s: %w", key, err)
	}
	return nil
}

// finalize lets a target that is being deleted go, once the API server itself says that no
// volume or replica names it and no node is claimed for it; gone says that there is
// no target (any more). The nodes were released by applyNodes: only nodes without data are.
func (r *Reconciler) finalize(ctx context.Context, target *v1alpha1.NvmfTarget) (gone bool, err error) {
	if target == nil {
		return true, nil
	}
	if !controllerutil.ContainsFinalizer(target, v1alpha1.TargetFinalizer) {
		return true, nil
	}
	for _, list := range []client.ObjectList{&v1alpha1.NvmfVolumeList{}, &v1alpha1.NvmfReplicaList{}, &v1alpha1.NvmfNodeList{}} {
		if err := r.Live.List(ctx, list, client.MatchingFields{"spec.target": target.Name}, client.Limit(1)); err != nil {
			return false, fmt.Errorf("list %T of NvmfTarget %s: %w", list, target.Name, err)
		}
		if meta.LenList(list) > 0 {
			return false, nil
		}
	}
	err = r.patchFinalizers(ctx, target, func(t *v1alpha1.NvmfTarget) {
		controllerutil.RemoveFinalizer(t, v1alpha1.TargetFinalizer)
	})
	if err != nil {
		return false, err
	}
	log.FromContext(ctx).Info("the target has no volumes or nodes left; removing its finalizer")
	return true, nil
}
