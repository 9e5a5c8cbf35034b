// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// bigServer is a storage node for SPDK: two sockets of 16 cores with two threads each, a NIC of 100 Gb/s and four
// drives on the second one, and 8 GiB of hugepages on each.
func bigServer() sizing.Node {
	inv := &v1alpha1.Inventory{
		KernelVersion: "6.12.0",
		Modules:       []string{"nvmet", "nvmet_rdma", "nvmet_tcp", "uio_pci_generic", "vfio_pci", "xfs"},
		NICs: []v1alpha1.NIC{
			{Name: "eno1", Addresses: []string{"192.0.2.5/24"}, Up: true, SpeedMbps: 10_000, NUMANode: new(int32(0)), RxQueues: 8},
			{Name: "ens1f0", Addresses: []string{"10.20.0.5/16"}, Up: true, SpeedMbps: 100_000, NUMANode: new(int32(1)), RxQueues: 64},
		},
		RDMADevices: []v1alpha1.RDMADevice{{Name: "mlx5_0", Netdev: "ens1f0", Active: true, NUMANode: new(int32(1)), MaxSRQ: 1 << 16, MaxSRQWR: 32767}},
	}
	for node := range int32(2) {
		n := v1alpha1.NUMANode{
			ID: node, CPUs: fmt.Sprintf("%d-%d,%d-%d", node*16, node*16+15, node*16+32, node*16+47), LLCBytes: 48 << 20, MemoryBytes: 128 * gib,
			Hugepages: []v1alpha1.HugepagePool{{SizeBytes: 2 << 20, Total: 4096, Free: 4096}, {SizeBytes: gib, Total: 8, Free: 8}},
		}
		for core := range int32(16) {
			n.Cores = append(n.Cores, fmt.Sprintf("%d,%d", node*16+core, node*16+core+32))
		}
		inv.NUMANodes = append(inv.NUMANodes, n)
	}
	for i := range 4 {
		inv.Drives = append(inv.Drives, v1alpha1.Drive{
			ID: fmt.Sprintf("eui.%d", i), Name: fmt.Sprintf("nvme%dn1", i), NVMe: true, Model: "SAMSUNG PM9A3", Serial: fmt.Sprintf("S%d", i), SizeBytes: 1920 * gib,
			NUMANode: new(int32(1)), PCIAddress: fmt.Sprintf("0000:d%d:00.0", i), Content: v1alpha1.ContentBlank, ByID: []string{fmt.Sprintf("nvme-eui.%d", i)},
		})
	}
	return sizing.Node{Name: "storage-1", InternalIPs: []string{"192.0.2.5"}, Inventory: inv}
}

func spdk(edits ...func(*v1alpha1.NvmfTargetSpec)) v1alpha1.NvmfTargetSpec {
	return spec(append([]func(*v1alpha1.NvmfTargetSpec){
		func(s *v1alpha1.NvmfTargetSpec) { s.Engine = v1alpha1.EngineSPDK }, transports(tcp(4420, iface("ens1f0"))),
	}, edits...)...)
}

// planned is the plan of a node that can serve.
func planned(t *testing.T, node sizing.Node, s v1alpha1.NvmfTargetSpec) *v1alpha1.Plan {
	t.Helper()
	p, reasons := sizing.Plan(node, s)
	if p == nil {
		t.Fatalf("no plan: %v", reasons)
	}
	return p
}

func TestPlanOfSPDK(t *testing.T) {
	p := planned(t, bigServer(), spdk())
	got := *p.SPDK
	want := v1alpha1.SPDKPlan{
		// 8 cores for 100 Gb/s of TCP, on the NIC's NUMA node.
		CoreMask: "0xff0000", Mode: v1alpha1.CoresDynamic,
		Scheduler: &v1alpha1.PlannedScheduler{PeriodMicroseconds: 1_000_000, LoadLimit: 20, CoreLimit: 80, CoreBusy: 95},
		Hugepages: v1alpha1.Hugepages2Mi, MemoryBytes: got.MemoryBytes, PodMemoryBytes: got.PodMemoryBytes,
		// 64 volumes x 2 queues x 128 commands x 2, and 256 for each of 8 + 2 threads.
		BdevIOPoolSize: 32768 + 2560, SmallBuffers: got.SmallBuffers, LargeBuffers: got.LargeBuffers, MaxSubsystems: 4097,
		Transports: []v1alpha1.PlannedTransport{{
			Type: v1alpha1.TransportTCP, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: 4096, MaxIOSize: 131072,
			SmallCache: got.Transports[0].SmallCache, LargeCache: got.Transports[0].LargeCache,
		}},
		Placement: v1alpha1.PlacementNone, Driver: v1alpha1.DriverKernel,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if got.MemoryBytes%(2<<20) != 0 {
		t.Errorf("memory of %d bytes is not whole pages", got.MemoryBytes)
	}
}
