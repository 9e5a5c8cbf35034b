// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"fmt"
	"os"
)

func (a *app) nvmfGetControllers(r *request) {
	s := a.findSubsystem(r, false)
	if s == nil {
		return
	}
	s.paused(r, func() {
		infos := []any{}
		for _, c := range s.connected {
			infos = append(infos, map[string]any{
				"cntlid": c.cntlid, "cntrltype": "io", "hostnqn": c.HostNQN, "hostid": c.HostID,
				"num_io_qpairs": c.IOQueues,
			})
		}
		r.answer(infos)
	})
}

func (a *app) nvmfGetQpairs(r *request) {
	s := a.findSubsystem(r, false)
	if s == nil {
		return
	}
	s.paused(r, func() {
		infos := []any{}
		for _, c := range s.connected {
			for qid := range c.IOQueues + 1 {
				infos = append(infos, map[string]any{
					"cntlid": c.cntlid, "qid": qid, "state": "enabled", "hostnqn": c.HostNQN,
					"thread":         fmt.Sprintf("nvmf_tgt_poll_group_%03d", c.group(qid, len(a.nvmf.pollGroups))),
					"listen_address": c.address.info(), "peer_address": c.peer().info(),
				})
			}
		}
		r.answer(infos)
	})
}

// nvmfGetStats counts queue pairs by poll group: those there are, and those there were since the start.
func (a *app) nvmfGetStats(r *request) {
	var target string
	if r.params != nil && !r.decode(onTarget(&target)) {
		r.invalid()
		return
	}
	if wrongTarget(r, target) {
		return
	}
	n := len(a.nvmf.pollGroups)
	admin, io := make([]uint32, n), make([]uint32, n)
	for _, s := range a.subsystems {
		for _, c := range s.connected {
			admin[c.group(0, n)]++
			for q := range c.IOQueues {
				io[c.group(q+1, n)]++
			}
		}
	}
	groups := []any{}
	for i := range n {
		transports := []any{}
		for _, t := range a.transports {
			transports = append(transports, t.stats(a, i))
		}
		groups = append(groups, map[string]any{
			"name": fmt.Sprintf("nvmf_tgt_poll_group_%03d", i), "admin_qpairs": a.qpairs[i][0], "io_qpairs": a.qpairs[i][1],
			"current_admin_qpairs": admin[i], "current_io_qpairs": io[i], "current_unassociated_qpairs": 0,
			"pending_bdev_io": 0, "completed_nvme_io": 0, "transports": transports,
		})
	}
	a.post(func() { r.answer(map[string]any{"tick_rate": tickRate, "poll_groups": groups}) })
}

// stats of a transport in one poll group: TCP has none, RDMA counts for each device.
func (t *transport) stats(a *app, group int) map[string]any {
	stats := map[string]any{"trtype": t.trtype}
	if t.trtype != "RDMA" {
		return stats
	}
	devices := []any{}
	for _, d := range a.opts.RDMADevices {
		device := map[string]any{"name": d}
		for _, zero := range []string{
			"polls", "idle_polls", "completions", "requests", "request_latency", "pending_free_request",
			"pending_rdma_read", "pending_rdma_write", "pending_rdma_send", "total_send_wrs", "send_doorbell_updates",
			"total_recv_wrs", "recv_doorbell_updates",
		} {
			device[zero] = 0
		}
		devices = append(devices, device)
	}
	stats["pending_data_buffer"], stats["devices"] = a.pendingData[group], devices
	return stats
}

// What a target takes of its hugepage heap, in bytes, as measured on 26.05 with one core and no devices.
const (
	heapFixed       = 63_400_000
	heapPerBdevIO   = 1617
	heapPerCore     = 2_100_000
	heapPerTCPGroup = 262_144
)

func (a *app) heapBytes() uint64 {
	heap := uint64(heapFixed) + uint64(a.bdevOpts.IOPoolSize)*heapPerBdevIO + uint64(len(a.cores)-1)*heapPerCore +
		a.iobuf.SmallPoolCount*uint64(a.iobuf.SmallBufsize) + a.iobuf.LargePoolCount*uint64(a.iobuf.LargeBufsize)
	for _, t := range a.transports {
		if t.trtype == "TCP" && t.inCapsule < 8192 {
			heap += uint64(len(a.nvmf.pollGroups)) * heapPerTCPGroup
		}
		for _, s := range a.subsystems {
			for _, c := range s.connected {
				heap += uint64(c.IOQueues+1) * t.qpairBytes()
			}
		}
	}
	return heap
}

// qpairBytes is what a TCP queue pair takes.
func (t *transport) qpairBytes() uint64 {
	if t.trtype != "TCP" {
		return 0
	}
	depth := uint64(t.maxQueueDepth)
	return (2*depth+1)*1088 + depth*uint64(t.inCapsule)
}

// memStats writes what DPDK's dump of its heaps shows, as far as anybody reads it.
func (a *app) memStats(r *request) {
	if !none(r, "env_dpdk_get_mem_stats doesn't accept any parameters.\n") {
		return
	}
	allocated := a.heapBytes()
	const page = 2 << 20
	size := (allocated + allocated/5 + page - 1) / page * page
	dump := fmt.Sprintf("DPDK memory size %d\nDPDK memory layout\nDPDK heap list\n"+
		"Heap id:0\n\tHeap name:socket_0\n\tHeap_size:%d,\n\tFree_size:%d,\n\tAlloc_size:%d,\n"+
		"\tGreatest_free_size:%d,\n\tAlloc_count:%d,\n\tFree_count:%d,\n",
		size, size, size-allocated, allocated, size-allocated, 1000, 10)
	if err := os.WriteFile(a.opts.MemStats, []byte(dump), 0o600); err != nil {
		r.fail(codeInternal, "Unable to open file for writing.\n")
		return
	}
	r.answer(map[string]string{"filename": a.opts.MemStats})
}
