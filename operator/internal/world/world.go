// SPDX-License-Identifier: Apache-2.0

// Package world reads all that placement decides from: for the operator's reconciler and its webhook from the
// cache, for kubectl weft from the API server or from files.
package world

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
	"github.com/weft-storage/weft/operator/internal/claim"
)

// World is one look at everything that a decision is made from.
type World struct {
	Targets []v1alpha1.NvmfTarget
	// Nodes by name. A node is in the world when anything names it: a Node, an NvmfNode, a volume or a snapshot.
	Nodes     []claim.Node
	Volumes   []v1alpha1.NvmfVolume
	Snapshots []v1alpha1.NvmfSnapshot
}

// Kinds that Gather reads.
func Kinds() []client.Object {
	return []client.Object{&v1alpha1.NvmfTarget{}, &corev1.Node{}, &v1alpha1.NvmfNode{}, &v1alpha1.NvmfVolume{}, &v1alpha1.NvmfSnapshot{}}
}

// Gather reads the world.
func Gather(ctx context.Context, from client.Reader) (*World, error) {
	var (
		targets   v1alpha1.NvmfTargetList
		kubeNodes corev1.NodeList
		nvmfNodes v1alpha1.NvmfNodeList
		volumes   v1alpha1.NvmfVolumeList
		snapshots v1alpha1.NvmfSnapshotList
	)
	for _, list := range []client.ObjectList{&targets, &kubeNodes, &nvmfNodes, &volumes, &snapshots} {
		if err := from.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	w := &World{Targets: targets.Items, Volumes: volumes.Items, Snapshots: snapshots.Items}
	w.Nodes = nodesOf(kubeNodes.Items, nvmfNodes.Items, volumes.Items, snapshots.Items)
	return w, nil
}

// Of is a world of nodes alone.
func Of(kubeNodes []corev1.Node, nvmfNodes []v1alpha1.NvmfNode) *World {
	return &World{Nodes: nodesOf(kubeNodes, nvmfNodes, nil, nil)}
}

func nodesOf(kubeNodes []corev1.Node, nvmfNodes []v1alpha1.NvmfNode, volumes []v1alpha1.NvmfVolume, snapshots []v1alpha1.NvmfSnapshot) []claim.Node {
	nodes := map[string]*claim.Node{}
	node := func(name string) *claim.Node {
		if nodes[name] == nil {
			nodes[name] = &claim.Node{Name: name, Volumes: map[string]int{}}
		}
		return nodes[name]
	}
	for i := range kubeNodes {
		k := &kubeNodes[i]
		n := node(k.Name)
		n.Exists, n.Labels, n.InternalIPs, n.Allocatable = true, k.Labels, InternalIPs(k), Allocatable(k)
	}
	for i := range nvmfNodes {
		node(nvmfNodes[i].Name).Nvmf = &nvmfNodes[i]
	}
	for i := range volumes {
		node(volumes[i].Spec.Node).Volumes[volumes[i].Spec.Target]++
	}
	for i := range snapshots {
		node(snapshots[i].Spec.Node).Snapshots++
	}
	sorted := make([]claim.Node, 0, len(nodes))
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		sorted = append(sorted, *nodes[name])
	}
	return sorted
}

// InternalIPs of a Kubernetes Node, in its order.
func InternalIPs(node *corev1.Node) []string {
	var ips []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// Allocatable is what the node's kubelet has for pods; nil as long as it does not say.
func Allocatable(node *corev1.Node) *sizing.Allocatable {
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
