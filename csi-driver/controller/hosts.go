// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// nodeGVK is Kubernetes' Node, of which only the metadata is watched.
var nodeGVK = schema.GroupVersionKind{Version: "v1", Kind: "Node"}

const nodeUIDIndex = "metadata.uid"

func nodeUID(obj client.Object) []string { return []string{string(obj.GetUID())} }

// host is a node that may connect, by its NQN; the Node's UID is the part of it that we chose.
type host struct {
	nqn, uid string
}

// parseHost reads CSI's node_id.
func parseHost(nodeID string) (host, error) {
	if nodeID == "" {
		return host{}, failf(invalid, "the request has no node id")
	}
	uid, ok := v1alpha1.UUIDOfHost(nodeID)
	if parsed, err := uuid.Parse(uid); !ok || err != nil || parsed.String() != uid {
		return host{}, failf(notFound, "node id %q is not one that this driver's node plugin gives, %s<UID of the Node>; see the CSINode object", nodeID, v1alpha1.HostNQNPrefix)
	}
	return host{nqn: nodeID, uid: uid}, nil
}

// nodeName of the Node with this UID; empty when there is none.
func (s *Service) nodeName(ctx context.Context, uid string) (string, error) {
	var nodes metav1.PartialObjectMetadataList
	nodes.SetGroupVersionKind(nodeGVK.GroupVersion().WithKind("NodeList"))
	if err := s.client.List(ctx, &nodes, client.MatchingFields{nodeUIDIndex: uid}); err != nil {
		return "", fmt.Errorf("look up Node with UID %s: %w", uid, err)
	}
	if len(nodes.Items) == 0 {
		return "", nil
	}
	return nodes.Items[0].Name, nil
}

// withoutNode are those of the hosts whose Node does not exist any more, by the API server's word: a cache may not show
// a Node yet that is new, or show one still that is gone. Read the hosts before: each was admitted while its Node
// existed, and a UID does not come again.
func (s *Service) withoutNode(ctx context.Context, nqns []string) ([]string, error) {
	if len(nqns) == 0 {
		return nil, nil
	}
	var nodes metav1.PartialObjectMetadataList
	nodes.SetGroupVersionKind(nodeGVK.GroupVersion().WithKind("NodeList"))
	if err := s.live.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	return slices.DeleteFunc(slices.Clone(nqns), func(nqn string) bool {
		uid, ours := v1alpha1.UUIDOfHost(nqn)
		return !ours || slices.ContainsFunc(nodes.Items, func(n metav1.PartialObjectMetadata) bool { return string(n.UID) == uid })
	}), nil
}

// unobstructed fails while a node says that its kernel does not finish what it was asked for: there, the volume would
// wait behind that.
func (s *Service) unobstructed(ctx context.Context, name, volume string) error {
	var node corev1.Node
	if err := s.live.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return fmt.Errorf("read Node %s: %w", name, err)
	}
	if c := v1alpha1.InitiatorStuck(&node); c != nil && c.Status == corev1.ConditionTrue {
		return failf(waiting, "volume %s is not attached to node %s, which takes no further volume until its kernel has finished: condition %s (%s: %s)",
			volume, name, c.Type, c.Reason, c.Message)
	}
	return nil
}

// describeHosts names the nodes behind NQNs, for people.
func (s *Service) describeHosts(ctx context.Context, nqns []string) (string, error) {
	var names []string
	for _, nqn := range nqns {
		uid, ok := v1alpha1.UUIDOfHost(nqn)
		name := ""
		if ok {
			var err error
			if name, err = s.nodeName(ctx, uid); err != nil {
				return "", err
			}
		}
		if name == "" {
			names = append(names, fmt.Sprintf("host %s (no Node of this cluster has that UID)", nqn))
		} else {
			names = append(names, "node "+name)
		}
	}
	return strings.Join(names, ", "), nil
}

// admitted hosts of a volume: those that shall be, and those that still are; sorted.
func admitted(vol *v1alpha1.NvmfVolume) []string {
	var nqns []string
	for _, h := range vol.Spec.Hosts {
		nqns = append(nqns, h.NQN)
	}
	for _, h := range vol.Status.Hosts {
		nqns = append(nqns, h.NQN)
	}
	slices.Sort(nqns)
	return slices.Compact(nqns)
}

// changeHosts of a volume, provided that nothing has changed since vol was read; else the API server answers Conflict.
func (s *Service) changeHosts(ctx context.Context, vol *v1alpha1.NvmfVolume, change func(*v1alpha1.NvmfVolume)) (*v1alpha1.NvmfVolume, error) {
	changed := vol.DeepCopy()
	change(changed)
	patch := client.MergeFromWithOptions(vol, client.MergeFromWithOptimisticLock{})
	if err := s.client.Patch(ctx, changed, patch, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("write hosts of NvmfVolume %s: %w", vol.Name, err)
	}
	return changed, nil
}

// zoneOf every node, by its name; nothing when no zones are asked for.
func (s *Service) zoneOf(ctx context.Context, zones []string) (map[string]string, error) {
	if len(zones) == 0 {
		return nil, nil
	}
	var nodes metav1.PartialObjectMetadataList
	nodes.SetGroupVersionKind(nodeGVK.GroupVersion().WithKind("NodeList"))
	if err := s.client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	zoneOf := make(map[string]string, len(nodes.Items))
	for i := range nodes.Items {
		zoneOf[nodes.Items[i].Name] = nodes.Items[i].Labels[corev1.LabelTopologyZone]
	}
	return zoneOf, nil
}
