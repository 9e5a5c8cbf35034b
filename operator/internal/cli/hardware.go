// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// hardware is the short form of an inventory: a machine as one would order it.
type hardware struct {
	// Name of the node. Default: node.
	Name string `json:"name"`
	// Zone of the node: its label topology.kubernetes.io/zone. Default: none.
	Zone string `json:"zone"`
	// Addresses that are the Node's InternalIPs. Default: the first address of the NICs.
	Addresses []string `json:"addresses"`
	// Sockets, each a NUMA node. Default 1.
	Sockets int `json:"sockets"`
	// CoresPerSocket, physical ones. Required.
	CoresPerSocket int `json:"coresPerSocket"`
	// ThreadsPerCore: 2 with SMT. Default 1.
	ThreadsPerCore int `json:"threadsPerCore"`
	// LastLevelCache of each socket.
	LastLevelCache resource.Quantity `json:"lastLevelCache"`
	// Memory of the whole machine. Required.
	Memory resource.Quantity `json:"memory"`
	// Hugepages set aside, of the whole machine, by size of a page, such as 2Mi: 8Gi.
	Hugepages map[string]resource.Quantity `json:"hugepages"`
	NICs      []hardwareNIC                `json:"nics"`
	Drives    []hardwareDrives             `json:"drives"`
	// Modules of the kernel. Default: all that weft can use.
	Modules []string `json:"modules"`
	// Allocatable, as a Node's status.allocatable. Default: not known.
	Allocatable corev1.ResourceList `json:"allocatable"`
}

type hardwareNIC struct {
	// Name of the interface. Required.
	Name string `json:"name"`
	// Gbps of its link, such as 2.5. Default: not known.
	Gbps float64 `json:"gbps"`
	// Socket it is attached to, from 0.
	Socket int32 `json:"socket"`
	// Addresses with prefix length. Required.
	Addresses []string `json:"addresses"`
	// RDMA: it is an RDMA device too.
	RDMA bool `json:"rdma"`
}

type hardwareDrives struct {
	// Count of drives that are alike. Default 1.
	Count int `json:"count"`
	// Size of each. Required.
	Size resource.Quantity `json:"size"`
	// Model of each. Default: NVMe.
	Model string `json:"model"`
	// Socket they are attached to, from 0.
	Socket int32 `json:"socket"`
}

// usableModules are all that one of weft's engines or drivers needs.
var usableModules = []string{"loop", "nvmet", "nvmet_rdma", "nvmet_tcp", "uio_pci_generic", "vfio_pci", "xfs"}

// Bounds of what is laid out, so that a slip of the pen is an error and not a machine of a million cores.
const (
	maxSockets, maxThreads, maxCPUs, maxDrives, maxGbps = 16, 8, 2048, 256, 10_000
)

var (
	minMemory, maxMemory = resource.MustParse("64Mi"), resource.MustParse("256Ti")
	minDrive, maxDrive   = resource.MustParse("1Gi"), resource.MustParse("1Pi")
	maxCache             = resource.MustParse("64Gi")
)

// pageSizes that a target can ask for. A kernel of today has both, if none of them set aside.
var pageSizes = []string{"2Mi", "1Gi"}

// nodes are the objects that a cluster would have of the machine.
func (h hardware) nodes() (v1alpha1.NvmfNode, corev1.Node, error) {
	h.Name = cmp.Or(h.Name, "node")
	h.Sockets, h.ThreadsPerCore = cmp.Or(h.Sockets, 1), cmp.Or(h.ThreadsPerCore, 1)
	if err := h.check(); err != nil {
		return v1alpha1.NvmfNode{}, corev1.Node{}, err
	}
	inventory := &v1alpha1.Inventory{Modules: h.Modules, NUMANodes: h.numaNodes()}
	if inventory.Modules == nil {
		inventory.Modules = usableModules
	}
	for i, n := range h.NICs {
		nic := v1alpha1.NIC{Name: n.Name, SpeedMbps: int64(n.Gbps * 1000), NUMANode: new(n.Socket), Addresses: n.Addresses, Up: true}
		inventory.NICs = append(inventory.NICs, nic)
		if n.RDMA {
			inventory.RDMADevices = append(inventory.RDMADevices, v1alpha1.RDMADevice{
				Name: fmt.Sprintf("rdma%d", i), Netdev: n.Name, LinkLayer: "Ethernet", Active: true, NUMANode: new(n.Socket),
			})
		}
	}
	for _, d := range h.Drives {
		for range cmp.Or(d.Count, 1) {
			inventory.Drives = append(inventory.Drives, drive(len(inventory.Drives), d))
		}
	}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name}, Status: corev1.NodeStatus{Allocatable: h.Allocatable}}
	if h.Zone != "" {
		node.Labels = map[string]string{corev1.LabelTopologyZone: h.Zone}
	}
	for _, a := range h.Addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: h.Name}, Status: v1alpha1.NvmfNodeStatus{Inventory: inventory}}, node, nil
}

func drive(i int, d hardwareDrives) v1alpha1.Drive {
	serial := fmt.Sprintf("S%d", i)
	return v1alpha1.Drive{
		ID: "eui." + serial, Name: fmt.Sprintf("nvme%dn1", i), NVMe: true, Serial: serial, Model: cmp.Or(d.Model, "NVMe"),
		ByID:      []string{"nvme-" + strings.ReplaceAll(cmp.Or(d.Model, "NVMe"), " ", "_") + "_" + serial},
		SizeBytes: d.Size.Value(), BlockSizeBytes: 512, NUMANode: new(d.Socket), PCIAddress: fmt.Sprintf("0000:%02x:00.0", i%256), Content: v1alpha1.ContentBlank,
	}
}

func (h hardware) check() error {
	var errs []error
	say := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	say(h.Sockets < 1 || h.Sockets > maxSockets, "sockets is %d; must be from 1 to %d", h.Sockets, maxSockets)
	say(h.ThreadsPerCore < 1 || h.ThreadsPerCore > maxThreads, "threadsPerCore is %d; must be from 1 to %d", h.ThreadsPerCore, maxThreads)
	say(h.CoresPerSocket < 1 || h.CoresPerSocket > maxCPUs, "coresPerSocket is %d; set the physical cores of a socket, from 1 to %d", h.CoresPerSocket, maxCPUs)
	say(len(errs) == 0 && h.Sockets*h.CoresPerSocket*h.ThreadsPerCore > maxCPUs, "sockets x coresPerSocket x threadsPerCore must not be greater than %d", maxCPUs)
	say(h.LastLevelCache.Sign() < 0 || h.LastLevelCache.Cmp(maxCache) > 0, "lastLevelCache is %s; set the size per socket, such as 36Mi", &h.LastLevelCache)
	say(h.Memory.IsZero(), "memory is missing; set the memory of the machine, such as 256Gi")
	say(!h.Memory.IsZero() && outside(h.Memory, minMemory, maxMemory), "memory is %s; must be from %s to %s", &h.Memory, &minMemory, &maxMemory)
	var pages resource.Quantity
	for _, size := range slices.Sorted(maps.Keys(h.Hugepages)) {
		bytes := h.Hugepages[size]
		say(!slices.Contains(pageSizes, size), "hugepages: %q is not a page size; use 2Mi or 1Gi", size)
		say(bytes.Sign() < 0, "hugepages: %s of %s is not valid; set the reserved amount, such as 2Mi: 16Gi", &bytes, size)
		pages.Add(bytes)
	}
	say(!h.Memory.IsZero() && pages.Cmp(h.Memory) > 0, "hugepages (%s) must not be greater than memory (%s)", &pages, &h.Memory)
	inSocket := func(s int32) bool { return s >= 0 && int(s) < h.Sockets }
	names := map[string]bool{}
	for i, n := range h.NICs {
		say(n.Name == "", "nics[%d]: the name is missing", i)
		say(n.Name != "" && names[n.Name], "nics[%d]: the name %s is already used; names must be unique", i, n.Name)
		names[n.Name] = true
		say(n.Gbps < 0 || n.Gbps > maxGbps, "nics[%d].gbps is %g; set the link speed in Gb/s, such as 100", i, n.Gbps)
		say(len(n.Addresses) == 0, "nics[%d]: addresses are missing; add one, such as 10.20.0.5/16", i)
		say(!inSocket(n.Socket), "nics[%d].socket is %d; sockets are counted from 0", i, n.Socket)
		for _, a := range n.Addresses {
			_, err := netip.ParsePrefix(a)
			say(err != nil, "nics[%d].addresses: %q is not an address with a prefix length, such as 10.20.0.5/16", i, a)
		}
	}
	total := 0
	for i, d := range h.Drives {
		say(d.Size.IsZero(), "drives[%d]: the size is missing; set it, such as 3840G", i)
		say(!d.Size.IsZero() && outside(d.Size, minDrive, maxDrive), "drives[%d].size is %s; the size of one drive must be from %s to %s", i, &d.Size, &minDrive, &maxDrive)
		say(d.Count < 0 || d.Count > maxDrives, "drives[%d].count is %d; must be from 1 to %d", i, d.Count, maxDrives)
		say(!inSocket(d.Socket), "drives[%d].socket is %d; sockets are counted from 0", i, d.Socket)
		total += cmp.Or(d.Count, 1)
	}
	say(total > maxDrives, "%d drives; no more than %d are supported", total, maxDrives)
	return errors.Join(errs...)
}

// outside of the bounds.
func outside(q, least, most resource.Quantity) bool { return q.Cmp(least) < 0 || q.Cmp(most) > 0 }

// numaNodes number their CPUs as Linux does: first threads of all cores, socket by socket, then the siblings.
func (h hardware) numaNodes() []v1alpha1.NUMANode {
	nodes := make([]v1alpha1.NUMANode, h.Sockets)
	for s := range nodes {
		n := &nodes[s]
		n.ID, n.LLCBytes, n.MemoryBytes = int32(s), h.LastLevelCache.Value(), h.Memory.Value()/int64(h.Sockets)
		var ranges []string
		for t := range h.ThreadsPerCore {
			first := (t*h.Sockets + s) * h.CoresPerSocket
			ranges = append(ranges, fmt.Sprintf("%d-%d", first, first+h.CoresPerSocket-1))
		}
		n.CPUs = strings.Join(ranges, ",")
		for c := range h.CoresPerSocket {
			var threads []string
			for t := range h.ThreadsPerCore {
				threads = append(threads, fmt.Sprint((t*h.Sockets+s)*h.CoresPerSocket+c))
			}
			n.Cores = append(n.Cores, strings.Join(threads, ","))
		}
		for _, size := range pageSizes {
			bytes, page := h.Hugepages[size], resource.MustParse(size)
			pages := bytes.Value() / int64(h.Sockets) / page.Value()
			n.Hugepages = append(n.Hugepages, v1alpha1.HugepagePool{SizeBytes: page.Value(), Total: pages, Free: pages})
		}
	}
	return nodes
}
