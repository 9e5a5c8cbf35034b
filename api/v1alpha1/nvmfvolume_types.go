// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeSizeStep in bytes: a volume's size is a multiple of it.
const VolumeSizeStep = 4 << 20

// MaxReplicas of a volume.
const MaxReplicas = 2

// MaxZones that a volume may be limited to.
const MaxZones = 64

const (
	// ReplaceLostNever is the value of replaceLostReplicaAfterMinutes of a volume whose lost replicas are not replaced.
	ReplaceLostNever = -1
	// UsualReplaceLostMinutes is longer than a server takes to reboot after an update of its firmware, and than most
	// planned work on one. A replica that returns gets what was written meanwhile; one that is replaced is copied
	// whole, which takes 90 minutes for 1 TiB. For longer, a second failure would cost more than the copy.
	UsualReplaceLostMinutes = 30
	// MaxReplaceLostMinutes is a week.
	MaxReplaceLostMinutes = 7 * 24 * 60
)

// MaxVolumeMembers of a volume: its replicas, and those that replace them or are being removed.
const MaxVolumeMembers = 4

// NvmfVolumeSpec is the desired state of a volume. The CSI controller writes it.
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source)",message="source is immutable: it records where the volume's initial data comes from"
// +kubebuilder:validation:XValidation:rule="has(self.deviceClass) == has(oldSelf.deviceClass)",message="deviceClass is immutable, because the data is stored there; create a new volume of the other class, and copy the data"
// +kubebuilder:validation:XValidation:rule="has(self.encryption) == has(oldSelf.encryption)",message="encryption is immutable, because data that was written stays as it was written; create a new volume, and copy the data"
// +kubebuilder:validation:XValidation:rule="self.?trailer.orValue(false) == oldSelf.?trailer.orValue(false)",message="trailer is immutable: the data of a volume without a trailer may reach to the end; create a new volume, and copy the data"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?mirrored.orValue(false) || self.?mirrored.orValue(false)",message="mirrored cannot change back to false: the volume's NvmfMirror records which replicas have everything"
// +kubebuilder:validation:XValidation:rule="!has(self.move) || has(oldSelf.move) || self.members.exists(m, m.name == self.move.replica)",message="move.replica must be the name of one of members"
// +kubebuilder:validation:XValidation:rule="!has(self.recovery) || has(oldSelf.recovery) && self.recovery == oldSelf.recovery || !has(self.recovery.current) || self.members.exists(m, m.name == self.recovery.current)",message="recovery.current must be the name of one of members"
// +kubebuilder:validation:XValidation:rule="!has(self.recovery) || !has(self.recovery.acceptLossUntil) || has(self.recovery.current)",message="recovery.acceptLossUntil requires recovery.current: name the replica that has the data to keep"
// +kubebuilder:validation:XValidation:rule="!oldSelf.?used.orValue(false) || self.?used.orValue(false)",message="used cannot change back to false: a volume that may contain data must not be created again, empty"
// +kubebuilder:validation:XValidation:rule="!has(self.attachments) || self.attachments.size() == 0 || has(self.session)",message="session is required while attachments are listed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.attachments) || oldSelf.attachments.size() == 0 || !has(oldSelf.session) || has(self.session) && self.session == oldSelf.session",message="session cannot change while attachments are listed: connected hosts identify the volume by it"
type NvmfVolumeSpec struct {
	// UUID identifies the volume: its header, and its device on a node, carry it. Immutable.
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
	// Replicas of the volume's data, each on another node: 1 or 2. With two, the node that uses the volume writes to
	// both, and the NvmfMirror of the volume's name records which of them have everything. You can change the number
	// while the volume is in use. Default 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// ReplaceLostReplicaAfterMinutes is how long a replica may be lost before the CSI controller replaces it with a new
	// one on another node: from 1 to 10080 minutes, or -1 for never. A replica is lost while it is not in sync and its
	// node or its drive is down. If its drive was given up, it is replaced at once, unless the value is -1. You can
	// change it at any time. Absent: never.
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=10080
	// +kubebuilder:validation:XValidation:rule="self != 0",message="replaceLostReplicaAfterMinutes must be from 1 to 10080, or -1 for never"
	// +optional
	ReplaceLostReplicaAfterMinutes int32 `json:"replaceLostReplicaAfterMinutes,omitempty"`
	// Members are the replicas of the volume, each an NvmfReplica. Those of a new volume are listed before they are
	// created, so that a replica is created once, in one place. One that is added later is listed after it was created,
	// blank: once the volume is used, a listed replica is never created again.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=name
	// +required
	Members []VolumeMember `json:"members"`
	// Mirrored is true once the volume has, or had, more than one replica: the node that uses it goes through a mirror,
	// and the NvmfMirror of the volume's name records which replicas have everything, even if one is left. It never
	// becomes false again. Default false.
	// +optional
	Mirrored bool `json:"mirrored,omitempty"`
	// Move requests that a replica of the volume moves to another node, also while the volume is in use. `kubectl weft
	// move` writes it, and the CSI controller to replace a lost replica. The CSI controller removes it when the move is
	// complete; remove it earlier to cancel the move. Absent: no replica is being moved.
	// +optional
	Move *VolumeMove `json:"move,omitempty"`
	// Recovery requests that the record of the volume's replicas, its NvmfMirror, is made again from what the replicas'
	// headers say, because it is lost or not true, as after a restore of the API from a backup. `kubectl weft recover`
	// writes it. The CSI controller removes it when the record is recovered; the volume cannot be attached meanwhile.
	// Absent: the record is not being recovered, or cannot be without another request.
	// +optional
	Recovery *VolumeRecovery `json:"recovery,omitempty"`
	// Waiting says why the volume does not get the number of replicas that spec.replicas requests, or why a lost
	// replica is not replaced, such as that no node has room. The CSI controller sets it. While a replica is being
	// moved, it sets spec.move.waiting instead. Absent: the replicas are as requested, or the change makes progress.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Waiting string `json:"waiting,omitempty"`
	// Size of the data in bytes, a multiple of 4Mi, at most 8Pi. It can grow but not shrink. On the drive, each replica
	// uses another 4Mi for its header. With encryption, the first 4Mi of the data hold the LUKS header: pods get 4Mi
	// less.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self)).asApproximateFloat()].all(f, f > 0.0 && f <= 9007199254740992.0 && f == double(int(f) / 4194304 * 4194304)) && !string(self).contains('.')",message="size must be a multiple of 4Mi, such as 1536Mi, without a fraction, and at most 8Pi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="size can grow but not shrink: data beyond the new end would be lost"
	// +required
	Size resource.Quantity `json:"size"`
	// Source of the volume's initial data. Absent: the volume starts blank. Immutable.
	// +optional
	Source *VolumeSource `json:"source,omitempty"`
	// DeviceClass of the drives that store the volume, as in devices.classes of the target. Absent: any drive of a
	// node. A copy is stored on the drive of its source. Immutable.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="deviceClass is immutable, because the data is stored there; create a new volume of the other class, and copy the data"
	// +optional
	DeviceClass string `json:"deviceClass,omitempty"`
	// BlockSizeBytes is the logical block size of the drives that store the volume: replicas of a volume need
	// the same. Absent: any. Immutable.
	// +kubebuilder:validation:Minimum=512
	// +kubebuilder:validation:Maximum=65536
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="blockSizeBytes is immutable, because the volume may be in use with these blocks"
	// +optional
	BlockSizeBytes int32 `json:"blockSizeBytes,omitempty"`
	// Zones whose nodes may store replicas: values of the node label zoneLabel. From the volume's StorageClass. If you
	// change them, replicas that exist stay where they are. Absent: all nodes of the target.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +listType=set
	// +optional
	Zones []string `json:"zones,omitempty"`
	// ZoneLabel is the key of the node label whose values are zones. Replicas of a volume go to different zones, if
	// there is room. From the volume's StorageClass. Absent: topology.kubernetes.io/zone.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	ZoneLabel string `json:"zoneLabel,omitempty"`
	// Encryption of the data at rest. LUKS2: the node that uses the volume encrypts the data before it sends them to
	// any replica, with a key from the Secret that the StorageClass names for staging. Absent: the data is stored as
	// pods write them. Immutable.
	// +optional
	Encryption VolumeEncryption `json:"encryption,omitempty"`
	// Trailer is true if the last 4Mi of what a target serves for the volume stay empty, behind the data. So a pod
	// cannot write there what nodes take for a member of a RAID array. The CSI controller sets it when it creates the
	// volume. Immutable, because data may be there otherwise. Default false.
	// +optional
	Trailer bool `json:"trailer,omitempty"`
	// Connection settings of the hosts.
	// +kubebuilder:default={}
	// +optional
	Connection Connection `json:"connection,omitzero"`
	// QoS limits of the volume. You can change them at any time, even while hosts are connected. Absent: no limits.
	// +optional
	QoS *VolumeQoS `json:"qos,omitempty"`
	// KeyRotation is an arbitrary value. When it changes, each host that is attached gets a new NQN with new keys,
	// without an interruption of its I/O. `kubectl weft rotate` sets it, and the CSI controller when keys are older
	// than security.keyLifetimeHours of the target. Absent: keys have not been rotated.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	KeyRotation string `json:"keyRotation,omitempty"`
	// PersistentVolume of the volume, as it was when the volume was attached last. It is stored with the data of each
	// replica, so that the PersistentVolume can be created again if all objects are lost (kubectl weft recover --lost).
	// Absent: the volume was not attached since it has this field, or has no PersistentVolume.
	// +optional
	PersistentVolume *PersistentVolumeDescription `json:"persistentVolume,omitempty"`
	// Session is a UUID in the NQNs of the subsystems that serve the volume's replicas. Each attachment that begins
	// while none is listed starts a new session. Absent until the volume is attached for the first time.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +optional
	Session string `json:"session,omitempty"`
	// Attachments of the volume to nodes. Empty: no host may connect.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || self.all(h, has(h.access) && h.access == self[0].access && h.access != 'Exclusive')",message="attachments: several attachments must all have the same access, SharedWrite or SharedRead"
	// +listType=map
	// +listMapKey=nqn
	// +optional
	Attachments []VolumeHost `json:"attachments,omitempty"`
	// Used is true once the volume was attached, because it can contain data from then on. It never becomes false
	// again. Set it to true when you create the object by hand for existing data. Default false.
	// +optional
	Used bool `json:"used,omitempty"`
	// DeletionMark requests that the data is deleted with this object. It is valid only if it equals the object's own
	// metadata.uid, so a copied or restored object never has a valid mark. The CSI controller and `kubectl weft delete
	// volume` set it before they delete the object. If the object is deleted without a mark, the data of its replicas
	// stays on their nodes. Default: none.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	DeletionMark string `json:"deletionMark,omitempty"`
}

// VolumeEncryption is how a volume's data is encrypted at rest. Fields of this type are immutable; with one value, it
// is enough that they are neither added nor removed.
// +kubebuilder:validation:Enum=LUKS2
type VolumeEncryption string

// EncryptionLUKS2 is LUKS2 with AES-XTS-512 in sectors of 4096 bytes.
const EncryptionLUKS2 VolumeEncryption = "LUKS2"

// VolumeMember is a replica of a volume.
type VolumeMember struct {
	// Name of the NvmfReplica.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=140
	// +required
	Name string `json:"name"`
	// UUID of the replica, its spec.uuid.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +required
	UUID string `json:"uuid"`
	// Node that stores the replica.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Node string `json:"node"`
}

// VolumeMove is the move of one replica of a volume to another node: a new replica is added there, filled, and then the
// former one is removed.
type VolumeMove struct {
	// Replica to move: the name of one of the volume's members. Immutable while the move lasts.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=140
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="move.replica is immutable: remove move to cancel it, then request another one"
	// +required
	Replica string `json:"replica"`
	// Reason for which the CSI controller requested the move. ReplicaLost: the replica is lost, and is being replaced;
	// the CSI controller cancels the move if the replica is in sync again before its replacement. Absent: a person
	// requested the move.
	// +optional
	Reason MoveReason `json:"reason,omitempty"`
	// Node to move the replica to. Absent: the CSI controller chooses one, as for a new volume.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`
	// Replacement is the name of the member that replaces Replica. The CSI controller sets it when it adds the member.
	// +kubebuilder:validation:MaxLength=140
	// +optional
	Replacement string `json:"replacement,omitempty"`
	// Waiting says why the move cannot go on, such as that no node has room. The CSI controller sets it. Absent: the
	// move makes progress.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Waiting string `json:"waiting,omitempty"`
}

// MoveReason is why the CSI controller requested a move.
// +kubebuilder:validation:Enum=ReplicaLost
type MoveReason string

// MoveReplicaLost says that the replica is lost, and is being replaced.
const MoveReplicaLost MoveReason = "ReplicaLost"

// ReplaceLostAfter is how long a replica of the volume may be lost before it is replaced, and whether it ever is.
func (v *NvmfVolume) ReplaceLostAfter() (time.Duration, bool) {
	minutes := v.Spec.ReplaceLostReplicaAfterMinutes
	return time.Duration(minutes) * time.Minute, minutes > 0
}

// VolumeRecovery requests that the record of a volume's replicas is recovered.
type VolumeRecovery struct {
	// ID of the request, a new UUID for each, so that none is carried out twice.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`
	// +kubebuilder:validation:MaxLength=36
	// +required
	ID string `json:"id"`
	// Current is the replica, the name of one of the volume's members, that a person takes for the one that has all
	// data. All others are filled from it. It must be possible to read its header. Absent: the headers of all replicas
	// say which are current.
	// +kubebuilder:validation:MaxLength=140
	// +optional
	Current string `json:"current,omitempty"`
	// AcceptLossUntil is the time until which the CSI controller may recover the record although writes that only
	// replicas other than current have, or may have, are lost. It ends earlier, and attachments is Wait again, when the
	// agent of a replica suspects a restore of the API, or a person has declared one since the request was made: the
	// request may then be outdated. Requires current. Absent: nothing may be lost, and the request waits if something
	// could be.
	// +optional
	AcceptLossUntil *metav1.Time `json:"acceptLossUntil,omitempty"`
	// DeclaredRestores are the restores of the API that were declared on the nodes of the volume's replicas when the
	// request was made. A node that is not listed had none. They matter for a request with acceptLossUntil or with
	// attachments: End.
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=node
	// +optional
	DeclaredRestores []DeclaredRestore `json:"declaredRestores,omitempty"`
	// Attachments says what becomes of the volume's attachments to nodes: Wait until they have ended, or End them, so
	// that what still uses the volume there is killed. End becomes Wait together with the end of acceptLossUntil.
	// Default Wait.
	// +kubebuilder:default=Wait
	// +optional
	Attachments RecoveryAttachments `json:"attachments,omitempty"`
	// Waiting says why the record is not recovered yet, such as that a replica cannot be read. The CSI controller sets
	// it. Absent: the recovery makes progress.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Waiting string `json:"waiting,omitempty"`
}

// DeclaredRestore is the restore of the API that a person has declared last on a node.
type DeclaredRestore struct {
	// Node is the name of the NvmfNode.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Node string `json:"node"`
	// ID of the restore, as in the annotation weft.storage/restored of the NvmfNode.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=36
	// +required
	ID string `json:"id"`
}

// RecoveryAttachments is what becomes of a volume's attachments when its record is recovered.
// +kubebuilder:validation:Enum=Wait;End
type RecoveryAttachments string

// What becomes of a volume's attachments.
const (
	// RecoveryWaits until the volume is detached.
	RecoveryWaits RecoveryAttachments = "Wait"
	// RecoveryEnds the attachments, and what uses the volume by them.
	RecoveryEnds RecoveryAttachments = "End"
)

// VolumeSource is the source of a volume's initial data.
// +kubebuilder:validation:XValidation:rule="has(self.snapshot) != has(self.volume)",message="source: set exactly one of snapshot and volume"
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="source is immutable: it records where the volume's initial data comes from"
type VolumeSource struct {
	// Snapshot is the name of an NvmfSnapshot.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// Volume is the name of an NvmfVolume.
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
// +kubebuilder:validation:XValidation:rule="has(self.sealedKeys) == has(self.sealedTo)",message="set sealedKeys and sealedTo together, or neither"
type VolumeHost struct {
	// NQN of the host. It identifies this attachment only, and its UUID is also the host ID. A node gets a new NQN with
	// each attachment, and an NQN is never used a second time, so that a node that lost its attachment cannot reconnect
	// and send writes that it has queued.
	// +kubebuilder:validation:Pattern=`^nqn\.[0-9]{4}-[0-9]{2}\.[^\s]+$`
	// +kubebuilder:validation:MinLength=12
	// +kubebuilder:validation:MaxLength=223
	// +required
	NQN string `json:"nqn"`
	// Attachment is the UUID of the attachment that the host is part of. Absent: the UUID in NQN. The replicas of a
	// volume with several have a host NQN each, and a new one each time a replica returns to the mirror. While keys are
	// rotated, an attachment has two hosts, the former one first.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	Attachment string `json:"attachment,omitempty"`
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
	// Mover is true for an attachment that no pod asked for: the node plugin of the node copies data to replicas of a
	// volume that is not in use. It ends when that is done, or when a pod needs the volume. Default false.
	// +optional
	Mover bool `json:"mover,omitempty"`
	// SealedKeys are the keys by which the host and the target authenticate each other, encrypted so that only the
	// agent of the target and the node plugin of the host can read them (age, with X25519). An NvmfReplica has them;
	// an NvmfVolume does not. Absent: the host is admitted by its NQN alone.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]+=*$`
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	SealedKeys string `json:"sealedKeys,omitempty"`
	// SealedTo identifies the public keys that sealedKeys are encrypted with. If one of the two nodes gets another key,
	// the CSI controller creates new keys.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{32}$`
	// +kubebuilder:validation:MaxLength=32
	// +optional
	SealedTo string `json:"sealedTo,omitempty"`
	// KeysCreated is the time when sealedKeys were created. Absent: there are none, or the time is unknown.
	// +optional
	KeysCreated *metav1.Time `json:"keysCreated,omitempty"`
	// KeyRotation is the value of spec.keyRotation of the NvmfVolume when the host got its NQN. Absent: there was none.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	KeyRotation string `json:"keyRotation,omitempty"`
	// Retired is the UUID in the NQN whose place this host took when its keys were rotated. The node has no connection
	// left as that one, and never makes another, so that the target dismisses it without disturbing this host. Absent:
	// no such host.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	Retired string `json:"retired,omitempty"`
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

// VolumeState tells in one word how a volume is.
// +kubebuilder:validation:Enum=Creating;Ready;Degraded;Unknown;Unavailable;Lost;Deleting
type VolumeState string

// States of a volume.
const (
	// VolumeCreating: its replicas are being created.
	VolumeCreating VolumeState = "Creating"
	// VolumeReady: as many replicas as requested have all data, and nothing is wrong with them.
	VolumeReady VolumeState = "Ready"
	// VolumeDegraded: the volume can be used, and something is wrong with it: a replica lacks data or is not served, or
	// a pool is nearly full.
	VolumeDegraded VolumeState = "Degraded"
	// VolumeUnknown: nobody has reported for a while whether a replica that has all data is served.
	VolumeUnknown VolumeState = "Unknown"
	// VolumeUnavailable: no replica that has all data is served. Reads and writes wait or fail.
	VolumeUnavailable VolumeState = "Unavailable"
	// VolumeLost: the drives lack the data of each replica that is to have all.
	VolumeLost VolumeState = "Lost"
	// VolumeDeleting: its replicas are being deleted.
	VolumeDeleting VolumeState = "Deleting"
)

// NvmfVolumeStatus is the observed state of the volume. The CSI controller writes it when it changes.
type NvmfVolumeStatus struct {
	// State of the volume: Creating, Ready, Degraded, Unknown, Unavailable, Lost or Deleting. It says what storage
	// nodes and the mirror report. What the node of a pod sees of the volume, such as a lost path, is in the Events.
	// Absent: the CSI controller has not looked yet.
	// +optional
	State VolumeState `json:"state,omitempty"`
	// Reason for a state other than Ready, such as AgentSilent. `kubectl weft volume` says more. Absent for Ready.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
}

// NvmfVolume is one volume. Its name is the CSI volume ID. Its data is in its replicas.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nv,categories=weft
// +kubebuilder:selectablefield:JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Claim namespace",type=string,JSONPath=`.metadata.annotations.weft\.storage/pvc-namespace`
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.metadata.annotations.weft\.storage/pvc-name`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="On",type=string,JSONPath=`.spec.members[0].node`
// +kubebuilder:printcolumn:name="And on",type=string,JSONPath=`.spec.members[1].node`
// +kubebuilder:printcolumn:name="Attached to",type=string,JSONPath=`.spec.attachments[0].node`
// +kubebuilder:printcolumn:name="And to",type=string,JSONPath=`.spec.attachments[1].node`,priority=1
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`,priority=1
// +kubebuilder:printcolumn:name="Waiting",type=string,JSONPath=`.spec.waiting`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 128",message="the name of an NvmfVolume must be no more than 128 characters, because it is part of an NQN"
type NvmfVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NvmfVolumeSpec `json:"spec"`
	// +optional
	Status NvmfVolumeStatus `json:"status,omitempty"`
}

// NvmfVolumeList is a list of NvmfVolumes.
// +kubebuilder:object:root=true
type NvmfVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NvmfVolume `json:"items"`
}
