// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeSizeStep in bytes: a volume's size is a multiple of it.
const VolumeSizeStep = 4 << 20

// NvmfVolumeSpec is the desired state of a volume. The CSI controller writes it.
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source)",message="source is immutable: it records where the volume's initial data comes from"
// +kubebuilder:validation:XValidation:rule="has(self.deviceClass) == has(oldSelf.deviceClass)",message="deviceClass is immutable, because the data is stored there; create a new volume of the other class, and copy the data"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?used.orValue(false) || self.?used.orValue(false)",message="used cannot change back to false: a volume that may contain data must not be created again, empty"
// +kubebuilder:validation:XValidation:rule="!has(self.hosts) || self.hosts.size() == 0 || has(self.subsystemNQN)",message="subsystemNQN is required while hosts are listed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.hosts) || oldSelf.hosts.size() == 0 || !has(oldSelf.subsystemNQN) || has(self.subsystemNQN) && self.subsystemNQN == oldSelf.subsystemNQN",message="subsystemNQN cannot change while hosts are listed: connected hosts identify the volume by it"
type NvmfVolumeSpec struct {
	// UUID identifies the volume. The engine uses it as the volume's name, and as the namespace's UUID and NGUID.
	// Immutable.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="uuid is immutable: it identifies the volume"
	// +required
	UUID string `json:"uuid"`
	// Target that serves the volume. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="target is immutable, because the data is stored there; create a new volume from a copy"
	// +required
	Target string `json:"target"`
	// Node that stores the volume on one of its drives. Immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="node is immutable, because the data is stored there; create a new volume from a copy"
	// +required
	Node string `json:"node"`
	// Size of the data in bytes, a multiple of 4Mi, at most 8Pi. It can grow but not shrink. On the drive, the volume
	// uses another 4Mi for its header.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self)).asApproximateFloat()].all(f, f > 0.0 && f <= 9007199254740992.0 && f == double(int(f) / 4194304 * 4194304)) && !string(self).contains('.')",message="size must be a multiple of 4Mi, such as 1536Mi, without a fraction, and at most 8Pi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="size can grow but not shrink: data beyond the new end would be lost"
	// +required
	Size resource.Quantity `json:"size"`
	// Source of the volume's initial data. Absent: the volume starts blank. Immutable.
	// +optional
	Source *VolumeSource `json:"source,omitempty"`
	// DeviceClass of the drive that stores the volume, as in devices.classes of the target. Absent: any drive of the
	// node. A copy is stored on the drive of its source. Immutable.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="deviceClass is immutable, because the data is stored there; create a new volume of the other class, and copy the data"
	// +optional
	DeviceClass string `json:"deviceClass,omitempty"`
	// Connection settings of the hosts.
	// +kubebuilder:default={}
	// +optional
	Connection Connection `json:"connection,omitzero"`
	// QoS limits of the volume. You can change them at any time, even while hosts are connected. Absent: no limits.
	// +optional
	QoS *VolumeQoS `json:"qos,omitempty"`
	// SubsystemNQN is the NQN of the subsystem that serves the volume to the listed hosts. Each attachment that begins
	// while no host is listed gets a new one. Absent until the volume is attached for the first time.
	// +kubebuilder:validation:Pattern=`^nqn\.2026-11\.storage\.weft:[a-z0-9.-]+:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=223
	// +optional
	SubsystemNQN string `json:"subsystemNQN,omitempty"`
	// Hosts that may connect, one for each attachment of the volume to a node. Empty: no host.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || self.all(h, has(h.access) && h.access == self[0].access && h.access != 'Exclusive')",message="hosts: several hosts must all have the same access, SharedWrite or SharedRead"
	// +listType=map
	// +listMapKey=nqn
	// +optional
	Hosts []VolumeHost `json:"hosts,omitempty"`
	// Used is true once a host has been admitted, because the volume can contain data from then on. It never becomes
	// false again. An agent that does not find a used volume reports the loss instead of creating an empty one. Default
	// false. Set it to true when you create the object by hand for existing data.
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

// VolumeSource is the source of a volume's initial data.
// +kubebuilder:validation:XValidation:rule="has(self.snapshot) != has(self.volume)",message="source: set exactly one of snapshot and volume"
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="source is immutable: it records where the volume's initial data comes from"
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

// ReconnectDelay between a host's attempts to reconnect lets I/O continue soon after a target is back: one that is
// killed has its exports again in a second. The kernel's own is 10 s (NVMF_DEF_RECONNECT_DELAY).
const ReconnectDelay = 2 * time.Second

const (
	// CtrlLossTimeoutForever is the default: I/O never fails.
	CtrlLossTimeoutForever = -1
	// MaxCtrlLossTimeoutSeconds is the longest finite timeout.
	MaxCtrlLossTimeoutSeconds = 86400
)

// Connection contains the connection settings of hosts.
type Connection struct {
	// Transports to connect over, in any order. A host connects to every portal of the volume's node with one of these
	// transports. Each connection is a path to the same device. Default: TCP only.
	// +kubebuilder:default={TCP}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +optional
	Transports []TransportType `json:"transports,omitempty"`
	// IOQueues that a host opens to each portal. A host never opens more queues than it has CPUs. Default 2.
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	IOQueues int32 `json:"ioQueues,omitempty"`
	// QueueDepth of each queue. Default 128, as in the kernel's initiator.
	// +kubebuilder:default=128
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=1024
	// +optional
	QueueDepth int32 `json:"queueDepth,omitempty"`
	// CtrlLossTimeoutSeconds is how long a host tries to reconnect before I/O fails. -1 means that it never gives up:
	// I/O waits for the target instead of failing. 0 is not allowed, because the kernel would not reconnect at all.
	// Default -1.
	// +kubebuilder:default=-1
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:validation:XValidation:rule="self != 0",message="ctrlLossTimeoutSeconds must be -1 (never give up) or from 1 to 86400: with 0, I/O would fail when the first connection is lost"
	// +optional
	CtrlLossTimeoutSeconds int32 `json:"ctrlLossTimeoutSeconds,omitempty"`
}

// VolumeHost is a host that may connect: one attachment of the volume to a node.
type VolumeHost struct {
	// NQN of the host. It identifies this attachment only, and its UUID is also the host ID. A node gets a new NQN with
	// each attachment, and an NQN is never used a second time, so that a node that lost its attachment cannot reconnect
	// and send writes that it has queued.
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
	// NodeUID is the UID of that Node when the volume was attached, so that another machine with the same name does not
	// use the attachment.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +required
	NodeUID string `json:"nodeUID"`
	// VolumeAttachment is the UID of the Kubernetes VolumeAttachment that requested the attachment. The attachment is
	// revoked when that object is gone. Absent: another caller requested it.
	// +kubebuilder:validation:MaxLength=128
	// +optional
	VolumeAttachment string `json:"volumeAttachment,omitempty"`
	// Access of the host: Exclusive, SharedWrite or SharedRead. Several hosts can be listed only if all have the same
	// shared access. Default Exclusive.
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
	// AccessSharedWrite: other hosts may connect and write. The software on the hosts has to coordinate the writes.
	AccessSharedWrite HostAccess = "SharedWrite"
	// AccessSharedRead: other hosts may connect, and no host writes.
	AccessSharedRead HostAccess = "SharedRead"
)

// NvmfVolumeStatus is the observed state of the volume. The agent of spec.node writes it.
type NvmfVolumeStatus struct {
	// ObservedGeneration is the generation of the spec that this status refers to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Device that stores the volume: the drive's ID, or the pool file's path.
	// +optional
	Device string `json:"device,omitempty"`
	// NQN of the subsystem.
	// +optional
	NQN string `json:"nqn,omitempty"`
	// NSID of the namespace in the subsystem.
	// +optional
	NSID int32 `json:"nsid,omitempty"`
	// NGUID of the namespace, 32 hexadecimal digits. With the NQN it identifies the volume on a host.
	// +optional
	NGUID string `json:"nguid,omitempty"`
	// Portals of the volume, one for each path. A planned portal is listed even if it cannot be opened now.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Portals []Portal `json:"portals,omitempty"`
	// Size of the served data in bytes, without the header of 4Mi.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// Allocated bytes in the pool: for a thin volume the written data, including the header.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Written is true once data was written to the volume or to its source. It stays true, so that a volume that lost
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
	// Blank is true if nothing had been written to the volume or to its source when this host was admitted, so that the
	// node may format it. False if unknown.
	// +required
	Blank bool `json:"blank"`
}

// NvmfVolume is one volume. Its name is the CSI volume ID.
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
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 128",message="the name of an NvmfVolume must be no more than 128 characters, because it is part of an NQN"
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
