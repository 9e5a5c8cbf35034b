// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NvmfSnapshotSpec is a snapshot as asked for. Written by the CSI controller. Immutable but for taken and deletionMark.
// +kubebuilder:validation:XValidation:rule="self.uuid == oldSelf.uuid && self.volume == oldSelf.volume && self.node == oldSelf.node",message="a snapshot's spec is immutable: delete it and make another"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?taken.orValue(false) || self.?taken.orValue(false)",message="taken never turns back: taken again, the snapshot would hold later data"
type NvmfSnapshotSpec struct {
	// UUID is the snapshot's identity in the engine.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +required
	UUID string `json:"uuid"`
	// Volume is the name of the NvmfVolume that the snapshot is of.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Volume string `json:"volume"`
	// Node whose drive holds both.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Node string `json:"node"`
	// Taken says that the data was frozen. It never turns back. An agent that does not find a taken snapshot reports
	// that and does not take it again: it would hold later data. Default false. Set it in an object that is written by
	// hand for a snapshot that is there already.
	// +optional
	Taken bool `json:"taken,omitempty"`
	// DeletionMark says that the snapshot is to be deleted with this object; see that of an NvmfVolume.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	DeletionMark string `json:"deletionMark,omitempty"`
}

// NvmfSnapshotStatus is the snapshot as it is. Written by the agent of spec.node.
type NvmfSnapshotStatus struct {
	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Device that holds the snapshot: the drive's id, or the pool file's path. Volumes made from it are made there.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Device string `json:"device,omitempty"`
	// Ready to be used as a source. Once true it stays true.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// Size of the data in bytes, without the header of 4Mi: a volume made from it has at least as much.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// CreatedAt is when the data was frozen.
	// +optional
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
	// Allocated bytes of the pool, the header included; with nvmet, bytes shared with the volume count too.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Conditions: Ready, Created.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NvmfSnapshot is a volume's data at one moment.
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
