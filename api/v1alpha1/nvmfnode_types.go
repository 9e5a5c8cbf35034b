// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NvmfNodeSpec says which target the node serves, and how. Written by the operator, but for droppedDrives.
// +kubebuilder:validation:XValidation:rule="has(self.target) == has(self.plan)",message="target and plan come and go together"
type NvmfNodeSpec struct {
	// Target is the NvmfTarget that claims this node; empty when none does.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Target string `json:"target,omitempty"`
	// Plan is what the target's spec comes to on this node.
	// +optional
	Plan *Plan `json:"plan,omitempty"`
	// Unschedulable: the node goes on serving what it holds, but gets no new volumes: its target no
	// longer selects it, or is being deleted.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// DroppedDrives are given up, with all volumes and snapshots on them: a person writes this (kubectl weft drop), and
	// the operator leaves it alone. The node's agent drops a drive that is gone or cannot be read, and no other; see
	// status.droppedDrives. A drive that is listed is never taken into the pool, also when it comes back.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=id
	// +optional
	DroppedDrives []DroppedDrive `json:"droppedDrives,omitempty"`
}

// DroppedDrive names a drive that is given up.
type DroppedDrive struct {
	// ID of the drive, as in plan.drives.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +required
	ID string `json:"id"`
}

// Drops tells whether a drive is listed in droppedDrives.
func (s *NvmfNodeSpec) Drops(id string) bool {
	return slices.ContainsFunc(s.DroppedDrives, func(d DroppedDrive) bool { return d.ID == id })
}

// DroppedDriveStatus is what became of the wish to drop a drive.
type DroppedDriveStatus struct {
	// ID of the drive.
	// +required
	ID string `json:"id"`
	// Dropped: its pool was forgotten, and what lay on it is lost. False while it can be read, or it is not known
	// whether it can: nothing is given up then.
	// +required
	Dropped bool `json:"dropped"`
	// Message says why it is not dropped, or that the drive is back.
	// +optional
	Message string `json:"message,omitempty"`
}

// Dropped tells whether a drive that spec.droppedDrives lists was dropped by the agent.
func (n *NvmfNode) Dropped(id string) bool {
	return n.Spec.Drops(id) && slices.ContainsFunc(n.Status.DroppedDrives, func(d DroppedDriveStatus) bool { return d.ID == id && d.Dropped })
}

// Plan is an NvmfTarget resolved for one node: numbers and names only.
// +kubebuilder:validation:XValidation:rule="has(self.spdk) == (self.engine == 'SPDK')",message="spdk comes with engine SPDK, and only with it"
// +kubebuilder:validation:XValidation:rule="!has(self.nvmet) || self.engine == 'Nvmet'",message="nvmet comes with engine Nvmet only"
type Plan struct {
	// Engine that serves.
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
	// OverProvisioningPercent bounds what may be promised of each pool, in percent of its size. Absent: 100.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=400
	// +optional
	OverProvisioningPercent int32 `json:"overProvisioningPercent,omitempty"`
	// SPDK is what SPDK's target is started with. Absent with another engine.
	// +optional
	SPDK *SPDKPlan `json:"spdk,omitempty"`
	// Nvmet is what the modules of the kernel's target are told. Absent with another engine.
	// +optional
	Nvmet *NvmetPlan `json:"nvmet,omitempty"`
	// Tuning of the node's kernel and NICs, value by value. Absent when none is asked for.
	// +kubebuilder:validation:MaxItems=512
	// +listType=map
	// +listMapKey=setting
	// +optional
	Tuning []PlannedSetting `json:"tuning,omitempty"`
	// Choices tell, for each number of the plan, where it came from and why.
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=setting
	// +optional
	Choices []Choice `json:"choices,omitempty"`
	// Memory that the plan adds up to, line by line.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=use
	// +optional
	Memory []MemoryUse `json:"memory,omitempty"`
}

// SPDKPlan is what SPDK's target, and the pod it runs in, are started with.
type SPDKPlan struct {
	// CoreMask of the CPUs that run a reactor, hexadecimal, such as 0x3c (nvmf_tgt -m).
	// +kubebuilder:validation:MaxLength=258
	// +kubebuilder:validation:Pattern=`^0x[0-9a-f]+$`
	// +required
	CoreMask string `json:"coreMask"`
	// PollGroupMask of those of them that serve connections (nvmf_set_config poll_groups_mask). Absent: all.
	// +kubebuilder:validation:MaxLength=258
	// +kubebuilder:validation:Pattern=`^0x[0-9a-f]+$`
	// +optional
	PollGroupMask string `json:"pollGroupMask,omitempty"`
	// Mode of the reactors: Static, Dynamic or Interrupt.
	// +required
	Mode CoreMode `json:"mode"`
	// Balance: the agent moves poll groups between the cores by their load. Mode Static only.
	// +optional
	Balance bool `json:"balance,omitempty"`
	// Scheduler has the knobs of mode Dynamic. Absent in other modes.
	// +optional
	Scheduler *PlannedScheduler `json:"scheduler,omitempty"`
	// Hugepages that hold the target's memory: 2Mi, 1Gi or Disabled.
	// +required
	Hugepages Hugepages `json:"hugepages"`
	// MemoryBytes that the target takes from hugepages, or from ordinary memory when they are
	// disabled (nvmf_tgt -s). A multiple of 1 MiB and of the page size.
	// +kubebuilder:validation:Minimum=67108864
	// +required
	MemoryBytes int64 `json:"memoryBytes"`
	// PodMemoryBytes is the pod's ordinary memory; with hugepages disabled it holds MemoryBytes too.
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
	// MaxSubsystems that the target has room for, beside those that it needs itself (nvmf_set_max_subsystems). A node
	// has one volume fewer at most: a volume whose subsystem is exchanged has two for a moment.
	// +kubebuilder:validation:Minimum=1
	// +required
	MaxSubsystems int32 `json:"maxSubsystems"`
	// Attachments that its memory is planned for: no more are admitted at once. Absent in plans of earlier versions.
	// +optional
	Attachments *Attachments `json:"attachments,omitempty"`
	// Transports, one of a type, whatever the number of portals.
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
	// Driver through which the drives are used.
	// +required
	Driver DriveDriver `json:"driver"`
	// Discard: hosts may discard. Absent: it is kept from them (nvmf_create_transport masked_oncs).
	// +optional
	Discard Switch `json:"discard,omitempty"`
}

// PlannedScheduler has the knobs of SPDK's dynamic scheduler.
type PlannedScheduler struct {
	// PeriodMicroseconds between two decisions.
	// +kubebuilder:validation:Minimum=1000
	// +required
	PeriodMicroseconds int64 `json:"periodMicroseconds"`
	// LoadLimit in percent under which a thread counts as idle.
	// +required
	LoadLimit int32 `json:"loadLimit"`
	// CoreLimit in percent over which a core takes no more threads.
	// +required
	CoreLimit int32 `json:"coreLimit"`
	// CoreBusy in percent over which threads leave a core.
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
	// C2HSuccess (c2h_success). TCP only; absent: as SPDK has it.
	// +optional
	C2HSuccess Switch `json:"c2hSuccess,omitempty"`
	// SocketPriority (sock_priority). TCP only; absent: none.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=15
	// +optional
	SocketPriority int32 `json:"socketPriority,omitempty"`
}

// ChoiceSource says where a number of a plan came from.
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

// Choice is one number of a plan, where it came from and why.
type Choice struct {
	// Setting that it is the value of, as the field of the plan: coreMask, largeBuffers, transports[TCP].largeCache.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Setting string `json:"setting"`
	// Value as it is written in the plan.
	// +kubebuilder:validation:MaxLength=258
	// +required
	Value string `json:"value"`
	// Source: Given, Default or Computed.
	// +required
	Source ChoiceSource `json:"source"`
	// Why, in one sentence.
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Why string `json:"why"`
	// Warning when the value works, but not well. Absent when there is nothing to say.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Warning string `json:"warning,omitempty"`
}

// MemoryUse is one line of the memory that a plan adds up to.
type MemoryUse struct {
	// Use of the memory, such as "large buffers" or "TCP queue pairs".
	// +kubebuilder:validation:MaxLength=63
	// +required
	Use string `json:"use"`
	// Bytes of it.
	// +required
	Bytes int64 `json:"bytes"`
	// How the bytes were reckoned, such as "1024 x 135168".
	// +kubebuilder:validation:MaxLength=255
	// +optional
	How string `json:"how,omitempty"`
}

// PlannedPortal is an address to listen on and its limits.
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

// Portal is where a subsystem is reached: NVMe-oF's transport type, transport address and service id.
type Portal struct {
	// Transport of the portal.
	// +required
	Transport TransportType `json:"transport"`
	// Address is an IPv4 or IPv6 address of the node.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="address must be an IPv4 or IPv6 address"
	// +required
	Address string `json:"address"`
	// Port, a TCP or RDMA CM port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	Port int32 `json:"port"`
}

// PlannedDrive names a drive of the pool by what a reboot does not change.
type PlannedDrive struct {
	// ID is the drive's world-wide id, as inventory.drives[].id.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +required
	ID string `json:"id"`
	// Serial of the drive, for people.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Serial string `json:"serial,omitempty"`
	// PCIAddress such as 0000:5e:00.0, of a drive that SPDK drives itself. The kernel
	// does not know such a drive any more, so the inventory has no other trace of it.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`
	// +optional
	PCIAddress string `json:"pciAddress,omitempty"`
	// Discard: why hosts may discard on the drive, where they may: Guaranteed by the drive, or Vouched for by the user.
	// Absent: they may not.
	// +optional
	Discard DiscardTrust `json:"discard,omitempty"`
}

// DiscardTrust says who promises that what hosts discard reads as zeroes.
// +kubebuilder:validation:Enum=Guaranteed;Vouched
type DiscardTrust string

// Those who promise.
const (
	TrustGuaranteed DiscardTrust = "Guaranteed"
	TrustVouched    DiscardTrust = "Vouched"
)

// NvmfNodeStatus is what the node has and does. Written by the node's agent, but for the conditions AgentAlive,
// TargetPodReady, TargetImageReady and Updated.
type NvmfNodeStatus struct {
	// ObservedGeneration of the spec that engine, pools, portals and conditions speak of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Inventory of the node's hardware and kernel.
	// +optional
	Inventory *Inventory `json:"inventory,omitempty"`
	// Engine that runs.
	// +optional
	Engine *EngineStatus `json:"engine,omitempty"`
	// Pools, one per drive, or one in a file.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=device
	// +optional
	Pools []PoolStatus `json:"pools,omitempty"`
	// DroppedDrives tells of each drive in spec.droppedDrives whether it was dropped.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=id
	// +optional
	DroppedDrives []DroppedDriveStatus `json:"droppedDrives,omitempty"`
	// Capacity of all pools that are ready.
	// +optional
	Capacity Capacity `json:"capacity,omitzero"`
	// Attachments that the target admits, and those that are being ended: one for each host of each volume, or more
	// where it opens more queues than planned. Those possible are what its memory was planned for; an attachment beyond
	// them waits, and those that were admitted before keep their place.
	// +optional
	Attachments *Places `json:"attachments,omitempty"`
	// Volumes of the node, attached or not. Those possible are what the target has subsystems for.
	// +optional
	Volumes *Places `json:"volumes,omitempty"`
	// Portals that are served.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Portals []Portal `json:"portals,omitempty"`
	// Orphans are volumes and snapshots that have no object. Nothing deletes them. Of more than 512 the rest is not
	// listed; metric weft_agent_orphans counts all. One in a pool that cannot be read stays listed.
	// +kubebuilder:validation:MaxItems=512
	// +listType=map
	// +listMapKey=uuid
	// +optional
	Orphans []Orphan `json:"orphans,omitempty"`
	// SuspectedRestore is the ID by which an administrator declares that the objects of this node are the ones to act
	// on, in annotation weft.storage/restored, when condition RestoreSuspected is True. Absent otherwise.
	// +kubebuilder:validation:MaxLength=36
	// +optional
	SuspectedRestore string `json:"suspectedRestore,omitempty"`
	// Tuning that the agent applied, with what it was before. Absent when the node is as weft found it.
	// +optional
	Tuning *TuningStatus `json:"tuning,omitempty"`
	// Conditions: Ready, PoolReady, PortalsReady, RestartNeeded, RestoreSuspected, BuffersSufficient, WritesDurable and
	// Tuned by the agent; AgentAlive, TargetPodReady, TargetImageReady and Updated by the
	// operator.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Places of a target.
type Places struct {
	// Used places. More than possible where the plan was lowered while they were in use.
	// +required
	Used int64 `json:"used"`
	// Possible places. Absent when nothing limits them.
	// +optional
	Possible *int64 `json:"possible,omitempty"`
}

// EngineStatus says what runs.
type EngineStatus struct {
	// Type of the engine.
	// +required
	Type Engine `json:"type"`
	// Version it reports: the kernel's release, or SPDK's version.
	// +optional
	Version string `json:"version,omitempty"`
	// Transports that it can serve.
	// +listType=set
	// +optional
	Transports []TransportType `json:"transports,omitempty"`
	// InterruptMode: its reactors sleep until there is work.
	// +optional
	InterruptMode bool `json:"interruptMode,omitempty"`
	// Settings that the target runs with, as read back from it, named as in spec.plan.choices. Absent
	// while nothing was read, and with an engine that has none.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=setting
	// +optional
	Settings []EngineSetting `json:"settings,omitempty"`
}

// EngineSetting is one setting that a target runs with.
type EngineSetting struct {
	// Setting, as the field of the plan: coreMask, largeBuffers, transports[TCP].largeCache.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Setting string `json:"setting"`
	// Value that is in use.
	// +kubebuilder:validation:MaxLength=258
	// +required
	Value string `json:"value"`
	// Planned value where it is another one; condition RestartNeeded says how they become the same.
	// +kubebuilder:validation:MaxLength=258
	// +optional
	Planned string `json:"planned,omitempty"`
}

// PoolStatus is one drive, or file, of the pool.
// +kubebuilder:validation:XValidation:rule="self.ready || has(self.message)",message="a pool that is not ready says why"
type PoolStatus struct {
	// Device is the drive's id, or the file's path.
	// +required
	Device string `json:"device"`
	// Path of the device on the node now, such as /dev/nvme0n1.
	// +optional
	Path string `json:"path,omitempty"`
	// Ready to hold volumes.
	// +required
	Ready bool `json:"ready"`
	// Reason when it is not ready, or lacks something; one CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message says it in words.
	// +optional
	Message string `json:"message,omitempty"`
	// Total size in bytes.
	// +optional
	Total *resource.Quantity `json:"total,omitempty"`
	// Free bytes as the pool itself sees them: thin volumes not yet written count as free.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
	// Promised bytes: the sizes of the volumes in it, written or not, with a header of 4Mi each, what its snapshots
	// hold, and what is being cleared. Absent while it cannot be read.
	// +optional
	Promised *resource.Quantity `json:"promised,omitempty"`
	// Clearing bytes hold data of deleted volumes and snapshots, which is overwritten before it is free. Absent when
	// there is none.
	// +optional
	Clearing *resource.Quantity `json:"clearing,omitempty"`
	// ClusterSize that the pool was made with: it allocates in clusters, and the size of a volume in it, with its
	// header, is rounded up to whole ones. Absent while it is not known, and with an engine that has none.
	// +optional
	ClusterSize *resource.Quantity `json:"clusterSize,omitempty"`
	// Discard: Enabled where hosts of its volumes may discard, and the pool gets back what they do. Disabled: it is kept
	// from them. Hosts see a change when they attach a volume next. Absent while it is not known.
	// +optional
	Discard Switch `json:"discard,omitempty"`
	// Deallocated: what a drive that SPDK drives itself says of it, as status.inventory.drives[].deallocated.
	// +optional
	Deallocated Deallocated `json:"deallocated,omitempty"`
}

// Deallocated says what a drive promises that reads of it return after it was deallocated, until it is written.
// +kubebuilder:validation:Enum=Zeroes;Undefined
type Deallocated string

// What is read.
const (
	// DeallocatedZeroes: zeroes, also after a loss of power.
	DeallocatedZeroes Deallocated = "Zeroes"
	// DeallocatedUndefined: the drive says nothing, says something else, cannot deallocate, or may lose what it did with
	// its power.
	DeallocatedUndefined Deallocated = "Undefined"
)

// Inventory is what the agent found on the node.
type Inventory struct {
	// KernelVersion, as uname -r.
	// +optional
	KernelVersion string `json:"kernelVersion,omitempty"`
	// Architecture in Go's words: amd64, arm64.
	// +optional
	Architecture string `json:"architecture,omitempty"`
	// Modules of the kernel that matter here and are there: loaded, built in, or loadable.
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
	// RDMADevices, such as mlx5_0 or rxe0.
	// +listType=map
	// +listMapKey=name
	// +optional
	RDMADevices []RDMADevice `json:"rdmaDevices,omitempty"`
	// Drives are the node's own whole disks; drives that are reached over a network are not listed.
	// +listType=map
	// +listMapKey=id
	// +optional
	Drives []Drive `json:"drives,omitempty"`
}

// NUMANode of the machine.
type NUMANode struct {
	// ID of the node, from 0.
	// +required
	ID int32 `json:"id"`
	// CPUs in the kernel's list format, such as 0-15,32-47.
	// +optional
	CPUs string `json:"cpus,omitempty"`
	// Cores lists the hardware threads of each physical core, each in list format, such as "0,32".
	// +listType=atomic
	// +optional
	Cores []string `json:"cores,omitempty"`
	// LLCBytes is the size of all last-level caches of the node together.
	// +optional
	LLCBytes int64 `json:"llcBytes,omitempty"`
	// MemoryBytes of the node.
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
	// SpeedMbps of the link; absent when it is down or does not say.
	// +optional
	SpeedMbps int64 `json:"speedMbps,omitempty"`
	// MTU in bytes.
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// NUMANode it is attached to; absent when the machine does not say.
	// +optional
	NUMANode *int32 `json:"numaNode,omitempty"`
	// PCIAddress such as 0000:3b:00.0.
	// +optional
	PCIAddress string `json:"pciAddress,omitempty"`
	// Driver of the device.
	// +optional
	Driver string `json:"driver,omitempty"`
	// PCIe is how the device talks to memory; absent when it is not behind PCIe, or the machine does not say.
	// +optional
	PCIe *PCIeTransfers `json:"pcie,omitempty"`
	// Lower are the interfaces that a VLAN or a bond runs over.
	// +listType=set
	// +optional
	Lower []string `json:"lower,omitempty"`
	// RxQueues it has.
	// +optional
	RxQueues int32 `json:"rxQueues,omitempty"`
	// TxQueues it has.
	// +optional
	TxQueues int32 `json:"txQueues,omitempty"`
	// Addresses with prefix length, such as 10.20.0.5/16; link-local ones are left out.
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// Up when the link is.
	// +optional
	Up bool `json:"up,omitempty"`
}

// PCIeTransfers are the sizes in which a PCIe device moves data. Firmware sets them; a small one costs a fast NIC
// bandwidth.
type PCIeTransfers struct {
	// MaxPayloadBytes of one packet that the device sends.
	// +required
	MaxPayloadBytes int32 `json:"maxPayloadBytes"`
	// MaxPayloadSupportedBytes is the most that the device could.
	// +required
	MaxPayloadSupportedBytes int32 `json:"maxPayloadSupportedBytes"`
	// MaxReadRequestBytes is the most that the device asks for in one read.
	// +required
	MaxReadRequestBytes int32 `json:"maxReadRequestBytes"`
}

// RDMADevice is an RDMA device and its limits.
type RDMADevice struct {
	// Name such as mlx5_0.
	// +required
	Name string `json:"name"`
	// Netdev that shares its port, such as ens1f0np0.
	// +optional
	Netdev string `json:"netdev,omitempty"`
	// LinkLayer: Ethernet or InfiniBand.
	// +optional
	LinkLayer string `json:"linkLayer,omitempty"`
	// Active when its first port is.
	// +optional
	Active bool `json:"active,omitempty"`
	// NUMANode it is attached to; absent when the machine does not say.
	// +optional
	NUMANode *int32 `json:"numaNode,omitempty"`
	// PCIAddress; absent for a software device.
	// +optional
	PCIAddress string `json:"pciAddress,omitempty"`
	// MaxSRQ is how many shared receive queues it can have; 0 when unknown.
	// +optional
	MaxSRQ int64 `json:"maxSRQ,omitempty"`
	// MaxSRQWR is how many work requests each of them can hold; 0 when unknown.
	// +optional
	MaxSRQWR int64 `json:"maxSRQWR,omitempty"`
	// MaxQP is how many queue pairs it can have; 0 when unknown.
	// +optional
	MaxQP int64 `json:"maxQP,omitempty"`
}

// Drive is a whole disk of the node.
type Drive struct {
	// ID is what the kernel gives as its world-wide id (wwid), else its serial number, else where it is attached.
	// +required
	ID string `json:"id"`
	// Name of the block device now, such as nvme0n1. A reboot may change it.
	// +required
	Name string `json:"name"`
	// NVMe when it is an NVMe namespace behind PCIe.
	// +optional
	NVMe bool `json:"nvme,omitempty"`
	// ByID are its names under /dev/disk/by-id.
	// +listType=atomic
	// +optional
	ByID []string `json:"byID,omitempty"`
	// ByPath are its names under /dev/disk/by-path.
	// +listType=atomic
	// +optional
	ByPath []string `json:"byPath,omitempty"`
	// Model of the drive.
	// +optional
	Model string `json:"model,omitempty"`
	// Serial of the drive.
	// +optional
	Serial string `json:"serial,omitempty"`
	// SizeBytes of the drive.
	// +required
	SizeBytes int64 `json:"sizeBytes"`
	// BlockSizeBytes is its logical block size.
	// +optional
	BlockSizeBytes int32 `json:"blockSizeBytes,omitempty"`
	// NUMANode it is attached to; absent when the machine does not say.
	// +optional
	NUMANode *int32 `json:"numaNode,omitempty"`
	// PCIAddress such as 0000:5e:00.0.
	// +optional
	PCIAddress string `json:"pciAddress,omitempty"`
	// IOMMU between the drive and the node's memory. None: there is none, so devices.driver VFIO cannot be had.
	// Translated: the drive reaches only what is mapped for it, so devices.driver UIO cannot be had. PassThrough: it
	// reaches all memory until VFIO maps it. Absent when the machine does not say.
	// +kubebuilder:validation:Enum=None;Translated;PassThrough
	// +optional
	IOMMU IOMMU `json:"iommu,omitempty"`
	// WriteCache of the drive, as the kernel takes it to be. WriteThrough: what it has acknowledged survives a loss of
	// power; it has no volatile cache, or its power outlasts the node's. WriteBack: only what was flushed does, or was
	// written with FUA. Absent when the machine does not say.
	// +kubebuilder:validation:Enum=WriteThrough;WriteBack
	// +optional
	WriteCache WriteCache `json:"writeCache,omitempty"`
	// Deallocated: what an NVMe drive promises that reads return after a host discarded. Zeroes: zeroes (DLFEAT), and it
	// has no volatile write cache that could lose this with its power. Else Undefined. Absent of other drives, and while
	// the drive does not answer.
	// +optional
	Deallocated Deallocated `json:"deallocated,omitempty"`
	// Content found on it. Blank: nothing. Weft: a pool of ours. Foreign: something else, see contentDetail. Unknown:
	// it could not be read, or is neither zeros at both ends nor anything that is recognised; contentDetail says what
	// to do.
	// +kubebuilder:validation:Enum=Blank;Weft;Foreign;Unknown
	// +required
	Content DriveContent `json:"content"`
	// ContentDetail names what was found, such as "ext4 filesystem" or "mounted on /".
	// +optional
	ContentDetail string `json:"contentDetail,omitempty"`
}

// IOMMU says what lies between a device and the node's memory.
type IOMMU string

// Kinds of IOMMU.
const (
	IOMMUNone        IOMMU = "None"
	IOMMUTranslated  IOMMU = "Translated"
	IOMMUPassThrough IOMMU = "PassThrough"
)

// WriteCache says what a drive's acknowledgement of a write is worth.
type WriteCache string

// Kinds of write caches.
const (
	WriteCacheThrough WriteCache = "WriteThrough"
	WriteCacheBack    WriteCache = "WriteBack"
)

// DriveContent says what is on a drive.
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

// NvmfNode is one storage node: what it has, which target claims it, and the
// plan it follows. Its name is the Kubernetes Node's.
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
