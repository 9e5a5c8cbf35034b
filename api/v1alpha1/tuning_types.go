// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Tuning of the nodes that serve a target: what the agent sets in the kernel and in the drivers of the
// NICs that carry the target's portals. What is not given is left as it is. What a value was before is recorded in
// the NvmfNode's status first, and put back when it is not asked for any more.
type Tuning struct {
	// Sysctls of the node.
	// +optional
	Sysctls *TuningSysctls `json:"sysctls,omitempty"`
	// Rings of the NICs: how many packets wait in each queue. Most drivers reset the link for a moment when they
	// change.
	// +optional
	Rings *NICRings `json:"rings,omitempty"`
	// Channels of the NICs: how many queues, each with an interrupt. Most drivers reset the link for a moment when they
	// change.
	// +optional
	Channels *NICChannels `json:"channels,omitempty"`
	// Coalescing of the NICs' interrupts.
	// +optional
	Coalescing *NICCoalescing `json:"coalescing,omitempty"`
	// Offloads of the NICs.
	// +optional
	Offloads *NICOffloads `json:"offloads,omitempty"`
	// Interrupts of the NICs: which CPUs take them. irqbalance must leave them alone.
	// +optional
	Interrupts *NICInterrupts `json:"interrupts,omitempty"`
}

// TuningSysctls are kernel parameters; each field's comment starts with the kernel's name.
// +kubebuilder:validation:XValidation:rule="!has(self.rmemDefault) || !has(self.rmemMax) || self.rmemDefault <= self.rmemMax",message="sysctls.rmemDefault is over rmemMax; make it at most rmemMax"
// +kubebuilder:validation:XValidation:rule="!has(self.wmemDefault) || !has(self.wmemMax) || self.wmemDefault <= self.wmemMax",message="sysctls.wmemDefault is over wmemMax; make it at most wmemMax"
type TuningSysctls struct {
	// RmemMax (net.core.rmem_max): the largest receive buffer that a program may ask for, in bytes, from 4608 to
	// 1073741824.
	// +kubebuilder:validation:Minimum=4608
	// +kubebuilder:validation:Maximum=1073741824
	// +optional
	RmemMax *int32 `json:"rmemMax,omitempty"`
	// WmemMax (net.core.wmem_max): the largest send buffer that a program may ask for, in bytes, from 4608 to
	// 1073741824.
	// +kubebuilder:validation:Minimum=4608
	// +kubebuilder:validation:Maximum=1073741824
	// +optional
	WmemMax *int32 `json:"wmemMax,omitempty"`
	// RmemDefault (net.core.rmem_default): the receive buffer of a socket that asks for none, in bytes, from 4608 to
	// 1073741824.
	// +kubebuilder:validation:Minimum=4608
	// +kubebuilder:validation:Maximum=1073741824
	// +optional
	RmemDefault *int32 `json:"rmemDefault,omitempty"`
	// WmemDefault (net.core.wmem_default): the send buffer of a socket that asks for none, in bytes, from 4608 to
	// 1073741824.
	// +kubebuilder:validation:Minimum=4608
	// +kubebuilder:validation:Maximum=1073741824
	// +optional
	WmemDefault *int32 `json:"wmemDefault,omitempty"`
	// OptmemMax (net.core.optmem_max): the most ancillary memory of a socket, in bytes, from 4096 to 16777216;
	// zero-copy send takes from it.
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
	// NetdevBudget (net.core.netdev_budget): the most packets that a CPU takes from all its NICs in one go, from 1 to
	// 100000.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +optional
	NetdevBudget *int32 `json:"netdevBudget,omitempty"`
	// NetdevBudgetUsecs (net.core.netdev_budget_usecs): the longest that it goes on for, in microseconds, from 1 to
	// 1000000.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	// +optional
	NetdevBudgetUsecs *int32 `json:"netdevBudgetUsecs,omitempty"`
	// NetdevMaxBacklog (net.core.netdev_max_backlog): the most packets that wait for a CPU, from 1 to 10000000.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000000
	// +optional
	NetdevMaxBacklog *int32 `json:"netdevMaxBacklog,omitempty"`
	// DevWeight (net.core.dev_weight): the most packets that a CPU takes from its backlog in one go, from 1 to 4096.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	// +optional
	DevWeight *int32 `json:"devWeight,omitempty"`
	// BusyPoll (net.core.busy_poll): how long poll and select look at a socket's NIC queue before they sleep, in
	// microseconds, from 0 to 1000. 0: not at all.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	BusyPoll *int32 `json:"busyPoll,omitempty"`
	// BusyRead (net.core.busy_read): how long a read does so, in microseconds, from 0 to 1000. 0: not at all.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +optional
	BusyRead *int32 `json:"busyRead,omitempty"`
	// Somaxconn (net.core.somaxconn): the most connections that wait to be accepted, from 128 to 65535.
	// +kubebuilder:validation:Minimum=128
	// +kubebuilder:validation:Maximum=65535
	// +optional
	Somaxconn *int32 `json:"somaxconn,omitempty"`
	// DefaultQdisc (net.core.default_qdisc): the queueing discipline of interfaces that come up from now on, such as
	// fq.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9_]*$`
	// +optional
	DefaultQdisc string `json:"defaultQdisc,omitempty"`
	// TCPCongestionControl (net.ipv4.tcp_congestion_control) of new connections, such as cubic, dctcp or bbr.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[a-z][a-z0-9_-]*$`
	// +optional
	TCPCongestionControl string `json:"tcpCongestionControl,omitempty"`
	// TCPSlowStartAfterIdle (net.ipv4.tcp_slow_start_after_idle): whether a connection that was idle starts slowly
	// again.
	// +optional
	TCPSlowStartAfterIdle Switch `json:"tcpSlowStartAfterIdle,omitempty"`
}

// TCPBuffers are sizes of a TCP connection's buffer, in bytes.
// +kubebuilder:validation:XValidation:rule="self.min <= self.default && self.default <= self.max",message="min, default and max of a TCP buffer must rise: min <= default <= max, such as 4096, 131072, 16777216"
type TCPBuffers struct {
	// Min that a connection keeps when memory is short, in bytes, from 4096 to 1073741824.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	Min int32 `json:"min"`
	// Default that a connection starts with, in bytes, from 4096 to 1073741824.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	Default int32 `json:"default"`
	// Max that the kernel lets it grow to, in bytes, from 4096 to 1073741824.
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	// +required
	Max int32 `json:"max"`
}

// NICRings are the entries of each queue's ring.
type NICRings struct {
	// RX entries of each receive queue, from 16 to 65536.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=65536
	// +optional
	RX *int32 `json:"rx,omitempty"`
	// TX entries of each send queue, from 16 to 65536.
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=65536
	// +optional
	TX *int32 `json:"tx,omitempty"`
}

// NICChannels are numbers of queues. Most drivers have combined channels, some have receive and send apart.
type NICChannels struct {
	// RX channels, for receiving alone, from 1 to 1024.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	RX *int32 `json:"rx,omitempty"`
	// TX channels, for sending alone, from 1 to 1024.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	TX *int32 `json:"tx,omitempty"`
	// Combined channels, for both, from 1 to 1024.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	Combined *int32 `json:"combined,omitempty"`
}

// NICCoalescing says how long a NIC waits before it interrupts. Fixed times or frames in one direction turn adaptive
// coalescing of that direction off, unless it is said to be on.
// +kubebuilder:validation:XValidation:rule="!has(self.adaptiveRX) || self.adaptiveRX != 'Enabled' || !has(self.rxUsecs) && !has(self.rxFrames)",message="coalescing: with adaptiveRX Enabled the driver chooses rxUsecs and rxFrames itself; remove them, or make adaptiveRX Disabled"
// +kubebuilder:validation:XValidation:rule="!has(self.adaptiveTX) || self.adaptiveTX != 'Enabled' || !has(self.txUsecs) && !has(self.txFrames)",message="coalescing: with adaptiveTX Enabled the driver chooses txUsecs and txFrames itself; remove them, or make adaptiveTX Disabled"
type NICCoalescing struct {
	// AdaptiveRX: the driver chooses by the traffic received. Default: Disabled when rxUsecs or rxFrames is given, else
	// left alone.
	// +optional
	AdaptiveRX Switch `json:"adaptiveRX,omitempty"`
	// AdaptiveTX: the driver chooses by the traffic sent. Default: Disabled when txUsecs or txFrames is given, else
	// left alone.
	// +optional
	AdaptiveTX Switch `json:"adaptiveTX,omitempty"`
	// RXUsecs from a packet received to the interrupt, in microseconds, from 0 to 10000.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +optional
	RXUsecs *int32 `json:"rxUsecs,omitempty"`
	// RXFrames received that bring the interrupt before that, from 0 to 65535.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	RXFrames *int32 `json:"rxFrames,omitempty"`
	// TXUsecs from a packet sent to the interrupt, in microseconds, from 0 to 10000.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +optional
	TXUsecs *int32 `json:"txUsecs,omitempty"`
	// TXFrames sent that bring the interrupt before that, from 0 to 65535.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	TXFrames *int32 `json:"txFrames,omitempty"`
}

// NICOffloads are what a NIC does in the kernel's stead.
type NICOffloads struct {
	// TSO: the NIC cuts large TCP segments into packets (tx-tcp-segmentation, tx-tcp6-segmentation).
	// +optional
	TSO Switch `json:"tso,omitempty"`
	// GSO: the kernel cuts them, as late as it can (tx-generic-segmentation).
	// +optional
	GSO Switch `json:"gso,omitempty"`
	// GRO: the kernel joins packets that were received (rx-gro).
	// +optional
	GRO Switch `json:"gro,omitempty"`
	// LRO: the NIC joins them (rx-lro).
	// +optional
	LRO Switch `json:"lro,omitempty"`
}

// NICInterrupts say which CPUs take the NICs' interrupts: each interrupt goes to one of them, by turns.
// +kubebuilder:validation:XValidation:rule="[has(self.cpus), has(self.avoid), has(self.count)].filter(x, x).size() == 1",message="interrupts: give exactly one of cpus, avoid and count"
type NICInterrupts struct {
	// CPUs that take them, such as 0-3,8.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`
	// +optional
	CPUs string `json:"cpus,omitempty"`
	// Avoid these CPUs, such as 4-7: the others of the NIC's NUMA node take them.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`
	// +optional
	Avoid string `json:"avoid,omitempty"`
	// Count of CPUs that take them, from 1 to 1024, chosen near the NIC and apart from the target's own cores.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +optional
	Count *int32 `json:"count,omitempty"`
}

// PlannedSetting is one value that the agent gives to the node.
type PlannedSetting struct {
	// Setting: a sysctl by its name (net.core.rmem_max), or one of a NIC (ens1f0/rings.rx, ens1f0/interrupts).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +required
	Setting string `json:"setting"`
	// Value as the kernel writes it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +required
	Value string `json:"value"`
}

// TuningStatus is what the agent changed on the node, and what it was before.
type TuningStatus struct {
	// BootID of the kernel that the settings were recorded in: another boot starts with its own values.
	// +optional
	BootID string `json:"bootID,omitempty"`
	// NICs whose settings are recorded.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	NICs []TunedNIC `json:"nics,omitempty"`
	// Settings that are asked for, or that are still to be put back.
	// +kubebuilder:validation:MaxItems=2048
	// +listType=map
	// +listMapKey=setting
	// +optional
	Settings []TunedSetting `json:"settings,omitempty"`
}

// TunedNIC identifies a NIC as long as the kernel runs.
type TunedNIC struct {
	// Name when its settings were recorded.
	// +required
	Name string `json:"name"`
	// Index of the interface: a NIC that came anew, with its driver's own values, has another one.
	// +required
	Index int32 `json:"index"`
}

// TuningState says what became of a setting.
// +kubebuilder:validation:Enum=Recorded;Applied;Clamped;Refused;NotPutBack
type TuningState string

// States of a setting.
const (
	// TuningRecorded: what it was is on record, and nothing was written yet.
	TuningRecorded TuningState = "Recorded"
	// TuningApplied: it is as it was asked for.
	TuningApplied TuningState = "Applied"
	// TuningClamped: the kernel took the value and made another of it.
	TuningClamped TuningState = "Clamped"
	// TuningRefused: the kernel did not take the value.
	TuningRefused TuningState = "Refused"
	// TuningNotPutBack: it is not asked for any more, and the kernel did not take what it was before.
	TuningNotPutBack TuningState = "NotPutBack"
)

// TunedSetting is one value of the node.
type TunedSetting struct {
	// Setting as in the plan; each interrupt of a NIC has one of its own (ens1f0/interrupts.45).
	// +required
	Setting string `json:"setting"`
	// Former value, before weft changed it: what is put back.
	// +required
	Former string `json:"former"`
	// Wanted value. Absent when it is to be put back.
	// +optional
	Wanted string `json:"wanted,omitempty"`
	// Value as it was last read.
	// +optional
	Value string `json:"value,omitempty"`
	// State: Recorded, Applied, Clamped, Refused or NotPutBack.
	// +required
	State TuningState `json:"state"`
	// Message says what the kernel answered, and what to write instead.
	// +optional
	Message string `json:"message,omitempty"`
}
