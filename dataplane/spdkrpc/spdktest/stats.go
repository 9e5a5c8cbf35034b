// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"fmt"
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
