// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

func (s *Service) publishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	id := req.GetVolumeId()
	a, err := checkPublish(req)
	if err != nil {
		return nil, err
	}
	unlock, err := s.locks.lock("volume", id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	vol, nqn, err := s.admit(ctx, req, a)
	if err != nil {
		return nil, err
	}
	wctx, cancel := waitContext(ctx)
	defer cancel()
	attachment, _ := v1alpha1.AttachmentOfHost(nqn)
	publishContext := publishcontext.Context{Attachment: attachment, Encrypted: vol.Spec.Encryption != "", Trailer: vol.Spec.Trailer}.Encode()
	if vol.Replicated() {
		if err := s.hold(ctx, wctx, vol, attachment); err != nil {
			return nil, err
		}
		return &csi.ControllerPublishVolumeResponse{PublishContext: publishContext}, nil
	}
	now, err := s.follow(ctx, vol)
	if err != nil {
		return nil, err
	}
	err = s.await(wctx, now, v1alpha1.ConditionExported, func(rep *v1alpha1.NvmfReplica, generation int64) (bool, error) {
		return exportedToOne(rep, attachment, generation)
	})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: publishContext}, nil
}

func checkPublish(req *csi.ControllerPublishVolumeRequest) (attachment, error) {
	a := attachment{node: req.GetNodeId()}
	switch {
	case req.GetVolumeId() == "":
		return a, failf(invalid, "volume_id is required")
	case a.node == "":
		return a, failf(invalid, "node_id is required")
	case req.GetVolumeCapability() == nil:
		return a, failf(invalid, "volume_capability is required")
	case req.GetReadonly():
		return a, failf(invalid, "read-only attachment is not supported; mount the volume read-only in the pod instead (volumeMounts[].readOnly)")
	}
	if len(validation.IsDNS1123Subdomain(a.node)) > 0 {
		return a, failf(notFound, "node ID %q is not the name of a Node; check the CSINode object", a.node)
	}
	if _, _, err := checkCapabilities([]*csi.VolumeCapability{req.GetVolumeCapability()}, ""); err != nil {
		return a, err
	}
	var err error
	a.access, err = access(req.GetVolumeCapability())
	return a, err
}

// admit adds a host to the volume's hosts for this attachment, unless it has one, and returns the volume with it and
// the host's NQN. A volume with other hosts is refused, unless all of them share it in the same way.
//
// The volume is read before the Node and the VolumeAttachment are, and written only as it was read.
func (s *Service) admit(ctx context.Context, req *csi.ControllerPublishVolumeRequest, a attachment) (*v1alpha1.NvmfVolume, string, error) {
	id := req.GetVolumeId()
	for {
		vol, err := s.withReplicas(ctx, id)
		if err != nil {
			return nil, "", err
		}
		if err := checkContext(vol.NvmfVolume, req.GetVolumeContext()); err != nil {
			return nil, "", err
		}
		node, err := s.identify(ctx, req, &a)
		if err != nil {
			return nil, "", err
		}
		if vol.DeletionTimestamp != nil {
			return nil, "", failf(inUse, "volume %s is being deleted", id)
		}
		if vol.Spec.Recovery != nil {
			return nil, "", errRecovering(id)
		}
		if vol.Mover() != nil {
			// What cannot be attached all the same would end the copy with each attempt.
			if err := errors.Join(unobstructed(node, id), mirrorable(node, id), encryptable(node, vol.NvmfVolume, a.access)); err != nil {
				return nil, "", err
			}
			if err := s.displaceMover(ctx, vol.NvmfVolume); err != nil {
				return nil, "", err
			}
			continue
		}
		if h := find(vol.NvmfVolume, a.node); h != nil && a.is(*h) {
			if now := accessOf(*h); now != a.access {
				return nil, "", failf(exists, "volume %s is already attached to node %s with access %s, not %s", id, a.node, now, a.access)
			}
			return vol.NvmfVolume, h.NQN, nil
		}
		if err := a.allowed(vol); err != nil {
			if behind(vol) {
				// A detachment was interrupted before it had reached the replicas.
				if _, err := s.follow(ctx, vol.NvmfVolume); err != nil {
					return nil, "", err
				}
				continue
			}
			switch back, backErr := s.takeBack(ctx, vol.NvmfVolume); {
			case backErr != nil:
				return nil, "", backErr
			case back:
				continue
			}
			return nil, "", err
		}
		if err := errors.Join(unsuspected(vol), unobstructed(node, id), encryptable(node, vol.NvmfVolume, a.access)); err != nil {
			return nil, "", err
		}
		if vol.Replicated() {
			if err := mirrorable(node, id); err != nil {
				return nil, "", err
			}
		}
		if err := s.attachable(ctx, vol); err != nil {
			return nil, "", err
		}
		h, described := a.host(), s.persistentVolumeOf(ctx, vol.NvmfVolume, a.persistentVolume)
		if err := s.authenticable(ctx, vol, h, node); err != nil {
			return nil, "", err
		}
		written, err := s.attach(ctx, vol.NvmfVolume, func(vol *v1alpha1.NvmfVolume) {
			vol.Spec.DeletionMark = "" // of a deletion that was not carried through
			givePermission(vol, h.NQN)
			h.KeyRotation = vol.Spec.KeyRotation
			if len(vol.Spec.Attachments) == 0 {
				vol.Spec.Session, _ = v1alpha1.AttachmentOfHost(h.NQN)
			}
			vol.Spec.Attachments, vol.Spec.PersistentVolume = append(vol.Spec.Attachments, h), described
		})
		if apierrors.IsConflict(err) {
			continue
		}
		if err == nil {
			klog.FromContext(ctx).Info("Admitting host", "volume", id, "members", vol.Spec.Members, "host", a.node, "nqn", h.NQN, "access", a.access)
		}
		return written, h.NQN, err
	}
}

// host of the attachment, with an identity that no other ever had.
func (a attachment) host() v1alpha1.VolumeHost {
	return v1alpha1.VolumeHost{
		NQN: v1alpha1.HostNQN(uuid.NewString()), Node: a.node, NodeUID: a.nodeUID, VolumeAttachment: a.request, Access: a.access,
	}
}

// is tells whether a host was given to this attachment by an earlier call. One for a VolumeAttachment, or a Node, of
// the same name that is gone belongs to an attachment that has ended.
func (a attachment) is(h v1alpha1.VolumeHost) bool {
	return h.Node == a.node && h.NodeUID == a.nodeUID && h.VolumeAttachment == a.request
}

func accessOf(h v1alpha1.VolumeHost) v1alpha1.HostAccess {
	return cmp.Or(h.Access, v1alpha1.AccessExclusive)
}

// allowed fails when others use the volume and do not share it in this way. Of one that is admitted still but not
// listed any more, it is not known how it uses the volume.
func (a attachment) allowed(vol *replicatedVolume) error {
	if h := find(vol.NvmfVolume, a.node); h != nil {
		return failf(inUse, "volume %s still has an earlier attachment to node %s, which is not detached yet", vol.Name, a.node)
	}
	// Whether the target of a replica still admits somebody is settled when the mirror is given to the attachment.
	left := lingering(vol)
	if vol.Replicated() {
		if a.access != v1alpha1.AccessExclusive && len(vol.Spec.Members) == 1 {
			return failf(invalid, "volume %s has one replica, but it had more, and the node that uses it still goes through a mirror, which only one node at a time can do; "+
				"this cannot be undone in this version: use ReadWriteOnce, or copy the data to a new volume", vol.Name)
		}
		if a.access != v1alpha1.AccessExclusive {
			return errShared(vol.Name)
		}
		left = nil
	}
	unlike := func(h v1alpha1.VolumeHost) bool { return accessOf(h) != a.access }
	switch {
	case len(vol.Spec.Attachments) == 0 && len(left) == 0:
		return nil
	case a.access == v1alpha1.AccessExclusive:
		return failf(inUse, "volume %s is attached to %s; it can be attached to only one node at a time", vol.Name, users(vol))
	case len(left) > 0 || slices.ContainsFunc(vol.Spec.Attachments, unlike):
		return failf(inUse, "volume %s is attached to %s with another access than %s", vol.Name, users(vol), a.access)
	}
	return nil
}

// errShared explains why a volume with several replicas has one user: each node that wrote would mirror by itself.
func errShared(volume string) error {
	return failf(invalid, "volume %s has more than one replica, and can be used by one node at a time: the node that uses it writes to all replicas, "+
		"and two nodes would leave them different; use ReadWriteOnce, or a StorageClass with replicas: \"1\"", volume)
}

// exportedToOne of an attachment's hosts, as exportedTo. While its keys are rotated, either will do.
func exportedToOne(rep *v1alpha1.NvmfReplica, attachment string, generation int64) (bool, error) {
	nqn := v1alpha1.HostNQN(attachment)
	if rep != nil {
		for _, h := range rep.HostsOf(attachment) {
			if nqn = h.NQN; rep.Admitted(nqn) != nil {
				break
			}
		}
	}
	return exportedTo(rep, nqn, generation)
}

// exportedTo says that the agent has seen the spec of this generation, and that its target serves the replica to the
// host.
func exportedTo(rep *v1alpha1.NvmfReplica, nqn string, generation int64) (bool, error) {
	if rep == nil || rep.DeletionTimestamp != nil {
		return false, failf(inUse, "the volume was deleted while it was being attached")
	}
	if rep.Admitted(nqn) == nil && rep.RestoreSuspected() {
		return false, errSuspected(rep)
	}
	if rep.Generation < generation || rep.Status.ObservedGeneration < generation {
		return false, nil
	}
	if rep.Listed(nqn) == nil {
		return false, failf(busy, "the volume was detached from the node while it was being attached; try again")
	}
	exported := meta.FindStatusCondition(rep.Status.Conditions, v1alpha1.ConditionExported)
	if exported == nil {
		return false, nil
	}
	// Of a volume that is shared, one host may wait for a place while another has one.
	exhausted := exported.Reason == v1alpha1.ReasonAttachmentsExhausted
	switch {
	case rep.Admitted(nqn) == nil && exhausted:
		return false, failf(full, "volume %s: %s", rep.Spec.Volume.Name, exported.Message)
	case rep.Admitted(nqn) == nil || exported.Status != metav1.ConditionTrue && !exhausted:
		return false, nil
	}
	return len(rep.Paths()) > 0, nil
}
