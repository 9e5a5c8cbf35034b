// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// ThreadGetStats asks for the load of each SPDK thread. Only after init.
type ThreadGetStats struct {
	answers[Threads]
}

func (ThreadGetStats) method() string { return "thread_get_stats" }

// Threads of a target.
type Threads struct {
	// TickRate is ticks per second.
	TickRate uint64   `json:"tick_rate"`
	Threads  []Thread `json:"threads"`
}

// Thread is one SPDK thread: the application's, or a poll group's.
type Thread struct {
	Name string `json:"name"`
	ID   uint64 `json:"id"`
	// Cpumask in hexadecimal without 0x.
	Cpumask string `json:"cpumask"`
	// BusyTicks and IdleTicks since the start; they stand still in interrupt mode.
	BusyTicks uint64 `json:"busy"`
	IdleTicks uint64 `json:"idle"`
}

// NvmfGetStats asks for the counters of the poll groups. Only after init.
type NvmfGetStats struct {
	answers[NvmfStats]
}

func (NvmfGetStats) method() string { return "nvmf_get_stats" }

// NvmfStats of a target.
type NvmfStats struct {
	// TickRate is ticks per second.
	TickRate   uint64      `json:"tick_rate"`
	PollGroups []PollGroup `json:"poll_groups"`
}

// PollGroup serves queue pairs on one core.
type PollGroup struct {
	Name string `json:"name"`
	// AdminQpairs and IOQpairs since the start.
	AdminQpairs        uint64 `json:"admin_qpairs"`
	IOQpairs           uint64 `json:"io_qpairs"`
	CurrentAdminQpairs uint64 `json:"current_admin_qpairs"`
	CurrentIOQpairs    uint64 `json:"current_io_qpairs"`
	// PendingBdevIO waits for a bdev.
	PendingBdevIO uint64               `json:"pending_bdev_io"`
	CompletedIO   uint64               `json:"completed_nvme_io"`
	Transports    []PollGroupTransport `json:"transports"`
}

// PollGroupTransport is one transport's part of a poll group.
type PollGroupTransport struct {
	Type string `json:"trtype"`
	// PendingDataBuffer counts I/Os that waited for a buffer; RDMA only.
	PendingDataBuffer uint64       `json:"pending_data_buffer"`
	Devices           []RDMADevice `json:"devices"`
}

// RDMADevice counts what a poll group does on one RDMA device.
type RDMADevice struct {
	Name        string `json:"name"`
	Polls       uint64 `json:"polls"`
	IdlePolls   uint64 `json:"idle_polls"`
	Completions uint64 `json:"completions"`
	Requests    uint64 `json:"requests"`
	// RequestLatencyTicks in all.
	RequestLatencyTicks uint64 `json:"request_latency"`
	// PendingRDMARead and PendingRDMAWrite wait for a work request.
	PendingRDMARead  uint64 `json:"pending_rdma_read"`
	PendingRDMAWrite uint64 `json:"pending_rdma_write"`
}
