// SPDX-License-Identifier: Apache-2.0

// Package gather reads the objects that claims are decided from: for the operator's controller and its webhook from
// the cache, for kubectl weft from the API server.
package gather

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
)

// Objects are one look at everything that claims are decided from.
type Objects struct {
	Targets   []v1alpha1.NvmfTarget
	Nodes     []claim.Node
	Volumes   []v1alpha1.NvmfVolume
	Replicas  []v1alpha1.NvmfReplica
	Snapshots []v1alpha1.NvmfSnapshot
}

// Kinds that All reads.
func Kinds() []client.Object {
	return []client.Object{
		&v1alpha1.NvmfTarget{}, &corev1.Node{}, &v1alpha1.NvmfNode{}, &v1alpha1.NvmfVolume{}, &v1alpha1.NvmfReplica{}, &v1alpha1.NvmfSnapshot{},
	}
}

// All reads all objects of these kinds. Nodes, volumes, replicas and snapshots from a cache are the cache's own: they
// are only read, and quantities that they point to are not made text of, which would write to them.
func All(ctx context.Context, from client.Reader) (*Objects, error) {
	var (
		targets   v1alpha1.NvmfTargetList
		kubeNodes corev1.NodeList
		nvmfNodes v1alpha1.NvmfNodeList
		volumes   v1alpha1.NvmfVolumeList
		replicas  v1alpha1.NvmfReplicaList
		snapshots v1alpha1.NvmfSnapshotList
	)
	for _, list := range []client.ObjectList{&targets, &nvmfNodes} {
		if err := from.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	for _, list := range []client.ObjectList{&kubeNodes, &volumes, &replicas, &snapshots} {
		if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	return &Objects{
		Targets: targets.Items, Volumes: volumes.Items, Replicas: replicas.Items, Snapshots: snapshots.Items,
		Nodes: claim.Nodes(kubeNodes.Items, nvmfNodes.Items, replicas.Items, snapshots.Items),
	}, nil
}
