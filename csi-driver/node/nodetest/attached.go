// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/publishcontext"
)

// Attached is an attachment of a volume to a node, as its object has it.
type Attached struct {
	// NQN of the subsystem and NGUID of the namespace.
	NQN, NGUID string
	// Attachment's UUID, and NodeUID of the Kubernetes Node.
	Attachment, NodeUID string
	// SizeBytes of data that are served.
	SizeBytes int64
	// Blank when the node was admitted, and Written since; AllowFormat is what an administrator gave to this
	// attachment.
	Blank, Written, AllowFormat bool
	// Source of the volume's first data.
	Source *v1alpha1.VolumeSource
	// SnapshotOf makes this a snapshot, of the volume with that name.
	SnapshotOf string
	// Revoked says that the object does not list the attachment any more.
	Revoked bool
	// Portals of the volume's node.
	Portals []v1alpha1.Portal
	v1alpha1.Connection
}

// HostNQN of the attachment.
func (a Attached) HostNQN() string { return v1alpha1.HostNQN(a.Attachment) }

// Encode gives the publish context.
func (a Attached) Encode() map[string]string {
	return publishcontext.Context{Attachment: a.Attachment}.Encode()
}

// object of the volume.
func (a Attached) object(volume string) *v1alpha1.NvmfVolume {
	v := &v1alpha1.NvmfVolume{}
	v.Name = volume
	v.Spec.UUID = uuid.MustParse(a.NGUID).String()
	v.Spec.Size = *resource.NewQuantity(a.SizeBytes, resource.BinarySI)
	v.Spec.SubsystemNQN, v.Spec.Connection = a.NQN, a.Connection
	v.Spec.Connection.Transports = []v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA}
	v.Spec.Source = a.Source
	v.Status.Portals, v.Status.Written = a.Portals, a.Written
	if !a.Revoked {
		v.Spec.Hosts = []v1alpha1.VolumeHost{{NQN: a.HostNQN(), NodeUID: a.NodeUID}}
		v.Status.Hosts = []v1alpha1.AdmittedHost{{NQN: a.HostNQN(), Blank: a.Blank}}
	}
	if a.AllowFormat {
		v.Annotations = map[string]string{v1alpha1.AllowFormatAnnotation: v.FormatPermission(a.HostNQN())}
	}
	return v
}

// Objects of volumes and snapshots, by their names, as they are when they are read.
type Objects map[string]*Attached

// Get reads an NvmfVolume or an NvmfSnapshot.
func (o Objects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	a, ok := o[key.Name]
	switch object := into.(type) {
	case *v1alpha1.NvmfVolume:
		if ok && a.SnapshotOf == "" {
			a.object(key.Name).DeepCopyInto(object)
			return nil
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
