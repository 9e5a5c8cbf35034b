// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"syscall"
)

// automatic is a cache size that follows from the pool and the number of poll groups.
const automatic = math.MaxUint32

// A transport as it was created. Nothing of it can be changed later.
type transport struct {
	trtype        string
	maxQueueDepth uint16
	maxIOQpairs   uint16
	inCapsule     uint32
	maxIOSize     uint32
	maxAQDepth    uint32
	smallCache    uint32
	largeCache    uint32
	dif           bool
	zcopy         bool
	abortTimeout  uint32
	acceptorPoll  uint32
	ackTimeout    uint32
	dataWRPool    uint32
	noPassthru    bool
	kas           uint16
	minKATO       uint32
	c2hSuccess    bool
	sockPriority  uint32
	controlMsgs   uint16
	maxSRQDepth   uint32
	noSRQ         bool
	numCQE        int32
	backlog       int32
	noWRBatching  bool
	shared        uint32 // before 26.05
	small, large  uint32 // buffers each poll group has reserved
	listeners     map[address]int
}

func newTransport(trtype string) *transport {
	t := &transport{
		trtype: trtype, maxQueueDepth: 128, maxIOQpairs: 127, inCapsule: 4096, maxIOSize: 128 << 10, maxAQDepth: 128,
		smallCache: automatic, largeCache: automatic, abortTimeout: 1, acceptorPoll: 10000, kas: 100, minKATO: 10000,
		c2hSuccess: true, controlMsgs: 32, maxSRQDepth: 4096, numCQE: 4096, backlog: 100, shared: 511,
		listeners: map[address]int{},
	}
	if trtype == "RDMA" {
		t.dataWRPool, t.shared = 4095, 4095
	}
	return t
}

// common are the parameters of every transport; deprecated ones are taken and do nothing, but for buf_cache_size,
// which is another name of iobuf_small_cache_size. An older target has only that one, for both caches, and
// num_shared_buffers.
func (t *transport) common(older bool, trtype, target *string) []field {
	var ignored uint32
	var features []string
	caches := []field{
		optional("num_shared_buffers", asUint(&ignored)), optional("buf_cache_size", asUint(&t.smallCache)),
		optional("iobuf_small_cache_size", asUint(&t.smallCache)),
		optional("iobuf_large_cache_size", asUint(&t.largeCache)),
	}
	if older {
		caches = []field{optional("num_shared_buffers", asUint(&t.shared)), optional("buf_cache_size", asUint(&t.smallCache))}
	}
	return append(caches,
		required("trtype", asString(trtype)), onTarget(target),
		optional("max_queue_depth", asUint(&t.maxQueueDepth)),
		optional("max_io_qpairs_per_ctrlr", asUint(&t.maxIOQpairs)),
		optional("in_capsule_data_size", asUint(&t.inCapsule)), optional("max_io_size", asUint(&t.maxIOSize)),
		optional("io_unit_size", asUint(&ignored)), optional("max_aq_depth", asUint(&t.maxAQDepth)),
		optional("dif_insert_or_strip", asBool(&t.dif)), optional("abort_timeout_sec", asUint(&t.abortTimeout)),
		optional("zcopy", asBool(&t.zcopy)), optional("acceptor_poll_rate", asUint(&t.acceptorPoll)),
		optional("ack_timeout", asUint(&t.ackTimeout)), optional("data_wr_pool_size", asUint(&t.dataWRPool)),
		optional("disable_command_passthru", asBool(new(bool))), // SPDK does not copy this one
		optional("kas", asUint(&t.kas)), optional("min_kato", asUint(&t.minKATO)),
		optional("masked_oncs", asStrings(&features)), optional("masked_fuses", asStrings(&features)),
	)
}

// own are the parameters of one type; a wrong one fails the creation, not the decoding.
func (t *transport) own() []field {
	if t.trtype == "TCP" {
		return []field{
			optional("c2h_success", asBool(&t.c2hSuccess)), optional("sock_priority", asUint(&t.sockPriority)),
			optional("control_msg_num", asUint(&t.controlMsgs)),
		}
	}
	return []field{
		optional("max_srq_depth", asUint(&t.maxSRQDepth)), optional("no_srq", asBool(&t.noSRQ)),
		optional("num_cqe", asInt32(&t.numCQE)), optional("acceptor_backlog", asInt32(&t.backlog)),
		optional("no_wr_batching", asBool(&t.noWRBatching)),
	}
}

func (a *app) nvmfCreateTransport(r *request) {
	var given, target string
	if !r.decodeRelaxed(newTransport("").common(a.before(release2605), &given, &target)...) {
		r.invalid()
		return
	}
	if wrongTarget(r, target) {
		return
	}
	t := newTransport(strings.ToUpper(given))
	if t.trtype != "TCP" && (t.trtype != "RDMA" || a.opts.WithoutRDMA) {
		r.failf(codeInvalidParams, "Invalid transport type '%s'", given)
		return
	}
	r.decodeRelaxed(t.common(a.before(release2605), &given, &target)...)
	if a.transport(t.trtype) != nil {
		r.failf(codeInternal, "Transport type '%s' already exists", given)
		return
	}
	if !a.checkTransport(t) {
		r.failf(codeInternal, "Transport type '%s' create failed", given)
		return
	}
	a.post(func() {
		if !a.createTransport(t, r.params) {
			r.fail(codeInternal, "Failed to create transport.")
			return
		}
		if t.trtype == "RDMA" && a.opts.InterruptMode && a.before(release2601) {
			r.fail(codeInternal, "Failed to add transport to tgt.(-1)")
			return
		}
		a.transports = append(a.transports, t)
		a.post(func() { r.answer(true) })
	})
}

// Limits of nvmf_transport_create and of the two transports.
const (
	minMaxIOSize       = 8192
	minAQDepth         = 32
	kasUnitMs          = 100
	maxSGLEntries      = 16
	maxSockPriority    = 16
	minInCapsuleRDMA   = 256
	defaultControlMsgs = 32
	defaultUnitSize    = 128 << 10
)

// checkTransport is what SPDK checks before it goes to the transport's own code; what it can mend it mends.
func (a *app) checkTransport(t *transport) bool {
	if t.maxIOSize != 0 && (t.maxIOSize&(t.maxIOSize-1) != 0 || t.maxIOSize < minMaxIOSize) || t.kas == 0 ||
		t.minKATO == 0 {
		return false
	}
	t.maxAQDepth = max(t.maxAQDepth, minAQDepth)
	step := uint32(t.kas) * kasUnitMs
	t.minKATO = (t.minKATO + step - 1) / step * step
	if a.before(release2605) {
		t.largeCache = t.smallCache
		return true
	}
	t.smallCache = a.limitCache(t.smallCache, a.iobuf.SmallPoolCount)
	t.largeCache = a.limitCache(t.largeCache, a.iobuf.LargePoolCount)
	return true
}

// limitCache cuts a cache whose product with the number of cores is more than the pool to half of the pool.
func (a *app) limitCache(cache uint32, pool uint64) uint32 {
	cores := uint64(len(a.cores))
	if cache == automatic || uint64(cache)*cores <= pool {
		return cache
	}
	return uint32(pool / cores / 2)
}

// createTransport is the transport's own part of creation.
func (a *app) createTransport(t *transport, params json.RawMessage) bool {
	if decodeObject(params, false, t.own()...) != nil || t.maxIOSize/a.iobuf.LargeBufsize > maxSGLEntries {
		return false
	}
	if a.before(release2605) && t.smallCache != automatic && uint64(t.smallCache)*uint64(len(a.cores)) > uint64(t.shared) {
		return false
	}
	if t.trtype == "RDMA" {
		if len(a.opts.RDMADevices) == 0 {
			return false
		}
		t.inCapsule = max(t.inCapsule, minInCapsuleRDMA)
	} else {
		if t.sockPriority > maxSockPriority {
			return false
		}
		if t.controlMsgs == 0 {
			t.controlMsgs = defaultControlMsgs
		}
		t.inCapsule = min(t.inCapsule, t.maxIOSize)
		if t.maxQueueDepth < 2 {
			t.maxQueueDepth = 128
		}
		if t.maxAQDepth > 4096 {
			t.maxAQDepth = 128
		}
	}
	a.reserve(t)
	return true
}

// ioQpairs is how many I/O queue pairs are shown. SPDK keeps them with the admin one in 16 bits, and takes that one
// off in 32: 65,535 becomes 4,294,967,295.
func (t *transport) ioQpairs() uint32 { return uint32(t.maxIOQpairs+1) - 1 }

func (a *app) transport(trtype string) *transport {
	i := slices.IndexFunc(a.transports, func(t *transport) bool { return strings.EqualFold(t.trtype, trtype) })
	if i < 0 {
		return nil
	}
	return a.transports[i]
}

func (t *transport) info(older bool) map[string]any {
	info := map[string]any{
		"trtype": t.trtype, "max_queue_depth": t.maxQueueDepth, "max_io_qpairs_per_ctrlr": t.ioQpairs(),
		"in_capsule_data_size": t.inCapsule, "max_io_size": t.maxIOSize, "max_aq_depth": t.maxAQDepth,
		"iobuf_small_cache_size": t.smallCache, "iobuf_large_cache_size": t.largeCache, "dif_insert_or_strip": t.dif,
		"zcopy": t.zcopy, "abort_timeout_sec": t.abortTimeout, "ack_timeout": t.ackTimeout,
		"data_wr_pool_size": t.dataWRPool, "disable_command_passthru": t.noPassthru, "kas": t.kas, "min_kato": t.minKATO,
	}
	if older {
		for _, unknown := range []string{"iobuf_small_cache_size", "iobuf_large_cache_size", "disable_command_passthru", "kas", "min_kato"} {
			delete(info, unknown)
		}
		info["io_unit_size"], info["num_shared_buffers"], info["buf_cache_size"] = defaultUnitSize, t.shared, t.smallCache
	}
	if t.trtype == "TCP" {
		info["c2h_success"], info["sock_priority"] = t.c2hSuccess, t.sockPriority
		return info
	}
	info["max_srq_depth"], info["no_srq"] = t.maxSRQDepth, t.noSRQ
	if t.noSRQ {
		info["num_cqe"] = t.numCQE
	}
	info["acceptor_backlog"], info["no_wr_batching"] = t.backlog, t.noWRBatching
	return info
}

func (a *app) nvmfGetTransports(r *request) {
	var trtype, target string
	if r.params != nil && !r.decode(optional("trtype", asString(&trtype)), onTarget(&target)) {
		r.invalid()
		return
	}
	if wrongTarget(r, target) {
		return
	}
	shown := a.transports
	if trtype != "" {
		t := a.transport(trtype)
		if t == nil {
			r.errno(syscall.ENODEV)
			return
		}
		shown = []*transport{t}
	}
	infos := []any{}
	for _, t := range shown {
		infos = append(infos, t.info(a.before(release2605)))
	}
	r.answer(infos)
}
