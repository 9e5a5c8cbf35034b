// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeSizeStep in bytes: a volume's size is a multiple of it.
const VolumeSizeStep = 4 << 20

// NvmfVolumeSpec is a volume as asked for. Written by the CSI controller.
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source)",message="source is immutable: it says where the volume's first data came from"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?used.orValue(false) || self.?used.orValue(false)",message="used never turns back: a volume that may hold data must not be made again, empty"
// +kubebuilder:validation:XValidation:rule="!has(self.hosts) || self.hosts.size() == 0 || has(self.subsystemNQN)",message="subsystemNQN is required while hosts are listed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.hosts) || oldSelf.hosts.size() == 0 || !has(oldSelf.subsystemNQN) || has(self.subsystemNQN) && self.subsystemNQN == oldSelf.subsystemNQN",message="subsystemNQN changes only while no host is listed: connected hosts know the volume by it"
type NvmfVolumeSpec struct {
	// UUID is the volume's identity: it names the volume in the engine, and is the namespace's UUID and NGUID.
	// Immutable.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="uuid is immutable: it is the volume's identity"
	// +required
	UUID string `json:"uuid"`
	// Target that serves the volume. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="target is immutable: the data lies there; make a new volume from a copy"
	// +required
	Target string `json:"target"`
	// Node whose drive holds the volume. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="node is immutable: the data lies there; make a new volume from a copy"
	// +required
	Node string `json:"node"`
	// Size of the data in bytes, a multiple of 4Mi, at most 8Pi. It may grow, never shrink. The volume takes 4Mi more
	// on its drive, for its header.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self)).asApproximateFloat()].all(f, f > 0.0 && f <= 9007199254740992.0 && f == double(int(f) / 4194304 * 4194304)) && !string(self).contains('.')",message="size must be a multiple of 4Mi without a fraction, such as 1536Mi, and at most 8Pi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="size may grow, never shrink: what lies beyond the new end would be lost"
	// +required
	Size resource.Quantity `json:"size"`
	// Source of the volume's first data. Absent: the volume starts blank. Immutable.
	// +optional
	Source *VolumeSource `json:"source,omitempty"`
	// Connection settings for the hosts.
	// +kubebuilder:default={}
	// +optional
	Connection Connection `json:"connection,omitzero"`
	// QoS limits of the volume; they may be changed at any time, with hosts connected. Absent: no limits.
	// +optional
	QoS *VolumeQoS `json:"qos,omitempty"`
	// SubsystemNQN of the subsystem that serves the volume to the hosts listed. It is a new one for each attachment
	// that begins while no host is listed. Absent until the volume is attached for the first time.
	// +kubebuilder:validation:Pattern=`^nqn\.2026-11\.storage\.weft:[a-z0-9.-]+:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=223
	// +optional
	SubsystemNQN string `json:"subsystemNQN,omitempty"`
	// Hosts that may connect, one for each attachment of the volume to a node. Empty: nobody.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || self.all(h, has(h.access) && h.access == self[0].access && h.access != 'Exclusive')",message="hosts: several hosts may be listed only with the same access, SharedWrite or SharedRead"
	// +listType=map
	// +listMapKey=nqn
	// +optional
	Hosts []VolumeHost `json:"hosts,omitempty"`
	// Used says that a host was admitted once, so that the volume may hold data. It never turns back. An agent that
	// does not find a used volume reports that and does not make it: it would be empty. Default false. Set it in an
	// object that is written by hand for data that is there already.
	// +optional
	Used bool `json:"used,omitempty"`
	// DeletionMark says that the data is to be deleted with this object. It is valid only when it equals the object's
	// own metadata.uid, so a copied or restored object never carries a valid one. The CSI controller writes it before
	// it deletes the object, and so does `kubectl weft delete volume`. An object that is deleted without it leaves its
	// data on the node. Default: none.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	DeletionMark string `json:"deletionMark,omitempty"`
}

// VolumeSource is where a volume's first data comes from.
// +kubebuilder:validation:XValidation:rule="has(self.snapshot) != has(self.volume)",message="source: give exactly one of snapshot and volume"
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="source is immutable: it says where the volume's first data came from"
type VolumeSource struct {
	// Snapshot is the name of an NvmfSnapshot on the same node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// Volume is the name of an NvmfVolume on the same node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Volume string `json:"volume,omitempty"`
}

// ReconnectDelay between a host's tries to connect again lets I/O go on soon after a target is back: one that is killed
// has its exports again in a second. The kernel's own is 10 s (NVMF_DEF_RECONNECT_DELAY).
const ReconnectDelay = 2 * time.Second

const (
	// CtrlLossTimeoutForever is the default: I/O never fails.
	CtrlLossTimeoutForever = -1
	// MaxCtrlLossTimeoutSeconds is the longest time with an end.
	MaxCtrlLossTimeoutSeconds = 86400
)

// Connection settings that hosts use.
type Connection struct {
	// Transports to connect over, in any order. A host connects to every portal of these that the volume's node has:
	// each is a path to the same device. Default: TCP alone.
	// +kubebuilder:default={TCP}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +optional
	Transports []TransportType `json:"transports,omitempty"`
	// IOQueues a host opens to each portal; it never opens more than it has CPUs. Default 2.
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	IOQueues int32 `json:"ioQueues,omitempty"`
	// QueueDepth of each queue. Default 128, the kernel initiator's.
	// +kubebuilder:default=128
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=1024
	// +optional
	QueueDepth int32 `json:"queueDepth,omitempty"`
	// CtrlLossTimeoutSeconds is how long a host keeps trying to reconnect before it fails I/O; -1 is for ever.
	// Default -1: I/O waits for the target rather than failing, as it does for a local drive that resets.
	// Never 0, with which the kernel would not reconnect at all.
	// +kubebuilder:default=-1
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:validation:XValidation:rule="self != 0",message="ctrlLossTimeoutSeconds must be -1 (for ever) or from 1 to 86400: with 0 a host would fail I/O at the first lost connection"
	// +optional
	CtrlLossTimeoutSeconds int32 `json:"ctrlLossTimeoutSeconds,omitempty"`
}

// VolumeHost is a host that may connect: one attachment of the volume to a node.
type VolumeHost struct {
	// NQN of the host: the identity of this attachment alone, and its UUID is also the host id. A node gets another one
	// with each attachment, and none is ever listed a second time, so that a node that was shut out cannot come back
	// with writes it has queued.
	// +kubebuilder:validation:Pattern=`^nqn\.[0-9]{4}-[0-9]{2}\.[^\s]+$`
	// +kubebuilder:validation:MinLength=12
	// +kubebuilder:validation:MaxLength=223
	// +required
	NQN string `json:"nqn"`
	// Node is the name of the Kubernetes Node that the volume is attached to.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Node string `json:"node"`
	// NodeUID is the UID of that Node when the volume was attached: a machine that has taken over the name of another
	// does not use the other's attachments.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +required
	NodeUID string `json:"nodeUID"`
	// VolumeAttachment is the UID of the Kubernetes VolumeAttachment that asked for the attachment, which is taken back
	// when that is gone. Absent: another caller asked for it.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	VolumeAttachment string `json:"volumeAttachment,omitempty"`
	// Access that the host has. Several hosts may be listed only while all of them have the same, and that is a shared
	// one. Default Exclusive.
	// +kubebuilder:default=Exclusive
	// +optional
	Access HostAccess `json:"access,omitempty"`
}

// HostAccess is how a host uses a volume.
// +kubebuilder:validation:Enum=Exclusive;SharedWrite;SharedRead
type HostAccess string

// Ways in which a host uses a volume.
const (
	// AccessExclusive: no other host may connect.
	AccessExclusive HostAccess = "Exclusive"
	// AccessSharedWrite: other hosts may connect and write; what is on the device keeps them from overwriting each
	// other.
	AccessSharedWrite HostAccess = "SharedWrite"
	// AccessSharedRead: other hosts may connect, and none writes.
	AccessSharedRead HostAccess = "SharedRead"
)

// NvmfVolumeStatus is the volume as it is. Written by the agent of spec.node.
type NvmfVolumeStatus struct {
	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Device that holds the volume: the drive's id, or the pool file's path.
	// +optional
	Device string `json:"device,omitempty"`
	// NQN of the subsystem.
	// +optional
	NQN string `json:"nqn,omitempty"`
	// NSID of the namespace in it.
	// +optional
	NSID int32 `json:"nsid,omitempty"`
	// NGUID of the namespace, 32 hexadecimal digits. With the NQN it identifies the volume on a host.
	// +optional
	NGUID string `json:"nguid,omitempty"`
	// Portals where it is reached: its paths. One that is planned and cannot be opened now is among them.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Portals []Portal `json:"portals,omitempty"`
	// Size of the data that is served, in bytes, without the header of 4Mi.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// Allocated bytes of the pool: what was written, for a thin volume, the header included.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Written says that something was written to the volume, or to what it was made from. It stays true: a volume whose
	// data was lost must not pass for one that may be formatted.
	// +optional
	Written bool `json:"written,omitempty"`
	// Hosts that are admitted now.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=nqn
	// +optional
	Hosts []AdmittedHost `json:"hosts,omitempty"`
	// QoS limits in force, read back from the target. Absent: none.
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
	// Blank says that nothing had been written to the volume, nor to what it was made from, when this host was
	// admitted, so that a node may format it. False when in doubt.
	// +required
	Blank bool `json:"blank"`
}

// NvmfVolume is one volume. Its name is the CSI volume id.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nv,categories=weft
// +kubebuilder:selectablefield:JSONPath=`.spec.node`
// +kubebuilder:selectablefield:JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Allocated",type=string,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Transports",type=string,JSONPath=`.spec.connection.transports`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(self.spec.subsystemNQN) || self.spec.subsystemNQN.startsWith('nqn.2026-11.storage.weft:' + self.metadata.name + ':')",message="spec.subsystemNQN must be nqn.2026-11.storage.weft:<name of the volume>:<UUID of the attachment>"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 128",message="an NvmfVolume's name has at most 128 characters: it becomes part of an NQN"
type NvmfVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NvmfVolumeSpec `json:"spec"`
	// +optional
	Status NvmfVolumeStatus `json:"status,omitzero"`
}

// NvmfVolumeList is a list of NvmfVolumes.
// +kubebuilder:object:root=true
type NvmfVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NvmfVolume `json:"items"`
}
