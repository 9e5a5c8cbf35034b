// SPDX-License-Identifier: Apache-2.0

// Package nodeconfig is what the lab tells a node about itself. The host
// writes it as JSON into a folder that the node mounts read-only at Dir.
package nodeconfig

import (
	"net/netip"
	"syscall"
)

const (
	// Dir is where a node finds its configuration, keys and certificates.
	Dir = "/etc/weft-lab"
	// File is the name of the configuration inside Dir.
	File = "node.json"
	// ShareDir is where a node finds the host's share folder, read-only.
	ShareDir = "/host-share"
	// LogDir holds the logs of the node's services.
	LogDir = "/var/log/weft-lab"
	// ConfigTag is the 9p mount tag of Dir.
	ConfigTag = "weft-config"
	// ShareTag is the 9p mount tag of ShareDir.
	ShareTag = "weft-share"
	// InitPath is where the root filesystem has the init program.
	InitPath = "/sbin/weft-node-init"
	// SystemctlPath is a link to InitPath, by which a node's services are stopped and started.
	SystemctlPath = "/usr/local/bin/systemctl"
	// PausePath is where the image of pods' sandboxes has the init program.
	PausePath = "/pause"
	// InitrdModules is where the initial RAM disk lists the modules to load, in order.
	InitrdModules = "/modules.list"
	// ReadyFile appears when network and management shell are up.
	ReadyFile = "/run/weft-lab-ready"
)

// ShutdownSignal to process 1 of a node shuts it down.
const ShutdownSignal = syscall.SIGUSR2

// Config describes one node.
type Config struct {
	Hostname string `json:"hostname"`
	// MachineID is 32 hexadecimal digits, the same at every boot.
	MachineID string `json:"machineID"`
	// Hosts are lines for /etc/hosts.
	Hosts []string `json:"hosts"`
	// Modules are loaded in order; one that does not load is reported on the
	// console and does not stop the boot.
	Modules []string `json:"modules"`
	// Sysctls are paths below /proc/sys and their values.
	Sysctls    []Sysctl    `json:"sysctls"`
	Interfaces []Interface `json:"interfaces"`
	Routes     []Route     `json:"routes"`
	// Nftables is a ruleset that the kernel has from boot on.
	Nftables string `json:"nftables"`
	// RDMA lists the soft RDMA devices to create.
	RDMA     []RDMALink `json:"rdma"`
	Services []Service  `json:"services"`
}

// Sysctl is one kernel setting, such as net/ipv4/ip_forward = 1.
type Sysctl struct {
	Path  string `json:"path"`
	Value string `json:"value"`
}

// Interface is found by its MAC address and gets a name and an address.
type Interface struct {
	MAC     string       `json:"mac"`
	Name    string       `json:"name"`
	Address netip.Prefix `json:"address"`
	// MTU in bytes.
	MTU int `json:"mtu"`
}

// Route sends Destination to Gateway.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	Gateway     netip.Addr   `json:"gateway"`
}

// RDMALink is a soft RDMA (RoCE v2) device on top of a network interface.
type RDMALink struct {
	Name   string `json:"name"`
	NetDev string `json:"netDev"`
}

// Service is a program that runs as long as the node does. It is started
// again when it ends.
type Service struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	// WaitFor is a path that has to exist before the service is started.
	WaitFor string `json:"waitFor,omitempty"`
}
