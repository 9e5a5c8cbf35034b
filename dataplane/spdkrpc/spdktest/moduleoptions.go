// SPDX-License-Identifier: Apache-2.0

package spdktest

import "encoding/json"

// moduleOptions are the options of a bdev module as the configuration shows them.
type moduleOptions map[string]json.RawMessage

func mustOptions(defaults string) moduleOptions {
	var o moduleOptions
	if err := json.Unmarshal([]byte(defaults), &o); err != nil {
		panic("spdktest: default options: " + err.Error())
	}
	return o
}

func defaultNvmeOptions() moduleOptions {
	return mustOptions(`{"action_on_timeout": "none", "timeout_us": 0, "timeout_admin_us": 0,
		"keep_alive_timeout_ms": 10000, "arbitration_burst": 0, "low_priority_weight": 0, "medium_priority_weight": 0,
		"high_priority_weight": 0, "nvme_adminq_poll_period_us": 10000, "nvme_ioq_poll_period_us": 0,
		"io_queue_requests": 0, "delay_cmd_submit": true, "transport_retry_count": 4, "bdev_retry_count": 3,
		"transport_ack_timeout": 0, "ctrlr_loss_timeout_sec": 0, "reconnect_delay_sec": 0,
		"fast_io_fail_timeout_sec": 0, "disable_auto_failback": false, "generate_uuids": false, "transport_tos": 0,
		"nvme_error_stat": false, "rdma_srq_size": 0, "io_path_stat": false, "allow_accel_sequence": false,
		"rdma_max_cq_size": 0, "rdma_cm_event_timeout_ms": 0, "dhchap_digests": ["sha256", "sha384", "sha512"],
		"dhchap_dhgroups": ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"],
		"rdma_umr_per_io": false, "tcp_connect_timeout_ms": 0, "enable_flush": false,
		"multipath_opts": {"policy": "active_passive"}}`)
}

func defaultRaidOptions() moduleOptions {
	return mustOptions(`{"process_window_size_kb": 1024, "process_max_bandwidth_mb_sec": 0}`)
}

func (a *app) bdevConfig() []configCall {
	calls := []configCall{
		{"bdev_set_options", a.bdevOpts},
		{"bdev_raid_set_options", a.raidOptions},
		{"bdev_nvme_set_options", a.nvmeOptions},
	}
	for _, c := range a.controllers {
		calls = append(calls, configCall{"bdev_nvme_attach_controller", map[string]any{
			"name": c.name, "trtype": "PCIe", "traddr": c.drive.Address, "multipath": "multipath",
		}})
	}
	calls = append(calls, configCall{"bdev_nvme_set_hotplug", map[string]any{"period_us": 100000, "enable": false}})
	for _, b := range a.bdevs {
		if b.aio != nil {
			calls = append(calls, configCall{"bdev_aio_create", b.aio})
		}
		if b.limits != (qosLimits{}) {
			params := map[string]any{"name": b.name}
			for name, limit := range map[string]uint64{
				"rw_ios_per_sec": b.limits.RWIOs, "rw_mbytes_per_sec": b.limits.RWMBytes,
				"r_mbytes_per_sec": b.limits.ReadMB, "w_mbytes_per_sec": b.limits.WriteMB,
			} {
				if limit != 0 {
					params[name] = limit
				}
			}
			calls = append(calls, configCall{"bdev_set_qos_limit", params})
		}
		if b.histogram.enabled {
			calls = append(calls, configCall{"bdev_enable_histogram", map[string]any{"name": b.name, "enable": true}})
		}
	}
	return append(calls, configCall{Method: "bdev_wait_for_examine"})
}
