// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// Bounds of what is described. A PersistentVolume with more mount options is described without any.
const (
	// MaxDescribedFSType is in bytes, of a filesystem's name.
	MaxDescribedFSType = 16
	// MaxDescribedWord is in characters, of a reclaim policy or a volume mode.
	MaxDescribedWord = 16
	// MaxDescribedMode is in characters, of an access mode.
	MaxDescribedMode = 32
	// MaxUUID is in characters, with its hyphens.
	MaxUUID = 36
	// MaxDescribedUID is in characters, of a volume's metadata.uid.
	MaxDescribedUID = 128
	// MaxMemberName is in characters, of a replica in a list of members.
	MaxMemberName = 140
	// MaxZoneLabel is in characters: a prefix of 253, a slash, and a name of 63.
	MaxZoneLabel = 317
	// MaxDescribedModes is how many access modes are described.
	MaxDescribedModes = 4
	// MaxDescribedOptions is how many mount options are described.
	MaxDescribedOptions = 16
	// MaxDescribedOption is in bytes, of one mount option.
	MaxDescribedOption = 128
	// MaxOrphanDescriptions is in bytes, of all orphans of a node as JSON, with their descriptions and what the API
	// server notes in metadata.managedFields about them. The rest of an NvmfNode is below 512 KiB, so all of it is
	// below 1 MiB. Objects can have 1.5 MiB in etcd.
	MaxOrphanDescriptions = 512 << 10
)

// VolumeDescription is what only the NvmfVolume of a replica says, and its PersistentVolume. It is stored with the
// replica's data, so that both objects can be made again when they are lost.
type VolumeDescription struct {
	// Replicas that the volume is to have.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// Mirrored is true once the volume has, or had, more than one replica.
	// +optional
	Mirrored bool `json:"mirrored,omitempty"`
	// Members are the replicas of the volume.
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	// +optional
	Members []VolumeMember `json:"members,omitempty"`
	// SourceVolume is the name of the NvmfVolume that the volume was copied from. Absent: none.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SourceVolume string `json:"sourceVolume,omitempty"`
	// SourceSnapshot is the name of the NvmfSnapshot that the volume was made from. Absent: none.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SourceSnapshot string `json:"sourceSnapshot,omitempty"`
	// Zones whose nodes may store replicas.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=atomic
	// +optional
	Zones []string `json:"zones,omitempty"`
	// ZoneLabel is the key of the node label whose values are zones.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	ZoneLabel string `json:"zoneLabel,omitempty"`
	// Encryption of the data at rest. The key is not stored. Absent: none.
	// +optional
	Encryption VolumeEncryption `json:"encryption,omitempty"`
	// Trailer is spec.trailer of the volume. Default false.
	// +optional
	Trailer bool `json:"trailer,omitempty"`
	// PersistentVolume of the volume. Absent: the volume had none when it was last attached, or was last attached
	// before weft stored descriptions.
	// +optional
	PersistentVolume *PersistentVolumeDescription `json:"persistentVolume,omitempty"`
}

// PersistentVolumeDescription is what is needed to create a PersistentVolume again.
type PersistentVolumeDescription struct {
	// Name of the PersistentVolume.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// ClaimNamespace is the namespace of the PersistentVolumeClaim that it is bound to. Absent: none.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ClaimNamespace string `json:"claimNamespace,omitempty"`
	// ClaimName is the name of the PersistentVolumeClaim. Absent: none.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ClaimName string `json:"claimName,omitempty"`
	// StorageClass is the name of its StorageClass. Absent: none.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	StorageClass string `json:"storageClass,omitempty"`
	// ReclaimPolicy is Delete, Retain or Recycle.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	ReclaimPolicy string `json:"reclaimPolicy,omitempty"`
	// AccessModes, such as ReadWriteOnce.
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MaxLength=32
	// +listType=atomic
	// +optional
	AccessModes []string `json:"accessModes,omitempty"`
	// VolumeMode is Filesystem or Block.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	VolumeMode string `json:"volumeMode,omitempty"`
	// FSType is the filesystem that the node plugin makes.
	// +kubebuilder:validation:MaxLength=16
	// +optional
	FSType string `json:"fsType,omitempty"`
	// MountOptions of the filesystem. Absent: none, or more than 16, or one of more than 128 bytes.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=atomic
	// +optional
	MountOptions []string `json:"mountOptions,omitempty"`
	// StageSecret is the name of the Secret for NodeStageVolume. Absent: none.
	// +optional
	StageSecret *DescribedSecret `json:"stageSecret,omitempty"`
	// PublishSecret is the name of the Secret for NodePublishVolume. Absent: none.
	// +optional
	PublishSecret *DescribedSecret `json:"publishSecret,omitempty"`
}

// DescribedSecret names a Secret. What is in it is stored nowhere else.
type DescribedSecret struct {
	// Namespace of the Secret.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
	// Name of the Secret.
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
}

// OrphanDescription is what was stored with the data of an orphan about its objects. It is what the node says: see
// docs/concepts/security.md.
type OrphanDescription struct {
	VolumeDescription `json:",inline"`
	// Volume is the name of the NvmfVolume that it is a replica or snapshot of.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Volume string `json:"volume,omitempty"`
	// VolumeUUID is the spec.uuid of that NvmfVolume. Absent in the description of a snapshot.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	VolumeUUID string `json:"volumeUUID,omitempty"`
	// VolumeUID is the metadata.uid of that NvmfVolume, and VolumeGeneration the generation that the description is
	// from, or an earlier one that said the same. Of two descriptions with the same UID, that with the higher
	// generation is newer.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	VolumeUID string `json:"volumeUID,omitempty"`
	// VolumeGeneration is described with VolumeUID.
	// +kubebuilder:validation:Minimum=0
	// +optional
	VolumeGeneration int64 `json:"volumeGeneration,omitempty"`
	// Target that served the data.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Target string `json:"target,omitempty"`
	// Size of the volume, as in its spec.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// DeviceClass of the drive.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	DeviceClass string `json:"deviceClass,omitempty"`
	// Connection settings of the hosts.
	// +optional
	Connection *Connection `json:"connection,omitempty"`
	// QoS limits of the volume.
	// +optional
	QoS *VolumeQoS `json:"qos,omitempty"`
	// Used is true once the volume was attached. A volume that was never used and is no copy has no data.
	// +optional
	Used bool `json:"used,omitempty"`
}
