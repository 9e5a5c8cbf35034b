// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NvmfSnapshotSpec is the desired state of a snapshot. The CSI controller writes it. Immutable, except taken and
// deletionMark.
// +kubebuilder:validation:XValidation:rule="self.uuid == oldSelf.uuid && self.volume == oldSelf.volume && self.replica == oldSelf.replica && self.node == oldSelf.node && has(self.encryption) == has(oldSelf.encryption) && self.?trailer.orValue(false) == oldSelf.?trailer.orValue(false)",message="a snapshot's spec is immutable: delete the snapshot and create another one"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?taken.orValue(false) || self.?taken.orValue(false)",message="taken cannot change back to false: a snapshot that is taken again would contain later data"
type NvmfSnapshotSpec struct {
	// UUID identifies the snapshot in the engine.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +required
	UUID string `json:"uuid"`
	// Volume is the name of the NvmfVolume that the snapshot was taken of.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Volume string `json:"volume"`
	// Replica is the name of the NvmfReplica that the snapshot was taken of.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Replica string `json:"replica"`
	// Node that stores the replica and the snapshot.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Node string `json:"node"`
	// Encryption of the volume that the snapshot was taken of. A volume that is created from the snapshot has the same.
	// Absent: the data is not encrypted.
	// +optional
	Encryption VolumeEncryption `json:"encryption,omitempty"`
	// Trailer is spec.trailer of the volume that the snapshot was taken of. A volume that is created from the snapshot
	// has the same. Default false.
	// +optional
	Trailer bool `json:"trailer,omitempty"`
	// Taken is true once the snapshot was taken. It never becomes false again. An agent that does not find a taken
	// snapshot reports the loss instead of taking another one, which would contain later data. Default false. Set it to
	// true when you create the object by hand for an existing snapshot.
	// +optional
	Taken bool `json:"taken,omitempty"`
	// DeletionMark requests that the snapshot is deleted with this object. It works as in an NvmfVolume.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	DeletionMark string `json:"deletionMark,omitempty"`
}

// NvmfSnapshotStatus is the observed state of the snapshot. The agent of spec.node writes it.
type NvmfSnapshotStatus struct {
	// ObservedGeneration is the generation of the spec that this status refers to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Device that stores the snapshot: the drive's ID, or the pool file's path. Volumes that are created from the
	// snapshot are stored on the same device.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Device string `json:"device,omitempty"`
	// Ready is true when the snapshot can be used as a source. Once true, it stays true.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// Size of the data in bytes, without the header and trailer of 4Mi each. A volume that is created from the snapshot
	// has at least this size.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// CreatedAt is the time when the snapshot was taken.
	// +optional
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
	// Allocated bytes in the pool, including the header. With engine Nvmet, data shared with the volume counts too.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Conditions: Ready, Created.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NvmfSnapshot is a snapshot of a volume.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nsnap,categories=weft
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:selectablefield:JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Allocated",type=string,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NvmfSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NvmfSnapshotSpec `json:"spec"`
	// +optional
	Status NvmfSnapshotStatus `json:"status,omitzero"`
}

// NvmfSnapshotList is a list of NvmfSnapshots.
// +kubebuilder:object:root=true
type NvmfSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NvmfSnapshot `json:"items"`
}
