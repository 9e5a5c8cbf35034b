// SPDX-License-Identifier: Apache-2.0

package nvmftarget

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
	"github.com/weft-storage/weft/operator/internal/controller"
	"github.com/weft-storage/weft/operator/internal/manifest"
	"github.com/weft-storage/weft/operator/internal/placement"
)

// world is one look at everything that a decision is made from.
type world struct {
	targets   []v1alpha1.NvmfTarget
	nodes     []placement.Node
	volumes   []v1alpha1.NvmfVolume
	snapshots []v1alpha1.NvmfSnapshot
}

// gather reads the cache. A node is in the world when anything names it: a Node, an NvmfNode, a
// volume or a snapshot.
func (r *Reconciler) gather(ctx context.Context) (*world, error) {
	var (
		targets   v1alpha1.NvmfTargetList
		kubeNodes corev1.NodeList
		nvmfNodes v1alpha1.NvmfNodeList
		volumes   v1alpha1.NvmfVolumeList
		snapshots v1alpha1.NvmfSnapshotList
	)
	for _, list := range []client.ObjectList{&targets, &kubeNodes, &nvmfNodes, &volumes, &snapshots} {
		if err := r.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}

	nodes := map[string]*placement.Node{}
	node := func(name string) *placement.Node {
		if nodes[name] == nil {
			nodes[name] = &placement.Node{Name: name, Volumes: map[string]int{}}
		}
		return nodes[name]
	}
	for i := range kubeNodes.Items {
		k := &kubeNodes.Items[i]
		n := node(k.Name)
		n.Exists, n.Labels, n.InternalIPs, n.Allocatable = true, k.Labels, internalIPs(k), allocatable(k)
	}
	for i := range nvmfNodes.Items {
		node(nvmfNodes.Items[i].Name).Nvmf = &nvmfNodes.Items[i]
	}
	for i := range volumes.Items {
		node(volumes.Items[i].Spec.Node).Volumes[volumes.Items[i].Spec.Target]++
	}
	for i := range snapshots.Items {
		node(snapshots.Items[i].Spec.Node).Snapshots++
	}

	w := &world{targets: targets.Items, volumes: volumes.Items, snapshots: snapshots.Items}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		w.nodes = append(w.nodes, *nodes[name])
	}
	return w, nil
}

func internalIPs(node *corev1.Node) []string {
	var ips []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// allocatable is what the node's kubelet has for pods; nil as long as it does not say.
func allocatable(node *corev1.Node) *sizing.Allocatable {
	if len(node.Status.Allocatable) == 0 {
		return nil
	}
	a := &sizing.Allocatable{
		CPUs:          node.Status.Allocatable.Cpu().MilliValue() / 1000,
		MemoryBytes:   node.Status.Allocatable.Memory().Value(),
		HugepageBytes: map[int64]int64{},
	}
	for name, quantity := range node.Status.Allocatable {
		size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		if page, err := resource.ParseQuantity(size); err == nil { // the kubelet writes no other
			a.HugepageBytes[page.Value()] = quantity.Value()
		}
	}
	return a
}

// applyNodes gives every NvmfNode the spec that was decided, and writes only
// those that differ. One node's failure does not stop the others.
func (r *Reconciler) applyNodes(ctx context.Context, w *world, decision placement.Decision) error {
	var errs []error
	for _, n := range w.nodes {
		if n.Nvmf == nil {
			continue
		}
		if err := r.applyNode(ctx, n, decision.Nodes[n.Name]); controller.IgnoreStale(ctx, err) != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Reconciler) applyNode(ctx context.Context, n placement.Node, desired v1alpha1.NvmfNodeSpec) error {
	config := manifest.ForNodeSpec(n.Nvmf, desired)
	if config == nil {
		return nil
	}
	if had := n.Claimant(); had != "" && had != desired.Target {
		// The cache may not know a volume that was made a moment ago.
		holds, err := r.holdsData(ctx, n.Name, had)
		if err != nil {
			return err
		}
		if holds {
			log.FromContext(ctx).Info("the node keeps its claim: data was put on it a moment ago", "node", n.Name, "claimedBy", had)
			return nil
		}
	}
	if err := r.Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the spec of NvmfNode %s: %w", n.Name, err)
	}
	log.FromContext(ctx).Info("wrote the node's claim and plan", "node", n.Name, "claimedBy", desired.Target, "was", n.Claimant())
	return nil
}

// holdsData asks the API server whether data of the target that claims the node lies on it.
func (r *Reconciler) holdsData(ctx context.Context, node, target string) (bool, error) {
	var volumes v1alpha1.NvmfVolumeList
	if err := r.Live.List(ctx, &volumes, client.MatchingFields{"spec.node": node, "spec.target": target}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the volumes of NvmfTarget %s on node %s: %w", target, node, err)
	}
	var snapshots v1alpha1.NvmfSnapshotList
	if err := r.Live.List(ctx, &snapshots, client.MatchingFields{"spec.node": node}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the snapshots on node %s: %w", node, err)
	}
	return len(volumes.Items)+len(snapshots.Items) > 0, nil
}

// applyBudget keeps the PodDisruptionBudget of a target that has pods: a drain of several nodes takes one
// target after the other. It goes with the target.
func (r *Reconciler) applyBudget(ctx context.Context, target *v1alpha1.NvmfTarget, decision placement.Decision) error {
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
	config := r.Pods.Budget(target, exists, len(decision.Claimed(target.Name)))
	if config == nil {
		return nil
	}
	if err := r.Apply(ctx, config, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("apply PodDisruptionBudget %s: %w", key, err)
	}
	return nil
}

// finalize lets a target that is being deleted go, once the API server itself says that no
// volume names it and no node is claimed for it; gone says that there is
// no target (any more). The nodes were released by applyNodes: only nodes without data are.
func (r *Reconciler) finalize(ctx context.Context, target *v1alpha1.NvmfTarget) (gone bool, err error) {
	if target == nil {
		return true, nil
	}
	if target.DeletionTimestamp.IsZero() {
		return false, nil
	}
	if !controllerutil.ContainsFinalizer(target, v1alpha1.TargetFinalizer) {
		return true, nil
	}
	var volumes v1alpha1.NvmfVolumeList
	if err := r.Live.List(ctx, &volumes, client.MatchingFields{"spec.target": target.Name}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the volumes of NvmfTarget %s: %w", target.Name, err)
	}
	var claimed v1alpha1.NvmfNodeList
	if err := r.Live.List(ctx, &claimed, client.MatchingFields{"spec.target": target.Name}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the nodes of NvmfTarget %s: %w", target.Name, err)
	}
	if len(volumes.Items)+len(claimed.Items) > 0 {
		return false, nil
	}
	err = r.patchFinalizers(ctx, target, func(t *v1alpha1.NvmfTarget) {
		controllerutil.RemoveFinalizer(t, v1alpha1.TargetFinalizer)
	})
	if err != nil {
		return false, err
	}
	log.FromContext(ctx).Info("the target has no volumes and no nodes any more; it is let go")
	return true, nil
}
