// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

// nodeGVK is Kubernetes' Node, of which only the metadata is watched.
var nodeGVK = schema.GroupVersionKind{Version: "v1", Kind: "Node"}

// selectedNodeAnnotation of a claim is the scheduler's choice of a node for the pod that waits for it; Kubernetes
// writes it for classes with volumeBindingMode WaitForFirstConsumer alone.
const selectedNodeAnnotation = "volume.kubernetes.io/selected-node"

// nodesFor a request: which are cordoned, and the zones of all where a class asks for zones.
func (s *Service) nodesFor(ctx context.Context, req *placement.Request, params parameters.Parameters) error {
	var err error
	if req.Cordoned, err = s.cordonedNodes(ctx); err != nil {
		return err
	}
	req.Zones = params.Zones
	if len(req.Zones) > 0 || params.Nearby() || params.Replicas > 1 {
		req.ZoneOf, err = s.zoneOf(ctx, params.ZoneKey())
	}
	return err
}

// cordonedNodes are the Kubernetes Nodes that are cordoned.
func (s *Service) cordonedNodes(ctx context.Context) (map[string]bool, error) {
	nodes := nodeList()
	if err := s.cordoned.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list cordoned Nodes: %w", err)
	}
	cordoned := make(map[string]bool, len(nodes.Items))
	for i := range nodes.Items {
		cordoned[nodes.Items[i].Name] = true
	}
	return cordoned, nil
}

// zoneOf every Kubernetes Node, by its name: the value of the label with this key, empty without it.
func (s *Service) zoneOf(ctx context.Context, key string) (map[string]string, error) {
	nodes := nodeList()
	if err := s.client.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	zoneOf := make(map[string]string, len(nodes.Items))
	for i := range nodes.Items {
		zoneOf[nodes.Items[i].Name] = nodes.Items[i].Labels[key]
	}
	return zoneOf, nil
}

// zonesOf a target's nodes, of which some may be there more than once.
func (s *Service) zonesOf(ctx context.Context, target string, zoneOf map[string]string) ([]string, error) {
	var nodes v1alpha1.NvmfNodeList
	if err := s.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list NvmfNodes: %w", err)
	}
	var zones []string
	for i := range nodes.Items {
		if n := &nodes.Items[i]; n.Spec.Target == target {
			zones = append(zones, zoneOf[n.Name])
		}
	}
	return zones, nil
}

func nodeList() *metav1.PartialObjectMetadataList {
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(nodeGVK.GroupVersion().WithKind("NodeList"))
	return nodes
}

// near the node that the scheduler has chosen for the claim's pod, as far as the class prefers that. The driver's
// topology does not tell it (docs/design/near-placement.md), so the claim is read. Only where a volume is preferred to
// be hangs on it: with a claim that is gone, or is bound at once, it is nowhere in particular.
func (s *Service) near(ctx context.Context, params parameters.Parameters, zoneOf map[string]string) (placement.Near, error) {
	if !params.Nearby() || params.PVCName == "" {
		return placement.Near{}, nil
	}
	claim := &metav1.PartialObjectMetadata{}
	claim.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
	err := s.live.Get(ctx, client.ObjectKey{Namespace: params.PVCNamespace, Name: params.PVCName}, claim)
	if apierrors.IsNotFound(err) {
		return placement.Near{}, nil
	}
	if err != nil {
		return placement.Near{}, fmt.Errorf("read PersistentVolumeClaim %s/%s: %w", params.PVCNamespace, params.PVCName, err)
	}
	node := claim.Annotations[selectedNodeAnnotation]
	near := placement.Near{Zone: zoneOf[node]}
	if params.Placement == parameters.PreferSameNode {
		near.Node = node
	}
	return near, nil
}
