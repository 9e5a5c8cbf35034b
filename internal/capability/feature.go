// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"fmt"
	"slices"
	"strings"
)

// Has says whether a feature is there.
type Has string

// Answers. What could not be looked at is unknown, never absent.
const (
	Yes     Has = "Yes"
	No      Has = "No"
	Unknown Has = "Unknown"
)

// A Feature of SPDK that weft uses.
type Feature struct {
	// Name, short.
	Name string `json:"name"`
	// Required: without it weft serves nothing.
	Required bool `json:"required"`
	// Without says what happens without it.
	Without string `json:"without"`

	has func(*Capabilities) (Has, string)
}

// A Finding is a feature, and whether an image has it.
type Finding struct {
	Feature
	Has Has `json:"has"`
	// Detail of what is there or lacks, such as names of methods; often "".
	Detail string `json:"detail,omitempty"`
}

// Check what weft needs against what there is, in the order of Features.
func (c *Capabilities) Check() []Finding {
	var found []Finding
	for _, f := range Features() {
		has, detail := f.has(c)
		found = append(found, Finding{Feature: f, Has: has, Detail: detail})
	}
	return found
}

// Features that weft uses, the required ones first. docs/reference/spdk-features.md has them for people.
func Features() []Feature {
	return []Feature{
		{"SPDK 25.05 or later", true, "the agent serves nothing: condition PlanUnsupported", since(25, 5)},
		{"RPC methods", true, "the agent cannot export, create or watch volumes: its calls fail", methods(Methods())},
		{"transport TCP", true, "no host can connect over TCP", in(TCP, func(c *Capabilities) []string { return c.Transports })},
		{"posix sockets", true, "the agent cannot set the sockets of TCP: nothing is served over it", in(SockPosix, func(c *Capabilities) []string { return c.Sockets })},
		{"transport RDMA", false, "targets with a transport RDMA do not serve over it: condition PlanUnsupported", in(RDMA, func(c *Capabilities) []string { return c.Transports })},
		{"NVMe driver", false, "devices.driver VFIO and UIO do not work; Kernel does", methods(NVMeMethods())},
		{"blkid (util-linux)", false, "devices.driver VFIO and UIO reject every drive: weft cannot see that it is blank", in(Blkid, func(c *Capabilities) []string { return c.Programs })},
		{"discard hidden from hosts", false, "hosts see that they can discard, and get an error for it", since(26, 1)},
		{"RDMA and VFIO in every mode", false, "RDMA does not work with cores.mode Interrupt; RDMA and VFIO do not work with memory.hugepages Disabled", since(26, 1)},
		{"buffer cache of each size", false, "both caches of a poll group get the smaller of the planned sizes", since(26, 5)},
		{"latency histograms", false, "latencyHistograms of a target has no effect: there are no histograms", methods(HistogramMethods())},
	}
}

// Methods that weft calls of every target.
func Methods() []string {
	return []string{
		"bdev_aio_create", "bdev_aio_delete", "bdev_aio_rescan", "bdev_examine", "bdev_get_bdevs", "bdev_get_iostat",
		"bdev_lvol_clone", "bdev_lvol_create", "bdev_lvol_create_lvstore", "bdev_lvol_delete",
		"bdev_lvol_get_lvols", "bdev_lvol_get_lvstores", "bdev_lvol_grow_lvstore", "bdev_lvol_rename", "bdev_lvol_resize",
		"bdev_lvol_set_parent", "bdev_lvol_snapshot", "bdev_set_options", "bdev_set_qos_limit", "bdev_wait_for_examine",
		"framework_get_config", "framework_get_reactors", "framework_get_scheduler", "framework_set_scheduler", "framework_start_init",
		"iobuf_get_stats", "iobuf_set_options", "keyring_file_add_key", "keyring_file_remove_key",
		"nvmf_create_subsystem", "nvmf_create_transport", "nvmf_delete_subsystem", "nvmf_get_stats", "nvmf_get_subsystems", "nvmf_get_transports",
		"nvmf_set_config", "nvmf_set_max_subsystems", "nvmf_subsystem_add_host", "nvmf_subsystem_add_listener", "nvmf_subsystem_add_ns",
		"nvmf_subsystem_get_controllers", "nvmf_subsystem_listener_set_ana_state", "nvmf_subsystem_remove_host", "nvmf_subsystem_remove_listener", "nvmf_subsystem_remove_ns",
		"nvmf_subsystem_set_keys", "nvmf_subsystem_set_ns_ana_group",
		"rpc_get_methods", "scheduler_set_options", "sock_impl_get_options", "sock_impl_set_options", "spdk_get_version", "thread_get_stats", "thread_set_cpumask",
	}
}

// NVMeMethods are those that weft calls where SPDK drives NVMe drives itself.
func NVMeMethods() []string {
	return []string{"bdev_nvme_attach_controller", "bdev_nvme_detach_controller", "bdev_nvme_send_cmd"}
}

// HistogramMethods are those that weft calls where a target is to keep latency histograms.
func HistogramMethods() []string {
	return []string{"bdev_enable_histogram", "bdev_get_histogram_borders"}
}

// since a release of SPDK.
func since(year, month int) func(*Capabilities) (Has, string) {
	return func(c *Capabilities) (Has, string) {
		var y, m int
		if c.Version == "" {
			return Unknown, ""
		}
		if _, err := fmt.Sscanf(c.Version, "%d.%d", &y, &m); err != nil {
			return Unknown, fmt.Sprintf("version %q cannot be read", c.Version)
		}
		if y < year || y == year && m < month {
			return No, fmt.Sprintf("it is %s; use %02d.%02d or later", c.Version, year, month)
		}
		return Yes, ""
	}
}

// in a list that may be unknown.
func in(name string, of func(*Capabilities) []string) func(*Capabilities) (Has, string) {
	return func(c *Capabilities) (Has, string) {
		switch list := of(c); {
		case list == nil:
			return Unknown, ""
		case slices.Contains(list, name):
			return Yes, ""
		case c.Partial:
			return Unknown, ""
		default:
			return No, ""
		}
	}
}

func methods(needed []string) func(*Capabilities) (Has, string) {
	return func(c *Capabilities) (Has, string) {
		if c.Methods == nil {
			return Unknown, ""
		}
		var lacks []string
		for _, m := range needed {
			if !slices.Contains(c.Methods, m) {
				lacks = append(lacks, m)
			}
		}
		switch {
		case len(lacks) > 0 && c.Partial:
			return Unknown, ""
		case len(lacks) > 0:
			return No, "it lacks " + strings.Join(lacks, ", ")
		}
		return Yes, ""
	}
}
