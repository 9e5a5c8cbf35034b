// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Engine names what serves the volumes.
// +kubebuilder:validation:Enum=SPDK;Nvmet
type Engine string

// Engines.
const (
	// EngineSPDK is SPDK's nvmf_tgt: user space, polled or interrupt driven.
	EngineSPDK Engine = "SPDK"
	// EngineNvmet is the Linux kernel's target, with volumes as sparse files
	// on XFS: no hugepages, no dedicated cores, no target pod.
	EngineNvmet Engine = "Nvmet"
)

// TransportType is an NVMe-oF transport.
// +kubebuilder:validation:Enum=TCP;RDMA
type TransportType string

// Transports.
const (
	TransportTCP  TransportType = "TCP"
	TransportRDMA TransportType = "RDMA"
)

// NvmfTargetSpec is what the user wants of a set of nodes. Written by the user.
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.cores)",message="cores: the kernel's target (engine: Nvmet) has no dedicated cores; remove cores, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.buffers)",message="buffers: the kernel's target (engine: Nvmet) has no buffer pools; remove buffers, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.memory)",message="memory: the kernel's target (engine: Nvmet) uses no hugepages; remove memory, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.devices.driver)",message="devices.driver: the kernel's target (engine: Nvmet) uses the kernel's drivers; remove driver, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.devices.clusterSize)",message="devices.clusterSize: the kernel's target (engine: Nvmet) has files on XFS, which allocates in blocks of 4 KiB; remove clusterSize, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.devices.discard)",message="devices.discard: hosts of the kernel's target (engine: Nvmet) may always discard, and what they discard reads as zeroes; remove discard, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="!has(self.devices.discard) || self.devices.discard != 'AssumeZeroes' || has(self.devices.driver) && self.devices.driver != 'Kernel'",message="devices.discard AssumeZeroes: SPDK discards only on drives that it drives itself; use devices.driver VFIO or UIO, or remove discard"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || self.transports.all(t, !has(t.placement))",message="transports[].placement: connections of the kernel's target (engine: Nvmet) follow the incoming CPU by themselves; remove placement, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || self.transports.all(t, !has(t.maxIOSize))",message="transports[].maxIOSize: the kernel's target (engine: Nvmet) has no such limit; remove maxIOSize, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || self.transports.all(t, !has(t.c2hSuccess))",message="transports[].c2hSuccess: with the kernel's target (engine: Nvmet) the host decides it (disable_sqflow); remove c2hSuccess, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || self.transports.all(t, !has(t.srq) || !has(t.srq.depth) || t.srq.depth >= 256)",message="transports[].srq.depth: the kernel's target (engine: Nvmet) takes no less than 256"
// +kubebuilder:validation:XValidation:rule="!has(self.sockets) || self.transports.exists(t, t.type == 'TCP')",message="sockets: only TCP connections run over sockets; remove sockets, or add a transport of type TCP"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.sockets) || !has(self.sockets.zeroCopySend) && !has(self.sockets.zeroCopyThreshold)",message="sockets.zeroCopySend: the kernel's target (engine: Nvmet) never copies what it sends; remove zeroCopySend and zeroCopyThreshold, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.sockets) || !has(self.sockets.receivePipe) && !has(self.sockets.quickAck)",message="sockets.receivePipe and quickAck: the kernel's target (engine: Nvmet) reads and acknowledges inside the kernel; remove them, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.sockets) || !has(self.sockets.sendBufferSize) && !has(self.sockets.receiveBufferSize)",message="sockets.sendBufferSize and receiveBufferSize: the kernel sizes the buffers of its own target (engine: Nvmet) by net.ipv4.tcp_wmem and tcp_rmem; remove them, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'SPDK' || !has(self.sockets) || !has(self.sockets.idlePollPeriod)",message="sockets.idlePollPeriod: SPDK polls as cores.mode says; remove idlePollPeriod, or use engine: Nvmet"
// +kubebuilder:validation:XValidation:rule="!has(self.devices.driver) || self.devices.driver != 'UIO' || !has(self.cores) || self.cores.mode != 'Interrupt'",message="cores.mode Interrupt needs an interrupt for each queue of a drive, which devices.driver UIO cannot give; use VFIO or Kernel, or mode Dynamic"
// +kubebuilder:validation:XValidation:rule="!has(self.devices.driver) || self.devices.driver != 'UIO' || !has(self.memory) || self.memory.hugepages != 'Disabled'",message="memory.hugepages: devices.driver UIO hands drives physical addresses, which only hugepages keep; use 2Mi or 1Gi, or driver VFIO"
// +kubebuilder:validation:XValidation:rule="self.engine != 'SPDK' || self.transports.all(a, self.transports.all(b, a.type != b.type || a.queueDepth == b.queueDepth && a.maxIOQueues == b.maxIOQueues))",message="transports: SPDK has one transport of a type for all its portals; give those of one type the same queueDepth and maxIOQueues"
// +kubebuilder:validation:XValidation:rule="self.engine != 'SPDK' || self.transports.all(a, self.transports.all(b, a.type != b.type || (has(a.placement) ? a.placement : 'None') == (has(b.placement) ? b.placement : 'None') && (has(a.c2hSuccess) ? a.c2hSuccess : 'Enabled') == (has(b.c2hSuccess) ? b.c2hSuccess : 'Enabled')))",message="transports: SPDK has one transport of a type for all its portals; give those of type TCP the same placement and c2hSuccess"
// +kubebuilder:validation:XValidation:rule="self.transports.all(a, self.transports.all(b, a.type != b.type || (has(a.srq) ? a.srq.mode : 'Auto') == (has(b.srq) ? b.srq.mode : 'Auto') && (has(a.srq) && has(a.srq.depth) ? a.srq.depth : 0) == (has(b.srq) && has(b.srq.depth) ? b.srq.depth : 0)))",message="transports: all portals over RDMA share their receive queues; give those of type RDMA the same srq"
// +kubebuilder:validation:XValidation:rule="self.transports.all(a, self.transports.exists_one(b, a.type == b.type && a.port == b.port && has(a.network) == has(b.network) && (!has(a.network) || a.network == b.network)))",message="transports: two of one type need different ports or different networks"
type NvmfTargetSpec struct {
	// Engine that serves the volumes. Immutable: the two engines lay data out
	// differently, so a change would lose every volume; make a second NvmfTarget instead.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="engine is immutable: the engines lay data out differently; make a second NvmfTarget and move the volumes"
	// +required
	Engine Engine `json:"engine"`

	// NodeSelector chooses the nodes that serve. A node is claimed by at most one NvmfTarget, the oldest that matches
	// it.
	// +required
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`

	// Transports that every node of the target serves, from 1 to 4. A node is capable when it
	// can serve all of them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	// +required
	Transports []Transport `json:"transports"`

	// Attachments a node must hold; the sizes of queues, pools and memory follow from it.
	// +kubebuilder:default={}
	// +optional
	Attachments Attachments `json:"attachments,omitzero"`

	// Cores for the target pod. SPDK only. Default: from link speed and transport.
	// +optional
	Cores *Cores `json:"cores,omitempty"`

	// Buffers of the target: they bound the data in flight. SPDK only. Default: mode Auto.
	// +optional
	Buffers *Buffers `json:"buffers,omitempty"`

	// Memory of the target pod. SPDK only. Default: hugepages of 2Mi and no limit beyond what the plan needs.
	// +optional
	Memory *Memory `json:"memory,omitempty"`

	// Sockets that TCP connections run over. Default: as the engine has them.
	// +optional
	Sockets *Sockets `json:"sockets,omitempty"`

	// Devices that make up the pool of each node.
	// +required
	Devices Devices `json:"devices"`

	// OverProvisioningPercent bounds what may be promised of a pool, in percent of its size: the sizes of its volumes,
	// and what its snapshots hold. Default 100: no more than there is, so that every volume can be filled. Volumes are
	// thin on both engines, so more works for as long as they are not all filled: a pool of which less than 5 % is free
	// takes nothing new, but what it holds goes on writing, and once it is full those writes fail. At most 400: an SPDK
	// pool has metadata from the day it was made, a page for each hundred clusters or more, and needs one for each 512
	// that are promised. No volume is larger than its pool. It may be changed at any time; where more was promised
	// already, volumes are served on and nothing new comes to them.
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=400
	// +optional
	OverProvisioningPercent int32 `json:"overProvisioningPercent,omitempty"`

	// UpdateStrategy of the nodes: how changes that disturb I/O reach them. Changes that disturb none are made at once.
	// Default: one node at a time, and target pods when they are deleted.
	// +optional
	UpdateStrategy *UpdateStrategy `json:"updateStrategy,omitempty"`

	// Tuning of the nodes' kernel and NICs. Default: none, everything is left as it is.
	// +optional
	Tuning *Tuning `json:"tuning,omitempty"`
}

// Transport is one way to reach the target.
// +kubebuilder:validation:XValidation:rule="self.type == 'RDMA' || !has(self.srq)",message="srq: only RDMA has shared receive queues; remove srq, or use type: RDMA"
// +kubebuilder:validation:XValidation:rule="self.type == 'TCP' || !has(self.placement)",message="placement: only TCP connections are placed by CPU or NAPI id; remove placement, or use type: TCP"
// +kubebuilder:validation:XValidation:rule="!has(self.maxIOSize) || quantity(string(self.inCapsuleDataSize)).compareTo(quantity(string(self.maxIOSize))) <= 0",message="inCapsuleDataSize is over maxIOSize, which SPDK refuses; make it at most maxIOSize"
// +kubebuilder:validation:XValidation:rule="self.type == 'TCP' || !has(self.c2hSuccess)",message="c2hSuccess: only TCP has it; remove c2hSuccess, or use type: TCP"
type Transport struct {
	// Type of the transport.
	// +required
	Type TransportType `json:"type"`

	// Port the target listens on (a TCP port, or an RDMA CM port), from 1 to 65535. Default 4420, the port IANA gave to
	// NVMe-oF.
	// +kubebuilder:default=4420
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// Network whose address of the node is listened on. Default: the node's InternalIP.
	// +optional
	Network *Network `json:"network,omitempty"`

	// QueueDepth is the largest number of commands in one queue, from 16 to 1024.
	// Default 128, SPDK's and the kernel initiator's. With engine Nvmet it takes effect from Linux 6.9 on, and over
	// RDMA more than 256 is lowered to that.
	// +kubebuilder:default=128
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=1024
	// +optional
	QueueDepth int32 `json:"queueDepth,omitempty"`

	// MaxIOQueues is the largest number of I/O queues that one controller gets, from 1 to 127. Default 8.
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	MaxIOQueues int32 `json:"maxIOQueues,omitempty"`

	// InCapsuleDataSize is the most data that a command carries with it, in bytes;
	// larger writes cost one more round trip. Default 4Ki; 0 to 64Ki in steps of 16 bytes. For the kernel's target it
	// is the port's inline data size. Over RDMA engine Nvmet lowers more than 16Ki to that, and engine SPDK raises less
	// than 256 bytes to that.
	// +kubebuilder:default="4Ki"
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() >= 0 && q.asInteger() <= 65536 && q.asInteger() % 16 == 0)",message="inCapsuleDataSize must be from 0 to 64Ki, in steps of 16 bytes"
	// +optional
	InCapsuleDataSize *resource.Quantity `json:"inCapsuleDataSize,omitempty"`

	// MaxIOSize is the largest single transfer, in bytes: a power of two from 8Ki to 2Mi. Default 128Ki. SPDK only; the
	// kernel's target has no such limit.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() in [8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152])",message="maxIOSize must be a power of two from 8Ki to 2Mi, such as 128Ki"
	// +optional
	MaxIOSize *resource.Quantity `json:"maxIOSize,omitempty"`

	// SRQ settings: one receive queue for all connections of a poll group, or with the kernel's target, of a completion
	// vector of the device. RDMA only.
	// +optional
	SRQ *SRQ `json:"srq,omitempty"`

	// Placement: which poll group takes a TCP connection. SPDK only. Default None (round robin).
	// +optional
	Placement *Placement `json:"placement,omitempty"`

	// C2HSuccess lets the last data of a read stand for its completion, which saves a message for each. TCP and SPDK
	// only. Default Enabled.
	// +optional
	C2HSuccess *Switch `json:"c2hSuccess,omitempty"`
}

// Network picks an address of the node.
// +kubebuilder:validation:XValidation:rule="has(self.cidr) != has(self.interface)",message="network: give exactly one of cidr and interface"
type Network struct {
	// CIDR that contains the address, such as 10.20.0.0/16.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="cidr must be a network such as 10.20.0.0/16 or fd00:20::/64"
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// Interface whose first global address is used, such as ens1f0np0.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^\s/]+$`
	// +optional
	Interface string `json:"interface,omitempty"`
}

// SRQMode says whether shared receive queues are used.
// +kubebuilder:validation:Enum=Auto;Enabled;Disabled
type SRQMode string

// Modes of shared receive queues.
const (
	// SRQAuto takes what costs less memory for the expected attachments.
	SRQAuto     SRQMode = "Auto"
	SRQEnabled  SRQMode = "Enabled"
	SRQDisabled SRQMode = "Disabled"
)

// SRQ settings of an RDMA transport.
// +kubebuilder:validation:XValidation:rule="self.mode != 'Disabled' || !has(self.depth)",message="srq.depth has no effect with mode Disabled; remove it"
type SRQ struct {
	// Mode: Auto, Enabled or Disabled. Default Auto.
	// +kubebuilder:default=Auto
	// +optional
	Mode SRQMode `json:"mode,omitempty"`
	// Depth of each shared receive queue, in work requests, from 16 (engine Nvmet: 256) to 65535. Default: from the
	// expected attachments.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Depth *int32 `json:"depth,omitempty"`
}

// Placement of TCP connections on poll groups.
// +kubebuilder:validation:Enum=None;NAPI;CPU
type Placement string

// Placements.
const (
	PlacementNone Placement = "None"
	PlacementNAPI Placement = "NAPI"
	PlacementCPU  Placement = "CPU"
)

// Attachments a node must be able to hold at once.
type Attachments struct {
	// Expected number of connected volumes per node, from 1 to 4096. Default 128. The memory of an SPDK target is
	// planned for them, and no more are attached: a volume that is attached to several nodes counts once for each, and
	// one that opens more queues than ioQueues as often as its queue pairs take the memory. With engine Nvmet it sizes
	// shared receive queues only, and nothing is refused.
	// +kubebuilder:default=128
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	// +optional
	Expected int32 `json:"expected,omitempty"`
	// IOQueues that each of them opens on each path, from 1 to 127. Default 2.
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	IOQueues int32 `json:"ioQueues,omitempty"`
}

// CoreMode says who pays for idle time.
// +kubebuilder:validation:Enum=Static;Dynamic;Interrupt
type CoreMode string

// Core modes.
const (
	// CoresStatic polls on every core, always.
	CoresStatic CoreMode = "Static"
	// CoresDynamic moves idle threads together and lets empty cores sleep.
	CoresDynamic CoreMode = "Dynamic"
	// CoresInterrupt sleeps until there is work: least idle cost, most latency.
	CoresInterrupt CoreMode = "Interrupt"
)

// Cores of an SPDK target.
// +kubebuilder:validation:XValidation:rule="has(self.count) != has(self.mask)",message="cores: give exactly one of count and mask"
// +kubebuilder:validation:XValidation:rule="!has(self.dynamic) || self.mode == 'Dynamic'",message="cores.dynamic needs mode: Dynamic"
// +kubebuilder:validation:XValidation:rule="!has(self.balance) || !self.balance || self.mode == 'Static'",message="cores.balance needs mode: Static; in mode Dynamic SPDK moves threads itself, and in mode Interrupt their load is not known"
type Cores struct {
	// Count of cores, from 1 to 256, chosen near the NIC. Never CPU 0.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	// +optional
	Count *int32 `json:"count,omitempty"`
	// Mask of CPUs, hexadecimal, such as 0xf0.
	// +kubebuilder:validation:MaxLength=258
	// +kubebuilder:validation:Pattern=`^0x[0-9a-fA-F]+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^0x0+$')",message="cores.mask must name at least one CPU"
	// +optional
	Mask string `json:"mask,omitempty"`
	// Mode: Static, Dynamic or Interrupt. Default Dynamic.
	// +kubebuilder:default=Dynamic
	// +optional
	Mode CoreMode `json:"mode,omitempty"`
	// Dynamic has the knobs of mode Dynamic.
	// +optional
	Dynamic *DynamicCores `json:"dynamic,omitempty"`
	// Balance lets the agent move poll groups between the target's cores by their measured load, away from cores
	// that are busy or that take the NIC's interrupts. Mode Static only. It follows the spec without a restart; when it
	// is turned off, each poll group goes back to where it was. Default false.
	// +optional
	Balance bool `json:"balance,omitempty"`
}

// DynamicCores are the knobs of SPDK's dynamic scheduler; defaults are SPDK's.
type DynamicCores struct {
	// Period between two decisions, from 1ms to 1m. Default 1s.
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('1m')",message="period must be from 1ms to 1m, such as 500ms"
	// +optional
	Period *metav1.Duration `json:"period,omitempty"`
	// LoadLimit is the load in percent under which a thread counts as idle, from 1 to 99. Default 20.
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	// +optional
	LoadLimit int32 `json:"loadLimit,omitempty"`
	// CoreLimit is the load in percent over which a core takes no more threads, from 1 to 100. Default 80.
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	CoreLimit int32 `json:"coreLimit,omitempty"`
	// CoreBusy is the load in percent over which threads leave a core, from 1 to 100. Default 95.
	// +kubebuilder:default=95
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	CoreBusy int32 `json:"coreBusy,omitempty"`
}

// BufferMode says who sizes the buffer pools.
// +kubebuilder:validation:Enum=Auto;Manual
type BufferMode string

// Buffer modes.
const (
	BuffersAuto   BufferMode = "Auto"
	BuffersManual BufferMode = "Manual"
)

// Buffers of an SPDK target (its iobuf pools).
// +kubebuilder:validation:XValidation:rule="self.mode == 'Manual' ? has(self.large) && has(self.small) : !has(self.large) && !has(self.small)",message="buffers: mode Manual needs large and small; mode Auto takes neither"
type Buffers struct {
	// Mode: Auto or Manual. Default Auto.
	// +kubebuilder:default=Auto
	// +optional
	Mode BufferMode `json:"mode,omitempty"`
	// Large buffers (132 KiB each): any I/O over 8 KiB takes them.
	// +optional
	Large *LargePool `json:"large,omitempty"`
	// Small buffers (8 KiB each).
	// +optional
	Small *SmallPool `json:"small,omitempty"`
}

// LargePool is the pool of large buffers.
type LargePool struct {
	// Count of buffers in the node's pool, from 8 to 1048576.
	// +kubebuilder:validation:Minimum=8
	// +kubebuilder:validation:Maximum=1048576
	// +required
	Count int32 `json:"count"`
	// CachePerCore is the number each poll group keeps, from 1 to 65535. Never 0: a poll group without buffers can wait
	// for ever.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	CachePerCore int32 `json:"cachePerCore"`
}

// SmallPool is the pool of small buffers.
type SmallPool struct {
	// Count of buffers in the node's pool, from 64 to 1048576.
	// +kubebuilder:validation:Minimum=64
	// +kubebuilder:validation:Maximum=1048576
	// +required
	Count int32 `json:"count"`
	// CachePerCore is the number each poll group keeps, from 1 to 65535. Never 0: a poll group without buffers can wait
	// for ever.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +required
	CachePerCore int32 `json:"cachePerCore"`
}

// Hugepages is the page size of the target's memory.
// +kubebuilder:validation:Enum="2Mi";"1Gi";Disabled
type Hugepages string

// Page sizes.
const (
	Hugepages2Mi      Hugepages = "2Mi"
	Hugepages1Gi      Hugepages = "1Gi"
	HugepagesDisabled Hugepages = "Disabled"
)

// Memory of the target pod.
type Memory struct {
	// Hugepages: 2Mi, 1Gi or Disabled (ordinary memory). Default 2Mi.
	// +kubebuilder:default="2Mi"
	// +optional
	Hugepages Hugepages `json:"hugepages,omitempty"`
	// Limit of the target's memory, from 64Mi to 16Ti. A plan that needs more is refused. Default: what the plan needs.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Mi')) >= 0",message="memory.limit must be at least 64Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('16Ti')) <= 0",message="memory.limit must be at most 16Ti"
	// +optional
	Limit *resource.Quantity `json:"limit,omitempty"`
}

// Devices of a node's pool: exactly one way to name them. Switching from one
// way to another is refused while it would take the pool away from under volumes.
// +kubebuilder:validation:XValidation:rule="[has(self.selector), has(self.paths), has(self.file)].filter(x, x).size() == 1",message="devices: give exactly one of selector, paths and file"
// +kubebuilder:validation:XValidation:rule="!has(self.driver) || self.driver == 'Kernel' || !has(self.file)",message="devices.driver: a file has no drive to take from the kernel; remove driver, or give drives with selector or paths"
// +kubebuilder:validation:XValidation:rule="has(self.file) == has(oldSelf.file)",message="devices: a file cannot be changed into drives, nor drives into a file: the volumes would be lost; make a second NvmfTarget"
type Devices struct {
	// Selector picks NVMe drives by what they are.
	// +optional
	Selector *DeviceSelector `json:"selector,omitempty"`
	// Paths of drives, under /dev/disk/by-id or /dev/disk/by-path: names that a reboot does not change. A node serves
	// those of them that it has. From 1 to 64.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^/dev/disk/by-(id|path)/[^/\s]+$`
	// +listType=set
	// +optional
	Paths []string `json:"paths,omitempty"`
	// File for trying weft out: a sparse file on the node's own filesystem.
	// +optional
	File *DeviceFile `json:"file,omitempty"`
	// Driver of the drives. SPDK only. Kernel (the default): SPDK uses the kernel's block
	// devices. VFIO and UIO take NVMe drives from the kernel and give them to SPDK's own driver, which costs less CPU
	// per I/O; the kernel has them back when the target pod ends.
	// +optional
	Driver DriveDriver `json:"driver,omitempty"`
	// ClusterSize of pools that are made from now on: a power of two from 1Mi to 16Mi. SPDK only. Default 4Mi. A pool
	// allocates in clusters, and copies one whole for the first write to it after a snapshot or clone: smaller ones
	// cost less time and memory then, larger ones less metadata. A pool keeps the cluster size that it was made with,
	// which status.pools[].clusterSize of the NvmfNode tells.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() in [1048576, 2097152, 4194304, 8388608, 16777216])",message="devices.clusterSize must be 1Mi, 2Mi, 4Mi, 8Mi or 16Mi"
	// +optional
	ClusterSize *resource.Quantity `json:"clusterSize,omitempty"`
	// Discard: whether hosts may give back what their volumes do not need (fstrim, mount option discard). Only with
	// driver VFIO or UIO, and only where all drives of a node qualify; elsewhere it is kept from hosts, and a pool only
	// fills. SPDK gives what was discarded to other volumes as it is, so it must read as zeroes, also after a loss of
	// power. Guaranteed (the default): on drives that promise it (status.inventory.drives[].deallocated). AssumeZeroes:
	// you vouch for all drives of this target; where that is wrong, volumes read each other's old data. Disabled:
	// nowhere. A change takes effect with a restart of the target pod. SPDK only.
	// +optional
	Discard DiscardPolicy `json:"discard,omitempty"`
}

// DiscardPolicy says on which drives hosts may discard.
// +kubebuilder:validation:Enum=Guaranteed;AssumeZeroes;Disabled
type DiscardPolicy string

// Policies of discarding.
const (
	DiscardGuaranteed   DiscardPolicy = "Guaranteed"
	DiscardAssumeZeroes DiscardPolicy = "AssumeZeroes"
	DiscardDisabled     DiscardPolicy = "Disabled"
)

// DriveDriver says who drives the drives of a pool.
// +kubebuilder:validation:Enum=Kernel;VFIO;UIO
type DriveDriver string

// Drivers of a pool's drives.
const (
	// DriverKernel: the kernel's block device (Linux AIO).
	DriverKernel DriveDriver = "Kernel"
	// DriverVFIO: SPDK's own NVMe driver, behind the IOMMU (vfio-pci).
	DriverVFIO DriveDriver = "VFIO"
	// DriverUIO: SPDK's own NVMe driver without an IOMMU (uio_pci_generic).
	DriverUIO DriveDriver = "UIO"
)

// DeviceSelector picks a node's NVMe drives; a drive must satisfy every field
// that is given. Drives that hold a filesystem, a partition table or anything else weft did not write are never taken.
// +kubebuilder:validation:XValidation:rule="has(self.models) || has(self.minSize) || has(self.byID)",message="devices.selector: give at least one of models, minSize and byID"
type DeviceSelector struct {
	// Models of drives, whole or with * for any run of characters; from 1 to 32.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	// +optional
	Models []string `json:"models,omitempty"`
	// MinSize of a drive, such as 500G (decimal, as vendors count) or 465Gi. Default: none; no pool is made on less
	// than 300Mi in any case.
	// +optional
	MinSize *resource.Quantity `json:"minSize,omitempty"`
	// ByID are names under /dev/disk/by-id, whole or with * for any run of characters; from 1 to 32.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=255
	// +listType=set
	// +optional
	ByID []string `json:"byID,omitempty"`
}

// DeviceFile is a pool in a file.
type DeviceFile struct {
	// Path of the file on the node, under /var/lib/weft, but for agent, pools and spdk there, which are weft's own.
	// Immutable: another path would be an empty pool.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="!self.matches('^/var/lib/weft/(agent|pools|spdk)(/|$)')",message="devices.file.path: agent, pools and spdk under /var/lib/weft are weft's own; take another name, such as /var/lib/weft/pool.img"
	// +kubebuilder:validation:Pattern=`^/var/lib/weft/([A-Za-z0-9][A-Za-z0-9._-]*/)*[A-Za-z0-9][A-Za-z0-9._-]*$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="devices.file.path is immutable: another file would be an empty pool; make a second NvmfTarget"
	// +required
	Path string `json:"path"`
	// Size of the file, from 1Gi to 16Ti. It may grow, never shrink.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Gi')) >= 0",message="devices.file.size must be at least 1Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('16Ti')) <= 0",message="devices.file.size must be at most 16Ti"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="devices.file.size may grow, never shrink"
	// +required
	Size resource.Quantity `json:"size"`
}

// UpdateStrategyType says when target pods are replaced.
// +kubebuilder:validation:Enum=OnDelete;RollingUpdate
type UpdateStrategyType string

// Update strategies.
const (
	UpdateOnDelete      UpdateStrategyType = "OnDelete"
	UpdateRollingUpdate UpdateStrategyType = "RollingUpdate"
)

// UpdateStrategy says how changes that disturb I/O reach the nodes of a target: another target pod, and settings of
// NICs whose drivers may reset the link.
type UpdateStrategy struct {
	// Type says who ends target pods that are outdated. OnDelete (the default): you do, by deleting them.
	// RollingUpdate: the operator, in the nodes' turn. Engine Nvmet has no target pods; all else goes by turns with
	// either.
	// +kubebuilder:default=OnDelete
	// +optional
	Type UpdateStrategyType `json:"type,omitempty"`
	// Paused: no node gets a turn. One whose target pod or settings are being changed already is finished. Default
	// false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// RollingUpdate bounds the turns. Default: one node at a time.
	// +optional
	RollingUpdate *RollingUpdate `json:"rollingUpdate,omitempty"`
}

// RollingUpdate bounds how many nodes are changed at a time.
type RollingUpdate struct {
	// MaxUnavailable nodes at a time: a number from 1 to 100, or a percentage of the target's nodes from 1% to 100%,
	// rounded up. Nodes that do not serve for another reason count; those whose agent has been silent, or whose
	// Node has not been Ready, for over an hour do not. Default 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1 && int(self) <= 100 : string(self).matches('^([1-9][0-9]?|100)%$')",message="maxUnavailable must be a number from 1 to 100, or a percentage from 1% to 100%, such as 25%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// NvmfTargetStatus is what became of the spec. Written by the operator.
type NvmfTargetStatus struct {
	// ObservedGeneration of the spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Nodes counts the nodes.
	// +optional
	Nodes NodeCounts `json:"nodes"`
	// NotCapable lists the matching nodes that cannot serve, with the reason of each; at most the first 50 by name.
	// +kubebuilder:validation:MaxItems=50
	// +listType=map
	// +listMapKey=node
	// +optional
	NotCapable []NotCapableNode `json:"notCapable,omitempty"`
	// Capacity of all pools together.
	// +optional
	Capacity Capacity `json:"capacity,omitzero"`
	// Rollout of changes that disturb I/O.
	// +optional
	Rollout RolloutStatus `json:"rollout,omitzero"`
	// Conditions: Ready, Progressing, Degraded.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeCounts counts a target's nodes.
type NodeCounts struct {
	// Matching the node selector.
	// +optional
	Matching int32 `json:"matching"`
	// Capable of serving every transport with the devices asked for.
	// +optional
	Capable int32 `json:"capable"`
	// Ready: serving now.
	// +optional
	Ready int32 `json:"ready"`
}

// RolloutStatus tells how far changes that disturb I/O have come. Condition Updated of each NvmfNode says what it waits
// for.
type RolloutStatus struct {
	// Updated nodes follow the spec.
	// +optional
	Updated int32 `json:"updated"`
	// Outdated nodes do not yet.
	// +optional
	Outdated int32 `json:"outdated"`
	// Updating are the nodes whose turn it is, at most 100. A turn ends when the node serves again and follows the
	// spec. It is on record here before anything of the node is changed.
	// +kubebuilder:validation:MaxItems=100
	// +listType=set
	// +optional
	Updating []string `json:"updating,omitempty"`
}

// NotCapableNode is a matching node that cannot serve, and why.
type NotCapableNode struct {
	// Node is the node's name.
	// +required
	Node string `json:"node"`
	// Reason is one CamelCase word.
	// +required
	Reason string `json:"reason"`
	// Message says it in words, and what would mend it.
	// +required
	Message string `json:"message"`
}

// Capacity in bytes.
type Capacity struct {
	// Total size of the pools.
	// +optional
	Total *resource.Quantity `json:"total,omitempty"`
	// Allocated: the sizes of volumes, whether written or not, with a header of 4Mi each, and what snapshots hold.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Free for new volumes, with their headers, and growth: what may be promised of the pools that take something now,
	// less what is. More than total less allocated where spec.overProvisioningPercent is over 100.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
}

// NvmfTarget is the user's intent for a set of storage nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nt,categories=weft
// +kubebuilder:printcolumn:name="Engine",type=string,JSONPath=`.spec.engine`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Matching",type=integer,JSONPath=`.status.nodes.matching`
// +kubebuilder:printcolumn:name="Capable",type=integer,JSONPath=`.status.nodes.capable`
// +kubebuilder:printcolumn:name="Serving",type=integer,JSONPath=`.status.nodes.ready`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.rollout.updated`
// +kubebuilder:printcolumn:name="Total",type=string,JSONPath=`.status.capacity.total`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.capacity.free`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="an NvmfTarget's name has at most 63 characters: it becomes a label"
type NvmfTarget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NvmfTargetSpec `json:"spec"`
	// +optional
	Status NvmfTargetStatus `json:"status,omitzero"`
}

// NvmfTargetList is a list of NvmfTargets.
// +kubebuilder:object:root=true
type NvmfTargetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NvmfTarget `json:"items"`
}
