// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// SockPosix is the socket implementation that works in every mode of the target.
const SockPosix = "posix"

// Placement is what decides the poll group of a TCP connection.
type Placement uint32

// Placements.
const (
	// PlacementNone: round robin. SPDK's default.
	PlacementNone Placement = 0
	// PlacementNAPI: one poll group for each receive queue of the NIC.
	PlacementNAPI Placement = 1
	// PlacementCPU: one for each CPU that packets arrive on.
	PlacementCPU Placement = 2
)

// SockImplSetOptions sets options of one socket implementation. Only before init. What is nil stays as it is.
type SockImplSetOptions struct {
	answers[Done]
	// Impl such as SockPosix.
	Impl string `json:"impl_name"`
	// RecvBufBytes and SendBufBytes are 2 MiB by default.
	RecvBufBytes             uint32     `json:"recv_buf_size,omitzero"`
	SendBufBytes             uint32     `json:"send_buf_size,omitzero"`
	EnableRecvPipe           *bool      `json:"enable_recv_pipe,omitzero"`
	EnableQuickAck           *bool      `json:"enable_quickack,omitzero"`
	Placement                *Placement `json:"enable_placement_id,omitzero"`
	EnableZeroCopySendServer *bool      `json:"enable_zerocopy_send_server,omitzero"`
	ZeroCopyThresholdBytes   *uint32    `json:"zerocopy_threshold,omitzero"`
}

func (SockImplSetOptions) method() string { return "sock_impl_set_options" }

// SockImplGetOptions asks for the options of one socket implementation. One that the target was built without is
// ErrInvalid.
type SockImplGetOptions struct {
	answers[SockImplOptions]
	Impl string `json:"impl_name"`
}

func (SockImplGetOptions) method() string { return "sock_impl_get_options" }

// SockImplOptions as they are.
type SockImplOptions struct {
	RecvBufBytes             uint32    `json:"recv_buf_size"`
	SendBufBytes             uint32    `json:"send_buf_size"`
	EnableRecvPipe           bool      `json:"enable_recv_pipe"`
	EnableQuickAck           bool      `json:"enable_quickack"`
	Placement                Placement `json:"enable_placement_id"`
	EnableZeroCopySendServer bool      `json:"enable_zerocopy_send_server"`
	ZeroCopyThresholdBytes   uint32    `json:"zerocopy_threshold"`
}
