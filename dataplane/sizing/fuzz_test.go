// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// FuzzPlan holds Plan to what its comment promises, on any input: it answers
// with a plan or with reasons, never both; the same whatever the order of the
// inventory; it leaves its input alone; a plan of it keeps every drive it
// had, and takes no new one that is not blank or ours; the plan fits the API and
// its own explanation; and a node that follows it is planned the same again.
func FuzzPlan(f *testing.F) {
	for seed := range uint64(64) {
		f.Add(seed, seed*7919, "10.0.0.0/8", "nvme-*", "S*")
	}
	f.Add(uint64(1), uint64(2), "", "**", "")
	f.Add(uint64(3), uint64(4), "::/0", "*a*b*", "\xff")
	f.Fuzz(func(t *testing.T, a, b uint64, network, byID, model string) {
		node, s := randomInput(rand.New(rand.NewPCG(a, b)), network, byID, model)
		beforeNode, beforeSpec := node.Inventory.DeepCopy(), s.DeepCopy()
		plan, reasons := sizing.Plan(node, s)
		if (plan == nil) == (len(reasons) == 0) {
			t.Fatalf("plan %v with reasons %v", plan, reasons)
		}
		for _, r := range reasons {
			if r.Reason == "" || r.Message == "" {
				t.Errorf("a reason is empty: %+v", r)
			}
		}
		if diff := cmp.Diff(beforeNode, node.Inventory); diff != "" {
			t.Errorf("the inventory was changed:\n%s", diff)
		}
		if diff := cmp.Diff(beforeSpec, &s); diff != "" {
			t.Errorf("the spec was changed:\n%s", diff)
		}
		if plan != nil {
			checkPlan(t, node, plan)
			checkStays(t, node, s, plan)
		}

		shuffle(rand.New(rand.NewPCG(b, a)), node.Inventory)
		again, why := sizing.Plan(node, s)
		if diff := cmp.Diff(plan, again); diff != "" {
			t.Errorf("another order of the inventory gives another plan:\n%s", diff)
		}
		if diff := cmp.Diff(reasons, why); diff != "" {
			t.Errorf("another order of the inventory gives other reasons:\n%s", diff)
		}
	})
}

func checkPlan(t *testing.T, node sizing.Node, plan *v1alpha1.Plan) {
	t.Helper()
	if (plan.File == nil) == (len(plan.Drives) == 0) {
		t.Errorf("the pool is not exactly one of file and drives: %v", plan)
	}
	had := map[string]bool{}
	if node.Current != nil {
		for _, d := range node.Current.Drives {
			had[d.ID] = true
			if !slices.ContainsFunc(plan.Drives, func(p v1alpha1.PlannedDrive) bool { return p.ID == d.ID }) {
				t.Errorf("drive %s was dropped", d.ID)
			}
		}
	}
	for _, d := range plan.Drives {
		if had[d.ID] {
			continue
		}
		i := slices.IndexFunc(node.Inventory.Drives, func(have v1alpha1.Drive) bool { return have.ID == d.ID })
		if c := node.Inventory.Drives[i].Content; c != v1alpha1.ContentBlank && c != v1alpha1.ContentWeft {
			t.Errorf("drive %s was taken though its content is %s", d.ID, c)
		}
	}
	if plan.Engine == v1alpha1.EngineSPDK {
		checkSPDK(t, plan)
	} else {
		checkNvmet(t, plan)
	}
	seen := map[v1alpha1.Portal]bool{}
	for _, p := range plan.Portals {
		if _, err := netip.ParseAddr(p.Address); err != nil {
			t.Errorf("portal %v: %v", p, err)
		}
		if seen[p.Portal] {
			t.Errorf("portal %v is there twice", p)
		}
		seen[p.Portal] = true
	}
}

// checkStays: what a node serves is not changed by serving it. Only words may change, with the hugepages that it holds.
func checkStays(t *testing.T, node sizing.Node, s v1alpha1.NvmfTargetSpec, plan *v1alpha1.Plan) {
	t.Helper()
	node.Current = plan
	again, reasons := sizing.Plan(node, s)
	if again == nil {
		t.Fatalf("a node that follows its plan cannot follow it: %v", reasons)
	}
	if diff := cmp.Diff(plan, again, cmpopts.IgnoreFields(v1alpha1.Plan{}, "Choices")); diff != "" {
		t.Errorf("a node that follows its plan gets another (-plan +again):\n%s", diff)
	}
}

func pick[T any](r *rand.Rand, items ...T) T { return items[r.IntN(len(items))] }

func randomInput(r *rand.Rand, network, byID, model string) (sizing.Node, v1alpha1.NvmfTargetSpec) {
	node := sizing.Node{Name: "n", InternalIPs: pick(r, nil, []string{"10.0.0.1"}, []string{"", "fd00::1", "10.0.0.1"})}
	if r.IntN(16) > 0 {
		node.Inventory = randomInventory(r, model)
	}
	if r.IntN(3) == 0 {
		node.Current = &v1alpha1.Plan{Engine: pick(r, v1alpha1.EngineNvmet, v1alpha1.EngineNvmet, v1alpha1.EngineSPDK)}
		for range r.IntN(3) {
			node.Current.Drives = append(node.Current.Drives, v1alpha1.PlannedDrive{ID: pick(r, "a", "b", "gone")})
		}
		if r.IntN(4) == 0 {
			node.Current.File = &v1alpha1.DeviceFile{Path: "/var/lib/weft/p"}
		}
		if node.Current.Engine == v1alpha1.EngineSPDK && r.IntN(4) > 0 {
			node.Current.SPDK = &v1alpha1.SPDKPlan{CoreMask: pick(r, "0x6", "", "0xffffffffffffffffffffff", model), Hugepages: pick(r, v1alpha1.Hugepages2Mi, v1alpha1.Hugepages1Gi, ""), MemoryBytes: r.Int64() >> r.IntN(60)}
			node.Current.Memory = []v1alpha1.MemoryUse{{Use: "pod: maps of volumes", Bytes: r.Int64() >> r.IntN(60)}}
		}
	}
	if r.IntN(8) == 0 {
		node.Allocatable = &sizing.Allocatable{CPUs: r.Int64N(64), MemoryBytes: r.Int64() >> r.IntN(60), HugepageBytes: map[int64]int64{2 << 20: r.Int64() >> r.IntN(40)}}
	}
	s := v1alpha1.NvmfTargetSpec{Engine: pick(r, v1alpha1.EngineNvmet, v1alpha1.EngineSPDK, v1alpha1.EngineSPDK, v1alpha1.EngineSPDK, "")}
	for range r.IntN(4) {
		t := v1alpha1.Transport{Type: pick(r, v1alpha1.TransportTCP, v1alpha1.TransportRDMA, ""), Port: r.Int32N(3)}
		t.Network = pick(r, nil, nil, &v1alpha1.Network{CIDR: network}, &v1alpha1.Network{Interface: pick(r, "e0", "e1", network)})
		if r.IntN(2) == 0 {
			t.InCapsuleDataSize = resource.NewQuantity(sized(r, 512, 4096, 65536), resource.BinarySI)
		}
		if r.IntN(3) == 0 {
			t.MaxIOSize = resource.NewQuantity(sized(r, 8192, 131072, 2<<20), resource.BinarySI)
		}
		if r.IntN(3) == 0 {
			t.QueueDepth, t.MaxIOQueues = int32(sized(r, 16, 128, 1024)), int32(sized(r, 1, 8, 127))
		}
		if r.IntN(3) == 0 {
			t.SRQ = &v1alpha1.SRQ{Mode: pick(r, v1alpha1.SRQAuto, v1alpha1.SRQEnabled, v1alpha1.SRQDisabled, "", "x"), Depth: pick(r, nil, nil, new(int32(sized(r, 16, 1024, 65535))))}
		}
		t.C2HSuccess = pick(r, nil, nil, nil, new(v1alpha1.SwitchDisabled), new(v1alpha1.Switch("x")))
		t.Placement = pick(r, nil, nil, nil, new(v1alpha1.PlacementCPU), new(v1alpha1.PlacementNAPI))
		s.Transports = append(s.Transports, t)
	}
	if r.IntN(3) > 0 {
		s.Devices.Selector = &v1alpha1.DeviceSelector{MinSize: pick(r, nil, resource.NewQuantity(r.Int64(), resource.BinarySI))}
		if r.IntN(2) == 0 {
			s.Devices.Selector.ByID = []string{byID}
		}
		if r.IntN(2) == 0 {
			s.Devices.Selector.Models = []string{model, byID}
		}
	}
	if r.IntN(3) == 0 {
		s.Devices.Classes = []v1alpha1.DeviceClass{{Name: "a", Selector: s.Devices.Selector}, {Name: "b", Paths: []string{"/dev/disk/by-id/" + byID, model}}, {Name: "c"}}
		s.Devices.Selector = nil
	}
	if r.IntN(3) == 0 {
		s.Devices.Paths = []string{"/dev/disk/by-id/" + byID, "/dev/disk/by-id/nvme-a", model}
	}
	if r.IntN(4) == 0 {
		s.Devices.File = &v1alpha1.DeviceFile{Path: pick(r, "/var/lib/weft/p", "/var/lib/weft/q"), Size: *resource.NewQuantity(r.Int64(), resource.BinarySI)}
	}
	if r.IntN(3) == 0 {
		s.Sockets = randomSockets(r)
	}
	if r.IntN(3) == 0 {
		s.Tuning = randomTuning(r, model)
	}
	if s.Engine == v1alpha1.EngineSPDK {
		randomSPDK(r, &s, model)
	}
	return node, s
}

func randomTuning(r *rand.Rand, text string) *v1alpha1.Tuning {
	toggle := func() v1alpha1.Switch { return pick(r, "", v1alpha1.SwitchEnabled, v1alpha1.SwitchDisabled, "x") }
	t := &v1alpha1.Tuning{
		Sysctls:    pick(r, nil, &v1alpha1.TuningSysctls{RmemMax: new(r.Int32()), TCPRmem: &v1alpha1.TCPBuffers{Max: r.Int32()}, TCPSlowStartAfterIdle: toggle()}),
		Rings:      pick(r, nil, &v1alpha1.NICRings{RX: new(r.Int32())}),
		Channels:   pick(r, nil, &v1alpha1.NICChannels{Combined: new(r.Int32())}),
		Coalescing: pick(r, nil, &v1alpha1.NICCoalescing{AdaptiveRX: toggle(), RXUsecs: pick(r, nil, new(r.Int32())), AdaptiveTX: toggle()}),
		Offloads:   pick(r, nil, &v1alpha1.NICOffloads{TSO: toggle(), GRO: toggle()}),
	}
	if r.IntN(2) == 0 {
		cpus := pick(r, "0", "0-3,8", "1000-2000", "5-1", text)
		t.Interrupts = pick(r, &v1alpha1.NICInterrupts{}, &v1alpha1.NICInterrupts{CPUs: cpus}, &v1alpha1.NICInterrupts{Avoid: cpus}, &v1alpha1.NICInterrupts{Count: new(r.Int32N(8))})
	}
	return t
}

func randomSockets(r *rand.Rand) *v1alpha1.Sockets {
	bytes := func() *resource.Quantity {
		return pick(r, nil, nil, resource.NewQuantity(sized(r, 0, 4096, 2<<20), resource.BinarySI))
	}
	toggle := func() *v1alpha1.Switch {
		return pick(r, nil, nil, nil, new(v1alpha1.SwitchEnabled), new(v1alpha1.SwitchDisabled), new(v1alpha1.Switch("x")))
	}
	if r.IntN(2) == 0 {
		return &v1alpha1.Sockets{Priority: pick(r, nil, new(int32(sized(r, 0, 6, 15)))), IdlePollPeriod: pick(r, nil, &metav1.Duration{Duration: time.Duration(sized(r, 0, 5e4, 1e8))})}
	}
	return &v1alpha1.Sockets{ZeroCopySend: toggle(), ReceivePipe: toggle(), QuickAck: toggle(), ZeroCopyThreshold: bytes(), SendBufferSize: bytes(), ReceiveBufferSize: bytes()}
}

// sized is mostly one of the usual numbers, and sometimes any.
func sized(r *rand.Rand, usual ...int64) int64 {
	if r.IntN(16) == 0 {
		return r.Int64()>>r.IntN(63) - r.Int64N(2)
	}
	return usual[r.IntN(len(usual))]
}

func randomSPDK(r *rand.Rand, s *v1alpha1.NvmfTargetSpec, text string) {
	s.Devices.Driver = pick(r, "", "", "", v1alpha1.DriverKernel, v1alpha1.DriverVFIO, v1alpha1.DriverUIO, v1alpha1.DriveDriver(text))
	if r.IntN(2) == 0 {
		s.Attachments = v1alpha1.Attachments{Expected: int32(sized(r, 0, 1, 64, 4096)), IOQueues: int32(sized(r, 0, 1, 8, 127))}
	}
	if r.IntN(2) == 0 {
		s.Cores = &v1alpha1.Cores{Mode: pick(r, "", v1alpha1.CoresStatic, v1alpha1.CoresDynamic, v1alpha1.CoresInterrupt)}
		if r.IntN(2) == 0 {
			s.Cores.Count = new(int32(sized(r, 1, 4, 24)))
		} else {
			s.Cores.Mask = pick(r, "", "0xf0", "0x3", "0xffffff", "0x0", "0xFF00", text)
		}
		if r.IntN(3) == 0 {
			s.Cores.Dynamic = &v1alpha1.DynamicCores{Period: pick(r, nil, &metav1.Duration{Duration: time.Duration(sized(r, 1e6, 1e9))}), LoadLimit: int32(sized(r, 0, 20)), CoreLimit: int32(sized(r, 0, 80, 100)), CoreBusy: int32(sized(r, 0, 95))}
		}
	}
	if r.IntN(3) == 0 {
		s.Buffers = &v1alpha1.Buffers{Mode: pick(r, "", v1alpha1.BuffersAuto, v1alpha1.BuffersManual, v1alpha1.BuffersManual)}
		if r.IntN(4) > 0 {
			s.Buffers.Large = &v1alpha1.LargePool{Count: int32(sized(r, 8, 1024, 8192)), CachePerCore: int32(sized(r, 1, 8, 64))}
			s.Buffers.Small = &v1alpha1.SmallPool{Count: int32(sized(r, 64, 8192, 65536)), CachePerCore: int32(sized(r, 1, 32, 256))}
		}
	}
	if r.IntN(3) == 0 {
		s.Memory = &v1alpha1.Memory{Hugepages: pick(r, "", v1alpha1.Hugepages2Mi, v1alpha1.Hugepages1Gi, v1alpha1.HugepagesDisabled, "x")}
		if r.IntN(2) == 0 {
			s.Memory.Limit = resource.NewQuantity(sized(r, 64<<20, 512<<20, 4<<30), resource.BinarySI)
		}
	}
}

// randomNUMA has up to three nodes, which may be odd in every way: CPUs in two nodes, none at all, lists that are none.
func randomNUMA(r *rand.Rand) []v1alpha1.NUMANode {
	var nodes []v1alpha1.NUMANode
	for id := range int32(r.IntN(4)) {
		first := int(id) * 8
		n := v1alpha1.NUMANode{ID: id, LLCBytes: sized(r, 0, 16<<20, 64<<20), MemoryBytes: sized(r, 0, 8<<30, 64<<30),
			CPUs: pick(r, fmt.Sprintf("%d-%d", first, first+7), fmt.Sprintf("%d-%d", first, first+7), fmt.Sprintf("%d-%d,%d-%d", first, first+7, first+64, first+71), "0-3", "", "x-", "5-99999999999")}
		for core := range r.IntN(9) {
			n.Cores = append(n.Cores, pick(r, fmt.Sprintf("%d,%d", first+core, first+core+64), fmt.Sprint(first+core), "", "nonsense"))
		}
		for _, size := range []int64{2 << 20, 1 << 30} {
			if r.IntN(8) > 0 {
				n.Hugepages = append(n.Hugepages, v1alpha1.HugepagePool{SizeBytes: size, Total: sized(r, 0, 16, 4096), Free: sized(r, 0, 16, 4096)})
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func randomInventory(r *rand.Rand, model string) *v1alpha1.Inventory {
	inv := &v1alpha1.Inventory{NUMANodes: randomNUMA(r)}
	for _, m := range []string{"nvmet", "nvmet_tcp", "nvmet_rdma", "xfs", "loop", "vfio_pci", "uio_pci_generic"} {
		if r.IntN(8) > 0 {
			inv.Modules = append(inv.Modules, m)
		}
	}
	for _, name := range []string{"e0", "e1", "e0.1"} {
		if r.IntN(4) > 0 {
			inv.NICs = append(inv.NICs, v1alpha1.NIC{Name: name, Up: r.IntN(2) == 0, SpeedMbps: sized(r, 0, 25_000, 100_000),
				NUMANode: pick(r, nil, new(int32(r.IntN(3)))), RxQueues: int32(sized(r, 0, 4, 64)),
				Addresses: pick(r, nil, []string{"10.0.0.1/8"}, []string{"10.0.1.1/8", "fd00::1/64"}, []string{"nonsense"}),
				// A loop of interfaces cannot be; the walk must end all the same.
				Lower: pick(r, nil, []string{"e0"}, []string{"e0.1", "e1"}, []string{name})})
		}
	}
	for _, name := range []string{"mlx5_0", "rxe0"} {
		if r.IntN(2) == 0 {
			inv.RDMADevices = append(inv.RDMADevices, v1alpha1.RDMADevice{Name: name, Netdev: pick(r, "", "e0", "e1"), Active: r.IntN(2) == 0, MaxSRQ: sized(r, 0, 2, 65536), MaxSRQWR: sized(r, 0, 1024, 32767)})
		}
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		if r.IntN(3) > 0 {
			inv.Drives = append(inv.Drives, v1alpha1.Drive{ID: id, Name: "nvme" + id, NVMe: r.IntN(4) > 0, Model: pick(r, model, "SAMSUNG"), Serial: pick(r, "", "S"+id),
				ByID: pick(r, nil, []string{"nvme-" + id, "nvme-x"}), SizeBytes: r.Int64N(1 << 41),
				NUMANode: pick(r, nil, new(int32(r.IntN(3)))), PCIAddress: pick(r, "0000:0"+id+":00.0", "0000:0a:00.0", "", model),
				ContentDetail: pick(r, "", v1alpha1.DetailSPDKPool, v1alpha1.DetailNvmetPool),
				Content:       pick(r, v1alpha1.ContentBlank, v1alpha1.ContentWeft, v1alpha1.ContentForeign, v1alpha1.ContentUnknown, "")})
		}
	}
	return inv
}

func shuffle(r *rand.Rand, inv *v1alpha1.Inventory) {
	if inv == nil {
		return
	}
	r.Shuffle(len(inv.NUMANodes), func(i, j int) { inv.NUMANodes[i], inv.NUMANodes[j] = inv.NUMANodes[j], inv.NUMANodes[i] })
	r.Shuffle(len(inv.Modules), func(i, j int) { inv.Modules[i], inv.Modules[j] = inv.Modules[j], inv.Modules[i] })
	r.Shuffle(len(inv.NICs), func(i, j int) { inv.NICs[i], inv.NICs[j] = inv.NICs[j], inv.NICs[i] })
	r.Shuffle(len(inv.RDMADevices), func(i, j int) {
		inv.RDMADevices[i], inv.RDMADevices[j] = inv.RDMADevices[j], inv.RDMADevices[i]
	})
	r.Shuffle(len(inv.Drives), func(i, j int) { inv.Drives[i], inv.Drives[j] = inv.Drives[j], inv.Drives[i] })
}

// FuzzPlanOfSPDK does the same around a machine and targets that are mostly sound, so that most inputs give a plan.
func FuzzPlanOfSPDK(f *testing.F) {
	for seed := range uint64(256) {
		f.Add(seed, seed*7919, "0xf0")
	}
	f.Add(uint64(254), uint64(1932236), "00000%!")
	f.Fuzz(func(t *testing.T, a, b uint64, text string) {
		r := rand.New(rand.NewPCG(a, b))
		node := bigServer()
		soundSpec := func() v1alpha1.NvmfTargetSpec {
			s := spdk(selector(v1alpha1.DeviceSelector{Models: []string{"*"}}))
			s.Transports = nil
			for i := range 1 + r.IntN(3) {
				s.Transports = append(s.Transports, randomTransport(r, int32(4420+i), pick(r, nil, iface("ens1f0"), iface("ens1f0"), iface("ens2f0"), iface("eno1"))))
			}
			randomSPDK(r, &s, text)
			return s
		}
		disturb(r, node.Inventory)
		if r.IntN(3) == 0 {
			node.Current, _ = sizing.Plan(node, soundSpec())
		}
		if r.IntN(4) == 0 {
			node.Inventory.Drives = nil // SPDK has them
		}
		s := soundSpec()
		plan, reasons := sizing.Plan(node, s)
		if (plan == nil) == (len(reasons) == 0) {
			t.Fatalf("plan %v with reasons %v", plan, reasons)
		}
		for _, reason := range reasons {
			// A message that repeats what was written may have what looks like a slip of fmt's.
			if reason.Reason == "" || reason.Message == "" || strings.Contains(reason.Message, "%!") && !strings.Contains(text, "%!") {
				t.Errorf("reason %+v", reason)
			}
		}
		if plan != nil {
			checkPlan(t, node, plan)
			checkStays(t, node, s, plan)
		}
		shuffle(r, node.Inventory)
		if again, _ := sizing.Plan(node, s); !cmp.Equal(plan, again) {
			t.Errorf("another order of the inventory gives another plan:\n%s", cmp.Diff(plan, again))
		}
	})
}

// randomTransport differs from the default in few things, and so agrees with others of its type often enough.
func randomTransport(r *rand.Rand, port int32, n *v1alpha1.Network) v1alpha1.Transport {
	t := pick(r, tcp, tcp, rdma)(port, n)
	if r.IntN(4) == 0 {
		t.QueueDepth, t.MaxIOQueues = int32(sized(r, 16, 128, 1024)), int32(sized(r, 1, 8, 127))
	}
	if r.IntN(4) == 0 {
		t.InCapsuleDataSize, t.MaxIOSize = resource.NewQuantity(sized(r, 0, 8192), resource.BinarySI), resource.NewQuantity(sized(r, 8192, 131072, 2<<20), resource.BinarySI)
	}
	if t.Type == v1alpha1.TransportRDMA && r.IntN(4) == 0 {
		t.SRQ = &v1alpha1.SRQ{Mode: pick(r, v1alpha1.SRQAuto, v1alpha1.SRQEnabled, v1alpha1.SRQDisabled), Depth: pick(r, nil, new(int32(sized(r, 16, 1024, 65535))))}
	}
	return t
}

// disturb changes a few things of a machine.
func disturb(r *rand.Rand, inv *v1alpha1.Inventory) {
	if r.IntN(4) == 0 {
		inv.NUMANodes = randomNUMA(r)
	}
	for i := range inv.NICs {
		if r.IntN(3) == 0 {
			inv.NICs[i].SpeedMbps, inv.NICs[i].RxQueues, inv.NICs[i].NUMANode = sized(r, 0, 1000, 400_000), int32(sized(r, 0, 2, 8)), pick(r, nil, new(int32(r.IntN(3))))
		}
	}
	for i := range inv.RDMADevices {
		inv.RDMADevices[i].MaxSRQ, inv.RDMADevices[i].MaxSRQWR = sized(r, 0, 2, 65536), sized(r, 0, 1024, 32767)
	}
	for i := range inv.NUMANodes {
		n := &inv.NUMANodes[i]
		n.LLCBytes = sized(r, n.LLCBytes, n.LLCBytes, 0, 4<<20)
		for j := range n.Hugepages {
			n.Hugepages[j].Total = sized(r, 1<<20, 4096, 64)
			n.Hugepages[j].Free = n.Hugepages[j].Total
		}
	}
	for i := range inv.Drives {
		d := &inv.Drives[i]
		d.SizeBytes = sized(r, 1<<40, 16<<40)
		d.Content, d.ContentDetail = pick(r, v1alpha1.ContentBlank, v1alpha1.ContentBlank, v1alpha1.ContentWeft, v1alpha1.ContentForeign), pick(r, v1alpha1.DetailSPDKPool, v1alpha1.DetailSPDKPool, "")
		d.NUMANode = pick(r, nil, new(int32(r.IntN(2))))
	}
}
