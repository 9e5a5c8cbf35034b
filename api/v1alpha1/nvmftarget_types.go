// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Engine that serves the volumes.
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

// NvmfTargetSpec is the desired state of a set of storage nodes. You write it.
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.cores)",message="cores: the kernel's target (engine: Nvmet) has no dedicated cores; remove cores, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.buffers)",message="buffers: the kernel's target (engine: Nvmet) has no buffer pools; remove buffers, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.memory)",message="memory: the kernel's target (engine: Nvmet) uses no hugepages; remove memory, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.latencyHistograms)",message="latencyHistograms: the kernel's target (engine: Nvmet) counts nothing for each volume; remove latencyHistograms, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.devices.driver)",message="devices.driver: the kernel's target (engine: Nvmet) uses the kernel's drivers; remove driver, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.devices.clusterSize)",message="devices.clusterSize: the kernel's target (engine: Nvmet) has files on XFS, which allocates in blocks of 4 KiB; remove clusterSize, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || self.transports.all(t, !has(t.placement))",message="transports[].placement: connections of the kernel's target (engine: Nvmet) follow the incoming CPU automatically; remove placement, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || self.transports.all(t, !has(t.maxIOSize))",message="transports[].maxIOSize: the kernel's target (engine: Nvmet) has no such limit; remove maxIOSize, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || self.transports.all(t, !has(t.c2hSuccess))",message="transports[].c2hSuccess: with the kernel's target (engine: Nvmet) the host controls it (disable_sqflow); remove c2hSuccess, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || self.transports.all(t, !has(t.srq) || !has(t.srq.depth) || t.srq.depth >= 256)",message="transports[].srq.depth: the kernel's target (engine: Nvmet) requires at least 256"
// +kubebuilder:validation:XValidation:rule="!has(self.sockets) || self.transports.exists(t, t.type == 'TCP')",message="sockets: only TCP connections use sockets; remove sockets, or add a transport of type TCP"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.sockets) || !has(self.sockets.zeroCopySend) && !has(self.sockets.zeroCopyThreshold)",message="sockets.zeroCopySend: the kernel's target (engine: Nvmet) never copies what it sends; remove zeroCopySend and zeroCopyThreshold, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.sockets) || !has(self.sockets.receivePipe) && !has(self.sockets.quickAck)",message="sockets.receivePipe and quickAck: the kernel's target (engine: Nvmet) reads and acknowledges inside the kernel; remove them, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'Nvmet' || !has(self.sockets) || !has(self.sockets.sendBufferSize) && !has(self.sockets.receiveBufferSize)",message="sockets.sendBufferSize and receiveBufferSize: the kernel's target (engine: Nvmet) uses the buffer sizes of net.ipv4.tcp_wmem and tcp_rmem; remove them, or use engine: SPDK"
// +kubebuilder:validation:XValidation:rule="self.engine != 'SPDK' || !has(self.sockets) || !has(self.sockets.idlePollPeriod)",message="sockets.idlePollPeriod: with SPDK, cores.mode controls polling; remove idlePollPeriod, or use engine: Nvmet"
// +kubebuilder:validation:XValidation:rule="!has(self.devices.driver) || self.devices.driver != 'UIO' || !has(self.cores) || self.cores.mode != 'Interrupt'",message="cores.mode Interrupt requires an interrupt for each queue of a drive, which devices.driver UIO does not provide; use driver VFIO or Kernel, or mode Dynamic"
// +kubebuilder:validation:XValidation:rule="!has(self.devices.driver) || self.devices.driver != 'UIO' || !has(self.memory) || self.memory.hugepages != 'Disabled'",message="memory.hugepages: devices.driver UIO uses physical addresses, which are stable only with hugepages; use 2Mi or 1Gi, or driver VFIO"
// +kubebuilder:validation:XValidation:rule="self.engine != 'SPDK' || self.transports.all(a, self.transports.all(b, a.type != b.type || a.queueDepth == b.queueDepth && a.maxIOQueues == b.maxIOQueues))",message="transports: SPDK has one transport of each type for all portals; set the same queueDepth and maxIOQueues in all entries of the same type"
// +kubebuilder:validation:XValidation:rule="self.engine != 'SPDK' || self.transports.all(a, self.transports.all(b, a.type != b.type || (has(a.placement) ? a.placement : 'None') == (has(b.placement) ? b.placement : 'None') && (has(a.c2hSuccess) ? a.c2hSuccess : 'Enabled') == (has(b.c2hSuccess) ? b.c2hSuccess : 'Enabled')))",message="transports: SPDK has one transport of each type for all portals; set the same placement and c2hSuccess in all entries of type TCP"
// +kubebuilder:validation:XValidation:rule="self.transports.all(a, self.transports.all(b, a.type != b.type || (has(a.srq) ? a.srq.mode : 'Auto') == (has(b.srq) ? b.srq.mode : 'Auto') && (has(a.srq) && has(a.srq.depth) ? a.srq.depth : 0) == (has(b.srq) && has(b.srq.depth) ? b.srq.depth : 0)))",message="transports: all RDMA portals share their receive queues; set the same srq in all entries of type RDMA"
// +kubebuilder:validation:XValidation:rule="self.transports.all(a, self.transports.exists_one(b, a.type == b.type && a.port == b.port && has(a.network) == has(b.network) && (!has(a.network) || a.network == b.network)))",message="transports: entries of the same type must have different ports or networks"
type NvmfTargetSpec struct {
	// Engine that serves the volumes. Immutable: the engines store data in different formats, so a change would lose
	// all volumes. Create a second NvmfTarget instead.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="engine is immutable, because the engines store data in different formats; create a second NvmfTarget and copy the data to volumes of that target"
	// +required
	Engine Engine `json:"engine"`

	// NodeSelector selects the nodes that serve volumes. At most one NvmfTarget claims a node: the oldest one that
	// matches it.
	// +required
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`

	// Transports that every node of the target serves, from 1 to 4. A node that cannot serve all of them is not
	// capable.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	// +required
	Transports []Transport `json:"transports"`

	// Attachments that each node must be able to hold. The sizes of queues, pools and memory follow from them.
	// +kubebuilder:default={}
	// +optional
	Attachments Attachments `json:"attachments,omitzero"`

	// Cores of the target pod. SPDK only. Default: depends on link speed and transport.
	// +optional
	Cores *Cores `json:"cores,omitempty"`

	// Buffers of the target. They limit the data in flight. SPDK only. Default: mode Auto.
	// +optional
	Buffers *Buffers `json:"buffers,omitempty"`

	// Memory of the target pod. SPDK only. Default: hugepages of 2Mi, as many as the plan needs.
	// +optional
	Memory *Memory `json:"memory,omitempty"`

	// Sockets of TCP connections. Default: the engine's defaults.
	// +optional
	Sockets *Sockets `json:"sockets,omitempty"`

	// Devices that make up the pool of each node.
	// +required
	Devices Devices `json:"devices"`

	// OverProvisioningPercent limits how much of a pool can be promised to volumes and snapshots, in percent of its
	// size. Default 100: every volume can be filled completely. Volumes are thin on both engines, so a higher value
	// works while they are not all full. A pool with less than 5% free space accepts nothing new; existing volumes can
	// still write, and their writes fail when the pool is full. Maximum 400, because an SPDK pool has a fixed amount of
	// metadata. No volume can be larger than its pool. You can change this value at any time. If a pool has already
	// promised more, its volumes stay available, but it accepts nothing new.
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=400
	// +optional
	OverProvisioningPercent int32 `json:"overProvisioningPercent,omitempty"`

	// UpdateStrategy determines how changes that disturb I/O are rolled out to the nodes. Other changes are made
	// immediately. Default: one node at a time, and target pods only when you delete them.
	// +optional
	UpdateStrategy *UpdateStrategy `json:"updateStrategy,omitempty"`

	// Tuning of the nodes' kernel and NICs. Default: none, nothing is changed.
	// +optional
	Tuning *Tuning `json:"tuning,omitempty"`

	// LatencyHistograms lets the target count how long the I/Os of each volume take that hosts are admitted to, for the
	// metric weft_agent_replica_operation_duration_seconds. It takes 59 kB of the target pod's memory for each expected
	// attachment and poll group. SPDK only, from release 26.05 on. Default Disabled.
	// +optional
	LatencyHistograms *Switch `json:"latencyHistograms,omitempty"`

	// Security of the connections between hosts and the target. Default: hosts and target authenticate each other where
	// both nodes can (authentication: Preferred).
	// +optional
	Security *Security `json:"security,omitempty"`
}

// Transport is an NVMe-oF transport that the target serves.
// +kubebuilder:validation:XValidation:rule="self.type == 'RDMA' || !has(self.srq)",message="srq: only RDMA has shared receive queues; remove srq, or use type: RDMA"
// +kubebuilder:validation:XValidation:rule="self.type == 'TCP' || !has(self.placement)",message="placement: only TCP connections are placed by CPU or NAPI id; remove placement, or use type: TCP"
// +kubebuilder:validation:XValidation:rule="!has(self.maxIOSize) || quantity(string(self.inCapsuleDataSize)).compareTo(quantity(string(self.maxIOSize))) <= 0",message="inCapsuleDataSize must not be greater than maxIOSize: SPDK rejects it"
// +kubebuilder:validation:XValidation:rule="self.type == 'TCP' || !has(self.c2hSuccess)",message="c2hSuccess: only TCP supports it; remove c2hSuccess, or use type: TCP"
type Transport struct {
	// Type of the transport.
	// +required
	Type TransportType `json:"type"`

	// Port that the target listens on (a TCP port or an RDMA CM port), from 1 to 65535. Default 4420, the port that
	// IANA assigned to NVMe-oF.
	// +kubebuilder:default=4420
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Port int32 `json:"port,omitempty"`

	// Network selects the node's address to listen on. Default: the node's InternalIP.
	// +optional
	Network *Network `json:"network,omitempty"`

	// QueueDepth is the maximum number of commands in one queue, from 16 to 1024. Default 128, as in SPDK and in the
	// kernel's initiator. Engine Nvmet supports it since Linux 6.9 and, over RDMA, limits it to 256.
	// +kubebuilder:default=128
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=1024
	// +optional
	QueueDepth int32 `json:"queueDepth,omitempty"`

	// MaxIOQueues is the maximum number of I/O queues of one controller, from 1 to 127. Default 8.
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	MaxIOQueues int32 `json:"maxIOQueues,omitempty"`

	// InCapsuleDataSize is the maximum amount of data inside a command, in bytes, from 0 to 64Ki in steps of 16 bytes.
	// Larger writes need one more round trip. Default 4Ki. For the kernel's target it is the port's inline data size.
	// Over RDMA, engine Nvmet limits it to 16Ki, and engine SPDK raises it to at least 256 bytes.
	// +kubebuilder:default="4Ki"
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() >= 0 && q.asInteger() <= 65536 && q.asInteger() % 16 == 0)",message="inCapsuleDataSize must be from 0 to 64Ki, in steps of 16 bytes"
	// +optional
	InCapsuleDataSize *resource.Quantity `json:"inCapsuleDataSize,omitempty"`

	// MaxIOSize is the maximum size of one transfer, in bytes: a power of two from 8Ki to 2Mi. Default 128Ki. SPDK
	// only: the kernel's target has no such limit.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() in [8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152])",message="maxIOSize must be a power of two from 8Ki to 2Mi, such as 128Ki"
	// +optional
	MaxIOSize *resource.Quantity `json:"maxIOSize,omitempty"`

	// SRQ configures shared receive queues. All connections of a poll group, or of a completion vector of the device
	// with the kernel's target, share one queue. RDMA only.
	// +optional
	SRQ *SRQ `json:"srq,omitempty"`

	// Placement determines which poll group takes a TCP connection. SPDK only. Default None (round robin).
	// +optional
	Placement *Placement `json:"placement,omitempty"`

	// C2HSuccess lets the last data message of a read also report its completion, which saves one message per read. TCP
	// and SPDK only. Default Enabled.
	// +optional
	C2HSuccess *Switch `json:"c2hSuccess,omitempty"`
}

// Network selects an address of the node.
// +kubebuilder:validation:XValidation:rule="has(self.cidr) != has(self.interface)",message="network: set exactly one of cidr and interface"
type Network struct {
	// CIDR that contains the address, such as 10.20.0.0/16.
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="cidr must be a network such as 10.20.0.0/16 or fd00:20::/64"
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// Interface with the address, such as ens1f0np0. Its first global address is used.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^\s/]+$`
	// +optional
	Interface string `json:"interface,omitempty"`
}

// SRQMode controls whether shared receive queues are used.
// +kubebuilder:validation:Enum=Auto;Enabled;Disabled
type SRQMode string

// Modes of shared receive queues.
const (
	// SRQAuto uses shared receive queues if they need less memory for the expected attachments.
	SRQAuto     SRQMode = "Auto"
	SRQEnabled  SRQMode = "Enabled"
	SRQDisabled SRQMode = "Disabled"
)

// SRQ configures the shared receive queues of an RDMA transport.
// +kubebuilder:validation:XValidation:rule="self.mode != 'Disabled' || !has(self.depth)",message="srq.depth has no effect with mode Disabled; remove it"
type SRQ struct {
	// Mode: Auto, Enabled or Disabled. Auto uses shared receive queues if they need less memory. Default Auto.
	// +kubebuilder:default=Auto
	// +optional
	Mode SRQMode `json:"mode,omitempty"`
	// Depth of each shared receive queue, in work requests, from 16 (engine Nvmet: 256) to 65535. Default: depends on
	// the expected attachments.
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

// Attachments that a node must be able to hold at the same time.
type Attachments struct {
	// Expected number of connected volumes per storage node, from 1 to 4096. Default 128. With engine SPDK, the
	// target's memory is planned for this number, and further attachments are refused. A volume counts once for each
	// node it is attached to, and several times if it opens more queues than ioQueues. With engine Nvmet it only sizes
	// shared receive queues, and nothing is refused.
	// +kubebuilder:default=128
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	// +optional
	Expected int32 `json:"expected,omitempty"`
	// IOQueues that each attachment opens on each path, from 1 to 127. Default 2.
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=127
	// +optional
	IOQueues int32 `json:"ioQueues,omitempty"`
}

// CoreMode determines what the cores do when they are idle.
// +kubebuilder:validation:Enum=Static;Dynamic;Interrupt
type CoreMode string

// Core modes.
const (
	// CoresStatic polls on every core at all times.
	CoresStatic CoreMode = "Static"
	// CoresDynamic gathers idle threads on few cores and lets the other cores sleep.
	CoresDynamic CoreMode = "Dynamic"
	// CoresInterrupt sleeps until there is work: lowest idle cost, highest latency.
	CoresInterrupt CoreMode = "Interrupt"
)

// MainCore is what the first of an SPDK target's cores does beside answering RPCs.
// +kubebuilder:validation:Enum=Dedicated;Shared
type MainCore string

// Uses of the main core.
const (
	// MainCoreDedicated serves no connections, so that no host waits while it answers an RPC.
	MainCoreDedicated MainCore = "Dedicated"
	// MainCoreShared serves connections too.
	MainCoreShared MainCore = "Shared"
)

// Cores of an SPDK target.
// +kubebuilder:validation:XValidation:rule="!has(self.count) || !has(self.mask)",message="cores: set at most one of count and mask"
// +kubebuilder:validation:XValidation:rule="!has(self.dynamic) || self.mode == 'Dynamic'",message="cores.dynamic requires mode: Dynamic"
// +kubebuilder:validation:XValidation:rule="!has(self.balance) || !self.balance || self.mode == 'Static'",message="cores.balance requires mode: Static; in mode Dynamic SPDK moves threads itself, and in mode Interrupt their load is unknown"
type Cores struct {
	// Count of cores, from 1 to 256. They are chosen near the NIC, never CPU 0. Without count and mask: as many as the
	// links need.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	// +optional
	Count *int32 `json:"count,omitempty"`
	// Mask of CPUs in hexadecimal, such as 0xf0.
	// +kubebuilder:validation:MaxLength=258
	// +kubebuilder:validation:Pattern=`^0x[0-9a-fA-F]+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^0x0+$')",message="cores.mask must contain at least one CPU"
	// +optional
	Mask string `json:"mask,omitempty"`
	// MainCore is the first of the cores, which answers RPCs: Dedicated (it serves no connections) or Shared. By
	// default it is dedicated from three cores on, where the others are enough for the links.
	// +optional
	MainCore MainCore `json:"mainCore,omitempty"`
	// Mode: Static (every core polls), Dynamic (idle cores sleep) or Interrupt (cores sleep until there is work).
	// Default Dynamic.
	// +kubebuilder:default=Dynamic
	// +optional
	Mode CoreMode `json:"mode,omitempty"`
	// Dynamic contains the parameters of mode Dynamic.
	// +optional
	Dynamic *DynamicCores `json:"dynamic,omitempty"`
	// Balance lets the agent move poll groups between the target's cores according to the measured load, away from
	// cores that are busy or handle the NIC's interrupts. Mode Static only. A change takes effect without a restart; if
	// you turn it off, each poll group returns to its original core. Default false.
	// +optional
	Balance bool `json:"balance,omitempty"`
}

// DynamicCores contains the parameters of SPDK's dynamic scheduler. The defaults are SPDK's.
type DynamicCores struct {
	// Period between two decisions of the scheduler, from 1ms to 1m. Default 1s.
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('1m')",message="period must be from 1ms to 1m, such as 500ms"
	// +optional
	Period *metav1.Duration `json:"period,omitempty"`
	// LoadLimit is the load in percent below which a thread counts as idle, from 1 to 99. Default 20.
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	// +optional
	LoadLimit int32 `json:"loadLimit,omitempty"`
	// CoreLimit is the load in percent above which a core takes no more threads, from 1 to 100. Default 80.
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	CoreLimit int32 `json:"coreLimit,omitempty"`
	// CoreBusy is the load in percent above which threads are moved off a core, from 1 to 100. Default 95.
	// +kubebuilder:default=95
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	CoreBusy int32 `json:"coreBusy,omitempty"`
}

// BufferMode determines who sizes the buffer pools.
// +kubebuilder:validation:Enum=Auto;Manual
type BufferMode string

// Buffer modes.
const (
	BuffersAuto   BufferMode = "Auto"
	BuffersManual BufferMode = "Manual"
)

// Buffers of an SPDK target (its iobuf pools).
// +kubebuilder:validation:XValidation:rule="self.mode == 'Manual' ? has(self.large) && has(self.small) : !has(self.large) && !has(self.small)",message="buffers: set large and small in mode Manual; remove them in mode Auto"
type Buffers struct {
	// Mode: Auto (weft sizes the pools) or Manual (you do). Default Auto.
	// +kubebuilder:default=Auto
	// +optional
	Mode BufferMode `json:"mode,omitempty"`
	// Large buffers, of 132 KiB each, for I/O over 8 KiB.
	// +optional
	Large *LargePool `json:"large,omitempty"`
	// Small buffers, of 8 KiB each.
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
	// CachePerCore is the number of buffers that each poll group keeps, from 1 to 65535. Never 0, because a poll group
	// without buffers can hang.
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
	// CachePerCore is the number of buffers that each poll group keeps, from 1 to 65535. Never 0, because a poll group
	// without buffers can hang.
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
	// Hugepages: 2Mi, 1Gi or Disabled (regular memory). Default 2Mi.
	// +kubebuilder:default="2Mi"
	// +optional
	Hugepages Hugepages `json:"hugepages,omitempty"`
	// Limit of the target's memory, from 64Mi to 16Ti. A plan that needs more is rejected. Default: as much as the plan
	// needs.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Mi')) >= 0",message="memory.limit must be at least 64Mi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('16Ti')) <= 0",message="memory.limit must be at most 16Ti"
	// +optional
	Limit *resource.Quantity `json:"limit,omitempty"`
}

// Devices of a node's pool: exactly one of selector, paths, classes and file. A change from one to another is rejected
// if it would remove a pool that has volumes.
// +kubebuilder:validation:XValidation:rule="[has(self.selector), has(self.paths), has(self.classes), has(self.file)].filter(x, x).size() == 1",message="devices: set exactly one of selector, paths, classes and file"
// +kubebuilder:validation:XValidation:rule="!has(self.driver) || self.driver == 'Kernel' || !has(self.file)",message="devices.driver: a file has no drive to take from the kernel; remove driver, or choose drives with selector or paths"
// +kubebuilder:validation:XValidation:rule="has(self.file) == has(oldSelf.file)",message="devices: cannot change from a file to drives or from drives to a file, because the volumes would be lost; create a second NvmfTarget"
type Devices struct {
	// Selector selects NVMe drives by their properties.
	// +optional
	Selector *DeviceSelector `json:"selector,omitempty"`
	// Paths of drives, under /dev/disk/by-id or /dev/disk/by-path, which do not change at a reboot. Each node uses the
	// listed drives that it has. From 1 to 64.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^/dev/disk/by-(id|path)/[^/\s]+$`
	// +listType=set
	// +optional
	Paths []string `json:"paths,omitempty"`
	// Classes name several kinds of drives, such as TLC and QLC, so that a StorageClass can ask for one of them
	// (deviceClass). From 1 to 8. A drive that several classes match belongs to the first of them. A node does not need
	// drives of every class.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(a, !has(a.selector) || self.exists_one(b, has(b.selector) && b.selector == a.selector))",message="devices.classes: two classes have the same selector, so the second one would get no drive; change one of the selectors"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !has(a.paths) || self.all(b, a.name == b.name || !has(b.paths) || !sets.intersects(a.paths, b.paths)))",message="devices.classes: a path is listed in two classes, but a drive belongs to one class; remove it from one of them"
	// +listType=map
	// +listMapKey=name
	// +optional
	Classes []DeviceClass `json:"classes,omitempty"`
	// File is a sparse file on the node's own filesystem, for trying out weft.
	// +optional
	File *DeviceFile `json:"file,omitempty"`
	// Driver of the drives: Kernel, VFIO or UIO. SPDK only. With Kernel, SPDK uses the kernel's block devices. VFIO and
	// UIO take NVMe drives from the kernel and hand them to SPDK's own driver, which needs less CPU per I/O. The drives
	// return to the kernel when the target pod ends. Default Kernel.
	// +optional
	Driver DriveDriver `json:"driver,omitempty"`
	// ClusterSize of pools that are made from now on: a power of two from 1Mi to 16Mi. SPDK only. Default 4Mi. A pool
	// allocates in clusters, and copies one whole for the first write to it after a snapshot or clone. Smaller ones
	// cost less time and memory then, larger ones less metadata. A pool keeps the cluster size that it was made with,
	// which status.pools[].clusterSize of the NvmfNode reports.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() in [1048576, 2097152, 4194304, 8388608, 16777216])",message="devices.clusterSize must be 1Mi, 2Mi, 4Mi, 8Mi or 16Mi"
	// +optional
	ClusterSize *resource.Quantity `json:"clusterSize,omitempty"`
}

// DeviceClass is a kind of drives: exactly one of selector and paths.
// +kubebuilder:validation:XValidation:rule="has(self.selector) != has(self.paths)",message="devices.classes: set exactly one of selector and paths in each class"
type DeviceClass struct {
	// Name of the class: lower-case letters, digits and hyphens, at most 63 characters. A StorageClass asks for it with
	// the parameter deviceClass.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]+(-+[a-z0-9]+)*$`
	// +required
	Name string `json:"name"`
	// Selector selects NVMe drives by their properties.
	// +optional
	Selector *DeviceSelector `json:"selector,omitempty"`
	// Paths of drives, under /dev/disk/by-id or /dev/disk/by-path, which do not change at a reboot. Each node uses the
	// listed drives that it has. From 1 to 64.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^/dev/disk/by-(id|path)/[^/\s]+$`
	// +listType=set
	// +optional
	Paths []string `json:"paths,omitempty"`
}

// DriveDriver is the driver of a pool's drives.
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

// DeviceSelector selects NVMe drives of a node. A drive must match every field that is set. Drives that contain a
// filesystem, a partition table or anything else that weft did not write are never used.
// +kubebuilder:validation:XValidation:rule="has(self.models) || has(self.minSize) || has(self.byID)",message="devices.selector: set at least one of models, minSize and byID"
type DeviceSelector struct {
	// Models of drives, from 1 to 32. * matches any sequence of characters.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	// +optional
	Models []string `json:"models,omitempty"`
	// MinSize is the minimum size of a drive, such as 500G (decimal, as vendors count) or 465Gi. Default: none, but
	// weft never uses a drive smaller than 300Mi.
	// +optional
	MinSize *resource.Quantity `json:"minSize,omitempty"`
	// ByID lists names under /dev/disk/by-id, from 1 to 32. * matches any sequence of characters.
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
	// Path of the file on the node, under /var/lib/weft, except agent, pools and spdk in that directory, which are
	// reserved. Immutable: another file would be an empty pool.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="!self.matches('^/var/lib/weft/(agent|pools|spdk)(/|$)')",message="devices.file.path: agent, pools and spdk under /var/lib/weft are reserved; use another name, such as /var/lib/weft/pool.img"
	// +kubebuilder:validation:XValidation:rule="self.matches('^/var/lib/weft/([A-Za-z0-9][A-Za-z0-9._-]*/)*[A-Za-z0-9][A-Za-z0-9._-]*$')",message="devices.file.path must be a file under /var/lib/weft, such as /var/lib/weft/pool.img; names of directories and the file have letters, digits, '.', '_' and '-', and begin with a letter or digit"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="devices.file.path is immutable: another file would be an empty pool; create a second NvmfTarget"
	// +required
	Path string `json:"path"`
	// Size of the file, from 1Gi to 16Ti. It can grow but not shrink.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('1Gi')) >= 0",message="devices.file.size must be at least 1Gi"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('16Ti')) <= 0",message="devices.file.size must be at most 16Ti"
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0",message="devices.file.size can grow but not shrink"
	// +required
	Size resource.Quantity `json:"size"`
}

// UpdateStrategyType determines when target pods are replaced.
// +kubebuilder:validation:Enum=OnDelete;RollingUpdate
type UpdateStrategyType string

// Update strategies.
const (
	UpdateOnDelete      UpdateStrategyType = "OnDelete"
	UpdateRollingUpdate UpdateStrategyType = "RollingUpdate"
)

// UpdateStrategy determines how changes that disturb I/O are rolled out to the nodes of a target: the replacement of
// target pods, and NIC settings for which the driver may reset the link.
type UpdateStrategy struct {
	// Type determines who deletes outdated target pods. OnDelete: you do. RollingUpdate: the operator does, when it is
	// the node's turn. Other changes, and all changes with engine Nvmet, which has no target pods, always wait for the
	// node's turn. Default OnDelete.
	// +kubebuilder:default=OnDelete
	// +optional
	Type UpdateStrategyType `json:"type,omitempty"`
	// Paused is true to give no further node a turn. Changes that have already started on a node are completed. Default
	// false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// RollingUpdate limits how many nodes are changed at a time. Default: one node.
	// +optional
	RollingUpdate *RollingUpdate `json:"rollingUpdate,omitempty"`
}

// RollingUpdate limits how many nodes are changed at a time.
type RollingUpdate struct {
	// MaxUnavailable is the maximum number of nodes that can be unavailable during the update. It is a number from 1 to
	// 100, or a percentage of the target's nodes from 1% to 100%, rounded up. Nodes that are unavailable for another
	// reason count, unless their agent has been silent, or their Node not Ready, for over an hour. Default 1.
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1 && int(self) <= 100 : string(self).matches('^([1-9][0-9]?|100)%$')",message="maxUnavailable must be a number from 1 to 100, or a percentage from 1% to 100%, such as 25%"
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// NvmfTargetStatus is the observed state of the target. The operator writes it.
type NvmfTargetStatus struct {
	// ObservedGeneration is the generation of the spec that this status refers to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Nodes counts the target's nodes.
	// +optional
	Nodes NodeCounts `json:"nodes"`
	// NotCapable lists matching nodes that cannot serve, with the reason. At most 50 nodes are listed, by name.
	// +kubebuilder:validation:MaxItems=50
	// +listType=map
	// +listMapKey=node
	// +optional
	NotCapable []NotCapableNode `json:"notCapable,omitempty"`
	// Capacity is the total capacity of all pools.
	// +optional
	Capacity Capacity `json:"capacity,omitzero"`
	// Rollout is the progress of changes that disturb I/O.
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
	// Matching is the number of nodes that match the node selector.
	// +optional
	Matching int32 `json:"matching"`
	// Capable is the number of nodes that have the devices and can serve all transports of the spec.
	// +optional
	Capable int32 `json:"capable"`
	// Ready is the number of nodes that serve volumes now.
	// +optional
	Ready int32 `json:"ready"`
}

// RolloutStatus is the progress of changes that disturb I/O. Condition Updated of each NvmfNode says what the node
// waits for.
type RolloutStatus struct {
	// Updated is the number of nodes that follow the spec.
	// +optional
	Updated int32 `json:"updated"`
	// Outdated is the number of nodes that do not follow the spec yet.
	// +optional
	Outdated int32 `json:"outdated"`
	// Updating lists the nodes that are being changed, at most 100. A node is listed before anything on it is changed,
	// and removed when it serves again and follows the spec.
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
	// Message explains the reason and how to fix it.
	// +required
	Message string `json:"message"`
}

// Capacity in bytes.
type Capacity struct {
	// Total size of the pools.
	// +optional
	Total *resource.Quantity `json:"total,omitempty"`
	// Allocated bytes: the sizes of all volumes, written or not, each with 8Mi of header and trailer, plus the data
	// held by snapshots.
	// +optional
	Allocated *resource.Quantity `json:"allocated,omitempty"`
	// Free bytes for new volumes, their headers and trailers, and growth, in pools that accept volumes now. Greater
	// than total minus allocated if spec.overProvisioningPercent is over 100.
	// +optional
	Free *resource.Quantity `json:"free,omitempty"`
}

// NvmfTarget defines how a set of storage nodes serves volumes.
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
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of an NvmfTarget must be no more than 63 characters, because it is used as a label value"
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
