// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NvmfReplicaSpec is the desired state of one copy of a volume. The CSI controller writes it, from the NvmfVolume.
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source)",message="source is immutable: it records where the replica's initial data comes from"
// +kubebuilder:validation:XValidation:rule="has(self.deviceClass) == has(oldSelf.deviceClass)",message="deviceClass is immutable, because the data is stored there; create a new volume of the other class, and copy the data"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?used.orValue(false) || self.?used.orValue(false)",message="used cannot change back to false: a replica that may contain data must not be created again, empty"
// +kubebuilder:validation:XValidation:rule="!has(self.hosts) || self.hosts.size() == 0 || has(self.subsystemNQN)",message="subsystemNQN is required while hosts are listed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.hosts) || oldSelf.hosts.size() == 0 || !has(oldSelf.subsystemNQN) || has(self.subsystemNQN) && self.subsystemNQN == oldSelf.subsystemNQN",message="subsystemNQN cannot change while hosts are listed: connected hosts identify the volume by it"
// +kubebuilder:validation:XValidation:rule="has(self.volumeUID) != has(oldSelf.volumeUID) || has(self.volumeUID) && self.volumeUID != oldSelf.volumeUID || !has(oldSelf.volumeGeneration) || has(self.volumeGeneration) && self.volumeGeneration >= oldSelf.volumeGeneration",message="volumeGeneration cannot fall: the spec follows a later generation of the volume already",fieldPath=".volumeGeneration"
type NvmfReplicaSpec struct {
	// Volume whose copy this is. Immutable.
	// +required
	Volume ReplicaOf `json:"volume"`
	// VolumeUID is the metadata.uid of the NvmfVolume that this spec follows. It changes when the NvmfVolume is created
	// again.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	VolumeUID string `json:"volumeUID,omitempty"`
	// VolumeGeneration is the metadata.generation of the NvmfVolume that this spec follows. Whoever writes the spec
	// reads the NvmfVolume after the replica, and raises it, so that a write that was overtaken is refused. It falls
	// only with another volumeUID.
	// +kubebuilder:validation:Minimum=0
	// +optional
	VolumeGeneration int64 `json:"volumeGeneration,omitempty"`
	// UUID identifies the replica. The engine uses it as its name, and as the namespace's UUID and NGUID. Immutable.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="uuid is immutable: it identifies the replica"
	// +required
	UUID string `json:"uuid"`
	// Target that serves the replica. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="target is immutable, because the data is stored there; create a new volume from a copy"
	// +required
	Target string `json:"target"`
	// Node that stores the replica on one of its drives. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="node is immutable, because the data is stored there; create a new volume from a copy"
	// +required
	Node string `json:"node"`
	// Size of the data in bytes, a multiple of 4Mi, at most 8Pi. It can grow but not shrink. On the drive, the replica
	// uses another 8Mi for its header and trailer.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self)).asApproximateFloat()].all(f, f > 0.0 && f <= 9007199254740992.0 && f == double(int(f) / 4194304 * 4194304)) && !string(self).contains('.')",message="size must be a multiple of 4Mi, such as 1536Mi, without a fraction, and at most 8Pi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="size can grow but not shrink: data beyond the new end would be lost"
	// +required
	Size resource.Quantity `json:"size"`
	// Source of the replica's initial data. Absent: the replica starts blank. Immutable.
	// +optional
	Source *ReplicaSource `json:"source,omitempty"`
	// DeviceClass of the drive that stores the replica, as in devices.classes of the target. Absent: any drive of the
	// node. A copy is stored on the drive of its source. Immutable.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="deviceClass is immutable, because the data is stored there; create a new volume of the other class, and copy the data"
	// +optional
	DeviceClass string `json:"deviceClass,omitempty"`
	// BlockSizeBytes is the logical block size of the drive that stores the replica: replicas of a volume need
	// the same. Absent: any. Immutable.
	// +kubebuilder:validation:Minimum=512
	// +kubebuilder:validation:Maximum=65536
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="blockSizeBytes is immutable, because the volume may be in use with these blocks"
	// +optional
	BlockSizeBytes int32 `json:"blockSizeBytes,omitempty"`
	// Connection settings of the hosts.
	// +kubebuilder:default={}
	// +optional
	Connection Connection `json:"connection,omitzero"`
	// QoS limits of the replica, which are those of the volume. Absent: no limits.
	// +optional
	QoS *VolumeQoS `json:"qos,omitempty"`
	// Description of the volume. The agent stores it with the replica's data, for the case that all objects are lost.
	// Absent: the CSI controller has not written it yet.
	// +optional
	Description *VolumeDescription `json:"description,omitempty"`
	// SubsystemNQN is the NQN of the subsystem that serves the replica to the listed hosts. Each attachment that begins
	// while no host is listed gets a new one. Absent until the volume is attached for the first time.
	// +kubebuilder:validation:Pattern=`^nqn\.2026-11\.storage\.weft:[a-z0-9.-]+:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=223
	// +optional
	SubsystemNQN string `json:"subsystemNQN,omitempty"`
	// Hosts that may connect, one for each attachment of the volume to a node, and two while its keys are rotated.
	// Empty: no host.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || self.all(h, has(h.access) && h.access == self[0].access && h.access != 'Exclusive') || self.size() == 2 && self.all(h, h.access == self[0].access && h.node == self[0].node && h.nodeUID == self[0].nodeUID) && has(self[1].attachment) && (has(self[0].attachment) ? self[0].attachment == self[1].attachment : self[0].nqn.endsWith(':' + self[1].attachment))",message="hosts: several hosts must all have the same access, SharedWrite or SharedRead, unless they are of one attachment whose keys are being rotated"
	// +listType=map
	// +listMapKey=nqn
	// +optional
	Hosts []VolumeHost `json:"hosts,omitempty"`
	// Used is true once a host has been admitted, because the replica can contain data from then on. It never becomes
	// false again. An agent that does not find a used replica reports the loss instead of creating an empty one.
	// Default false. Set it to true when you create the object by hand for existing data.
	// +optional
	Used bool `json:"used,omitempty"`
	// DeletionMark requests that the data is deleted with this object. It is valid only if it equals the object's own
	// metadata.uid, so a copied or restored object never has a valid mark. The CSI controller and `kubectl weft delete
	// volume` set it before they delete the object. If the object is deleted without a mark, its data stays on the
	// node. Default: none.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	DeletionMark string `json:"deletionMark,omitempty"`
}

// ReplicaOf names the volume of a replica.
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="volume is immutable: it says whose copy this is"
type ReplicaOf struct {
	// Name of the NvmfVolume.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +required
	Name string `json:"name"`
	// UUID of the volume, its spec.uuid.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +required
	UUID string `json:"uuid"`
}

// ReplicaSource is the source of a replica's initial data.
// +kubebuilder:validation:XValidation:rule="has(self.snapshot) != has(self.replica)",message="source: set exactly one of snapshot and replica"
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="source is immutable: it records where the replica's initial data comes from"
type ReplicaSource struct {
	// Snapshot is the name of an NvmfSnapshot on the same node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// Replica is the name of an NvmfReplica on the same node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Replica string `json:"replica,omitempty"`
}

// NvmfReplicaStatus is the observed state of the replica. The agent of spec.node writes it.
type NvmfReplicaStatus struct {
	// ObservedGeneration is the generation of the spec that this status refers to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Device that stores the replica: the drive's ID, or the pool file's path.
	// +optional
	Device string `json:"device,omitempty"`
	// NQN of the subsystem.
	// +optional
	NQN string `json:"nqn,omitempty"`
	// NSID of the namespace in the subsystem.
	// +optional
	NSID int32 `json:"nsid,omitempty"`
	// NGUID of the namespace, 32 hexadecimal digits. With the NQN it identifies the replica on a host.
	// +optional
	NGUID string `json:"nguid,omitempty"`
	// Portals of the replica, one for each path. A planned portal is listed even if it cannot be opened now.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Portals []Portal `json:"portals,omitempty"`
	// Size of the served data in bytes, without the header and trailer of 4Mi each.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// Allocated bytes in the pool: for a thin replica the written data, including the header. It is updated when it has
	// changed by 5 % of the replica's size.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Written is true once data was written to the replica or to its source. It stays true, so that a replica that lost
	// its data is not formatted as if it were new.
	// +optional
	Written bool `json:"written,omitempty"`
	// Hosts that may connect now.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=nqn
	// +optional
	Hosts []AdmittedHost `json:"hosts,omitempty"`
	// QoS limits in effect, as read from the target. Absent: none.
	// +optional
	QoS *VolumeQoS `json:"qos,omitempty"`
	// Conditions: Ready, Created, Exported, Degraded, QoSApplied.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AdmittedHost is a host that may connect now.
type AdmittedHost struct {
	// NQN of the host.
	// +required
	NQN string `json:"nqn"`
	// Node is the name of the Kubernetes Node of the host, from spec.hosts. Absent if the agent does not know it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`
	// Blank is true if nothing had been written to the replica or to its source when this host was admitted, so that
	// the node may format it. False if unknown.
	// +required
	Blank bool `json:"blank"`
	// Keys is the fingerprint of the keys that the host must have the next time it connects. The keys cannot be derived
	// from it. Absent: none are required.
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Keys string `json:"keys,omitempty"`
}

// NvmfReplica is one copy of a volume, on one drive of one node. It is all that agents and engines know of volumes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nr,categories=weft
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:selectablefield:JSONPath=`.spec.target`
// +kubebuilder:selectablefield:JSONPath=`.spec.volume.name`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume.name`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Allocated",type=string,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Transport",type=string,JSONPath=`.spec.connection.transports[0]`
// +kubebuilder:printcolumn:name="And",type=string,JSONPath=`.spec.connection.transports[1]`
// +kubebuilder:printcolumn:name="Admits",type=string,JSONPath=`.status.hosts[0].node`
// +kubebuilder:printcolumn:name="And admits",type=string,JSONPath=`.status.hosts[1].node`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(self.spec.subsystemNQN) || self.spec.subsystemNQN.startsWith('nqn.2026-11.storage.weft:' + self.metadata.name + ':')",message="spec.subsystemNQN must be nqn.2026-11.storage.weft:<name of the replica>:<UUID of the attachment>"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 140",message="the name of an NvmfReplica must be no more than 140 characters, because it is part of an NQN"
type NvmfReplica struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NvmfReplicaSpec `json:"spec"`
	// +optional
	Status NvmfReplicaStatus `json:"status,omitzero"`
}

// NvmfReplicaList is a list of NvmfReplicas.
// +kubebuilder:object:root=true
type NvmfReplicaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NvmfReplica `json:"items"`
}
