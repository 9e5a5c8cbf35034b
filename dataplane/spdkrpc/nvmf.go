// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// DHCHAPDigest is a hash for in-band authentication.
type DHCHAPDigest string

// Digests.
const (
	DigestSHA256 DHCHAPDigest = "sha256"
	DigestSHA384 DHCHAPDigest = "sha384"
	DigestSHA512 DHCHAPDigest = "sha512"
)

// DHCHAPGroup is a Diffie-Hellman group for in-band authentication.
type DHCHAPGroup string

// Groups; with GroupNull keys are not exchanged by Diffie-Hellman.
const (
	GroupNull      DHCHAPGroup = "null"
	GroupFFDHE2048 DHCHAPGroup = "ffdhe2048"
	GroupFFDHE3072 DHCHAPGroup = "ffdhe3072"
	GroupFFDHE4096 DHCHAPGroup = "ffdhe4096"
	GroupFFDHE6144 DHCHAPGroup = "ffdhe6144"
	GroupFFDHE8192 DHCHAPGroup = "ffdhe8192"
)

// NvmfSetConfig sets up the NVMe-oF target. Only before init.
type NvmfSetConfig struct {
	answers[Done]
	// PollGroupsMask of the cores that serve connections, in hexadecimal with 0x; by default all
	// of the target's. A core that the target does not have is ErrInvalid.
	PollGroupsMask string `json:"poll_groups_mask,omitzero"`
	// DiscoveryFilter says what a discovery controller shows: "match_any", by
	// default, or some of "transport", "address" and "svcid", with commas.
	DiscoveryFilter string `json:"discovery_filter,omitzero"`
	// Digests and Groups that are allowed; all by default.
	Digests []DHCHAPDigest `json:"dhchap_digests,omitzero"`
	Groups  []DHCHAPGroup  `json:"dhchap_dhgroups,omitzero"`
}

func (NvmfSetConfig) method() string { return "nvmf_set_config" }

// NvmfSetMaxSubsystems sets how many subsystems there may be, 1024 by default. Only before init, and once: the second
// call is ErrWrongState.
type NvmfSetMaxSubsystems struct {
	answers[Done]
	Max uint32 `json:"max_subsystems"`
}

func (NvmfSetMaxSubsystems) method() string { return "nvmf_set_max_subsystems" }

// Transports.
const (
	TransportTCP  = "TCP"
	TransportRDMA = "RDMA"
)

// ONCS is an optional NVM command, by its name in Identify Controller.
type ONCS string

// ONCSDatasetManagement is what hosts discard with.
const ONCSDatasetManagement ONCS = "nvmdsmsv"

// NvmfCreateTransport makes a transport. There is one of each type at most: a
// second is ErrExists. Nothing changes or deletes it afterwards. SPDK may take other numbers than asked: see
// NvmfGetTransports.
type NvmfCreateTransport struct {
	answers[Done]
	// Type is TransportTCP or TransportRDMA.
	Type string `json:"trtype"`
	// MaxQueueDepth is 128 by default.
	MaxQueueDepth uint16 `json:"max_queue_depth,omitzero"`
	// MaxIOQpairs of a controller, 127 by default.
	MaxIOQpairs uint16 `json:"max_io_qpairs_per_ctrlr,omitzero"`
	// InCapsuleDataBytes is 4096 by default.
	InCapsuleDataBytes uint32 `json:"in_capsule_data_size,omitzero"`
	// MaxIOBytes is a power of two, 131072 by default.
	MaxIOBytes uint32 `json:"max_io_size,omitzero"`
	// MaxAdminQueueDepth is 128 by default.
	MaxAdminQueueDepth uint32 `json:"max_aq_depth,omitzero"`
	// IobufSmallCacheSize and IobufLargeCacheSize are buffers for each poll
	// group. By default half of the pool, shared out: with two transports that leaves nothing to others.
	// Never 0 for both: the target hangs.
	IobufSmallCacheSize *uint32 `json:"iobuf_small_cache_size,omitzero"`
	IobufLargeCacheSize *uint32 `json:"iobuf_large_cache_size,omitzero"`
	// CacheSize and SharedBuffers are for releases before 26.05: a number for both caches of each poll group, and
	// how many buffers they may come to. 26.05 has the two above instead.
	CacheSize     *uint32 `json:"buf_cache_size,omitzero" until:"26.01"`
	SharedBuffers *uint32 `json:"num_shared_buffers,omitzero" until:"26.01"`
	ZeroCopy      bool    `json:"zcopy,omitzero"`
	// MaskedFeatures are optional NVM commands (ONCS) that hosts do not get: ONCSDatasetManagement and its like. They
	// cannot be read back. Before 26.01 SPDK takes no notice of them.
	MaskedFeatures []ONCS `json:"masked_oncs,omitzero"`
	// AbortTimeoutSeconds is 1 by default.
	AbortTimeoutSeconds uint32 `json:"abort_timeout_sec,omitzero"`
	// AcceptorPollMicros is how often it looks for connections, 10000 by default.
	AcceptorPollMicros uint32 `json:"acceptor_poll_rate,omitzero"`
	// AckTimeoutMillis of a connection.
	AckTimeoutMillis uint32 `json:"ack_timeout,omitzero"`
	// KATOGranularity in units of 100 ms, 100 by default.
	KATOGranularity uint16 `json:"kas,omitzero"`
	// MinKATOMillis is the shortest keep-alive timeout a host gets, 10000 by default.
	MinKATOMillis uint32 `json:"min_kato,omitzero"`

	// C2HSuccess lets the last data PDU stand for the completion; true by default. TCP only.
	C2HSuccess *bool `json:"c2h_success,omitzero"`
	// ControlMessages for each poll group, 32 by default. TCP only.
	ControlMessages uint16 `json:"control_msg_num,omitzero"`
	// SockPriority of its connections, at most 16. TCP only.
	SockPriority uint32 `json:"sock_priority,omitzero"`

	// MaxSRQDepth of each poll group and device, 4096 by default, at most 65535. RDMA only.
	MaxSRQDepth uint32 `json:"max_srq_depth,omitzero"`
	// NoSRQ gives each queue pair a receive queue of its own. RDMA only.
	NoSRQ bool `json:"no_srq,omitzero"`
	// CompletionQueueEntries with NoSRQ, 4096 by default. RDMA only.
	CompletionQueueEntries int32 `json:"num_cqe,omitzero"`
	// AcceptorBacklog is 100 by default. RDMA only.
	AcceptorBacklog int32 `json:"acceptor_backlog,omitzero"`
	// NoWRBatching is for RDMA only.
	NoWRBatching bool `json:"no_wr_batching,omitzero"`
	// DataWRPoolSize is 4095 by default. RDMA only.
	DataWRPoolSize uint32 `json:"data_wr_pool_size,omitzero"`
}

func (NvmfCreateTransport) method() string { return "nvmf_create_transport" }

// NvmfGetTransports lists transports: of a type, or all. A type that was not created is ErrNotFound.
type NvmfGetTransports struct {
	answers[[]Transport]
	Type string `json:"trtype,omitzero"`
}

func (NvmfGetTransports) method() string { return "nvmf_get_transports" }

// IobufCacheAuto is what Transport reads for a cache that SPDK sizes itself.
const IobufCacheAuto = 1<<32 - 1

// Transport as it is; see NvmfCreateTransport. What is only of the other type reads as zero.
type Transport struct {
	Type                string `json:"trtype"`
	MaxQueueDepth       uint16 `json:"max_queue_depth"`
	MaxIOQpairs         uint16 `json:"max_io_qpairs_per_ctrlr"`
	InCapsuleDataBytes  uint32 `json:"in_capsule_data_size"`
	MaxIOBytes          uint32 `json:"max_io_size"`
	MaxAdminQueueDepth  uint32 `json:"max_aq_depth"`
	IobufSmallCacheSize uint32 `json:"iobuf_small_cache_size"`
	IobufLargeCacheSize uint32 `json:"iobuf_large_cache_size"`
	// CacheSize is for both, before 26.05.
	CacheSize           uint32 `json:"buf_cache_size"`
	ZeroCopy            bool   `json:"zcopy"`
	AbortTimeoutSeconds uint32 `json:"abort_timeout_sec"`
	AckTimeoutMillis    uint32 `json:"ack_timeout"`
	KATOGranularity     uint16 `json:"kas"`
	MinKATOMillis       uint32 `json:"min_kato"`

	C2HSuccess   bool   `json:"c2h_success"`
	SockPriority uint32 `json:"sock_priority"`

	MaxSRQDepth            uint32 `json:"max_srq_depth"`
	NoSRQ                  bool   `json:"no_srq"`
	CompletionQueueEntries int32  `json:"num_cqe"`
	AcceptorBacklog        int32  `json:"acceptor_backlog"`
	NoWRBatching           bool   `json:"no_wr_batching"`
	DataWRPoolSize         uint32 `json:"data_wr_pool_size"`
}
