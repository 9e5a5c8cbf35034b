// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// published are the measurements that others published.
type published struct {
	SRQ struct {
		Cores      int32
		QueueDepth int32 `json:"queue_depth"`
		SRQDepth   int32 `json:"srq_depth"`
		Rows       []struct {
			Jobs   int32
			OwnKiB int64      `json:"rq_rss_kib"`
			SRQKiB int64      `json:"srq_rss_kib"`
			KIOPS  [2]float64 `json:"kiops"`
		}
	}
	Pacing    struct{ Rows []pacingRow }
	Scheduler struct {
		Rows []struct{ DynamicCores, StaticCores, DynamicKIOPS, StaticKIOPS float64 }
	}
}

type pacingRow struct {
	Cores, Buffers, Cache int32
	Gbps                  []float64
	Refused, Unbounded    bool
}

func readPublished(root string) (published, error) {
	var p published
	text, err := os.ReadFile(filepath.Join(root, "dataplane/sizing/testdata/published.json"))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil && (len(p.SRQ.Rows) == 0 || len(p.Pacing.Rows) == 0 || len(p.Scheduler.Rows) == 0) {
		err = errors.New("published.json has no rows")
	}
	return p, err
}

// server has two sockets of 24 cores with two threads each, and what the published systems have: NICs of 100 Gb/s with
// RDMA, one on each socket, and NVMe drives. Their last-level cache was not published; 38.5 MiB a socket is that of
// the largest Xeon of its day.
func server(nics, drives int) sizing.Node {
	inv := &v1alpha1.Inventory{KernelVersion: "6.12.0", Modules: []string{"nvmet", "nvmet_rdma", "nvmet_tcp", "xfs"}}
	for socket := range int32(2) {
		n := v1alpha1.NUMANode{ID: socket, CPUs: fmt.Sprintf("%d-%d,%d-%d", socket*24, socket*24+23, socket*24+48, socket*24+71), LLCBytes: 77 << 19, MemoryBytes: 128 << 30,
			Hugepages: []v1alpha1.HugepagePool{{SizeBytes: 2 << 20, Total: 4096, Free: 4096}}}
		for core := range int32(24) {
			n.Cores = append(n.Cores, fmt.Sprintf("%d,%d", socket*24+core, socket*24+core+48))
		}
		inv.NUMANodes = append(inv.NUMANodes, n)
	}
	for i := range nics {
		name := fmt.Sprintf("ens%df0", i+1)
		inv.NICs = append(inv.NICs, v1alpha1.NIC{Name: name, Addresses: []string{fmt.Sprintf("10.%d.0.5/16", 20+i)}, Up: true, SpeedMbps: 100_000, NUMANode: new(int32(i % 2))})
		inv.RDMADevices = append(inv.RDMADevices, v1alpha1.RDMADevice{Name: fmt.Sprintf("mlx5_%d", i), Netdev: name, Active: true, MaxSRQ: 1 << 16, MaxSRQWR: 32767})
	}
	for i := range drives {
		inv.Drives = append(inv.Drives, v1alpha1.Drive{ID: fmt.Sprintf("eui.%d", i), Name: fmt.Sprintf("nvme%dn1", i), NVMe: true, Model: "NVMe", SizeBytes: 1920 << 30, Content: v1alpha1.ContentBlank})
	}
	return sizing.Node{Name: "storage-1", InternalIPs: []string{"10.20.0.5"}, Inventory: inv}
}

// target of SPDK on all drives, with one transport on each NIC.
func target(node sizing.Node, kind v1alpha1.TransportType, edit func(*v1alpha1.NvmfTargetSpec)) v1alpha1.NvmfTargetSpec {
	s := v1alpha1.NvmfTargetSpec{Engine: v1alpha1.EngineSPDK, Devices: v1alpha1.Devices{Selector: &v1alpha1.DeviceSelector{Models: []string{"*"}}}}
	for _, nic := range node.Inventory.NICs {
		s.Transports = append(s.Transports, v1alpha1.Transport{Type: kind, Network: &v1alpha1.Network{Interface: nic.Name}})
	}
	edit(&s)
	return s
}

// memory of a plan's line, in bytes; 0 when it has none of that name.
func memory(p *v1alpha1.Plan, use string) int64 {
	for _, m := range p.Memory {
		if m.Use == use {
			return m.Bytes
		}
	}
	return 0
}

func warning(p *v1alpha1.Plan, setting string) string {
	for _, c := range p.Choices {
		if c.Setting == setting {
			return c.Warning
		}
	}
	return ""
}
