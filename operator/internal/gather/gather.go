// SPDX-License-Identifier: Apache-2.0

// Package gather reads the objects that claims are decided from: for the operator's controller and its webhook from
// the cache, for kubectl weft from the API server.
package gather

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// Objects are one look at everything that claims are decided from.
type Objects struct {
	Targets []v1alpha1.NvmfTarget
	// Nodes by name: one for each that anything names, be it a Node, an NvmfNode, a replica or a snapshot.
	Nodes []Node
}

// Claims are nodes as claims are decided from them.
func Claims(nodes []Node) []claim.Node {
	claims := make([]claim.Node, len(nodes))
	for i, n := range nodes {
		claims[i] = n.Node
	}
	return claims
}

// Node is what there is of one node. It follows from the objects that One reads, and from nothing else.
type Node struct {
	claim.Node
	// Busy names replicas and snapshots that are in the midst of something, see rollout.Busy.
	Busy []string
	// ReplicaBytes is what the replicas on the node take with their headers, by target; SnapshotBytes is what its
	// snapshots do.
	ReplicaBytes  map[string]int64
	SnapshotBytes int64
}

// Kinds that All reads.
func Kinds() []client.Object {
	return []client.Object{
		&v1alpha1.NvmfTarget{}, &corev1.Node{}, &v1alpha1.NvmfNode{}, &v1alpha1.NvmfReplica{}, &v1alpha1.NvmfSnapshot{},
	}
}

// found of one node.
type found struct {
	kube      *corev1.Node
	nvmf      *v1alpha1.NvmfNode
	replicas  []v1alpha1.NvmfReplica
	snapshots []v1alpha1.NvmfSnapshot
}

// finds by the names of nodes.
type finds map[string]*found

// of a node; it is added if it is new.
func (f finds) of(name string) *found {
	if f[name] == nil {
		f[name] = &found{}
	}
	return f[name]
}

// addNodes of Kubernetes and of weft.
func (f finds) addNodes(kube []corev1.Node, nvmf []v1alpha1.NvmfNode) {
	for i := range kube {
		f.of(kube[i].Name).kube = &kube[i]
	}
	for i := range nvmf {
		f.of(nvmf[i].Name).nvmf = &nvmf[i]
	}
}

// All reads all objects of these kinds. What is not copied is the cache's own, and is only read.
func All(ctx context.Context, from client.Reader) (*Objects, error) {
	var (
		targets   v1alpha1.NvmfTargetList
		kubeNodes corev1.NodeList
		nvmfNodes v1alpha1.NvmfNodeList
		replicas  v1alpha1.NvmfReplicaList
		snapshots v1alpha1.NvmfSnapshotList
	)
	if err := from.List(ctx, &targets); err != nil {
		return nil, fmt.Errorf("list %T: %w", &targets, err)
	}
	for _, list := range []client.ObjectList{&kubeNodes, &nvmfNodes, &replicas, &snapshots} {
		if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	return &Objects{Targets: targets.Items, Nodes: Nodes(kubeNodes.Items, nvmfNodes.Items, replicas.Items, snapshots.Items)}, nil
}

// Nodes by name: one for each that any of the objects names.
func Nodes(kubeNodes []corev1.Node, nvmfNodes []v1alpha1.NvmfNode, replicas []v1alpha1.NvmfReplica, snapshots []v1alpha1.NvmfSnapshot) []Node {
	nodes := finds{}
	nodes.addNodes(kubeNodes, nvmfNodes)
	for _, r := range replicas {
		n := nodes.of(r.Spec.Node)
		n.replicas = append(n.replicas, r)
	}
	for _, s := range snapshots {
		n := nodes.of(s.Spec.Node)
		n.snapshots = append(n.snapshots, s)
	}
	sorted := make([]Node, 0, len(nodes))
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		sorted = append(sorted, nodes[name].node(name))
	}
	return sorted
}

// Some reads the nodes that are chosen, by name, and of replicas and snapshots only those on them. It chooses by the
// Node and the NvmfNode, of which one may be nil; a node that has neither is not asked for. The reader finds replicas
// and snapshots by the field spec.node: a cache needs that index.
func Some(ctx context.Context, from client.Reader, choose func(*corev1.Node, *v1alpha1.NvmfNode) bool) ([]Node, error) {
	var (
		kubeNodes corev1.NodeList
		nvmfNodes v1alpha1.NvmfNodeList
	)
	for _, list := range []client.ObjectList{&kubeNodes, &nvmfNodes} {
		if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	all := finds{}
	all.addNodes(kubeNodes.Items, nvmfNodes.Items)
	var nodes []Node
	for _, name := range slices.Sorted(maps.Keys(all)) {
		is := all[name]
		if !choose(is.kube, is.nvmf) {
			continue
		}
		if err := is.readData(ctx, from, name); err != nil {
			return nil, err
		}
		nodes = append(nodes, is.node(name))
	}
	return nodes, nil
}

// Fresh reads all Nodes and NvmfNodes from the API server, and also the replicas and snapshots on some nodes; those on
// the others come from a cache, which has an index on the field spec.node. A node that has neither a Node nor an
// NvmfNode is looked for if it is among the names, which are those that the cache knows.
func Fresh(ctx context.Context, live, cached client.Reader, names []string, some func(name string) bool) ([]Node, error) {
	var (
		kubeNodes corev1.NodeList
		nvmfNodes v1alpha1.NvmfNodeList
	)
	for _, list := range []client.ObjectList{&kubeNodes, &nvmfNodes} {
		if err := live.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	all := finds{}
	all.addNodes(kubeNodes.Items, nvmfNodes.Items)
	for _, name := range names {
		all.of(name)
	}
	nodes := make([]Node, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		is, from := all[name], cached
		if some(name) {
			from = live
		}
		if err := is.readData(ctx, from, name); err != nil {
			return nil, err
		}
		if !is.empty() {
			nodes = append(nodes, is.node(name))
		}
	}
	return nodes, nil
}

// empty: nothing names the node.
func (f *found) empty() bool {
	return f.kube == nil && f.nvmf == nil && len(f.replicas)+len(f.snapshots) == 0
}

// One reads what there is of one node; nil when nothing names it. The reader finds replicas and snapshots by the field
// spec.node: a cache needs that index.
func One(ctx context.Context, from client.Reader, name string) (*Node, error) {
	var (
		kube corev1.Node
		nvmf v1alpha1.NvmfNode
		is   found
	)
	there := func(o client.Object) (bool, error) {
		err := from.Get(ctx, client.ObjectKey{Name: name}, o, client.UnsafeDisableDeepCopy)
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("get %T %s: %w", o, name, err)
		}
		return err == nil, nil
	}
	if ok, err := there(&kube); err != nil {
		return nil, err
	} else if ok {
		is.kube = &kube
	}
	if ok, err := there(&nvmf); err != nil {
		return nil, err
	} else if ok {
		is.nvmf = &nvmf
	}
	if err := is.readData(ctx, from, name); err != nil {
		return nil, err
	}
	if is.empty() {
		return nil, nil
	}
	n := is.node(name)
	return &n, nil
}

// readData reads the replicas and snapshots on the node.
func (f *found) readData(ctx context.Context, from client.Reader, name string) error {
	var (
		replicas  v1alpha1.NvmfReplicaList
		snapshots v1alpha1.NvmfSnapshotList
	)
	for _, list := range []client.ObjectList{&replicas, &snapshots} {
		if err := from.List(ctx, list, client.MatchingFields{"spec.node": name}, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %T of node %s: %w", list, name, err)
		}
	}
	f.replicas, f.snapshots = replicas.Items, snapshots.Items
	return nil
}

// node keeps nothing of the cache's own but what nobody writes to: labels, and the inventory.
func (f *found) node(name string) Node {
	n := Node{Node: claim.NewNode(name, f.kube, own(f.nvmf), f.replicas, f.snapshots), ReplicaBytes: map[string]int64{}}
	n.Busy = rollout.Busy(n.Nvmf, f.replicas, f.snapshots)
	for i := range f.replicas {
		n.ReplicaBytes[f.replicas[i].Spec.Target] += v1alpha1.WithOverhead(f.replicas[i].Spec.Size.Value())
	}
	for i := range f.snapshots {
		n.SnapshotBytes += Value(f.snapshots[i].Status.Allocated)
	}
	return n
}

// own copy of an NvmfNode from a cache, without its inventory: that is most of it, and has no quantities, which are
// written to when they are made text of.
func own(nvmf *v1alpha1.NvmfNode) *v1alpha1.NvmfNode {
	if nvmf == nil {
		return nil
	}
	bare := *nvmf
	bare.Status.Inventory = nil
	bare = *bare.DeepCopy()
	bare.Status.Inventory = nvmf.Status.Inventory
	return &bare
}

// Value of what may not have been reported yet.
func Value(q *resource.Quantity) int64 {
	if q == nil {
		return 0
	}
	return q.Value()
}
