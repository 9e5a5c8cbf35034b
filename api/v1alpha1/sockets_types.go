// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Switch turns something on or off.
// +kubebuilder:validation:Enum=Enabled;Disabled
type Switch string

// Values of a Switch.
const (
	SwitchEnabled  Switch = "Enabled"
	SwitchDisabled Switch = "Disabled"
)

// Sockets contains options of the sockets of TCP connections. Options that are not set have the engine's default.
type Sockets struct {
	// ZeroCopySend sends data from the target's buffers without copying it (MSG_ZEROCOPY). SPDK only. Default Enabled.
	// +optional
	ZeroCopySend *Switch `json:"zeroCopySend,omitempty"`
	// ZeroCopyThreshold in bytes: shorter data is copied even if zeroCopySend is Enabled. SPDK only. From 0 to 1Mi.
	// Default 0.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() >= 0 && q.asInteger() <= 1048576)",message="zeroCopyThreshold must be from 0 to 1Mi"
	// +optional
	ZeroCopyThreshold *resource.Quantity `json:"zeroCopyThreshold,omitempty"`
	// ReceivePipe reads all available data into a pipe of the target, instead of using a system call for each part.
	// Enabled is rejected when nodes are planned: with it, SPDK 26.05 lets anybody who reaches the portal overwrite
	// what other hosts write, and other releases were not tried. SPDK only. Default Disabled.
	// +optional
	ReceivePipe *Switch `json:"receivePipe,omitempty"`
	// QuickAck acknowledges packets immediately (TCP_QUICKACK). SPDK only. Default Disabled.
	// +optional
	QuickAck *Switch `json:"quickAck,omitempty"`
	// SendBufferSize of each socket, in bytes, from 4Ki to 64Mi (SO_SNDBUF). The kernel grants no more than
	// net.core.wmem_max. SPDK only. Default 2Mi.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() >= 4096 && q.asInteger() <= 67108864)",message="sendBufferSize must be from 4Ki to 64Mi"
	// +optional
	SendBufferSize *resource.Quantity `json:"sendBufferSize,omitempty"`
	// ReceiveBufferSize of each socket, in bytes, from 4Ki to 64Mi (SO_RCVBUF). The kernel grants no more than
	// net.core.rmem_max. SPDK only. Default 2Mi.
	// +kubebuilder:validation:XValidation:rule="[quantity(string(self))].all(q, q.isInteger() && q.asInteger() >= 4096 && q.asInteger() <= 67108864)",message="receiveBufferSize must be from 4Ki to 64Mi"
	// +optional
	ReceiveBufferSize *resource.Quantity `json:"receiveBufferSize,omitempty"`
	// Priority of the packets (SO_PRIORITY), from 0 to 15. Queueing disciplines and some NICs use it to classify
	// packets. Default 0: no priority.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=15
	// +optional
	Priority *int32 `json:"priority,omitempty"`
	// IdlePollPeriod is how long a connection's worker polls for more work before it sleeps, from 0s to 100ms. A longer
	// period lowers latency and uses more CPU. Nvmet only: with SPDK, cores.mode controls polling. Default 0s.
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$') && duration(self) >= duration('0s') && duration(self) <= duration('100ms')",message="idlePollPeriod must be from 0s to 100ms, such as 50us"
	// +optional
	IdlePollPeriod *metav1.Duration `json:"idlePollPeriod,omitempty"`
}

// PlannedSockets contains the options of SPDK's POSIX sockets (sock_impl_set_options).
type PlannedSockets struct {
	// ZeroCopySend (enable_zerocopy_send_server).
	// +required
	ZeroCopySend Switch `json:"zeroCopySend"`
	// ZeroCopyThreshold in bytes (zerocopy_threshold).
	// +kubebuilder:validation:Minimum=0
	// +required
	ZeroCopyThreshold int64 `json:"zeroCopyThreshold"`
	// ReceivePipe (enable_recv_pipe).
	// +required
	ReceivePipe Switch `json:"receivePipe"`
	// QuickAck (enable_quickack).
	// +required
	QuickAck Switch `json:"quickAck"`
	// SendBufferSize in bytes (send_buf_size).
	// +kubebuilder:validation:Minimum=1
	// +required
	SendBufferSize int64 `json:"sendBufferSize"`
	// ReceiveBufferSize in bytes (recv_buf_size).
	// +kubebuilder:validation:Minimum=1
	// +required
	ReceiveBufferSize int64 `json:"receiveBufferSize"`
}

// NvmetPlan contains parameters of the kernel target's modules. They apply to all ports.
type NvmetPlan struct {
	// TCP transport. Absent without a TCP portal.
	// +optional
	TCP *NvmetTCP `json:"tcp,omitempty"`
	// RDMA transport. Absent without an RDMA portal.
	// +optional
	RDMA *NvmetRDMA `json:"rdma,omitempty"`
}

// NvmetTCP contains parameters of the module nvmet_tcp. They can change while it serves.
type NvmetTCP struct {
	// IdlePollPeriodMicroseconds (idle_poll_period_usecs).
	// +kubebuilder:validation:Minimum=0
	// +required
	IdlePollPeriodMicroseconds int64 `json:"idlePollPeriodMicroseconds"`
	// SocketPriority of new connections (so_priority).
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=15
	// +required
	SocketPriority int32 `json:"socketPriority"`
}

// NvmetRDMA contains parameters of the module nvmet_rdma. They take effect when it is loaded.
type NvmetRDMA struct {
	// SRQDepth of each shared receive queue (use_srq, srq_size). Absent: no SRQ.
	// +kubebuilder:validation:Minimum=256
	// +kubebuilder:validation:Maximum=65535
	// +optional
	SRQDepth *int32 `json:"srqDepth,omitempty"`
}
