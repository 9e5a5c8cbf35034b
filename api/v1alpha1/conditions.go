// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types. QuietStatus has their polarity. Every condition an object owns is always present; an Event's reason
// equals the condition's.
const (
	// ConditionReady: the object does what its spec says.
	ConditionReady = "Ready"
	// ConditionProgressing: work towards the spec is under way.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: it serves, but not as its spec says.
	ConditionDegraded = "Degraded"
	// ConditionAuthenticationReady (NvmfTarget): hosts and targets can authenticate each other wherever that is
	// required. False names the storage nodes, and the nodes that use volumes, that cannot, before a volume is refused
	// there. True where it is preferred, with reason NodesCannotAuthenticate and the same nodes, and with NotNeeded
	// where it is disabled.
	ConditionAuthenticationReady = "AuthenticationReady"
	// ConditionAgentAlive (NvmfNode): the node's agent renews its lease. Written by the operator: a silent agent cannot
	// say so itself.
	ConditionAgentAlive = "AgentAlive"
	// ConditionSchedulable (NvmfNode): the node may get new volumes, as far as people have a say in it. False while it,
	// or its Kubernetes Node, is cordoned, and while its target lets it go; existing volumes are served all the same.
	// Written by the operator.
	ConditionSchedulable = "Schedulable"
	// ConditionPoolReady (NvmfNode): every planned device is a mounted pool that takes volumes.
	ConditionPoolReady = "PoolReady"
	// ConditionPortalsReady (NvmfNode): every planned portal listens, or will
	// with the first admitted host.
	ConditionPortalsReady = "PortalsReady"
	// ConditionRestartNeeded (NvmfNode): the target serves with settings that differ from the plan and
	// that only a restart of it can change; the message names them.
	ConditionRestartNeeded = "RestartNeeded"
	// ConditionRestoreSuspected (NvmfNode): the API server shows objects that may be from before what the node acted
	// on. What they name is served on as it is, and nothing of it is changed until a person declares the restore; see
	// RestoredAnnotation.
	ConditionRestoreSuspected = "RestoreSuspected"
	// ConditionTuned (NvmfNode): every setting of the plan's tuning is as asked for, and none is left
	// that should have been put back.
	ConditionTuned = "Tuned"
	// ConditionBuffersSufficient (NvmfNode): no I/O had to wait for a buffer lately. False names the pools that ran
	// out, and the spec.buffers that would not. True with reason NotNeeded where the engine has no such pools.
	ConditionBuffersSufficient = "BuffersSufficient"
	// ConditionWritesDurable (NvmfNode): every pool acknowledges a write only once it would survive a loss of the
	// node's power. False names the pools that do not, Unknown those of which it is not known; they serve all the same.
	ConditionWritesDurable = "WritesDurable"
	// ConditionTargetPodReady (NvmfNode): the target pod runs and follows the plan. Written by
	// the operator, which makes the pod; True with reason NotNeeded where the engine has no pod.
	ConditionTargetPodReady = "TargetPodReady"
	// ConditionTargetImageReady (NvmfNode): the image that the node's next target pod starts with is on the node. While
	// a pod is outdated it is pulled first; False says why that fails, and the old pod serves on. Written by the
	// operator; True with reason NotNeeded where the engine has no pod.
	ConditionTargetImageReady = "TargetImageReady"
	// ConditionUpdated (NvmfNode): the node follows its target's spec. False while a change that disturbs I/O waits for
	// the node's turn, or while that lasts; the message says what for. Written by the operator; True with reason
	// NotNeeded when no target claims the node.
	ConditionUpdated = "Updated"
	// ConditionVersionSkew (NvmfNode): the versions of the node's agent and of the operator are further apart than what
	// works together. Everything goes on as well as it can. Written by the operator, which knows both.
	ConditionVersionSkew = "VersionSkew"
	// ConditionEvictable (NvmfNode): the node may be drained (kubectl drain) without taking the only in-sync replica of
	// a volume away. False names the volumes that hold the node. Written by the operator, whose PodDisruptionBudget
	// allows evictions only while this is True and the Kubernetes Node is cordoned.
	ConditionEvictable = "Evictable"
	// ConditionCreated (NvmfReplica, NvmfSnapshot): it exists on its node. Once True it never
	// becomes absent by itself: a replica that cannot be found any more is
	// Degraded, never made again.
	ConditionCreated = "Created"
	// ConditionExported (NvmfReplica): its namespace is served, to exactly the
	// hosts in status.hosts.
	ConditionExported = "Exported"
	// ConditionQoSApplied (NvmfReplica): the limits of spec.qos are in force, and no others. True with reason
	// NotNeeded when there are none. False does not keep the volume from being served.
	ConditionQoSApplied = "QoSApplied"
	// ConditionInitiatorStuck (Kubernetes' own Node): the node's kernel does not finish a connection, makes no other
	// meanwhile, and the node takes no further volumes. Like the Node's other conditions, True is the one to act on.
	// Written by the node plugin.
	ConditionInitiatorStuck = "WeftInitiatorStuck"
	// ConditionMirrorsUnavailable (Kubernetes' own Node): the node lacks what it needs to hold the mirrors of volumes
	// with several replicas, and takes no such volume. Written by the node plugin. A Node without it, such as one with
	// an earlier node plugin, may be able to.
	ConditionMirrorsUnavailable = "WeftMirrorsUnavailable"
	// ConditionEncryptionUnavailable (Kubernetes' own Node): the node lacks what it needs to use encrypted volumes, and
	// takes none. Written by the node plugin. A Node without it has an earlier node plugin, which would not encrypt.
	ConditionEncryptionUnavailable = "WeftEncryptionUnavailable"
	// ConditionAuthenticationUnavailable (Kubernetes' own Node): hosts of the node cannot prove who they are, because
	// its kernel or its node plugin cannot. Where they can it is False, and its message is the public key of the node
	// plugin, to which their keys are sealed. Written by the node plugin.
	ConditionAuthenticationUnavailable = "WeftAuthenticationUnavailable"
	// ConditionIdentitiesRetired (Kubernetes' own Node): the node plugin has connected to replicas under new
	// identities, because their keys are rotated, and never connects under the former ones again. The message has the
	// UUIDs of these, separated by spaces. The CSI controller then removes them from the replicas. Written by the node
	// plugin.
	ConditionIdentitiesRetired = "WeftIdentitiesRetired"
	// ConditionNodeVersionSkew (Kubernetes' own Node): the version of the node plugin and the installed version are
	// further apart than what works together; the message has both. Written by the node plugin: a Node need not have an
	// NvmfNode.
	ConditionNodeVersionSkew = "WeftVersionSkew"
)

// QuietStatus of a condition type is the status that needs no attention: False for those that say that something is
// wrong or in progress, and True for all others.
func QuietStatus(conditionType string) metav1.ConditionStatus {
	switch conditionType {
	case ConditionDegraded, ConditionProgressing, ConditionRestartNeeded, ConditionRestoreSuspected, ConditionVersionSkew,
		ConditionAuthenticationUnavailable, ConditionEncryptionUnavailable, ConditionIdentitiesRetired,
		ConditionInitiatorStuck, ConditionMirrorsUnavailable, ConditionNodeVersionSkew:
		return metav1.ConditionFalse
	}
	return metav1.ConditionTrue
}

// Reasons of conditions and of the Events that go with them.
const (
	ReasonAsExpected = "AsExpected"
	ReasonPending    = "Pending"
	ReasonDeleting   = "Deleting"

	// NvmfTarget.
	ReasonNoNodeMatches   = "NoNodeMatches"
	ReasonNoNodeCapable   = "NoNodeCapable"
	ReasonNodesNotCapable = "NodesNotCapable"
	// ReasonNodesCannotAuthenticate: nodes that serve the target, or use volumes, have no keys, or an engine or kernel
	// that cannot authenticate.
	ReasonNodesCannotAuthenticate = "NodesCannotAuthenticate"
	ReasonNodesNotReady           = "NodesNotReady"
	ReasonVolumesRemain           = "VolumesRemain"
	ReasonClaimedByAnother        = "ClaimedByAnotherTarget"
	ReasonInvalidSelector         = "InvalidNodeSelector"
	ReasonOverPromised            = "OverPromised"

	// NvmfNode: why a node is not capable.
	ReasonNoInventory        = "NoInventory"
	ReasonNotClaimed         = "NotClaimed"
	ReasonEngineUnavailable  = "EngineUnavailable"
	ReasonModuleMissing      = "KernelModuleMissing"
	ReasonNoRDMADevice       = "NoRDMADevice"
	ReasonNoAddress          = "NoAddress"
	ReasonNoDevice           = "NoDevice"
	ReasonDeviceInUse        = "DeviceInUse"
	ReasonForeignSignature   = "ForeignSignature"
	ReasonDeviceMissing      = "DeviceMissing"
	ReasonDeviceSwapped      = "DeviceSwapped"
	ReasonPoolFailed         = "PoolFailed"
	ReasonPortalFailed       = "PortalFailed"
	ReasonAgentSilent        = "AgentSilent"
	ReasonEngineNotAnswering = "EngineNotAnswering"
	ReasonRestoreSuspected   = "RestoreSuspected"
	ReasonRecordsFailed      = "RecordsFailed"

	// NvmfNode: what an SPDK target lacks, or refuses. The launcher in the target pod says
	// those from CPUsNotGranted on; the pod's termination message carries them.
	ReasonPlanUnsupported    = "PlanUnsupported"
	ReasonSettingsDiffer     = "SettingsDiffer"
	ReasonNotNeeded          = "NotNeeded"
	ReasonPodPending         = "PodPending"
	ReasonPodNotReady        = "PodNotReady"
	ReasonPodFailed          = "PodFailed"
	ReasonPodOutdated        = "PodOutdated"
	ReasonImagePullFailed    = "ImagePullFailed"
	ReasonImageUnusable      = "ImageUnusable"
	ReasonMemoryExceeded     = "MemoryExceeded"
	ReasonNotEnoughCPUs      = "NotEnoughCPUs"
	ReasonBuffersTooFew      = "BuffersTooFew"
	ReasonBuffersExhausted   = "BuffersExhausted"
	ReasonInvalidSetting     = "InvalidSetting"
	ReasonCPUsNotGranted     = "CPUsNotGranted"
	ReasonHugepagesMissing   = "HugepagesMissing"
	ReasonDriverNotAvailable = "DriverNotAvailable"
	ReasonNoIOMMU            = "NoIOMMU"
	ReasonTargetNotFound     = "TargetNotFound"
	ReasonTargetRunning      = "TargetRunning"

	// NvmfNode: why it gets no new volumes.
	ReasonCordoned               = "Cordoned"
	ReasonKubernetesNodeCordoned = "KubernetesNodeCordoned"
	ReasonLeaving                = "Leaving"

	// Evictions from a node. OnlyInSyncReplica also keeps a rollout away from the node.
	ReasonOnlyReplica       = "OnlyReplica"
	ReasonOnlyInSyncReplica = "OnlyInSyncReplica"
	ReasonEvictionAllowed   = "EvictionAllowed"
	ReasonEvictionRefused   = "EvictionRefused"

	// NvmfNode and NvmfTarget: changes that disturb I/O.
	ReasonUpdating       = "Updating"
	ReasonWaitingForTurn = "WaitingForTurn"
	ReasonRolloutPaused  = "RolloutPaused"

	// NvmfNode: what an acknowledged write is worth.
	ReasonVolatileWriteCache = "VolatileWriteCache"
	ReasonWriteCacheUnknown  = "WriteCacheUnknown"

	// NvmfNode: tuning.
	ReasonSettingRefused    = "SettingRefused"
	ReasonSettingNotPutBack = "SettingNotPutBack"
	ReasonSettingDrifted    = "SettingDrifted"
	ReasonSettingsUnknown   = "SettingsUnknown"

	// NvmfNode and Kubernetes' Node: versions that do not work together.
	ReasonVersionSkew = "VersionSkew"

	// Kubernetes' Node: its kernel does not finish a connection.
	ReasonConnectStuck = "ConnectStuck"

	// Kubernetes' Node: it cannot hold mirrors, or use encrypted volumes. Of a kernel that lacks a module, the reason
	// is ReasonModuleMissing.
	ReasonProgramMissing = "ProgramMissing"

	// NvmfReplica and NvmfSnapshot.
	ReasonNoSpace = "NoSpace"
	// ReasonAttachmentsExhausted: the node's target has no memory planned for another attachment.
	ReasonAttachmentsExhausted = "AttachmentsExhausted"
	ReasonSourceNotReady       = "SourceNotReady"
	ReasonVolumeLost           = "VolumeLost"
	ReasonShrinkRefused        = "ShrinkRefused"
	ReasonCreateFailed         = "CreateFailed"
	ReasonExportFailed         = "ExportFailed"
	ReasonStillAdmitted        = "HostsStillAdmitted"
	ReasonNodeNotReady         = "NodeNotReady"
	ReasonPoolNearlyFull       = "PoolNearlyFull"
	ReasonPoolFull             = "PoolFull"
	ReasonFilesystemTooSmall   = "FilesystemTooSmall"
	// ReasonDeletedDataKept: nothing is deleted from a pool of engine SPDK until a person does what the message says.
	ReasonDeletedDataKept = "DeletedDataKept"
	ReasonUnsupported     = "Unsupported"
	ReasonQoSFailed       = "QoSFailed"
	ReasonNotMarked       = "DeletionNotMarked"
	ReasonUUIDInUse       = "UUIDInUse"
	// ReasonKeysUnreadable: what the keys of a host were sealed to is not this node's key.
	ReasonKeysUnreadable = "KeysUnreadable"
	// ReasonKeysRotated: the node's hosts have new keys, and are connected with them.
	ReasonKeysRotated = "KeysRotated"
	// ReasonOverdue is that of an Event only: a node's kernel has not finished what it was asked for the volume.
	ReasonOverdue = "KernelCallOverdue"
	// These are of Events only, about the replicas of a volume.
	ReasonReplicaLost      = "ReplicaLost"
	ReasonReplicaReturning = "ReplicaReturning"
	ReasonReplicaCopying   = "ReplicaCopying"
	ReasonReplicaInSync    = "ReplicaInSync"
	ReasonReplicaKept      = "ReplicaKept"
	ReasonReplicaRefused   = "ReplicaRefused"
	ReasonCurrentUnknown   = "CurrentReplicaUnknown"
	ReasonRecoveryWaiting  = "RecoveryWaiting"
	ReasonRecordRecovered  = "RecordRecovered"
	ReasonMoveStarted      = "MoveStarted"
	ReasonMoveWaiting      = "MoveWaiting"
	ReasonMoveFinished     = "MoveFinished"
	ReasonMoveCanceled     = "MoveCanceled"
)

// Names that several parts of weft agree on.
const (
	// DriverName is the CSI driver's name.
	DriverName = "csi.weft.storage"
	// ReachesLabel is the one topology key of the CSI driver, with ReachesVolumes as its value: the kubelet puts it on
	// every Node whose node plugin has registered. Volumes are used from all of those alike, so no PersistentVolume
	// carries it as a constraint; csi-provisioner publishes CSIStorageCapacity only of drivers with a key.
	ReachesLabel = "weft.storage/reaches"
	// ReachesVolumes is ReachesLabel's value.
	ReachesVolumes = "volumes"
	// EngineFinalizer keeps an NvmfReplica or NvmfSnapshot until the engine no longer lists it.
	EngineFinalizer = "weft.storage/engine"
	// ReplicasFinalizer keeps an NvmfVolume until its replicas are gone.
	ReplicasFinalizer = "weft.storage/replicas"
	// TargetFinalizer keeps an NvmfTarget while volumes of it exist.
	TargetFinalizer = "weft.storage/target"
	// TuningFinalizer keeps an NvmfNode while it bears the record of what the node's tuning has to be put back to.
	TuningFinalizer = "weft.storage/tuning"
	// AgentLeasePrefix starts the name of the Lease that a node's agent renews in its own
	// namespace; what follows it is the node's name.
	AgentLeasePrefix = "weft-agent-"
	// ComponentLabel names the part of weft that an object belongs to.
	ComponentLabel = "app.kubernetes.io/component"
	// VersionLabel of the CSIDriver is the version of weft that is installed.
	VersionLabel = "app.kubernetes.io/version"
	// ComponentAgent is the ComponentLabel's value on what belongs to the agent, its Lease included.
	ComponentAgent = "agent"
	// AllowEvictionAnnotation on an NvmfNode lets drains evict from it although volumes would then wait for it. The
	// value is the reason, and is recorded in condition Evictable. Remove it when the node is back.
	AllowEvictionAnnotation = "weft.storage/allow-eviction"
	// ComponentTarget is the ComponentLabel's value on target pods.
	ComponentTarget = "target"
	// TargetPodPrefix starts the name of a target pod; what follows it is the node's name.
	TargetPodPrefix = "weft-target-"
	// OperatorFieldManager is the operator's field manager in server-side apply.
	OperatorFieldManager = "weft-operator"
	// AuthenticationFieldManager applies ConditionAuthenticationUnavailable, and nothing else, of a Kubernetes Node: so
	// the Node's metadata say when that was written last.
	AuthenticationFieldManager = "weft-csi-node-authentication"
	// AllowFormatAnnotation on an NvmfVolume, with its UUID as the value, lets an administrator
	// say that a volume which is not blank and in which no filesystem was
	// found may be formatted: its data is given up. It holds for the next attachment, and is gone when that ends.
	AllowFormatAnnotation = "weft.storage/allow-format"
	// RestoredAnnotation on an NvmfNode, with its status.suspectedRestore as the value, lets an administrator say that
	// the objects which the API server shows now are the ones to act on, as after etcd was restored from a backup. It
	// holds for what was suspected when it was seen; the next suspicion has another ID.
	RestoredAnnotation = "weft.storage/restored"
	// TraceParentKey is an annotation of NvmfVolumes, NvmfReplicas and NvmfSnapshots: the span of the CSI call that
	// wrote the object last, as W3C writes it in a traceparent header. By it, who acts on the object goes on with the
	// trace. There is none while tracing is off, and nothing else depends on it.
	TraceParentKey = "weft.storage/traceparent"
)

// InitiatorStuck is the Node's condition ConditionInitiatorStuck; nil when it has none.
func InitiatorStuck(node *corev1.Node) *corev1.NodeCondition {
	return NodeCondition(node, ConditionInitiatorStuck)
}

// NodeCondition is a Node's condition; nil when it has none of the type.
func NodeCondition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}
