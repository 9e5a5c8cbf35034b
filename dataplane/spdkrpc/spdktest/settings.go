// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"syscall"
)

// What is set before framework_start_init, with the defaults of SPDK 26.05.

type iobufOptions struct {
	SmallPoolCount uint64 `json:"small_pool_count"`
	LargePoolCount uint64 `json:"large_pool_count"`
	SmallBufsize   uint32 `json:"small_bufsize"`
	LargeBufsize   uint32 `json:"large_bufsize"`
	EnableNUMA     bool   `json:"enable_numa"`
}

func defaultIobuf() iobufOptions {
	return iobufOptions{SmallPoolCount: 8192, LargePoolCount: 1024, SmallBufsize: 8192, LargeBufsize: 132 << 10}
}

// The least that spdk_iobuf_set_opts takes.
const (
	minSmallPool    = 64
	minLargePool    = 8
	minSmallBufsize = 4096
	minLargeBufsize = 8192
)

func (a *app) iobufSetOptions(r *request) {
	o := a.iobuf
	if !r.decode(optional("small_pool_count", asUint(&o.SmallPoolCount)),
		optional("large_pool_count", asUint(&o.LargePoolCount)), optional("small_bufsize", asUint(&o.SmallBufsize)),
		optional("large_bufsize", asUint(&o.LargeBufsize)), optional("enable_numa", asBool(&o.EnableNUMA))) {
		r.fail(codeInvalidParams, msgDecode)
		return
	}
	if o.SmallPoolCount < minSmallPool || o.LargePoolCount < minLargePool ||
		o.SmallBufsize < minSmallBufsize || o.LargeBufsize < minLargeBufsize {
		r.errno(syscall.EINVAL)
		return
	}
	a.iobuf = o
	r.answer(true)
}

type sockOptions struct {
	RecvBufSize        uint32 `json:"recv_buf_size"`
	SendBufSize        uint32 `json:"send_buf_size"`
	EnableRecvPipe     bool   `json:"enable_recv_pipe"`
	EnableQuickack     bool   `json:"enable_quickack"`
	EnablePlacementID  uint32 `json:"enable_placement_id"`
	ZerocopySendServer bool   `json:"enable_zerocopy_send_server"`
	ZerocopySendClient bool   `json:"enable_zerocopy_send_client"`
	ZerocopyThreshold  uint32 `json:"zerocopy_threshold"`
	TLSVersion         uint32 `json:"tls_version"`
	EnableKTLS         bool   `json:"enable_ktls"`
}

// sockImpls in the order of a real target's configuration; SPDK builds without io_uring have these two.
var sockImpls = []string{"ssl", "posix"}

func defaultSocks() map[string]*sockOptions {
	socks := map[string]*sockOptions{}
	for _, impl := range sockImpls {
		size := uint32(2 << 20)
		if impl == "ssl" {
			size = 4096
		}
		socks[impl] = &sockOptions{RecvBufSize: size, SendBufSize: size, EnableRecvPipe: true, ZerocopySendServer: true}
	}
	return socks
}

func (a *app) sockImplGetOptions(r *request) {
	var impl string
	if !r.decode(required("impl_name", asString(&impl))) || a.socks[impl] == nil {
		r.invalid()
		return
	}
	r.answer(a.socks[impl])
}

func (a *app) sockImplSetOptions(r *request) {
	var impl string
	var o sockOptions
	fields := []field{
		required("impl_name", asString(&impl)),
		optional("recv_buf_size", asUint(&o.RecvBufSize)), optional("send_buf_size", asUint(&o.SendBufSize)),
		optional("enable_recv_pipe", asBool(&o.EnableRecvPipe)), optional("enable_quickack", asBool(&o.EnableQuickack)),
		optional("enable_placement_id", asUint(&o.EnablePlacementID)),
		optional("enable_zerocopy_send_server", asBool(&o.ZerocopySendServer)),
		optional("enable_zerocopy_send_client", asBool(&o.ZerocopySendClient)),
		optional("zerocopy_threshold", asUint(&o.ZerocopyThreshold)),
		optional("tls_version", asUint(&o.TLSVersion)), optional("enable_ktls", asBool(&o.EnableKTLS)),
	}
	if !r.decode(fields...) || a.socks[impl] == nil {
		r.invalid()
		return
	}
	// Decoded again over what is set now: what is not given stays.
	o = *a.socks[impl]
	r.decode(fields...)
	*a.socks[impl] = o
	r.answer(true)
}

type bdevOptions struct {
	IOPoolSize      uint32 `json:"bdev_io_pool_size"`
	IOCacheSize     uint32 `json:"bdev_io_cache_size"`
	AutoExamine     bool   `json:"bdev_auto_examine"`
	IobufSmallCache uint32 `json:"iobuf_small_cache_size"`
	IobufLargeCache uint32 `json:"iobuf_large_cache_size"`
}

func defaultBdevOptions() bdevOptions {
	return bdevOptions{IOPoolSize: 65535, IOCacheSize: 256, AutoExamine: true, IobufSmallCache: 128, IobufLargeCache: 16}
}

func (a *app) bdevSetOptions(r *request) {
	o := a.bdevOpts
	if r.params != nil && !r.decode(optional("bdev_io_pool_size", asUint(&o.IOPoolSize)),
		optional("bdev_io_cache_size", asUint(&o.IOCacheSize)), optional("bdev_auto_examine", asBool(&o.AutoExamine)),
		optional("iobuf_small_cache_size", asUint(&o.IobufSmallCache)),
		optional("iobuf_large_cache_size", asUint(&o.IobufLargeCache))) {
		r.invalid()
		return
	}
	// Each thread fills a cache, and so may another one; at start-up the application is the only thread.
	if uint64(o.IOPoolSize) < 2*uint64(o.IOCacheSize) {
		r.failf(codeInvalidParams, "Pool size %d too small for cache size %d", o.IOPoolSize, o.IOCacheSize)
		return
	}
	a.bdevOpts = o
	r.answer(true)
}

type accelOptions struct {
	SmallCacheSize uint32 `json:"small_cache_size"`
	LargeCacheSize uint32 `json:"large_cache_size"`
	TaskCount      uint32 `json:"task_count"`
	SequenceCount  uint32 `json:"sequence_count"`
	BufCount       uint32 `json:"buf_count"`

	assigned map[string]string
}

func defaultAccel() accelOptions {
	return accelOptions{
		SmallCacheSize: 128, LargeCacheSize: 16, TaskCount: 2048, SequenceCount: 2048, BufCount: 2048,
		assigned: map[string]string{},
	}
}

var accelOpcodes = []string{
	"copy", "fill", "dualcast", "compare", "crc32c", "copy_crc32c", "compress", "decompress", "encrypt", "decrypt",
	"xor", "dif_verify", "dif_verify_copy", "dif_generate", "dif_generate_copy", "dix_generate", "dix_verify",
}
