// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// MaxOrphans that an NvmfNode's status lists.
const MaxOrphans = 512

// Orphan is a replica or snapshot on a node that has no object, or loses its object without losing its data. Nothing
// deletes it. To recover it, run: kubectl weft recover --lost. That creates an NvmfVolume that lists the replica in
// spec.members, or an NvmfSnapshot, with its uuid and this node.
type Orphan struct {
	// UUID of the replica or snapshot, the spec.uuid of its object.
	// +kubebuilder:validation:MaxLength=36
	// +required
	UUID string `json:"uuid"`
	// Kind of its former object: NvmfReplica or NvmfSnapshot.
	// +required
	Kind OrphanKind `json:"kind"`
	// Name of its former object. Absent if the agent does not know it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// Replica is the name of the NvmfReplica that a snapshot was taken of. Absent if the agent does not know it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Replica string `json:"replica,omitempty"`
	// Device that stores it: the drive's ID, or the pool file's path.
	// +kubebuilder:validation:MaxLength=4096
	// +required
	Device string `json:"device"`
	// Size of the data in bytes, without the header and trailer of 4Mi each. Use it as spec.size of the NvmfVolume that
	// recovers a replica.
	// +required
	Size resource.Quantity `json:"size"`
	// Allocated bytes in the pool, including the header.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// OtherDevices of the node that store data with the same UUID. It is not known which of them is the right one.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	OtherDevices []string `json:"otherDevices,omitempty"`
	// Description that was stored with the data. Absent: see undescribed.
	// +structType=atomic
	// +optional
	Description *OrphanDescription `json:"description,omitempty"`
	// Undescribed says why there is no description: none was stored, it is damaged, or it was not read yet.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Undescribed string `json:"undescribed,omitempty"`
}

// undescribed of an orphan that may be described later.
const (
	// UndescribedNotRead says that the agent has not read the description yet. If it failed to, a colon and the error
	// follow.
	UndescribedNotRead = "the description that was stored with the data was not read yet"
	// UndescribedNoRoom says that the descriptions of other orphans fill the status.
	UndescribedNoRoom = "the list has too many descriptions; this one follows once others are recovered"
)

// OrphanKind is the kind of an orphan's former object.
// +kubebuilder:validation:Enum=NvmfReplica;NvmfSnapshot
type OrphanKind string

// Kinds of orphans.
const (
	OrphanReplica  OrphanKind = "NvmfReplica"
	OrphanSnapshot OrphanKind = "NvmfSnapshot"
)

// Mark the volume: its data is to be deleted with its object, which must have been read from the API server.
func (v *NvmfVolume) Mark() { v.Spec.DeletionMark = string(v.UID) }

// Marked says that the volume's data is to be deleted with its object.
func (v *NvmfVolume) Marked() bool { return v.UID != "" && v.Spec.DeletionMark == string(v.UID) }

// Mark the replica: its data is to be deleted with its object, which must have been read from the API server.
func (v *NvmfReplica) Mark() { v.Spec.DeletionMark = string(v.UID) }

// Marked says that the replica's data is to be deleted with its object.
func (v *NvmfReplica) Marked() bool { return v.UID != "" && v.Spec.DeletionMark == string(v.UID) }

// Mark the snapshot: it is to be deleted with its object, which must have been read from the API server.
func (s *NvmfSnapshot) Mark() { s.Spec.DeletionMark = string(s.UID) }

// Marked says that the snapshot is to be deleted with its object.
func (s *NvmfSnapshot) Marked() bool { return s.UID != "" && s.Spec.DeletionMark == string(s.UID) }
