// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// SPDK's own driver takes drives from the kernel, and so from the inventory. The plan that follows is the same, to the
// last number: anything else would restart the target it describes.
func TestPlanOfSPDKStaysWhenItsDrivesAreTaken(t *testing.T) {
	noNUMA := func(n *sizing.Node) {
		for i := range n.Inventory.NICs {
			n.Inventory.NICs[i].NUMANode = nil
		}
	}
	for name, nics := range map[string]func(*sizing.Node){"near the NIC": func(*sizing.Node) {}, "near the drives": noNUMA} {
		t.Run(name, func(t *testing.T) {
			s := spdk(driver(v1alpha1.DriverVFIO), count(4))
			before := planned(t, bigServer(nics), s)
			for i, d := range before.Drives {
				if want := fmt.Sprintf("0000:d%d:00.0", i); d.PCIAddress != want {
					t.Errorf("drive %s: got address %q, want %q", d.ID, d.PCIAddress, want)
				}
			}
			node := bigServer(nics)
			node.Inventory.Drives, node.Current = nil, before
			pages := before.SPDK.MemoryBytes / page2Mi
			node.Inventory.NUMANodes[1].Hugepages[0].Free -= pages
			taken := planned(t, node, s)
			if diff := cmp.Diff(before, taken); diff != "" {
				t.Errorf("another plan (-before +after):\n%s", diff)
			}

			// A drive that comes later gets its memory as well, and again nothing moves when it is taken.
			node.Current = taken
			node.Inventory.Drives = []v1alpha1.Drive{{ID: "eui.new", Name: "nvme9n1", NVMe: true, Model: "SAMSUNG", SizeBytes: 7680 * gib, PCIAddress: "0000:e0:00.0", Content: v1alpha1.ContentBlank}}
			more := planned(t, node, s)
			const maps = "pod: maps of volumes"
			if got, want := memoryOf(t, more, maps)-memoryOf(t, before, maps), int64(7680*1024*16*2); got != want {
				t.Errorf("the new drive adds %d bytes of maps, want %d", got, want)
			}
			node.Current, node.Inventory.Drives = more, nil
			if diff := cmp.Diff(more, planned(t, node, s)); diff != "" {
				t.Errorf("another plan once the new drive is taken (-before +after):\n%s", diff)
			}
		})
	}
}

// A drive that took the place of a planned one is planned at its address, and the one before at none; it keeps its
// place in the plan, since its volumes may come back with it.
func TestPlanOfSPDKWithASwappedDrive(t *testing.T) {
	s := spdk(driver(v1alpha1.DriverVFIO), count(4))
	node := bigServer()
	node.Current = planned(t, node, s)
	swapped := &node.Inventory.Drives[0]
	swapped.ID, swapped.ByID = "eui.new", []string{"nvme-eui.new"}
	addresses := func(p *v1alpha1.Plan) map[string]string {
		found := map[string]string{}
		for _, d := range p.Drives {
			found[d.ID] = d.PCIAddress
		}
		return found
	}
	want := map[string]string{"eui.0": "", "eui.1": "0000:d1:00.0", "eui.2": "0000:d2:00.0", "eui.3": "0000:d3:00.0", "eui.new": "0000:d0:00.0"}
	node.Current = planned(t, node, s)
	if diff := cmp.Diff(want, addresses(node.Current)); diff != "" {
		t.Fatalf("addresses (-want +got):\n%s", diff)
	}
	node.Inventory.Drives = nil // SPDK has them
	if diff := cmp.Diff(want, addresses(planned(t, node, s))); diff != "" {
		t.Errorf("addresses once the drives are taken (-want +got):\n%s", diff)
	}
	back := bigServer().Inventory.Drives[0]
	back.PCIAddress = "0000:d9:00.0"
	node.Inventory.Drives = []v1alpha1.Drive{back}
	want["eui.0"] = "0000:d9:00.0"
	if diff := cmp.Diff(want, addresses(planned(t, node, s))); diff != "" {
		t.Errorf("addresses once the drive is back (-want +got):\n%s", diff)
	}
	// One that is not to be the pool's disturbs nothing: the target pod is not made again for it.
	node = bigServer()
	node.Current = planned(t, node, s)
	node.Inventory.Drives[0].ID, node.Inventory.Drives[0].Model = "eui.new", "OTHER"
	if diff := cmp.Diff(node.Current.Drives, planned(t, node, spdk(driver(v1alpha1.DriverVFIO), count(4), func(s *v1alpha1.NvmfTargetSpec) { s.Devices.Selector.Models = []string{"SAMSUNG*"} })).Drives); diff != "" {
		t.Errorf("drives (-want +got):\n%s", diff)
	}
}

// A drive that was given up leaves the plan, and is not taken again when it comes back, blank or with its pool.
func TestPlanOfADroppedDrive(t *testing.T) {
	node := bigServer()
	node.Current = planned(t, node, spdk())
	node.Dropped = []string{"eui.0"}
	for _, content := range []v1alpha1.DriveContent{v1alpha1.ContentBlank, v1alpha1.ContentWeft} {
		node.Inventory.Drives[0].Content, node.Inventory.Drives[0].ContentDetail = content, v1alpha1.DetailSPDKPool
		if diff := cmp.Diff([]string{"eui.1", "eui.2", "eui.3"}, driveIDs(planned(t, node, spdk()))); diff != "" {
			t.Errorf("%s: drives (-want +got):\n%s", content, diff)
		}
	}
	node.Dropped = nil
	if ids := driveIDs(planned(t, node, spdk())); len(ids) != 4 {
		t.Errorf("once it is named no more: drives %v", ids)
	}
}

func TestPlanOfSPDKWithTheKernelsDrivers(t *testing.T) {
	node := bigServer()
	// Given back by SPDK's own driver, or not yet: the kernel's driver needs no address.
	node.Current = &v1alpha1.Plan{Engine: v1alpha1.EngineSPDK, Drives: []v1alpha1.PlannedDrive{{ID: "eui.0", PCIAddress: "0000:d0:00.0"}, {ID: "gone", PCIAddress: "0000:d9:00.0"}}}
	for _, d := range planned(t, node, spdk()).Drives {
		if d.PCIAddress != "" {
			t.Errorf("drive %s has the address %s", d.ID, d.PCIAddress)
		}
	}
	node = bigServer()
	p := planned(t, node, spdk(file("/var/lib/weft/pool.img")))
	if p.File == nil || p.Drives != nil || p.SPDK.Driver != v1alpha1.DriverKernel {
		t.Errorf("got file %v, drives %v, driver %s", p.File, p.Drives, p.SPDK.Driver)
	}
}

func TestPlanOfSPDKTakesItsOwnPools(t *testing.T) {
	node := bigServer()
	for i := range node.Inventory.Drives {
		d := &node.Inventory.Drives[i]
		d.Content, d.ContentDetail = v1alpha1.ContentWeft, []string{v1alpha1.DetailSPDKPool, v1alpha1.DetailNvmetPool, "", v1alpha1.DetailSPDKPool}[i]
	}
	if diff := cmp.Diff([]string{"eui.0", "eui.3"}, driveIDs(planned(t, node, spdk()))); diff != "" {
		t.Errorf("drives (-want +got):\n%s", diff)
	}
}

// A controller with two namespaces can be taken when both are the pool's.
func TestPlanOfSPDKTakesBothNamespacesOfAController(t *testing.T) {
	node := bigServer()
	node.Inventory.Drives[1].PCIAddress = node.Inventory.Drives[0].PCIAddress
	p := planned(t, node, spdk(driver(v1alpha1.DriverUIO)))
	if len(p.Drives) != 4 || p.Drives[0].PCIAddress != p.Drives[1].PCIAddress {
		t.Errorf("got %v", p.Drives)
	}
}

func TestPlanOfSPDKSizesSharedReceiveQueues(t *testing.T) {
	device := func(srqs, depth int64) func(*sizing.Node) {
		return func(n *sizing.Node) {
			n.Inventory.RDMADevices[0].MaxSRQ, n.Inventory.RDMADevices[0].MaxSRQWR = srqs, depth
		}
	}
	for name, test := range map[string]struct {
		node  func(*sizing.Node)
		srq   v1alpha1.SRQ
		load  edit
		want  int32 // 0: none
		why   []string
		warns []string
	}{
		"by what can be outstanding":        {srq: v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled}, load: attachments(64, 2), want: 4096, why: []string{"128 queues over 4 poll groups x depth 128 is 4096"}},
		"queues in whole ones":              {srq: v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled}, load: attachments(5, 1), want: 256},
		"as deep as asked":                  {srq: v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled, Depth: new(int32(1000))}, load: attachments(64, 2), want: 1000, why: []string{"set by srq.depth"}, warns: []string{"128 queues over 4 poll groups x depth 128 can have 4096", "receiver not ready"}},
		"asked to be as deep as it need be": {srq: v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled, Depth: new(int32(4096))}, load: attachments(64, 2), want: 4096},
		"within the device":                 {srq: v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled}, load: attachments(4096, 2), want: 32767, why: []string{"device's max_srq_wr"}, warns: []string{"receiver not ready"}},
		"within 16 bits":                    {node: device(1<<16, 1<<20), srq: v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled}, load: attachments(4096, 2), want: 65535, why: []string{"16 bits"}, warns: []string{"receiver not ready"}},
		"within SPDK's own when not known":  {node: device(0, 0), srq: v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled}, load: attachments(128, 2), want: 4096, why: []string{"max_srq_wr is unknown"}, warns: []string{"are unknown", "ibv_devinfo"}},
		"small when not known":              {node: device(0, 0), srq: v1alpha1.SRQ{Mode: v1alpha1.SRQEnabled}, load: attachments(16, 2), want: 1024, warns: []string{"are unknown"}},
		"Auto, with many hosts":             {srq: v1alpha1.SRQ{Mode: v1alpha1.SRQAuto}, load: attachments(64, 2), want: 4096, why: []string{"89.3 MiB", "101 MiB", "cheaper"}},
		"Auto, with one":                    {srq: v1alpha1.SRQ{Mode: v1alpha1.SRQAuto}, load: attachments(1, 1), want: 0, why: []string{"own", "cheaper"}},
		"Auto, without enough of them":      {node: device(3, 1024), srq: v1alpha1.SRQ{Mode: v1alpha1.SRQAuto}, load: attachments(64, 2), want: 0, why: []string{"mlx5_0 has 3", "4 poll groups"}},
		"Auto, on two devices that SPDK sees": {node: func(n *sizing.Node) {
			n.Inventory.RDMADevices = append(n.Inventory.RDMADevices, v1alpha1.RDMADevice{Name: "mlx5_1", MaxSRQ: 9999, MaxSRQWR: 32767})
		}, srq: v1alpha1.SRQ{Mode: v1alpha1.SRQAuto}, load: attachments(64, 2), want: 0, why: []string{"4 poll groups x 2 devices"}},
		"Disabled": {srq: v1alpha1.SRQ{Mode: v1alpha1.SRQDisabled}, load: attachments(64, 2), want: 0, why: []string{"Disabled"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := bigServer()
			if test.node != nil {
				test.node(&node)
			}
			tr := rdma(4420, iface("ens1f0"))
			tr.SRQ = &test.srq
			p := planned(t, node, spdk(transports(tr), count(4), test.load, hugepages(v1alpha1.Hugepages1Gi)))
			got := int32(0)
			if depth := p.SPDK.Transports[0].SRQDepth; depth != nil {
				got = *depth
			}
			if got != test.want {
				t.Errorf("got a depth of %d, want %d", got, test.want)
			}
			c := choice(t, p, "transports[RDMA].srqDepth")
			says(t, "why", c.Why, test.why...)
			says(t, "warning", c.Warning, test.warns...)
			if len(test.warns) == 0 && c.Warning != "" {
				t.Errorf("unexpected warning: %s", c.Warning)
			}
		})
	}
}

func TestPlanOfSPDKSizesBuffers(t *testing.T) {
	big := tcp(4420, iface("ens1f0"))
	big.MaxIOSize = new(resource.MustParse("1Mi"))
	for name, test := range map[string]struct {
		node         func(*sizing.Node)
		edits        []edit
		large, cache int32
		why, warns   []string
	}{
		"within the last-level cache": {node: func(n *sizing.Node) { n.Inventory.NUMANodes[1].LLCBytes = 16 << 20 }, edits: []edit{count(4)}, large: 20 + 160, cache: 5,
			warns: []string{"6.0 MiB in flight", "room for 2.9 MiB"}},
		"a cache that is not known":         {node: func(n *sizing.Node) { n.Inventory.NUMANodes[1].LLCBytes = 0 }, edits: []edit{count(4)}, large: 48 + 160, cache: 12, warns: []string{"last-level cache is unknown"}},
		"I/Os of several buffers":           {edits: []edit{transports(big), count(4)}, large: 128 + 160, cache: 32, why: []string{"128 for the data in flight"}},
		"a slow link":                       {edits: []edit{transports(tcp(4420, iface("eno1"))), count(2)}, large: 8 + 96, cache: 4},
		"a link of unknown speed":           {edits: []edit{transports(tcp(4420, iface("ens2f0"))), count(4)}, large: 1024, cache: 108, why: []string{"SPDK's default", "link speed of TCP is unknown"}},
		"drives of unknown latency":         {node: func(n *sizing.Node) { n.Inventory.Drives[2].NVMe = false }, edits: []edit{paths("/dev/disk/by-id/nvme-eui.2"), count(4)}, large: 1024, cache: 108, why: []string{"not consist of NVMe drives only"}},
		"so many poll groups, speed unsaid": {edits: []edit{transports(tcp(4420, iface("ens2f0"))), count(48)}, large: 1568 + 192, cache: 2, why: []string{"more than SPDK's default of 1024"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := bigServer()
			if test.node != nil {
				test.node(&node)
			}
			p := planned(t, node, spdk(test.edits...))
			if p.SPDK.LargeBuffers != test.large || p.SPDK.Transports[0].LargeCache != test.cache {
				t.Errorf("got %d large buffers and a cache of %d, want %d and %d", p.SPDK.LargeBuffers, p.SPDK.Transports[0].LargeCache, test.large, test.cache)
			}
			c := choice(t, p, "largeBuffers")
			says(t, "why", c.Why, test.why...)
			says(t, "warning", c.Warning, test.warns...)
			if len(test.warns) == 0 && c.Warning != "" {
				t.Errorf("unexpected warning: %s", c.Warning)
			}
		})
	}
	// Two transports on one link: each can fill it, and both have room beside bdev and accel.
	p := planned(t, bigServer(), spdk(transports(rdma(4420, iface("ens1f0")), tcp(4420, iface("ens1f0"))), count(4)))
	if p.SPDK.Transports[0].LargeCache < 1 || p.SPDK.LargeBuffers < 160+4*(p.SPDK.Transports[0].LargeCache+p.SPDK.Transports[1].LargeCache) {
		t.Errorf("got %d large buffers for %v", p.SPDK.LargeBuffers, p.SPDK.Transports)
	}
}
