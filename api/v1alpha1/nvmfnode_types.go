// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NvmfNodeSpec defines which target the node serves and how. The operator writes it, except unschedulable and
// droppedDrives, which an administrator writes.
// +kubebuilder:validation:XValidation:rule="has(self.target) == has(self.plan)",message="target and plan must be set together"
type NvmfNodeSpec struct {
	// Target is the name of the NvmfTarget that claims this node. Empty when no target claims it.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Target string `json:"target,omitempty"`
	// Plan is the target's spec resolved for this node.
	// +optional
	Plan *Plan `json:"plan,omitempty"`
	// Leaving is true when the node's target no longer selects it or is being deleted. The node continues to serve its
	// volumes, but gets no new ones.
	// +optional
	Leaving bool `json:"leaving,omitempty"`
	// Unschedulable is true to place no new volumes on the node. An administrator writes it (kubectl weft cordon); the
	// operator does not change it. The node continues to serve its volumes, which can grow and be snapshotted. While
	// the Kubernetes Node is cordoned, the NvmfNode gets no new volumes either, whatever this field says. Default
	// false.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// UnschedulableDrives lists the IDs of drives that get no new volumes and no copies. An administrator writes it
	// (kubectl weft retire); the operator does not change it. What the drives store is served, and can grow and be
	// snapshotted.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +listType=set
	// +optional
	UnschedulableDrives []string `json:"unschedulableDrives,omitempty"`
	// DroppedDrives lists drives to give up, with all volumes and snapshots on them. An administrator writes it
	// (kubectl weft drop); the operator does not change it. The agent drops a drive only if it is missing or cannot be
	// read; see status.droppedDrives. A listed drive is never added to the pool, even if it returns.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=id
	// +optional
	DroppedDrives []DroppedDrive `json:"droppedDrives,omitempty"`
}

// DroppedDrive names a drive to give up.
type DroppedDrive struct {
	// ID of the drive, as in plan.drives.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +required
	ID string `json:"id"`
}

// Drops reports whether a drive is listed in droppedDrives.
func (s *NvmfNodeSpec) Drops(id string) bool {
	return slices.ContainsFunc(s.DroppedDrives, func(d DroppedDrive) bool { return d.ID == id })
}

// Cordons reports whether a drive is listed in unschedulableDrives.
func (s *NvmfNodeSpec) Cordons(id string) bool { return slices.Contains(s.UnschedulableDrives, id) }

// DroppedDriveStatus is the state of a drive in spec.droppedDrives.
type DroppedDriveStatus struct {
	// ID of the drive.
	// +required
	ID string `json:"id"`
	// Dropped is true when the agent has given up the pool on the drive, and its data is lost. False while the drive
	// can be read, or while it is unknown whether it can: nothing is given up then.
	// +required
	Dropped bool `json:"dropped"`
	// Message explains why the drive is not dropped, or says that it has returned.
	// +optional
	Message string `json:"message,omitempty"`
}

// Dropped reports whether a drive that spec.droppedDrives lists was dropped by the agent.
func (n *NvmfNode) Dropped(id string) bool {
	return n.Spec.Drops(id) && slices.ContainsFunc(n.Status.DroppedDrives, func(d DroppedDriveStatus) bool { return d.ID == id && d.Dropped })
}

// Plan is an NvmfTarget resolved for one node. It contains only numbers and names.
// +kubebuilder:validation:XValidation:rule="has(self.spdk) == (self.engine == 'SPDK')",message="spdk is required when engine is SPDK, and must not be set otherwise"
// +kubebuilder:validation:XValidation:rule="!has(self.nvmet) || self.engine == 'Nvmet'",message="nvmet must not be set unless engine is Nvmet"
type Plan struct {
	// Engine that serves the volumes.
	// +required
	Engine Engine `json:"engine"`
	// Portals to listen on.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +required
	Portals []PlannedPortal `json:"portals"`
	// Drives of the pool. Empty when the pool is a file.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=id
	// +optional
	Drives []PlannedDrive `json:"drives,omitempty"`
	// File that is the pool. Absent when the pool is drives.
	// +optional
	File *DeviceFile `json:"file,omitempty"`
	// ClusterBytes of pools that SPDK makes from now on; those that there are keep theirs. Absent: 4 MiB. SPDK only.
	// +kubebuilder:validation:Minimum=1048576
	// +kubebuilder:validation:Maximum=16777216
	// +optional
	ClusterBytes int64 `json:"clusterBytes,omitempty"`
	// OverProvisioningPercent limits how much of each pool can be promised, in percent of its size. Absent: 100.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=400
	// +optional
	OverProvisioningPercent int32 `json:"overProvisioningPercent,omitempty"`
	// SPDK contains the settings that the SPDK target starts with. Absent with another engine.
	// +optional
	SPDK *SPDKPlan `json:"spdk,omitempty"`
	// Nvmet contains the parameters of the kernel target's modules. Absent with another engine.
	// +optional
	Nvmet *NvmetPlan `json:"nvmet,omitempty"`
	// Tuning lists the settings of the node's kernel and NICs. Absent when none is requested.
	// +kubebuilder:validation:MaxItems=512
	// +listType=map
	// +listMapKey=setting
	// +optional
	Tuning []PlannedSetting `json:"tuning,omitempty"`
	// Authentication of hosts and target. Absent: hosts are admitted by their NQNs alone.
	// +optional
	Authentication *PlannedAuthentication `json:"authentication,omitempty"`
	// Choices explain each number of the plan: where it comes from and why.
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=setting
	// +optional
	Choices []Choice `json:"choices,omitempty"`
	// Memory is the memory that the plan needs, by use.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=use
	// +optional
	Memory []MemoryUse `json:"memory,omitempty"`
}

// SPDKPlan contains the settings of an SPDK target and of its pod.
type SPDKPlan struct {
	// CoreMask of the CPUs that run a reactor, in hexadecimal, such as 0x3c (nvmf_tgt -m).
	// +kubebuilder:validation:MaxLength=258
	// +kubebuilder:validation:Pattern=`^0x[0-9a-f]+$`
	// +required
	CoreMask string `json:"coreMask"`
	// PollGroupMask of the CPUs in coreMask that serve connections (nvmf_set_config poll_groups_mask). Absent: all.
	// +kubebuilder:validation:MaxLength=258
	// +kubebuilder:validation:Pattern=`^0x[0-9a-f]+$`
	// +optional
	PollGroupMask string `json:"pollGroupMask,omitempty"`
	// Mode of the reactors: Static, Dynamic or Interrupt.
	// +required
	Mode CoreMode `json:"mode"`
	// Balance lets the agent move poll groups between cores according to their load. Mode Static only.
	// +optional
	Balance bool `json:"balance,omitempty"`
	// Scheduler contains the parameters of mode Dynamic. Absent in other modes.
	// +optional
	Scheduler *PlannedScheduler `json:"scheduler,omitempty"`
	// Hugepages is the page size of the target's memory: 2Mi, 1Gi or Disabled.
	// +required
	Hugepages Hugepages `json:"hugepages"`
	// MemoryBytes is the memory that the target allocates from hugepages, or from regular memory when hugepages are
	// disabled (nvmf_tgt -s). A multiple of 1 MiB and of the page size.
	// +kubebuilder:validation:Minimum=67108864
	// +required
	MemoryBytes int64 `json:"memoryBytes"`
	// PodMemoryBytes is the pod's regular memory. It includes memoryBytes when hugepages are disabled.
	// +kubebuilder:validation:Minimum=1
	// +required
	PodMemoryBytes int64 `json:"podMemoryBytes"`
	// BdevIOPoolSize is the number of I/O descriptors (bdev_set_options bdev_io_pool_size).
	// +kubebuilder:validation:Minimum=1
	// +required
	BdevIOPoolSize int32 `json:"bdevIOPoolSize"`
	// SmallBuffers of 8 KiB (iobuf_set_options small_pool_count).
	// +kubebuilder:validation:Minimum=64
	// +required
	SmallBuffers int32 `json:"smallBuffers"`
	// LargeBuffers of 132 KiB (iobuf_set_options large_pool_count).
	// +kubebuilder:validation:Minimum=8
	// +required
	LargeBuffers int32 `json:"largeBuffers"`
	// MaxSubsystems is the number of subsystems for volumes, in addition to those that the target needs itself
	// (nvmf_set_max_subsystems). A node can have one volume less than that: a volume has two subsystems for a moment
	// while one replaces the other.
	// +kubebuilder:validation:Minimum=1
	// +required
	MaxSubsystems int32 `json:"maxSubsystems"`
	// Attachments that the target's memory is planned for. No more are admitted at the same time. Absent in plans of
	// earlier versions.
	// +optional
	Attachments *Attachments `json:"attachments,omitempty"`
	// Transports of the target: one of each type, regardless of the number of portals.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=map
	// +listMapKey=type
	// +required
	Transports []PlannedTransport `json:"transports"`
	// Placement of TCP connections on poll groups. Absent without a TCP transport.
	// +optional
	Placement Placement `json:"placement,omitempty"`
	// Sockets of TCP connections. Absent without a TCP transport.
	// +optional
	Sockets *PlannedSockets `json:"sockets,omitempty"`
	// Driver of the drives.
	// +required
	Driver DriveDriver `json:"driver"`
	// LatencyHistograms of volumes that hosts are admitted to. Absent: Disabled.
	// +optional
	LatencyHistograms Switch `json:"latencyHistograms,omitempty"`
}

// PlannedScheduler contains the parameters of SPDK's dynamic scheduler.
type PlannedScheduler struct {
	// PeriodMicroseconds is the time between two decisions.
	// +kubebuilder:validation:Minimum=1000
	// +required
	PeriodMicroseconds int64 `json:"periodMicroseconds"`
	// LoadLimit is the load in percent below which a thread counts as idle.
	// +required
	LoadLimit int32 `json:"loadLimit"`
	// CoreLimit is the load in percent above which a core takes no more threads.
	// +required
	CoreLimit int32 `json:"coreLimit"`
	// CoreBusy is the load in percent above which threads are moved off a core.
	// +required
	CoreBusy int32 `json:"coreBusy"`
}

// PlannedTransport is an NVMe-oF transport of an SPDK target (nvmf_create_transport).
type PlannedTransport struct {
	// Type of the transport.
	// +required
	Type TransportType `json:"type"`
	// QueueDepth of each queue (max_queue_depth).
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=1024
	// +required
	QueueDepth int32 `json:"queueDepth"`
	// MaxIOQueues per controller (max_io_qpairs_per_ctrlr).
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +required
	MaxIOQueues int32 `json:"maxIOQueues"`
	// InCapsuleDataSize in bytes (in_capsule_data_size).
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +required
	InCapsuleDataSize int64 `json:"inCapsuleDataSize"`
	// MaxIOSize in bytes (max_io_size).
	// +kubebuilder:validation:Minimum=8192
	// +required
	MaxIOSize int64 `json:"maxIOSize"`
	// SmallCache is the number of small buffers that each poll group keeps (iobuf_small_cache_size).
	// +kubebuilder:validation:Minimum=1
	// +required
	SmallCache int32 `json:"smallCache"`
	// LargeCache is the number of large buffers that each poll group keeps (iobuf_large_cache_size).
	// +kubebuilder:validation:Minimum=1
	// +required
	LargeCache int32 `json:"largeCache"`
	// SRQDepth of each shared receive queue (max_srq_depth). Absent: no SRQ (no_srq). RDMA only.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=65535
	// +optional
	SRQDepth *int32 `json:"srqDepth,omitempty"`
	// C2HSuccess (c2h_success). TCP only. Absent: SPDK's default.
	// +optional
	C2HSuccess Switch `json:"c2hSuccess,omitempty"`
	// SocketPriority (sock_priority). TCP only. Absent: none.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=15
	// +optional
	SocketPriority int32 `json:"socketPriority,omitempty"`
}

// ChoiceSource is where a number of a plan comes from.
// +kubebuilder:validation:Enum=Given;Default;Computed
type ChoiceSource string

// Sources of a number.
const (
	// SourceGiven by the user in the NvmfTarget.
	SourceGiven ChoiceSource = "Given"
	// SourceDefault of weft or of the engine.
	SourceDefault ChoiceSource = "Default"
	// SourceComputed from the inventory and other settings.
	SourceComputed ChoiceSource = "Computed"
)

// Choice is one number of a plan, where it comes from and why.
type Choice struct {
	// Setting is the field of the plan, such as coreMask, largeBuffers or transports[TCP].largeCache.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Setting string `json:"setting"`
	// Value in the plan.
	// +kubebuilder:validation:MaxLength=258
	// +required
	Value string `json:"value"`
	// Source: Given, Default or Computed.
	// +required
	Source ChoiceSource `json:"source"`
	// Why this value was chosen, in one sentence.
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Why string `json:"why"`
	// Warning that the value works, but not well. Absent when there is no warning.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Warning string `json:"warning,omitempty"`
}

// MemoryUse is the memory that a plan needs for one use.
type MemoryUse struct {
	// Use of the memory, such as "large buffers" or "TCP queue pairs".
	// +kubebuilder:validation:MaxLength=63
	// +required
	Use string `json:"use"`
	// Bytes used.
	// +required
	Bytes int64 `json:"bytes"`
	// How the bytes were calculated, such as "1024 x 135168".
	// +kubebuilder:validation:MaxLength=255
	// +optional
	How string `json:"how,omitempty"`
}

// PlannedPortal is an address to listen on, with its limits.
type PlannedPortal struct {
	// Portal to listen on.
	Portal `json:",inline"`
	// MaxIOQueues per controller.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +required
	MaxIOQueues int32 `json:"maxIOQueues"`
	// QueueDepth of each queue.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=1024
	// +required
	QueueDepth int32 `json:"queueDepth"`
	// InCapsuleDataSize in bytes.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +required
	InCapsuleDataSize int64 `json:"inCapsuleDataSize"`
}

// Portal is an address of a subsystem: the NVMe-oF transport type, transport address and service ID.
type Portal struct {
	// Transport of the portal.
	// +required
	Transport TransportType `json:"transport"`
	// Address is an IPv4 or IPv6 address of the node.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="address must be an IPv4 or IPv6 address"
	// +required
	Address string `json:"address"`
	// Port is a TCP or RDMA CM port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`
}

// PlannedDrive identifies a drive of the pool in a way that survives a reboot.
type PlannedDrive struct {
	// ID is the drive's ID, as in inventory.drives[].id.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +required
	ID string `json:"id"`
	// Serial number of the drive, for information only.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Serial string `json:"serial,omitempty"`
	// PCIAddress, such as 0000:5e:00.0, of a drive that SPDK's own driver uses. The kernel no longer lists the drive,
	// so this is the inventory's only record of it.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`
	// +optional
	PCIAddress string `json:"pciAddress,omitempty"`
	// DeviceClass of the target's devices.classes that the drive belongs to. Absent: none. A drive that the node's
	// inventory does not list keeps the class that it had.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	DeviceClass string `json:"deviceClass,omitempty"`
}

// NvmfNodeStatus is the observed state of the node. The node's agent writes it, except the conditions AgentAlive,
// Schedulable, TargetPodReady, TargetImageReady, Updated and VersionSkew.
type NvmfNodeStatus struct {
	// ObservedGeneration is the generation of the spec that engine, pools, portals and conditions refer to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// AgentVersion is the version of weft that the node's agent runs. Condition VersionSkew says whether it works with
	// the operator's.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`
	// PublicKey of the agent. The keys of hosts are encrypted with it; the private key never leaves the node. It
	// changes when the node is reinstalled.
	// +kubebuilder:validation:Pattern=`^age1[02-9ac-hj-np-z]{58}$`
	// +kubebuilder:validation:MaxLength=62
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
	// SnapshotMetadata is where the agent lists the blocks of snapshots for the CSI controller. Absent: nowhere,
	// because snapshotMetadata.enabled of the chart is false.
	// +optional
	SnapshotMetadata *SnapshotMetadataServer `json:"snapshotMetadata,omitempty"`
	// Inventory of the node's hardware and kernel.
	// +optional
	Inventory *Inventory `json:"inventory,omitempty"`
	// Engine that is running.
	// +optional
	Engine *EngineStatus `json:"engine,omitempty"`
	// Pools of the node: one on each drive, or one in a file.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=device
	// +optional
	Pools []PoolStatus `json:"pools,omitempty"`
	// DroppedDrives reports for each drive in spec.droppedDrives whether it was dropped.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=id
	// +optional
	DroppedDrives []DroppedDriveStatus `json:"droppedDrives,omitempty"`
	// Capacity of all pools that are ready.
	// +optional
	Capacity Capacity `json:"capacity,omitzero"`
	// Attachments that the target admits, including those that are being detached. Each host of each volume counts
	// once, or more often if it opens more queues than planned. The memory of the plan limits the number: further
	// attachments wait, and existing attachments keep their place.
	// +optional
	Attachments *Places `json:"attachments,omitempty"`
	// Volumes of the node, attached or not. The number of the target's subsystems limits them.
	// +optional
	Volumes *Places `json:"volumes,omitempty"`
	// Portals that the target listens on.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Portals []Portal `json:"portals,omitempty"`
	// OrphanCount is the number of orphans, with those for which the list has no room. Absent: none.
	// +optional
	OrphanCount int32 `json:"orphanCount,omitempty"`
	// Orphans are replicas and snapshots without an object. Nothing deletes them. At most 512 are listed. An orphan in
	// a pool that cannot be read stays listed.
	// +kubebuilder:validation:MaxItems=512
	// +listType=map
	// +listMapKey=uuid
	// +optional
	Orphans []Orphan `json:"orphans,omitempty"`
	// SuspectedRestore is the value to set in the annotation weft.storage/restored when condition RestoreSuspected is
	// True. With it, an administrator confirms that the agent is to act on the objects as they are now. Absent
	// otherwise.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	SuspectedRestore string `json:"suspectedRestore,omitempty"`
	// Tuning that the agent applied, with the previous values. Absent when the agent has changed nothing on the node.
	// +optional
	Tuning *TuningStatus `json:"tuning,omitempty"`
	// Conditions: Ready, PoolReady, PortalsReady, RestartNeeded, RestoreSuspected, BuffersSufficient, WritesDurable and
	// Tuned, written by the agent; AgentAlive, Schedulable, TargetPodReady, TargetImageReady, Updated, Evictable and
	// VersionSkew, written by the operator.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SnapshotMetadataServer is a server of an agent.
type SnapshotMetadataServer struct {
	// Address of the server: an IP address of the node, and a port.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +required
	Address string `json:"address"`
	// PublicKeySHA256 is the SHA-256 of the public key of the server's certificate (its SubjectPublicKeyInfo), as 64
	// hexadecimal digits. The CSI controller talks to no server with another key. It changes with each start of the
	// agent.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	// +required
	PublicKeySHA256 string `json:"publicKeySHA256"`
}

// Places is a number of places on a target, for attachments or volumes.
type Places struct {
	// Used places. Greater than possible if the plan was lowered while they were in use.
	// +required
	Used int64 `json:"used"`
	// Possible places. Absent when there is no limit.
	// +optional
	Possible *int64 `json:"possible,omitempty"`
}

// EngineStatus describes the running engine.
type EngineStatus struct {
	// Type of the engine.
	// +required
	Type Engine `json:"type"`
	// Version that the engine reports: the kernel's release, or SPDK's version.
	// +optional
	Version string `json:"version,omitempty"`
	// Transports that the engine supports.
	// +listType=set
	// +optional
	Transports []TransportType `json:"transports,omitempty"`
	// InterruptMode is true when the engine's reactors sleep until there is work.
	// +optional
	InterruptMode bool `json:"interruptMode,omitempty"`
	// Authentication is true when the engine and its kernel can authenticate hosts.
	// +optional
	Authentication bool `json:"authentication,omitempty"`
	// Settings that the target runs with, as read from it, named as in spec.plan.choices. Absent until they are read,
	// and with an engine without settings.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=setting
	// +optional
	Settings []EngineSetting `json:"settings,omitempty"`
}

// EngineSetting is one setting that a target runs with.
type EngineSetting struct {
	// Setting is the field of the plan, such as coreMask, largeBuffers or transports[TCP].largeCache.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Setting string `json:"setting"`
	// Value in use.
	// +kubebuilder:validation:MaxLength=258
	// +required
	Value string `json:"value"`
	// Planned value, if it differs from the value in use. Condition RestartNeeded says how to apply it.
	// +kubebuilder:validation:MaxLength=258
	// +optional
	Planned string `json:"planned,omitempty"`
}

// PoolStatus is the state of one pool, on a drive or in a file.
// +kubebuilder:validation:XValidation:rule="self.ready || has(self.message)",message="message is required when ready is false"
type PoolStatus struct {
	// Device is the drive's ID or the file's path.
	// +required
	Device string `json:"device"`
	// Path of the device on the node, such as /dev/nvme0n1. It can change at a reboot.
	// +optional
	Path string `json:"path,omitempty"`
	// DeviceClass that the drive belongs to, as planned. Absent: none.
	// +optional
	DeviceClass string `json:"deviceClass,omitempty"`
	// Ready is true when the pool can hold volumes.
	// +required
	Ready bool `json:"ready"`
	// Reason why the pool is not ready, or what it lacks, as one CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message explains the reason.
	// +optional
	Message string `json:"message,omitempty"`
	// Total size in bytes.
	// +optional
	Total *resource.Quantity `json:"total,omitempty"`
	// Free bytes as the pool reports them. Space that thin volumes have not yet written counts as free. It is updated
	// when it has changed by 1 % of the total; the metric weft_agent_pool_bytes is exact.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
	// Promised bytes: the sizes of its volumes, written or not, each with 8Mi of header and trailer, plus the data held
	// by snapshots and the data being cleared. Absent while the pool cannot be read.
	// +optional
	Promised *resource.Quantity `json:"promised,omitempty"`
	// Clearing bytes contain data of deleted volumes and snapshots. They are overwritten before they become free.
	// Absent when there are none.
	// +optional
	Clearing *resource.Quantity `json:"clearing,omitempty"`
	// ClusterSize that the pool was made with: it allocates in clusters, and the size of a volume in it, with its
	// header and trailer, is rounded up to whole ones. Absent while it is not known, and with an engine that has none.
	// +optional
	ClusterSize *resource.Quantity `json:"clusterSize,omitempty"`
	// BlockSizeBytes is the logical block size of its volumes, as hosts see it: the drive's with engine SPDK, and 4096
	// with engine Nvmet. Absent while it is not known.
	// +optional
	BlockSizeBytes int32 `json:"blockSizeBytes,omitempty"`
}

// Inventory is what the agent found on the node.
type Inventory struct {
	// KernelVersion is the output of uname -r.
	// +optional
	KernelVersion string `json:"kernelVersion,omitempty"`
	// Architecture, as Go names it: amd64 or arm64.
	// +optional
	Architecture string `json:"architecture,omitempty"`
	// Modules lists the kernel modules that weft can use and that are available: loaded, built in, or loadable.
	// +listType=set
	// +optional
	Modules []string `json:"modules,omitempty"`
	// NUMANodes with their CPUs, caches and hugepages.
	// +listType=map
	// +listMapKey=id
	// +optional
	NUMANodes []NUMANode `json:"numaNodes,omitempty"`
	// NICs are physical and bonded network interfaces.
	// +listType=map
	// +listMapKey=name
	// +optional
	NICs []NIC `json:"nics,omitempty"`
	// RDMADevices of the node, such as mlx5_0 or rxe0.
	// +listType=map
	// +listMapKey=name
	// +optional
	RDMADevices []RDMADevice `json:"rdmaDevices,omitempty"`
	// Drives lists the node's local disks, without partitions and without disks that are connected over a network.
	// +listType=map
	// +listMapKey=id
	// +optional
	Drives []Drive `json:"drives,omitempty"`
}

// NUMANode of the machine.
type NUMANode struct {
	// ID of the NUMA node, from 0.
	// +required
	ID int32 `json:"id"`
	// CPUs in the kernel's list format, such as 0-15,32-47.
	// +optional
	CPUs string `json:"cpus,omitempty"`
	// Cores lists the hardware threads of each physical core, each in list format, such as "0,32".
	// +listType=atomic
	// +optional
	Cores []string `json:"cores,omitempty"`
	// LLCBytes is the total size of the node's last-level caches.
	// +optional
	LLCBytes int64 `json:"llcBytes,omitempty"`
	// MemoryBytes is the size of the node's memory.
	// +optional
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// Hugepages by size.
	// +listType=map
	// +listMapKey=sizeBytes
	// +optional
	Hugepages []HugepagePool `json:"hugepages,omitempty"`
}

// HugepagePool of one page size on one NUMA node.
type HugepagePool struct {
	// SizeBytes of one page.
	// +required
	SizeBytes int64 `json:"sizeBytes"`
	// Total pages.
	// +required
	Total int64 `json:"total"`
	// Free pages.
	// +required
	Free int64 `json:"free"`
}

// NIC is a network interface.
type NIC struct {
	// Name such as ens1f0np0.
	// +required
	Name string `json:"name"`
	// SpeedMbps of the link. Absent when the link is down or its speed is unknown.
	// +optional
	SpeedMbps int64 `json:"speedMbps,omitempty"`
	// MTU in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// NUMANode that the device is attached to. Absent when unknown.
	// +optional
	NUMANode *int32 `json:"numaNode,omitempty"`
	// PCIAddress such as 0000:3b:00.0.
	// +optional
	PCIAddress string `json:"pciAddress,omitempty"`
	// Driver of the device.
	// +optional
	Driver string `json:"driver,omitempty"`
	// PCIe transfer sizes of the device. Absent when it is not a PCIe device or they are unknown.
	// +optional
	PCIe *PCIeTransfers `json:"pcie,omitempty"`
	// Lower lists the interfaces below a VLAN or a bond.
	// +listType=set
	// +optional
	Lower []string `json:"lower,omitempty"`
	// RxQueues is the number of receive queues.
	// +optional
	RxQueues int32 `json:"rxQueues,omitempty"`
	// TxQueues is the number of transmit queues.
	// +optional
	TxQueues int32 `json:"txQueues,omitempty"`
	// Addresses with prefix length, such as 10.20.0.5/16. Link-local addresses are not listed.
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// Up is true when the link is up.
	// +optional
	Up bool `json:"up,omitempty"`
}

// PCIeTransfers are the transfer sizes of a PCIe device. Firmware sets them; small sizes limit the bandwidth of a fast
// NIC.
type PCIeTransfers struct {
	// MaxPayloadBytes is the maximum payload of a packet that the device sends.
	// +required
	MaxPayloadBytes int32 `json:"maxPayloadBytes"`
	// MaxPayloadSupportedBytes is the maximum payload that the device supports.
	// +required
	MaxPayloadSupportedBytes int32 `json:"maxPayloadSupportedBytes"`
	// MaxReadRequestBytes is the maximum size of one read request.
	// +required
	MaxReadRequestBytes int32 `json:"maxReadRequestBytes"`
}

// RDMADevice is an RDMA device and its limits.
type RDMADevice struct {
	// Name such as mlx5_0.
	// +required
	Name string `json:"name"`
	// Netdev is the network interface on the same port, such as ens1f0np0.
	// +optional
	Netdev string `json:"netdev,omitempty"`
	// LinkLayer: Ethernet or InfiniBand.
	// +optional
	LinkLayer string `json:"linkLayer,omitempty"`
	// Active is true when the first port is active.
	// +optional
	Active bool `json:"active,omitempty"`
	// NUMANode that the device is attached to. Absent when unknown.
	// +optional
	NUMANode *int32 `json:"numaNode,omitempty"`
	// PCIAddress of the device. Absent for a software device.
	// +optional
	PCIAddress string `json:"pciAddress,omitempty"`
	// MaxSRQ is the maximum number of shared receive queues. 0 when unknown.
	// +optional
	MaxSRQ int64 `json:"maxSRQ,omitempty"`
	// MaxSRQWR is the maximum number of work requests in a shared receive queue. 0 when unknown.
	// +optional
	MaxSRQWR int64 `json:"maxSRQWR,omitempty"`
	// MaxQP is the maximum number of queue pairs. 0 when unknown.
	// +optional
	MaxQP int64 `json:"maxQP,omitempty"`
}

// Drive is a local disk of the node.
type Drive struct {
	// ID is the drive's world-wide ID as the kernel reports it (wwid), or else its serial number, or else where it is
	// attached.
	// +required
	ID string `json:"id"`
	// Name of the block device, such as nvme0n1. It can change at a reboot.
	// +required
	Name string `json:"name"`
	// NVMe is true for an NVMe namespace of a PCIe controller.
	// +optional
	NVMe bool `json:"nvme,omitempty"`
	// ByID lists the drive's names under /dev/disk/by-id.
	// +listType=atomic
	// +optional
	ByID []string `json:"byID,omitempty"`
	// ByPath lists the drive's names under /dev/disk/by-path.
	// +listType=atomic
	// +optional
	ByPath []string `json:"byPath,omitempty"`
	// Model of the drive.
	// +optional
	Model string `json:"model,omitempty"`
	// Serial number of the drive.
	// +optional
	Serial string `json:"serial,omitempty"`
	// SizeBytes is the size of the drive.
	// +required
	SizeBytes int64 `json:"sizeBytes"`
	// BlockSizeBytes is the drive's logical block size.
	// +optional
	BlockSizeBytes int32 `json:"blockSizeBytes,omitempty"`
	// NUMANode that the device is attached to. Absent when unknown.
	// +optional
	NUMANode *int32 `json:"numaNode,omitempty"`
	// PCIAddress such as 0000:5e:00.0.
	// +optional
	PCIAddress string `json:"pciAddress,omitempty"`
	// IOMMU between the drive and the node's memory. None: there is no IOMMU, so devices.driver VFIO is not available.
	// Translated: the drive can access only memory that is mapped for it, so devices.driver UIO is not available.
	// PassThrough: the drive can access all memory until VFIO maps it. Absent when unknown.
	// +kubebuilder:validation:Enum=None;Translated;PassThrough
	// +optional
	IOMMU IOMMU `json:"iommu,omitempty"`
	// WriteCache of the drive, as the kernel reports it. WriteThrough: acknowledged writes survive a power loss,
	// because the drive has no volatile cache or has power-loss protection. WriteBack: only writes that were flushed,
	// or written with FUA, survive a power loss. Absent when unknown.
	// +kubebuilder:validation:Enum=WriteThrough;WriteBack
	// +optional
	WriteCache WriteCache `json:"writeCache,omitempty"`
	// Content found on the drive. Blank: nothing. Weft: a pool of weft. Foreign: something else, see contentDetail.
	// Unknown: the drive could not be read, or it is neither zero at both ends nor contains a signature that weft
	// recognizes; contentDetail says what to do.
	// +kubebuilder:validation:Enum=Blank;Weft;Foreign;Unknown
	// +required
	Content DriveContent `json:"content"`
	// ContentDetail describes what was found, such as "ext4 filesystem" or "mounted on /".
	// +optional
	ContentDetail string `json:"contentDetail,omitempty"`
}

// IOMMU is the kind of IOMMU between a device and the node's memory.
type IOMMU string

// Kinds of IOMMU.
const (
	IOMMUNone        IOMMU = "None"
	IOMMUTranslated  IOMMU = "Translated"
	IOMMUPassThrough IOMMU = "PassThrough"
)

// WriteCache is the kind of write cache of a drive.
type WriteCache string

// Kinds of write caches.
const (
	WriteCacheThrough WriteCache = "WriteThrough"
	WriteCacheBack    WriteCache = "WriteBack"
)

// DriveContent is the kind of content on a drive.
type DriveContent string

// Contents of a drive.
const (
	ContentBlank   DriveContent = "Blank"
	ContentWeft    DriveContent = "Weft"
	ContentForeign DriveContent = "Foreign"
	ContentUnknown DriveContent = "Unknown"
)

// Details of drives whose content is Weft: the engine whose pool it is. Without a detail, it is the kernel target's.
const (
	DetailNvmetPool = "XFS of weft"
	DetailSPDKPool  = "SPDK logical volume store"
)

// NvmfNode is one storage node: its hardware, the target that claims it, and the plan it follows. It has the same name
// as the Kubernetes Node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nn,categories=weft
// +kubebuilder:selectablefield:JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Alive",type=string,JSONPath=`.status.conditions[?(@.type=="AgentAlive")].status`
// +kubebuilder:printcolumn:name="Engine",type=string,JSONPath=`.status.engine.version`
// +kubebuilder:printcolumn:name="Total",type=string,JSONPath=`.status.capacity.total`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.capacity.free`
// +kubebuilder:printcolumn:name="Attachments",type=integer,JSONPath=`.status.attachments.used`
// +kubebuilder:printcolumn:name="Possible",type=integer,JSONPath=`.status.attachments.possible`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.agentVersion`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NvmfNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	// +optional
	Spec NvmfNodeSpec `json:"spec,omitzero"`
	// +optional
	Status NvmfNodeStatus `json:"status,omitzero"`
}

// NvmfNodeList is a list of NvmfNodes.
// +kubebuilder:object:root=true
type NvmfNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NvmfNode `json:"items"`
}
