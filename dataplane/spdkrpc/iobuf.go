// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// IobufSetOptions sizes the pools that all data buffers come from. Only before
// init; pools that memory cannot hold end the target at init.
type IobufSetOptions struct {
	answers[Done]
	// SmallPoolCount is at least 64, and 8192 by default.
	SmallPoolCount uint64 `json:"small_pool_count,omitzero"`
	// LargePoolCount is at least 8, and 1024 by default.
	LargePoolCount uint64 `json:"large_pool_count,omitzero"`
	// SmallBufferBytes is 8 KiB by default.
	SmallBufferBytes uint32 `json:"small_bufsize,omitzero"`
	// LargeBufferBytes is 132 KiB by default.
	LargeBufferBytes uint32 `json:"large_bufsize,omitzero"`
	// EnableNUMA makes a pool of each of these sizes per NUMA node.
	EnableNUMA bool `json:"enable_numa,omitzero"`
}

func (IobufSetOptions) method() string { return "iobuf_set_options" }

// IobufGetStats asks where the modules got their buffers. Only after init.
type IobufGetStats struct {
	answers[[]IobufModule]
}

func (IobufGetStats) method() string { return "iobuf_get_stats" }

// IobufModule is one user of the pools: "accel", "bdev", or "nvmf_" and a transport.
type IobufModule struct {
	Module string    `json:"module"`
	Small  IobufPool `json:"small_pool"`
	Large  IobufPool `json:"large_pool"`
}

// IobufPool counts a module's gets from one pool since the start.
type IobufPool struct {
	// Cache and Main: buffers taken from a thread's cache, and from the pool all share.
	Cache uint64 `json:"cache"`
	Main  uint64 `json:"main"`
	// Retry: times that there was none, and the I/O waited. TCP has no other sign of too few.
	Retry uint64 `json:"retry"`
	// CacheSize is the sum of the caches of all threads, in buffers.
	CacheSize uint64 `json:"cache_size"`
}
