// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// attachment is what a publish asks for: a volume on a node, in a way.
type attachment struct {
	// node is the Node's name, which is CSI's node_id.
	node string
	// nodeUID and request are the UIDs of the Node and of the VolumeAttachment, as they are now; request is empty when
	// another caller than Kubernetes' attacher asks.
	nodeUID, request string
	// persistentVolume that the VolumeAttachment names; empty when there is none, or when it names none.
	persistentVolume string
	access           v1alpha1.HostAccess
}

// find the host that an attachment to this node has been given; nil when there is none.
func find(vol *v1alpha1.NvmfVolume, node string) *v1alpha1.VolumeHost {
	i := slices.IndexFunc(vol.Spec.Attachments, func(h v1alpha1.VolumeHost) bool { return h.Node == node })
	if i < 0 {
		return nil
	}
	return &vol.Spec.Attachments[i]
}

// identify reads which Node and which VolumeAttachment a publish is for, from the API server. It fails with notFound
// when there is no such Node, and with busy when the call came late: its VolumeAttachment is being deleted, or is gone
// although Kubernetes made the volume, so that nobody would detach it. A cache could show a Node or a VolumeAttachment
// of the same name that is gone: another machine, or nobody, would be admitted.
func (s *Service) identify(ctx context.Context, req *csi.ControllerPublishVolumeRequest, a *attachment) (*corev1.Node, error) {
	volume := req.GetVolumeId()
	var node corev1.Node
	err := s.live.Get(ctx, client.ObjectKey{Name: a.node}, &node)
	if apierrors.IsNotFound(err) {
		return nil, failf(notFound, "Node %s not found", a.node)
	}
	if err != nil {
		return nil, fmt.Errorf("read Node %s: %w", a.node, err)
	}
	a.nodeUID = string(node.UID)
	request, err := s.request(ctx, volume, a.node)
	if err != nil {
		return nil, err
	}
	_, ofKubernetes := req.GetVolumeContext()[provisionerIdentity]
	switch {
	case request == nil && ofKubernetes:
		return nil, failf(busy, "no VolumeAttachment requests volume %s on node %s any more", volume, a.node)
	case request == nil:
		a.request, a.persistentVolume = "", ""
	case request.DeletionTimestamp != nil:
		return nil, failf(busy, "VolumeAttachment %s of volume %s on node %s is being deleted", request.Name, volume, a.node)
	default:
		a.request, a.persistentVolume = string(request.UID), ptr.Deref(request.Spec.Source.PersistentVolumeName, "")
	}
	return &node, nil
}

// request for the attachment of a volume to a node: Kubernetes' VolumeAttachment, which has a name that follows from
// both. Nil when there is none.
func (s *Service) request(ctx context.Context, volume, node string) (*storagev1.VolumeAttachment, error) {
	name := requestName(volume, node)
	var request storagev1.VolumeAttachment
	err := s.live.Get(ctx, client.ObjectKey{Name: name}, &request)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read VolumeAttachment %s: %w", name, err)
	}
	return &request, nil
}

// requestGVK is Kubernetes' VolumeAttachment, of which only the metadata is watched.
var requestGVK = storagev1.SchemeGroupVersion.WithKind("VolumeAttachment")

// requestName is how Kubernetes names the VolumeAttachment (getAttachmentName in its pkg/volume/csi).
func requestName(volume, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(volume+v1alpha1.DriverName+node)))
}

// unobstructed fails while a node says that its kernel does not finish what it was asked for: there, the volume would
// wait behind that.
func unobstructed(node *corev1.Node, volume string) error {
	if c := v1alpha1.InitiatorStuck(node); c != nil && c.Status == corev1.ConditionTrue {
		return failf(waiting, "cannot attach volume %s to node %s while its kernel is stuck: condition %s (%s: %s)",
			volume, node.Name, c.Type, c.Reason, c.Message)
	}
	return nil
}

// mirrorable fails while a node says that it cannot hold mirrors. One that says nothing, as with an earlier node
// plugin, may be able to: what is unknown is found out when the volume is staged.
func mirrorable(node *corev1.Node, volume string) error {
	if c := v1alpha1.NodeCondition(node, v1alpha1.ConditionMirrorsUnavailable); c != nil && c.Status == corev1.ConditionTrue {
		return failf(waiting, "volume %s cannot be mirrored by node %s: condition %s (%s: %s)", volume, node.Name, c.Type, c.Reason, c.Message)
	}
	return nil
}

// mirrorableWhereUsed fails while a node that uses a volume says that it cannot hold mirrors.
func (s *Service) mirrorableWhereUsed(ctx context.Context, vol *v1alpha1.NvmfVolume) error {
	for _, name := range published(vol) {
		var node corev1.Node
		err := s.live.Get(ctx, client.ObjectKey{Name: name}, &node)
		if apierrors.IsNotFound(err) {
			continue // it says nothing
		}
		if err != nil {
			return fmt.Errorf("read Node %s: %w", name, err)
		}
		if err := mirrorable(&node, vol.Name); err != nil {
			return err
		}
	}
	return nil
}

// published are the names of the nodes that a volume is attached to, but for a mover's; sorted.
func published(vol *v1alpha1.NvmfVolume) []string {
	var nodes []string
	for _, h := range vol.Spec.Attachments {
		if !h.Mover {
			nodes = append(nodes, h.Node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// lingering are the hosts that a volume's targets still admit, or may be about to, although their attachments have
// ended; sorted.
func lingering(vol *replicatedVolume) []string {
	var nqns []string
	for _, rep := range vol.replicas {
		if rep == nil {
			continue
		}
		for _, h := range rep.Spec.Hosts {
			nqns = append(nqns, h.NQN)
		}
		nqns = append(nqns, admittedOnly(rep)...)
	}
	nqns = slices.DeleteFunc(nqns, vol.listed)
	slices.Sort(nqns)
	return slices.Compact(nqns)
}

// admittedOnly are the hosts that a replica's target admits although the replica does not list them.
func admittedOnly(rep *v1alpha1.NvmfReplica) []string {
	var nqns []string
	for _, a := range rep.Status.Hosts {
		if rep.Listed(a.NQN) == nil {
			nqns = append(nqns, a.NQN)
		}
	}
	return nqns
}

// behind tells whether a replica lists hosts that its volume does not list any more.
func behind(vol *replicatedVolume) bool {
	return slices.ContainsFunc(vol.replicas, func(rep *v1alpha1.NvmfReplica) bool {
		return rep != nil && slices.ContainsFunc(rep.Spec.Hosts, func(h v1alpha1.VolumeHost) bool { return !vol.listed(h.NQN) })
	})
}

// listed tells whether a host NQN is of an attachment that the volume lists: its own, or that of a replica's.
func (vol *replicatedVolume) listed(nqn string) bool {
	return vol.Listed(nqn) != nil || slices.ContainsFunc(vol.replicas, func(rep *v1alpha1.NvmfReplica) bool {
		if rep == nil {
			return false
		}
		h := rep.Listed(nqn)
		return h != nil && vol.Listed(v1alpha1.HostNQN(h.AttachmentUUID())) != nil
	})
}

// users of a volume in words, empty when there are none: the nodes that it is attached to, and what lingers.
func users(vol *replicatedVolume) string {
	var words []string
	for _, node := range published(vol.NvmfVolume) {
		words = append(words, "node "+node)
	}
	for _, nqn := range lingering(vol) {
		words = append(words, fmt.Sprintf("host %s (detached, still disconnecting)", nqn))
	}
	return strings.Join(words, ", ")
}

// attach changes the attachments of a volume, provided that nothing has changed since vol was read; else the API
// server answers Conflict.
func (s *Service) attach(ctx context.Context, vol *v1alpha1.NvmfVolume, change func(*v1alpha1.NvmfVolume)) (*v1alpha1.NvmfVolume, error) {
	changed := vol.DeepCopy()
	change(changed)
	nameClaim(changed)
	changed.Spec.Used = changed.Spec.Used || len(changed.Spec.Attachments) > 0
	if err := s.patch(ctx, vol, changed); err != nil {
		return nil, fmt.Errorf("write attachments of NvmfVolume %s: %w", vol.Name, err)
	}
	return changed, nil
}
