// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// MaxOrphans that an NvmfNode's status lists.
const MaxOrphans = 512

// Orphan is a volume or snapshot that a node holds and that has no object, or whose object goes while its data stays.
// Nothing deletes it. A new object with its uuid on this node takes it back.
type Orphan struct {
	// UUID of the volume or snapshot, the spec.uuid of its object.
	// +kubebuilder:validation:MaxLength=36
	// +required
	UUID string `json:"uuid"`
	// Kind of the object that it had: NvmfVolume or NvmfSnapshot.
	// +required
	Kind OrphanKind `json:"kind"`
	// Name of the object that it had. Absent when the agent does not know it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// Volume is the name of the NvmfVolume that a snapshot is of. Absent when the agent does not know it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Volume string `json:"volume,omitempty"`
	// Device that holds it: the drive's id, or the pool file's path.
	// +kubebuilder:validation:MaxLength=4096
	// +required
	Device string `json:"device"`
	// Size of the data in bytes, without the header of 4Mi: the spec.size of the object that takes a volume back.
	// +required
	Size resource.Quantity `json:"size"`
	// Allocated bytes of the pool, the header included.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
}

// OrphanKind is the kind of object that an orphan had.
// +kubebuilder:validation:Enum=NvmfVolume;NvmfSnapshot
type OrphanKind string

// Kinds of orphans.
const (
	OrphanVolume   OrphanKind = "NvmfVolume"
	OrphanSnapshot OrphanKind = "NvmfSnapshot"
)

// Mark the volume: its data is to be deleted with its object, which must have been read from the API server.
func (v *NvmfVolume) Mark() { v.Spec.DeletionMark = string(v.UID) }

// Marked says that the volume's data is to be deleted with its object.
func (v *NvmfVolume) Marked() bool { return v.UID != "" && v.Spec.DeletionMark == string(v.UID) }

// Mark the snapshot: it is to be deleted with its object, which must have been read from the API server.
func (s *NvmfSnapshot) Mark() { s.Spec.DeletionMark = string(s.UID) }

// Marked says that the snapshot is to be deleted with its object.
func (s *NvmfSnapshot) Marked() bool { return s.UID != "" && s.Spec.DeletionMark == string(s.UID) }
