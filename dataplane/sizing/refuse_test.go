// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

func TestPlanOfSPDKSaysWhyNot(t *testing.T) {
	fast := iface("ens1f0")
	with := func(tr v1alpha1.Transport, change func(*v1alpha1.Transport)) v1alpha1.Transport {
		change(&tr)
		return tr
	}
	srq := func(mode v1alpha1.SRQMode, depth int32) v1alpha1.Transport {
		return with(rdma(4420, fast), func(tr *v1alpha1.Transport) {
			tr.SRQ = &v1alpha1.SRQ{Mode: mode}
			if depth > 0 {
				tr.SRQ.Depth = &depth
			}
		})
	}
	dynamic := func(d v1alpha1.DynamicCores) edit {
		return func(s *v1alpha1.NvmfTargetSpec) {
			s.Cores = &v1alpha1.Cores{Count: new(int32(4)), Mode: v1alpha1.CoresDynamic, Dynamic: &d}
		}
	}
	buffers := func(b v1alpha1.Buffers) edit { return func(s *v1alpha1.NvmfTargetSpec) { s.Buffers = &b } }
	manual := func(large, largeCache, small, smallCache int32) edit {
		return buffers(v1alpha1.Buffers{Mode: v1alpha1.BuffersManual, Large: &v1alpha1.LargePool{Count: large, CachePerCore: largeCache}, Small: &v1alpha1.SmallPool{Count: small, CachePerCore: smallCache}})
	}
	one := func(reason string, words ...string) []refusal { return []refusal{{reason, words}} }
	for name, test := range map[string]struct {
		node  func(*sizing.Node)
		edits []edit
		want  []refusal
	}{
		"no inventory": {node: func(n *sizing.Node) { n.Inventory = nil }, want: one(v1alpha1.ReasonNoInventory, "weft-agent pod")},
		"balance in another mode": {edits: []edit{func(s *v1alpha1.NvmfTargetSpec) {
			s.Cores = &v1alpha1.Cores{Count: new(int32(4)), Mode: v1alpha1.CoresDynamic, Balance: true}
		}}, want: one(v1alpha1.ReasonInvalidSetting, "cores.balance requires cores.mode: Static", "set mode: Static")},
		"no CPUs": {node: func(n *sizing.Node) { n.Inventory.NUMANodes = nil }, want: one(v1alpha1.ReasonNoInventory, "lists no CPUs")},

		"transports of one type that differ in depth":       {edits: []edit{transports(tcp(4420, fast), with(tcp(4421, fast), func(tr *v1alpha1.Transport) { tr.QueueDepth = 64 }))}, want: one(v1alpha1.ReasonInvalidSetting, "transports[0] and transports[1] are both TCP", "queueDepth", "one transport of each type")},
		"transports of one type that differ in queues":      {edits: []edit{transports(tcp(4420, fast), with(tcp(4421, fast), func(tr *v1alpha1.Transport) { tr.MaxIOQueues = 4 }))}, want: one(v1alpha1.ReasonInvalidSetting, "maxIOQueues")},
		"transports of one type that differ in capsules":    {edits: []edit{transports(tcp(4420, fast), with(tcp(4421, fast), func(tr *v1alpha1.Transport) { tr.InCapsuleDataSize = new(resource.MustParse("8Ki")) }))}, want: one(v1alpha1.ReasonInvalidSetting, "inCapsuleDataSize")},
		"transports of one type that differ in the largest": {edits: []edit{transports(tcp(4420, fast), with(tcp(4421, fast), func(tr *v1alpha1.Transport) { tr.MaxIOSize = new(resource.MustParse("1Mi")) }))}, want: one(v1alpha1.ReasonInvalidSetting, "maxIOSize")},
		"transports of one type that differ in placement":   {edits: []edit{transports(tcp(4420, fast), with(tcp(4421, fast), func(tr *v1alpha1.Transport) { tr.Placement = new(v1alpha1.PlacementCPU) }))}, want: one(v1alpha1.ReasonInvalidSetting, "placement")},
		"transports of one type that differ in srq":         {edits: []edit{transports(rdma(4421, fast), srq(v1alpha1.SRQDisabled, 0))}, want: one(v1alpha1.ReasonInvalidSetting, "transports[0] and transports[1] are both RDMA", "srq")},
		"transports of one type that differ in srq's depth": {edits: []edit{transports(with(srq(v1alpha1.SRQAuto, 512), func(tr *v1alpha1.Transport) { tr.Port = 4421 }), srq(v1alpha1.SRQAuto, 1024))}, want: one(v1alpha1.ReasonInvalidSetting, "srq")},
		"a capsule over the largest I/O": {edits: []edit{transports(with(tcp(4420, fast), func(tr *v1alpha1.Transport) {
			tr.InCapsuleDataSize, tr.MaxIOSize = new(resource.MustParse("16Ki")), new(resource.MustParse("8Ki"))
		}))}, want: one(v1alpha1.ReasonInvalidSetting, "greater than maxIOSize", "8192 or less")},
		"a depth that is none":           {edits: []edit{transports(with(tcp(4420, fast), func(tr *v1alpha1.Transport) { tr.QueueDepth = 8 }))}, want: one(v1alpha1.ReasonInvalidSetting, "queueDepth", "16 to 1024")},
		"an I/O that is no power of two": {edits: []edit{transports(with(tcp(4420, fast), func(tr *v1alpha1.Transport) { tr.MaxIOSize = new(resource.MustParse("100Ki")) }))}, want: one(v1alpha1.ReasonInvalidSetting, "power of two")},
		"RDMA without a device":          {edits: []edit{transports(rdma(4420, iface("eno1")))}, want: one(v1alpha1.ReasonNoRDMADevice, "eno1")},
		"SRQs deeper than the device's":  {edits: []edit{transports(srq(v1alpha1.SRQEnabled, 40000))}, want: one(v1alpha1.ReasonInvalidSetting, "srq.depth is 40000", "use 32767 or less")},
		"SRQs deeper than 16 bits":       {edits: []edit{transports(srq(v1alpha1.SRQEnabled, 70000))}, want: one(v1alpha1.ReasonInvalidSetting, "srq.depth", "16 bits")},
		"no core for connections":        {edits: []edit{count(1), mainCore(v1alpha1.MainCoreDedicated)}, want: one(v1alpha1.ReasonInvalidSetting, "cores.mainCore is Dedicated", "only CPU 16", "two cores or more, or Shared")},
		"more poll groups than SRQs":     {node: func(n *sizing.Node) { n.Inventory.RDMADevices[0].MaxSRQ = 3 }, edits: []edit{transports(srq(v1alpha1.SRQEnabled, 0)), count(4)}, want: one(v1alpha1.ReasonInvalidSetting, "mlx5_0 has 3", "4 poll groups", "cores.count 3")},
		"more cores than there are":      {edits: []edit{count(64)}, want: one(v1alpha1.ReasonNotEnoughCPUs, "63 CPUs besides CPU 0", "cores.count from 1 to 63")},
		"more cores than the only one": {node: func(n *sizing.Node) {
			n.Inventory.NUMANodes = []v1alpha1.NUMANode{{CPUs: "0-1", Cores: []string{"0", "1"}}}
		}, edits: []edit{count(2)}, want: one(v1alpha1.ReasonNotEnoughCPUs, "has 1 CPU besides CPU 0", "use cores.count 1, or")},
		"only CPU 0": {node: func(n *sizing.Node) { n.Inventory.NUMANodes = []v1alpha1.NUMANode{{CPUs: "0", Cores: []string{"0"}}} }, want: one(v1alpha1.ReasonNotEnoughCPUs, "has only CPU 0", "set cores.mask to 0x1")},
		"more cores than the kubelet gives": {node: func(n *sizing.Node) {
			n.Allocatable = &sizing.Allocatable{CPUs: 3, HugepageBytes: map[int64]int64{page2Mi: 16 * gib}}
		}, edits: []edit{count(4)}, want: one(v1alpha1.ReasonNotEnoughCPUs, "4 whole CPUs (16-19)", "can allocate 3")},
		"a mask outside of the node":             {edits: []edit{mask("0x30000000000000000")}, want: one(v1alpha1.ReasonNotEnoughCPUs, "CPUs that the node does not have (64-65)", "0-63")},
		"a mask that is none":                    {edits: []edit{mask("0xg")}, want: one(v1alpha1.ReasonInvalidSetting, `"0xg"`, "0xf0")},
		"a mode that is none":                    {edits: []edit{coreMode("Lazy")}, want: one(v1alpha1.ReasonInvalidSetting, `"Lazy"`, "Interrupt")},
		"a scheduler that never wakes":           {edits: []edit{dynamic(v1alpha1.DynamicCores{Period: &metav1.Duration{Duration: time.Hour}})}, want: one(v1alpha1.ReasonInvalidSetting, "period is 1h0m0s", "1ms to 1m")},
		"a limit that is no percentage":          {edits: []edit{dynamic(v1alpha1.DynamicCores{CoreLimit: 101})}, want: one(v1alpha1.ReasonInvalidSetting, "coreLimit is 101", "1 to 100")},
		"interrupts of drives behind UIO":        {edits: []edit{coreMode(v1alpha1.CoresInterrupt), driver(v1alpha1.DriverUIO)}, want: one(v1alpha1.ReasonInvalidSetting, "Interrupt", "UIO does not provide", "VFIO")},
		"UIO without hugepages":                  {edits: []edit{driver(v1alpha1.DriverUIO), hugepages(v1alpha1.HugepagesDisabled)}, want: one(v1alpha1.ReasonInvalidSetting, "devices.driver UIO", "physical addresses", "memory.hugepages")},
		"pages of another size":                  {edits: []edit{hugepages("16Ki")}, want: one(v1alpha1.ReasonInvalidSetting, `"16Ki"`, "2Mi, 1Gi or Disabled")},
		"buffers by nobody":                      {edits: []edit{buffers(v1alpha1.Buffers{Mode: "Some"})}, want: one(v1alpha1.ReasonInvalidSetting, `"Some"`, "Auto or Manual")},
		"buffers by the user, who gave none":     {edits: []edit{buffers(v1alpha1.Buffers{Mode: v1alpha1.BuffersManual})}, want: one(v1alpha1.ReasonInvalidSetting, "requires buffers.large and buffers.small")},
		"caches of nothing":                      {edits: []edit{count(4), manual(1024, 0, 8192, 0)}, want: []refusal{{v1alpha1.ReasonBuffersTooFew, []string{"large.cachePerCore is 0", "hang"}}, {v1alpha1.ReasonBuffersTooFew, []string{"small.cachePerCore is 0"}}}},
		"fewer buffers than bdev and accel keep": {edits: []edit{count(4), manual(160, 2, 8192, 128)}, want: one(v1alpha1.ReasonBuffersTooFew, "large.count 160", "minimum for forward progress", "keep 160", "use 168 or more")},
		"caches larger than the pool":            {edits: []edit{count(4), manual(200, 64, 8192, 128)}, want: one(v1alpha1.ReasonBuffersTooFew, "large.count is 200", "need 416", "cachePerCore of 10")},
		"too few small buffers":                  {edits: []edit{count(4), manual(1024, 16, 1024, 16)}, want: one(v1alpha1.ReasonBuffersTooFew, "small.count 1024", "keep 1280", "use 1344 or more")},
		"attachments without end":                {edits: []edit{attachments(5000, 1)}, want: one(v1alpha1.ReasonInvalidSetting, "attachments.expected is 5000", "1 to 4096")},
		"queues without end":                     {edits: []edit{attachments(1, 128)}, want: one(v1alpha1.ReasonInvalidSetting, "attachments.ioQueues is 128", "1 to 127")},
		"less memory than that for ordinary use": {node: func(n *sizing.Node) {
			n.Allocatable = &sizing.Allocatable{CPUs: 60, HugepageBytes: map[int64]int64{page2Mi: 16 * gib}, MemoryBytes: 256 << 20}
		}, want: one(v1alpha1.ReasonMemoryExceeded, "of regular memory", "256 MiB of memory for pods")},
		"a machine smaller than the target, no hugepages": {node: func(n *sizing.Node) {
			n.Inventory.NUMANodes[0].MemoryBytes, n.Inventory.NUMANodes[1].MemoryBytes = gib/2, gib/2
		}, edits: []edit{hugepages(v1alpha1.HugepagesDisabled)}, want: one(v1alpha1.ReasonMemoryExceeded, "node storage-1 has 1024 MiB")},
		"several things at once, each of them": {edits: []edit{coreMode("Lazy"), attachments(5000, 1), transports(tcp(4420, iface("eth9")))}, want: []refusal{{v1alpha1.ReasonNoAddress, nil}, {v1alpha1.ReasonInvalidSetting, []string{"Lazy"}}, {v1alpha1.ReasonInvalidSetting, []string{"attachments"}}}},
		"VFIO without its module":              {node: func(n *sizing.Node) { n.Inventory.Modules = nil }, edits: []edit{driver(v1alpha1.DriverVFIO)}, want: one(v1alpha1.ReasonModuleMissing, "vfio_pci", "CONFIG_VFIO_PCI")},
		"UIO without its module":               {node: func(n *sizing.Node) { n.Inventory.Modules = nil }, edits: []edit{driver(v1alpha1.DriverUIO)}, want: one(v1alpha1.ReasonModuleMissing, "uio_pci_generic", "CONFIG_UIO_PCI_GENERIC")},
		"VFIO without an IOMMU": {
			node:  func(n *sizing.Node) { n.Inventory.Drives[0].IOMMU = v1alpha1.IOMMUNone },
			edits: []edit{paths("/dev/disk/by-id/nvme-eui.0"), driver(v1alpha1.DriverVFIO)},
			want:  one(v1alpha1.ReasonNoIOMMU, "nvme0n1 (0000:d0:00.0) has no IOMMU", "driver UIO or Kernel", "intel_iommu=on"),
		},
		"UIO behind an IOMMU that translates": {
			node:  func(n *sizing.Node) { n.Inventory.Drives[0].IOMMU = v1alpha1.IOMMUTranslated },
			edits: []edit{paths("/dev/disk/by-id/nvme-eui.0"), driver(v1alpha1.DriverUIO)},
			want:  one(v1alpha1.ReasonDriverNotAvailable, "nvme0n1 (0000:d0:00.0) is behind an IOMMU", "driver VFIO or Kernel", "iommu.passthrough=1"),
		},
		"a driver that is none":                              {edits: []edit{driver("DPDK")}, want: one(v1alpha1.ReasonInvalidSetting, `"DPDK"`, "Kernel, VFIO or UIO")},
		"a file behind VFIO":                                 {edits: []edit{file("/var/lib/weft/p"), driver(v1alpha1.DriverVFIO)}, want: one(v1alpha1.ReasonInvalidSetting, "a file has no drive")},
		"a disk that is not NVMe behind VFIO":                {node: func(n *sizing.Node) { n.Inventory.Drives[0].NVMe = false }, edits: []edit{paths("/dev/disk/by-id/nvme-eui.0"), driver(v1alpha1.DriverVFIO)}, want: one(v1alpha1.ReasonNoDevice, "nvme0n1 is not an NVMe drive with a PCI address", "driver Kernel")},
		"a drive without address behind UIO":                 {node: func(n *sizing.Node) { n.Inventory.Drives[0].PCIAddress = "" }, edits: []edit{paths("/dev/disk/by-id/nvme-eui.0"), driver(v1alpha1.DriverUIO)}, want: one(v1alpha1.ReasonNoDevice, "nvme0n1")},
		"a controller with a namespace that is not the pool": {node: func(n *sizing.Node) { n.Inventory.Drives[1].PCIAddress = "0000:d0:00.0" }, edits: []edit{paths("/dev/disk/by-id/nvme-eui.0"), driver(v1alpha1.DriverVFIO)}, want: one(v1alpha1.ReasonDeviceInUse, "nvme0n1 and nvme1n1 are namespaces of one controller (0000:d0:00.0)", "take both from the kernel")},
		"a drive with the kernel target's pool": {
			node: func(n *sizing.Node) {
				n.Inventory.Drives[0].Content, n.Inventory.Drives[0].ContentDetail = v1alpha1.ContentWeft, v1alpha1.DetailNvmetPool
			},
			edits: []edit{paths("/dev/disk/by-id/nvme-eui.0")},
			want:  one(v1alpha1.ReasonForeignSignature, "nvme0n1 contains a pool of engine Nvmet (XFS of weft)", "engine SPDK cannot read", "blkdiscard"),
		},
		"a drive with SPDK's pool for the kernel's target": {
			node: func(n *sizing.Node) {
				n.Inventory.Drives[0].Content, n.Inventory.Drives[0].ContentDetail = v1alpha1.ContentWeft, v1alpha1.DetailSPDKPool
			},
			edits: []edit{paths("/dev/disk/by-id/nvme-eui.0"), func(s *v1alpha1.NvmfTargetSpec) { s.Engine = v1alpha1.EngineNvmet }},
			want:  one(v1alpha1.ReasonForeignSignature, "pool of engine SPDK (SPDK logical volume store)", "engine Nvmet cannot read"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := bigServer()
			if test.node != nil {
				test.node(&node)
			}
			refused(t, node, spdk(test.edits...), test.want)
		})
	}
}
