// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// Attached is an attachment of a volume with one replica to a node, as its objects have it.
type Attached struct {
	// UUID of the volume.
	UUID string
	// Replica is the name of its replica, NQN that of the subsystem, and NGUID that of the namespace.
	Replica, NQN, NGUID string
	// Attachment's UUID, and NodeUID of the Kubernetes Node.
	Attachment, NodeUID string
	// Access of the attachment.
	Access v1alpha1.HostAccess
	// Target that serves the volume, and Claim and ClaimNamespace for which it was made.
	Target, Claim, ClaimNamespace string
	// SizeBytes of data that are served.
	SizeBytes int64
	// Blank when the node was admitted, and Written since; AllowFormat is what an administrator gave to this
	// attachment.
	Blank, Written, AllowFormat bool
	// Encryption of the volume.
	Encryption v1alpha1.VolumeEncryption
	// NoTrailer: it was made before volumes had one.
	NoTrailer bool
	// TraceParent is what the call left that has attached it.
	TraceParent string
	// Source of the volume's first data.
	Source *v1alpha1.VolumeSource
	// SnapshotOf makes this a snapshot, of the volume with that name.
	SnapshotOf string
	// Revoked says that the objects do not list the attachment any more.
	Revoked bool
	// Sealed keys of this node in the replica's object, and Keys, the fingerprint of those that the target has.
	Sealed, Keys string
	// Rotated hosts, if any, are those that the replica's object lists, instead of the attachment's own.
	Rotated []RotatedHost
	// Portals of the replica's node.
	Portals []v1alpha1.Portal
	v1alpha1.Connection
}

// RotatedHost is one of an attachment's hosts, as its replica's object has it.
type RotatedHost struct {
	// Identity is the UUID of its NQN.
	Identity string
	// Sealed keys, and Keys, the fingerprint of those that the target has.
	Sealed, Keys string
	// Waiting says that the target does not admit it yet.
	Waiting bool
}

// New is a volume with a name and one replica with an NGUID, which has another name and another UUID than the volume.
// It is not attached yet.
func New(volume, nguid string) Attached {
	return Attached{
		UUID: uuid.NewSHA1(uuid.Nil, []byte(volume+nguid)).String(), Replica: volume + "-r1", NGUID: nguid, Blank: true,
		Connection: v1alpha1.Connection{IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: v1alpha1.CtrlLossTimeoutForever},
	}
}

// Attach the volume, by the UUID of an attachment, which begins a session.
func (a *Attached) Attach(attachment string) {
	a.Attachment, a.NQN = attachment, v1alpha1.SubsystemNQN(a.Replica, attachment)
}

// HostNQN of the attachment.
func (a Attached) HostNQN() string { return v1alpha1.HostNQN(a.Attachment) }

// Encode gives the publish context.
func (a Attached) Encode() map[string]string {
	return publishcontext.Context{Attachment: a.Attachment, Encrypted: a.Encryption != "", Trailer: !a.NoTrailer}.Encode()
}

// hosts of the attachment, as both objects list them.
func (a Attached) hosts() []v1alpha1.VolumeHost {
	if a.Revoked {
		return nil
	}
	return []v1alpha1.VolumeHost{{NQN: a.HostNQN(), NodeUID: a.NodeUID, Access: a.Access}}
}

// replicaUUID is the one of which the NGUID is made.
func (a Attached) replicaUUID() string { return uuid.MustParse(a.NGUID).String() }

func (a Attached) connection() v1alpha1.Connection {
	c := a.Connection
	c.Transports = []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA}
	return c
}

// Volume is its NvmfVolume, with a name.
func (a Attached) Volume(name string) *v1alpha1.NvmfVolume {
	v := &v1alpha1.NvmfVolume{}
	v.Name = name
	v.Spec.UUID, v.Spec.Target = a.UUID, a.Target
	v.Annotations = map[string]string{v1alpha1.PVCNameKey: a.Claim, v1alpha1.PVCNamespaceKey: a.ClaimNamespace}
	if a.TraceParent != "" {
		v.Annotations[v1alpha1.TraceParentKey] = a.TraceParent
	}
	v.Spec.Members = []v1alpha1.VolumeMember{{Name: a.Replica, UUID: a.replicaUUID(), Node: "storage-1"}}
	v.Spec.Size = *resource.NewQuantity(a.SizeBytes, resource.BinarySI)
	v.Spec.Encryption, v.Spec.Trailer = a.Encryption, !a.NoTrailer
	v.Spec.Source, v.Spec.Connection, v.Spec.Attachments = a.Source, a.connection(), a.hosts()
	_, v.Spec.Session, _ = strings.Cut(strings.TrimPrefix(a.NQN, v1alpha1.NQNPrefix), ":")
	if a.AllowFormat {
		v.Annotations[v1alpha1.AllowFormatAnnotation] = v.FormatPermission(a.HostNQN())
	}
	return v
}

// NvmfReplica of the volume with a name.
func (a Attached) NvmfReplica(volume string) *v1alpha1.NvmfReplica {
	r := &v1alpha1.NvmfReplica{}
	r.Name = a.Replica
	r.Spec.Volume = v1alpha1.ReplicaOf{Name: volume, UUID: a.UUID}
	r.Spec.UUID, r.Spec.Node = a.replicaUUID(), "storage-1"
	r.Spec.Size = *resource.NewQuantity(a.SizeBytes, resource.BinarySI)
	r.Spec.SubsystemNQN, r.Spec.Connection, r.Spec.Hosts = a.NQN, a.connection(), a.hosts()
	for i := range r.Spec.Hosts {
		r.Spec.Hosts[i].SealedKeys = a.Sealed
	}
	r.Status.Portals, r.Status.Written = a.Portals, a.Written
	if !a.Revoked {
		r.Status.Hosts = []v1alpha1.AdmittedHost{{NQN: a.HostNQN(), Blank: a.Blank, Keys: a.Keys}}
	}
	if len(a.Rotated) > 0 && !a.Revoked {
		r.Spec.Hosts, r.Status.Hosts = nil, nil
	}
	for _, h := range a.Rotated {
		if a.Revoked {
			break
		}
		nqn, of := v1alpha1.HostNQN(h.Identity), a.Attachment
		if h.Identity == of {
			of = "" // it has the attachment's own NQN
		}
		r.Spec.Hosts = append(r.Spec.Hosts, v1alpha1.VolumeHost{NQN: nqn, NodeUID: a.NodeUID, Attachment: of, SealedKeys: h.Sealed})
		if !h.Waiting {
			r.Status.Hosts = append(r.Status.Hosts, v1alpha1.AdmittedHost{NQN: nqn, Keys: h.Keys, Blank: a.Blank && of == ""})
		}
	}
	return r
}

// Objects of volumes and snapshots, by their names, as they are when they are read.
type Objects map[string]*Attached

// Get reads an NvmfVolume, an NvmfReplica or an NvmfSnapshot.
func (o Objects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	a, ok := o[key.Name]
	switch object := into.(type) {
	case *v1alpha1.NvmfVolume:
		if ok && a.SnapshotOf == "" {
			a.Volume(key.Name).DeepCopyInto(object)
			return nil
		}
	case *v1alpha1.NvmfReplica:
		for volume, a := range o {
			if a.Replica == key.Name {
				a.NvmfReplica(volume).DeepCopyInto(object)
				return nil
			}
		}
	case *v1alpha1.NvmfSnapshot:
		if ok && a.SnapshotOf != "" {
			object.Name, object.Spec.Volume = key.Name, a.SnapshotOf
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: fmt.Sprintf("%T", into)}, key.Name)
}

// List is not served: the node plugin reads what it has the name of.
func (Objects) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return apierrors.NewMethodNotSupported(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "nvmfvolumes"}, "list")
}
