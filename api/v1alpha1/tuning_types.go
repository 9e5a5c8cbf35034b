// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Tuning of the nodes that serve a target: settings of the kernel, and of the NICs that carry the target's portals.
// Settings that are not listed are not changed. Before the agent changes a value, it records the previous one in the
// NvmfNode's status, and restores it when you remove the setting.
type Tuning struct {
	// Sysctls of the node.
	// +optional
	Sysctls *TuningSysctls `json:"sysctls,omitempty"`
	// Rings of the NICs: the number of packets that each queue can hold. With most drivers a change briefly resets the
	// link.
	// +optional
	Rings *NICRings `json:"rings,omitempty"`
	// Channels of the NICs: the number of queues, each with its own interrupt. With most drivers a change briefly
	// resets the link.
	// +optional
	Channels *NICChannels `json:"channels,omitempty"`
	// Coalescing of the NICs' interrupts.
	// +optional
	Coalescing *NICCoalescing `json:"coalescing,omitempty"`
	// Offloads of the NICs.
	// +optional
	Offloads *NICOffloads `json:"offloads,omitempty"`
	// Interrupts of the NICs: which CPUs handle them. Make irqbalance ignore these interrupts.
	// +optional
	Interrupts *NICInterrupts `json:"interrupts,omitempty"`
}

// TuningSysctls are kernel parameters; each field's comment starts with the kernel's name.
// +kubebuilder:validation:XValidation:rule="!has(self.rmemDefault) || !has(self.rmemMax) || self.rmemDefault <= self.rmemMax",message="sysctls.rmemDefault must not be greater than rmemMax"
// +kubebuilder:validation:XValidation:rule="!has(self.wmemDefault) || !has(self.wmemMax) || self.wmemDefault <= self.wmemMax",message="sysctls.wmemDefault must not be greater than wmemMax"
type TuningSysctls struct {
	// RmemMax (net.core.rmem_max): the maximum receive buffer that a program can request, in bytes, from 4608 to
	// 1073741824.
	// +kubebuilder:validation:Minimum=4608
	// +kubebuilder:validation:Maximum=1073741824
	// +optional
	RmemMax *int32 `json:"rmemMax,omitempty"`
	// WmemMax (net.core.wmem_max): the maximum send buffer that a program can request, in bytes, from 4608 to
	// 1073741824.
	// +kubebuilder:validation:Minimum=4608
	// +kubebuilder:validation:Maximum=1073741824
	// +optional
	WmemMax *int32 `json:"wmemMax,omitempty"`
	// RmemDefault (net.core.rmem_default): the default receive buffer of a socket, in bytes, from 4608 to 1073741824.
	// +kubebuilder:validation:Minimum=4608
	// +kubebuilder:validation:Maximum=1073741824
	// +optional
	RmemDefault *int32 `json:"rmemDefault,omitempty"`
	// WmemDefault (net.core.wmem_default): the default send buffer of a socket, in bytes, from 4608 to 1073741824.
	// +kubebuilder:validation:Minimum=4608
	// +kubebuilder:validation:Maximum=1073741824
	// +optional
	WmemDefault *int32 `json:"wmemDefault,omitempty"`
	// OptmemMax (net.core.optmem_max): the maximum ancillary memory of a socket, in bytes, from 4096 to 16777216.
	// Zero-copy send uses it.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=16777216
	// +optional
	OptmemMax *int32 `json:"optmemMax,omitempty"`
	// TCPRmem (net.ipv4.tcp_rmem): receive buffers of TCP connections.
	// +optional
	TCPRmem *TCPBuffers `json:"tcpRmem,omitempty"`
	// TCPWmem (net.ipv4.tcp_wmem): send buffers of TCP connections.
	// +optional
	TCPWmem *TCPBuffers `json:"tcpWmem,omitempty"`
	// NetdevBudget (net.core.netdev_budget): the maximum number of packets that a CPU takes from all NICs in one
	// polling cycle, from 1 to 100000.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +optional
	NetdevBudget *int32 `json:"netdevBudget,omitempty"`
	// NetdevBudgetUsecs (net.core.netdev_budget_usecs): the maximum duration of one polling cycle, in microseconds,
	// from 1 to 1000000.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	NetdevBudgetUsecs *int32 `json:"netdevBudgetUsecs,omitempty"`
	// NetdevMaxBacklog (net.core.netdev_max_backlog): the maximum number of packets that wait for a CPU, from 1 to
	// 10000000.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	// +optional
	NetdevMaxBacklog *int32 `json:"netdevMaxBacklog,omitempty"`
	// DevWeight (net.core.dev_weight): the maximum number of packets that a CPU takes from its backlog in one polling
	// cycle, from 1 to 4096.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	// +optional
	DevWeight *int32 `json:"devWeight,omitempty"`
	// BusyPoll (net.core.busy_poll): how long poll and select poll the NIC queue of a socket before they sleep, in
	// microseconds, from 0 to 1000. 0 disables it.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	BusyPoll *int32 `json:"busyPoll,omitempty"`
	// BusyRead (net.core.busy_read): how long a read polls the NIC queue of a socket before it sleeps, in microseconds,
	// from 0 to 1000. 0 disables it.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	BusyRead *int32 `json:"busyRead,omitempty"`
	// Somaxconn (net.core.somaxconn): the maximum number of connections that wait to be accepted, from 128 to 65535.
	// +kubebuilder:validation:Minimum=128
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Somaxconn *int32 `json:"somaxconn,omitempty"`
	// DefaultQdisc (net.core.default_qdisc): the queueing discipline of interfaces that come up after the change, such
	// as fq.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9_]*$`
	// +optional
	DefaultQdisc string `json:"defaultQdisc,omitempty"`
	// TCPCongestionControl (net.ipv4.tcp_congestion_control) of new connections, such as cubic, dctcp or bbr.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9_-]*$`
	// +optional
	TCPCongestionControl string `json:"tcpCongestionControl,omitempty"`
	// TCPSlowStartAfterIdle (net.ipv4.tcp_slow_start_after_idle): whether an idle connection returns to slow start.
	// +optional
	TCPSlowStartAfterIdle Switch `json:"tcpSlowStartAfterIdle,omitempty"`
}

// TCPBuffers contains the sizes of a TCP connection's buffer, in bytes.
// +kubebuilder:validation:XValidation:rule="self.min <= self.default && self.default <= self.max",message="min, default and max of a TCP buffer must be in ascending order, such as 4096, 131072, 16777216"
type TCPBuffers struct {
	// Min is the size that a connection keeps when memory is short, in bytes, from 4096 to 1073741824.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	Min int32 `json:"min"`
	// Default is the initial size, in bytes, from 4096 to 1073741824.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	Default int32 `json:"default"`
	// Max is the size that the buffer can grow to, in bytes, from 4096 to 1073741824.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	Max int32 `json:"max"`
}

// NICRings contains the number of entries of each queue's ring.
type NICRings struct {
	// RX is the number of entries of each receive queue, from 16 to 65536.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=65536
	// +optional
	RX *int32 `json:"rx,omitempty"`
	// TX is the number of entries of each transmit queue, from 16 to 65536.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=65536
	// +optional
	TX *int32 `json:"tx,omitempty"`
}

// NICChannels contains numbers of queues. Most drivers have combined channels; some have separate receive and transmit
// channels.
type NICChannels struct {
	// RX is the number of receive-only channels, from 1 to 1024.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	RX *int32 `json:"rx,omitempty"`
	// TX is the number of transmit-only channels, from 1 to 1024.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	TX *int32 `json:"tx,omitempty"`
	// Combined is the number of channels for both directions, from 1 to 1024.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	Combined *int32 `json:"combined,omitempty"`
}

// NICCoalescing determines how long a NIC waits before it raises an interrupt. If you set times or frames for one
// direction, adaptive coalescing of that direction is turned off.
// +kubebuilder:validation:XValidation:rule="!has(self.adaptiveRX) || self.adaptiveRX != 'Enabled' || !has(self.rxUsecs) && !has(self.rxFrames)",message="coalescing: with adaptiveRX Enabled the driver chooses rxUsecs and rxFrames itself; remove them, or set adaptiveRX to Disabled"
// +kubebuilder:validation:XValidation:rule="!has(self.adaptiveTX) || self.adaptiveTX != 'Enabled' || !has(self.txUsecs) && !has(self.txFrames)",message="coalescing: with adaptiveTX Enabled the driver chooses txUsecs and txFrames itself; remove them, or set adaptiveTX to Disabled"
type NICCoalescing struct {
	// AdaptiveRX lets the driver adapt to the received traffic. Default: Disabled if rxUsecs or rxFrames is set,
	// otherwise unchanged.
	// +optional
	AdaptiveRX Switch `json:"adaptiveRX,omitempty"`
	// AdaptiveTX lets the driver adapt to the transmitted traffic. Default: Disabled if txUsecs or txFrames is set,
	// otherwise unchanged.
	// +optional
	AdaptiveTX Switch `json:"adaptiveTX,omitempty"`
	// RXUsecs is the delay from a received packet to the interrupt, in microseconds, from 0 to 10000.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +optional
	RXUsecs *int32 `json:"rxUsecs,omitempty"`
	// RXFrames is the number of received frames that raise the interrupt earlier, from 0 to 65535.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	RXFrames *int32 `json:"rxFrames,omitempty"`
	// TXUsecs is the delay from a transmitted packet to the interrupt, in microseconds, from 0 to 10000.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +optional
	TXUsecs *int32 `json:"txUsecs,omitempty"`
	// TXFrames is the number of transmitted frames that raise the interrupt earlier, from 0 to 65535.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	TXFrames *int32 `json:"txFrames,omitempty"`
}

// NICOffloads contains the offloads of a NIC.
type NICOffloads struct {
	// TSO: the NIC splits large TCP segments into packets (tx-tcp-segmentation, tx-tcp6-segmentation).
	// +optional
	TSO Switch `json:"tso,omitempty"`
	// GSO: the kernel splits large segments as late as possible (tx-generic-segmentation).
	// +optional
	GSO Switch `json:"gso,omitempty"`
	// GRO: the kernel merges received packets (rx-gro).
	// +optional
	GRO Switch `json:"gro,omitempty"`
	// LRO: the NIC merges received packets (rx-lro).
	// +optional
	LRO Switch `json:"lro,omitempty"`
}

// NICInterrupts determines which CPUs handle the NICs' interrupts. The interrupts are distributed over these CPUs,
// round robin.
// +kubebuilder:validation:XValidation:rule="[has(self.cpus), has(self.avoid), has(self.count)].filter(x, x).size() == 1",message="interrupts: set exactly one of cpus, avoid and count"
type NICInterrupts struct {
	// CPUs that handle the interrupts, such as 0-3,8.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`
	// +optional
	CPUs string `json:"cpus,omitempty"`
	// Avoid these CPUs, such as 4-7. The other CPUs of the NIC's NUMA node handle the interrupts.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`
	// +optional
	Avoid string `json:"avoid,omitempty"`
	// Count of CPUs that handle the interrupts, from 1 to 1024. They are chosen near the NIC and do not include the
	// target's own cores.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	Count *int32 `json:"count,omitempty"`
}

// PlannedSetting is one setting that the agent applies to the node.
type PlannedSetting struct {
	// Setting is the name of a sysctl (net.core.rmem_max) or of a NIC's setting (ens1f0/rings.rx, ens1f0/interrupts).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Setting string `json:"setting"`
	// Value, in the kernel's format.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +required
	Value string `json:"value"`
}

// TuningStatus lists the settings that the agent changed on the node, with their previous values.
type TuningStatus struct {
	// BootID of the kernel for which the settings were recorded. The values do not survive a reboot.
	// +optional
	BootID string `json:"bootID,omitempty"`
	// NICs that have recorded settings.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	NICs []TunedNIC `json:"nics,omitempty"`
	// Settings that are requested, or that must still be restored.
	// +kubebuilder:validation:MaxItems=2048
	// +listType=map
	// +listMapKey=setting
	// +optional
	Settings []TunedSetting `json:"settings,omitempty"`
}

// TunedNIC identifies a NIC until the next reboot.
type TunedNIC struct {
	// Name when its settings were recorded.
	// +required
	Name string `json:"name"`
	// Index of the interface. A NIC that was removed and added again, with its driver's default values, has another
	// index.
	// +required
	Index int32 `json:"index"`
}

// TuningState is the state of a setting.
// +kubebuilder:validation:Enum=Recorded;Applied;Clamped;Refused;NotPutBack
type TuningState string

// States of a setting.
const (
	// TuningRecorded: the previous value is recorded, and nothing has been written yet.
	TuningRecorded TuningState = "Recorded"
	// TuningApplied: the requested value is set.
	TuningApplied TuningState = "Applied"
	// TuningClamped: the kernel accepted the value, but changed it.
	TuningClamped TuningState = "Clamped"
	// TuningRefused: the kernel rejected the value.
	TuningRefused TuningState = "Refused"
	// TuningNotPutBack: the setting is no longer requested, and the kernel rejected the previous value.
	TuningNotPutBack TuningState = "NotPutBack"
)

// TunedSetting is one setting of the node.
type TunedSetting struct {
	// Setting as in the plan. Each interrupt of a NIC has its own (ens1f0/interrupts.45).
	// +required
	Setting string `json:"setting"`
	// Former value, from before weft changed it. This value is restored.
	// +required
	Former string `json:"former"`
	// Wanted value. Absent when the former value is to be restored.
	// +optional
	Wanted string `json:"wanted,omitempty"`
	// Value that was last read.
	// +optional
	Value string `json:"value,omitempty"`
	// State: Recorded, Applied, Clamped, Refused or NotPutBack.
	// +required
	State TuningState `json:"state"`
	// Message contains the kernel's answer and says what to write instead.
	// +optional
	Message string `json:"message,omitempty"`
}
