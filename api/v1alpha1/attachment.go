// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Listed is the entry of a host in spec.attachments; nil when it is not listed.
func (v *NvmfVolume) Listed(host string) *VolumeHost {
	i := slices.IndexFunc(v.Spec.Attachments, func(h VolumeHost) bool { return h.NQN == host })
	if i < 0 {
		return nil
	}
	return &v.Spec.Attachments[i]
}

// Mover is the volume's attachment that is a mover's; nil when it has none.
func (v *NvmfVolume) Mover() *VolumeHost {
	i := slices.IndexFunc(v.Spec.Attachments, func(h VolumeHost) bool { return h.Mover })
	if i < 0 {
		return nil
	}
	return &v.Spec.Attachments[i]
}

// InUse tells whether the volume is attached to a node for a pod.
func (v *NvmfVolume) InUse() bool {
	return slices.ContainsFunc(v.Spec.Attachments, func(h VolumeHost) bool { return !h.Mover })
}

// Replicated tells whether the volume has, or had, several replicas, and so an NvmfMirror that records which of them
// are current. That spec.replicas was raised is not enough: the volume becomes mirrored before it gets another replica.
func (v *NvmfVolume) Replicated() bool { return v.Spec.Mirrored || len(v.Spec.Members) > 1 }

// FormatPermission is the value that AllowFormatAnnotation has once the permission was given to a host; an
// administrator writes the volume's UUID alone.
func (v *NvmfVolume) FormatPermission(host string) string { return v.Spec.UUID + " " + host }

// Listed is the entry of a host in spec.hosts; nil when it is not listed.
func (v *NvmfReplica) Listed(host string) *VolumeHost {
	i := slices.IndexFunc(v.Spec.Hosts, func(h VolumeHost) bool { return h.NQN == host })
	if i < 0 {
		return nil
	}
	return &v.Spec.Hosts[i]
}

// AttachmentUUID is the attachment that the host is part of.
func (h *VolumeHost) AttachmentUUID() string {
	if h.Attachment != "" {
		return h.Attachment
	}
	attachment, _ := AttachmentOfHost(h.NQN)
	return attachment
}

// HostOf an attachment, by its UUID: its entry in spec.hosts, the later one while its keys are rotated; nil when it has
// none.
func (v *NvmfReplica) HostOf(attachment string) *VolumeHost {
	all := v.HostsOf(attachment)
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// HostsOf an attachment, by its UUID: its entries in spec.hosts. There are two while its keys are rotated, the former
// one first.
func (v *NvmfReplica) HostsOf(attachment string) []*VolumeHost {
	var all []*VolumeHost
	for i := range v.Spec.Hosts {
		if h := &v.Spec.Hosts[i]; h.AttachmentUUID() == attachment {
			all = append(all, h)
		}
	}
	return all
}

// Rotating tells whether an attachment of the replica has two hosts, because its keys are rotated.
func (v *NvmfReplica) Rotating() bool {
	return slices.ContainsFunc(v.Spec.Hosts, func(h VolumeHost) bool { return len(v.HostsOf(h.AttachmentUUID())) > 1 })
}

// Admitted is the entry of a host in status.hosts; nil when it may not connect now.
func (v *NvmfReplica) Admitted(host string) *AdmittedHost {
	i := slices.IndexFunc(v.Status.Hosts, func(a AdmittedHost) bool { return a.NQN == host })
	if i < 0 {
		return nil
	}
	return &v.Status.Hosts[i]
}

// RestoreSuspected says that the replica's agent knows later states of it, or of its neighbours: the API may have been
// restored to an earlier state.
func (v *NvmfReplica) RestoreSuspected() bool {
	return slices.ContainsFunc(v.Status.Conditions, func(c metav1.Condition) bool { return c.Reason == ReasonRestoreSuspected })
}

// maxSuspicion is how long the ID of a suspected restore is at most, as in the schema of status.suspectedRestore.
const maxSuspicion = 36

// DeclaredRestore is the ID of the restore of the API that was declared last on the node, in RestoredAnnotation; empty
// if none was. A value that is too long for an ID declares nothing.
func (n *NvmfNode) DeclaredRestore() string {
	if id := n.Annotations[RestoredAnnotation]; len(id) <= maxSuspicion {
		return id
	}
	return ""
}

// RestoredSince reports whether a restore of the API was declared on a node since the request was made.
func (r *VolumeRecovery) RestoredSince(node *NvmfNode) bool {
	declared := node.DeclaredRestore()
	return declared != "" && !slices.Contains(r.DeclaredRestores, DeclaredRestore{Node: node.Name, ID: declared})
}

// Paths are the portals of the replica's transports.
func (v *NvmfReplica) Paths() []Portal {
	return slices.DeleteFunc(slices.Clone(v.Status.Portals), func(p Portal) bool {
		return !slices.Contains(v.Spec.Connection.Transports, p.Transport)
	})
}

// ServedSize of the replica's data in bytes, without its header: what the node says, else what was asked for.
func (v *NvmfReplica) ServedSize() int64 {
	if v.Status.Size != nil {
		return v.Status.Size.Value()
	}
	return v.Spec.Size.Value()
}

// Keys that an NvmfVolume and its NvmfReplicas have as annotations, and as labels where the values fit: the claim that
// the volume was created for, or that had it when it was attached last, and the PersistentVolume that it was created
// for. NvmfReplicas of earlier versions have the labels only.
const (
	PVNameKey       = "weft.storage/pv-name"
	PVCNameKey      = "weft.storage/pvc-name"
	PVCNamespaceKey = "weft.storage/pvc-namespace"
)

// LastReplicaKey is an annotation of an NvmfVolume: the highest number that a replica had when one left the volume
// last. No later one gets a name that was used before.
const LastReplicaKey = "weft.storage/last-replica"

// SetNames of an NvmfVolume or an NvmfReplica: of the volume's PersistentVolume, and of its claim. What has an empty
// name is left as it is.
func SetNames(m *metav1.ObjectMeta, persistentVolume, claimNamespace, claim string) {
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	for key, value := range map[string]string{PVNameKey: persistentVolume, PVCNamespaceKey: claimNamespace, PVCNameKey: claim} {
		if value == "" {
			continue
		}
		m.Annotations[key] = value
		delete(m.Labels, key) // of another name, which had fitted
		if len(validation.IsValidLabelValue(value)) == 0 {
			m.Labels[key] = value
		}
	}
}

// ClaimOf a volume or replica: the claim that it was created for, or that had it when it was attached last. It may not
// be the one that has it now. Empty when there was none.
func ClaimOf(o metav1.Object) (namespace, name string) {
	read := func(key string) string { return cmp.Or(o.GetAnnotations()[key], o.GetLabels()[key]) }
	return read(PVCNamespaceKey), read(PVCNameKey)
}
