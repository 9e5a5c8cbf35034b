// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NvmfNodeSpec says which target the node serves, and how. Written by the operator.
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
}

// Plan is an NvmfTarget resolved for one node: numbers and names only.
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
}

// NvmfNodeStatus is what the node has and does. Written by the node's agent, but for the condition AgentAlive.
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
	// Capacity of all pools that are ready.
	// +optional
	Capacity Capacity `json:"capacity,omitzero"`
	// Portals that are served.
	// +kubebuilder:validation:MaxItems=8
	// +listType=atomic
	// +optional
	Portals []Portal `json:"portals,omitempty"`
	// Conditions: Ready, PoolReady, PortalsReady by the agent; AgentAlive by the operator.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EngineStatus says what runs.
type EngineStatus struct {
	// Type of the engine.
	// +required
	Type Engine `json:"type"`
	// Version it reports: the kernel's release, or SPDK's version.
	// +optional
	Version string `json:"version,omitempty"`
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
}

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
	// Content found on it. Blank: nothing. Weft: a pool of ours. Foreign: something else, see contentDetail. Unknown: it could not be read.
	// +kubebuilder:validation:Enum=Blank;Weft;Foreign;Unknown
	// +required
	Content DriveContent `json:"content"`
	// ContentDetail names what was found, such as "ext4 filesystem" or "mounted on /".
	// +optional
	ContentDetail string `json:"contentDetail,omitempty"`
}

// DriveContent says what is on a drive.
type DriveContent string

// Contents of a drive.
const (
	ContentBlank   DriveContent = "Blank"
	ContentWeft    DriveContent = "Weft"
	ContentForeign DriveContent = "Foreign"
	ContentUnknown DriveContent = "Unknown"
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
