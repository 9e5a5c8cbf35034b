// SPDX-License-Identifier: Apache-2.0

package sizing_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

const gib = 1 << 30

// server is a storage node that can serve everything: two RDMA NICs, a VLAN on
// the first, and four drives of which one is not ours.
func server() sizing.Node {
	return sizing.Node{
		Name:        "storage-1",
		InternalIPs: []string{"192.0.2.5", "2001:db8::5"},
		Inventory: &v1alpha1.Inventory{
			KernelVersion: "6.12.0",
			Modules:       []string{"loop", "nvmet", "nvmet_rdma", "nvmet_tcp", "xfs"},
			NICs: []v1alpha1.NIC{
				{Name: "eno1", Addresses: []string{"192.0.2.5/24", "2001:db8::5/64"}, Up: true},
				{Name: "ens1f0", Addresses: []string{"10.20.0.5/16", "fd00:20::5/64"}, Up: true},
				{Name: "ens1f0.7", Addresses: []string{"10.27.0.5/16"}, Up: true, Lower: []string{"ens1f0"}},
				{Name: "ens2f0", Addresses: []string{"10.20.1.5/16", "10.21.0.5/16"}, Up: false},
				{Name: "ens3", Up: true},
			},
			RDMADevices: []v1alpha1.RDMADevice{
				{Name: "mlx5_0", Netdev: "ens1f0", Active: true},
				{Name: "mlx5_1", Netdev: "ens2f0", Active: false},
			},
			Drives: []v1alpha1.Drive{
				{ID: "eui.a", Name: "nvme0n1", NVMe: true, Model: "SAMSUNG PM9A3", Serial: "S1", SizeBytes: 1920 * gib, Content: v1alpha1.ContentBlank, ByID: []string{"nvme-SAMSUNG_PM9A3_S1", "nvme-eui.a"}, ByPath: []string{"pci-0000:5e:00.0-nvme-1"}},
				{ID: "eui.b", Name: "nvme1n1", NVMe: true, Model: "SAMSUNG PM9A3", Serial: "S2", SizeBytes: 1920 * gib, Content: v1alpha1.ContentWeft, ContentDetail: "weft pool", ByID: []string{"nvme-SAMSUNG_PM9A3_S2", "nvme-eui.b"}},
				{ID: "eui.c", Name: "nvme2n1", NVMe: true, Model: "INTEL P4510", Serial: "I1", SizeBytes: 960 * gib, Content: v1alpha1.ContentForeign, ContentDetail: "ext4 filesystem", ByID: []string{"nvme-INTEL_P4510_I1"}},
				{ID: "eui.d", Name: "nvme3n1", NVMe: true, Model: "INTEL P4510", Serial: "I2", SizeBytes: 960 * gib, Content: v1alpha1.ContentUnknown, ContentDetail: "I/O error", ByID: []string{"nvme-INTEL_P4510_I2"}},
				{ID: "0QEMU", Name: "sda", Model: "QEMU HARDDISK", SizeBytes: 100 * gib, Content: v1alpha1.ContentBlank, ByID: []string{"scsi-0QEMU"}},
				{ID: "tiny", Name: "nvme4n1", NVMe: true, Model: "TINY", SizeBytes: 100 << 20, Content: v1alpha1.ContentBlank, ByID: []string{"nvme-TINY"}},
			},
		},
	}
}

// spec is a target over TCP on all Samsung drives, changed by edits.
func spec(edits ...func(*v1alpha1.NvmfTargetSpec)) v1alpha1.NvmfTargetSpec {
	s := v1alpha1.NvmfTargetSpec{
		Engine:     v1alpha1.EngineNvmet,
		Transports: []v1alpha1.Transport{tcp(4420, nil)},
		Devices:    v1alpha1.Devices{Selector: &v1alpha1.DeviceSelector{Models: []string{"SAMSUNG*"}}},
	}
	for _, edit := range edits {
		edit(&s)
	}
	return s
}

func transports(t ...v1alpha1.Transport) func(*v1alpha1.NvmfTargetSpec) {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Transports = t }
}

func selector(sel v1alpha1.DeviceSelector) func(*v1alpha1.NvmfTargetSpec) {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Devices = v1alpha1.Devices{Selector: &sel} }
}

func paths(p ...string) func(*v1alpha1.NvmfTargetSpec) {
	return func(s *v1alpha1.NvmfTargetSpec) { s.Devices = v1alpha1.Devices{Paths: p} }
}

func file(path string) func(*v1alpha1.NvmfTargetSpec) {
	return func(s *v1alpha1.NvmfTargetSpec) {
		s.Devices = v1alpha1.Devices{File: &v1alpha1.DeviceFile{Path: path, Size: resource.MustParse("20Gi")}}
	}
}

func tcp(port int32, n *v1alpha1.Network) v1alpha1.Transport {
	return v1alpha1.Transport{Type: v1alpha1.TransportTCP, Port: port, Network: n, QueueDepth: 128, MaxIOQueues: 8, InCapsuleDataSize: new(resource.MustParse("4Ki"))}
}

func rdma(port int32, n *v1alpha1.Network) v1alpha1.Transport {
	t := tcp(port, n)
	t.Type = v1alpha1.TransportRDMA
	return t
}

func cidr(c string) *v1alpha1.Network  { return &v1alpha1.Network{CIDR: c} }
func iface(n string) *v1alpha1.Network { return &v1alpha1.Network{Interface: n} }

// portals writes a plan's portals as "TCP 192.0.2.5 4420".
func portals(p *v1alpha1.Plan) []string {
	var s []string
	for _, portal := range p.Portals {
		s = append(s, string(portal.Transport)+" "+portal.Address+" "+resource.NewQuantity(int64(portal.Port), resource.DecimalSI).String())
	}
	return s
}

func driveIDs(p *v1alpha1.Plan) []string {
	var s []string
	for _, d := range p.Drives {
		s = append(s, d.ID)
	}
	return s
}

func TestPlanMakesPortals(t *testing.T) {
	for name, test := range map[string]struct {
		transports []v1alpha1.Transport
		current    []v1alpha1.Portal
		want       []string
	}{
		"the first InternalIP by default":            {transports: []v1alpha1.Transport{tcp(4420, nil)}, want: []string{"TCP 192.0.2.5 4420"}},
		"a default for a port that was not filled":   {transports: []v1alpha1.Transport{tcp(0, nil)}, want: []string{"TCP 192.0.2.5 4420"}},
		"an address in a network":                    {transports: []v1alpha1.Transport{tcp(4421, cidr("10.20.0.0/16"))}, want: []string{"TCP 10.20.0.5 4421"}},
		"an address in a network, IPv6":              {transports: []v1alpha1.Transport{tcp(4421, cidr("fd00:20::/64"))}, want: []string{"TCP fd00:20::5 4421"}},
		"an interface that is up rather than down":   {transports: []v1alpha1.Transport{tcp(4420, cidr("10.0.0.0/8"))}, want: []string{"TCP 10.20.0.5 4420"}},
		"an interface that is down when named":       {transports: []v1alpha1.Transport{tcp(4420, iface("ens2f0"))}, want: []string{"TCP 10.20.1.5 4420"}},
		"RDMA through an active device":              {transports: []v1alpha1.Transport{rdma(4420, cidr("10.20.0.0/16"))}, want: []string{"RDMA 10.20.0.5 4420"}},
		"RDMA through a VLAN":                        {transports: []v1alpha1.Transport{rdma(4420, iface("ens1f0.7"))}, want: []string{"RDMA 10.27.0.5 4420"}},
		"both transports on one port of one address": {transports: []v1alpha1.Transport{tcp(4420, iface("ens1f0")), rdma(4420, iface("ens1f0"))}, want: []string{"TCP 10.20.0.5 4420", "RDMA 10.20.0.5 4420"}},
		"the address it has, while it still fits": {
			transports: []v1alpha1.Transport{tcp(4420, cidr("10.0.0.0/8"))},
			current:    []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: "10.27.0.5", Port: 4420}},
			want:       []string{"TCP 10.27.0.5 4420"},
		},
		"another address when the one it has is gone": {
			transports: []v1alpha1.Transport{tcp(4420, cidr("10.0.0.0/8"))},
			current:    []v1alpha1.Portal{{Transport: v1alpha1.TransportTCP, Address: "10.99.0.5", Port: 4420}},
			want:       []string{"TCP 10.20.0.5 4420"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := server()
			if test.current != nil {
				node.Current = &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet}
				for _, p := range test.current {
					node.Current.Portals = append(node.Current.Portals, v1alpha1.PlannedPortal{Portal: p})
				}
			}
			plan, reasons := sizing.Plan(node, spec(transports(test.transports...)))
			if plan == nil {
				t.Fatalf("no plan: %v", reasons)
			}
			if diff := cmp.Diff(test.want, portals(plan)); diff != "" {
				t.Errorf("portals (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanLimitsOfPortals(t *testing.T) {
	big := func(t v1alpha1.Transport) v1alpha1.Transport {
		t.QueueDepth, t.MaxIOQueues, t.InCapsuleDataSize = 1024, 16, new(resource.MustParse("64Ki"))
		return t
	}
	bare := v1alpha1.Transport{Type: v1alpha1.TransportTCP, Port: 4422}
	plan, reasons := sizing.Plan(server(), spec(transports(big(tcp(4420, nil)), big(rdma(4421, iface("ens1f0"))), bare)))
	if plan == nil {
		t.Fatalf("no plan: %v", reasons)
	}
	type limits struct {
		ioQueues, depth int32
		inCapsule       int64
	}
	var got []limits
	for _, p := range plan.Portals {
		got = append(got, limits{p.MaxIOQueues, p.QueueDepth, p.InCapsuleDataSize})
	}
	// The kernel's RDMA target has limits of its own; a bare transport gets the API's defaults.
	want := []limits{{16, 1024, 65536}, {16, 256, 16384}, {8, 128, 4096}}
	if !slices.Equal(got, want) {
		t.Errorf("limits: got %v, want %v", got, want)
	}
}

func TestPlanMakesPools(t *testing.T) {
	for name, test := range map[string]struct {
		edit    func(*v1alpha1.NvmfTargetSpec)
		current []string
		want    []string
	}{
		"models with a star": {edit: selector(v1alpha1.DeviceSelector{Models: []string{"*PM9*"}}), want: []string{"eui.a", "eui.b"}},
		"a whole model":      {edit: selector(v1alpha1.DeviceSelector{Models: []string{"SAMSUNG PM9A3"}}), want: []string{"eui.a", "eui.b"}},
		"names by id":        {edit: selector(v1alpha1.DeviceSelector{ByID: []string{"nvme-*_S2", "nvme-none"}}), want: []string{"eui.b"}},
		"a least size, what is foreign, unknown or no NVMe drive left out": {edit: selector(v1alpha1.DeviceSelector{MinSize: new(resource.MustParse("1"))}), want: []string{"eui.a", "eui.b"}},
		"all fields together":                  {edit: selector(v1alpha1.DeviceSelector{Models: []string{"SAMSUNG*"}, MinSize: new(resource.MustParse("1Ti")), ByID: []string{"nvme-eui.a"}}), want: []string{"eui.a"}},
		"paths by id and by path of one":       {edit: paths("/dev/disk/by-path/pci-0000:5e:00.0-nvme-1", "/dev/disk/by-id/nvme-eui.a"), want: []string{"eui.a"}},
		"paths that this node lacks":           {edit: paths("/dev/disk/by-id/nvme-eui.b", "/dev/disk/by-id/nvme-of-another-node"), want: []string{"eui.b"}},
		"a path of a drive that is no NVMe":    {edit: paths("/dev/disk/by-id/scsi-0QEMU"), want: []string{"0QEMU"}},
		"a drive that is gone stays":           {edit: selector(v1alpha1.DeviceSelector{Models: []string{"SAMSUNG*"}}), current: []string{"eui.gone"}, want: []string{"eui.a", "eui.b", "eui.gone"}},
		"a drive that reads as foreign stays":  {edit: paths("/dev/disk/by-id/nvme-INTEL_P4510_I1"), current: []string{"eui.c"}, want: []string{"eui.c"}},
		"a drive that no longer matches stays": {edit: selector(v1alpha1.DeviceSelector{Models: []string{"NONE"}}), current: []string{"eui.b"}, want: []string{"eui.b"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := server()
			if test.current != nil {
				node.Current = &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet}
				for _, id := range test.current {
					node.Current.Drives = append(node.Current.Drives, v1alpha1.PlannedDrive{ID: id})
				}
			}
			plan, reasons := sizing.Plan(node, spec(test.edit))
			if plan == nil {
				t.Fatalf("no plan: %v", reasons)
			}
			if diff := cmp.Diff(test.want, driveIDs(plan)); diff != "" {
				t.Errorf("drives (-want +got):\n%s", diff)
			}
			if plan.File != nil {
				t.Errorf("file: got %v, want none", plan.File)
			}
		})
	}
}

func TestPlanKeepsItsDrivesWithinTheBoundOfTheAPI(t *testing.T) {
	node := server()
	for i := range 70 {
		id := "eui.x" + string(rune('A'+i))
		node.Inventory.Drives = append(node.Inventory.Drives, v1alpha1.Drive{ID: id, Name: id, NVMe: true, Model: "SAMSUNG", SizeBytes: 1 << 40, Content: v1alpha1.ContentBlank})
	}
	node.Current = &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, Drives: []v1alpha1.PlannedDrive{{ID: "zz-last", Serial: "Z"}}}
	plan, reasons := sizing.Plan(node, spec())
	if plan == nil {
		t.Fatalf("no plan: %v", reasons)
	}
	if len(plan.Drives) != 64 || plan.Drives[63] != (v1alpha1.PlannedDrive{ID: "zz-last", Serial: "Z"}) {
		t.Errorf("got %d drives, the last %v; want 64 with zz-last", len(plan.Drives), plan.Drives[len(plan.Drives)-1])
	}
}

func TestPlanOfAFile(t *testing.T) {
	plan, reasons := sizing.Plan(server(), spec(file("/var/lib/weft/pool.img")))
	if plan == nil {
		t.Fatalf("no plan: %v", reasons)
	}
	if plan.File == nil || plan.File.Path != "/var/lib/weft/pool.img" || plan.File.Size.Value() != 20*gib || plan.Drives != nil {
		t.Errorf("got file %v and drives %v", plan.File, plan.Drives)
	}
}

// refusal is one expected reason, and words of its message: what is wrong, and
// what mends it.
type refusal struct {
	reason string
	words  []string
}

func TestPlanSaysWhyNot(t *testing.T) {
	withoutModules := func(n *sizing.Node) { n.Inventory.Modules = nil }
	for name, test := range map[string]struct {
		node func(*sizing.Node)
		edit func(*v1alpha1.NvmfTargetSpec)
		want []refusal
	}{
		"no inventory": {
			node: func(n *sizing.Node) { n.Inventory = nil },
			want: []refusal{{v1alpha1.ReasonNoInventory, []string{"storage-1", "weft-agent pod"}}},
		},
		"an engine that nobody knows": {
			edit: func(s *v1alpha1.NvmfTargetSpec) { s.Engine = "Other" },
			want: []refusal{{v1alpha1.ReasonEngineUnavailable, []string{`"Other"`, "use engine: Nvmet"}}},
		},
		"no modules, drives over TCP": {
			node: withoutModules,
			want: []refusal{
				{v1alpha1.ReasonModuleMissing, []string{"module nvmet ", "6.12.0", "CONFIG_NVME_TARGET"}},
				{v1alpha1.ReasonModuleMissing, []string{"module nvmet_tcp ", "CONFIG_NVME_TARGET_TCP"}},
				{v1alpha1.ReasonModuleMissing, []string{"module xfs ", "CONFIG_XFS_FS"}},
			},
		},
		"no modules, a file over RDMA": {
			node: withoutModules,
			edit: func(s *v1alpha1.NvmfTargetSpec) {
				file("/var/lib/weft/p")(s)
				transports(rdma(4420, iface("ens1f0")))(s)
			},
			want: []refusal{
				{v1alpha1.ReasonModuleMissing, []string{"module nvmet "}},
				{v1alpha1.ReasonModuleMissing, []string{"module nvmet_rdma ", "CONFIG_NVME_TARGET_RDMA"}},
				{v1alpha1.ReasonModuleMissing, []string{"module xfs "}},
				{v1alpha1.ReasonModuleMissing, []string{"module loop ", "CONFIG_BLK_DEV_LOOP"}},
			},
		},
		"no InternalIP": {
			node: func(n *sizing.Node) { n.InternalIPs = []string{"not-an-address"} },
			want: []refusal{{v1alpha1.ReasonNoAddress, []string{"no InternalIP", "transports[0].network"}}},
		},
		"no address in the network": {
			edit: transports(tcp(4420, cidr("172.16.0.0/12"))),
			want: []refusal{{v1alpha1.ReasonNoAddress, []string{"172.16.0.0/12", "10.20.0.5 on ens1f0", "change the network"}}},
		},
		"no such interface": {
			edit: transports(tcp(4420, iface("eth9"))),
			want: []refusal{{v1alpha1.ReasonNoAddress, []string{`"eth9"`, "eno1, ens1f0", "network.cidr"}}},
		},
		"an interface without address": {
			edit: transports(tcp(4420, iface("ens3"))),
			want: []refusal{{v1alpha1.ReasonNoAddress, []string{"ens3", "no global address"}}},
		},
		"a network that is none": {
			edit: transports(tcp(4420, cidr("10.20.0.0"))),
			want: []refusal{{v1alpha1.ReasonNoAddress, []string{`"10.20.0.0"`, "10.20.0.0/16"}}},
		},
		"no transports": {
			edit: transports(),
			want: []refusal{{v1alpha1.ReasonNoAddress, []string{"no transports"}}},
		},
		"a transport that nobody knows": {
			edit: transports(v1alpha1.Transport{Type: "FC"}),
			want: []refusal{{v1alpha1.ReasonPortalFailed, []string{`"FC"`, "TCP or RDMA"}}},
		},
		"RDMA on an interface without": {
			edit: transports(rdma(4420, iface("eno1"))),
			want: []refusal{{v1alpha1.ReasonNoRDMADevice, []string{"eno1 (192.0.2.5) has no RDMA device", "mlx5_0 on ens1f0", "transports[0].network"}}},
		},
		"RDMA on a device that is not active": {
			edit: transports(rdma(4420, iface("ens2f0"))),
			want: []refusal{{v1alpha1.ReasonNoRDMADevice, []string{"mlx5_1 of ens2f0 (10.20.1.5) is not active", "check its cable"}}},
		},
		"RDMA on a machine without any": {
			node: func(n *sizing.Node) { n.Inventory.RDMADevices = nil },
			edit: transports(rdma(4420, nil)),
			want: []refusal{{v1alpha1.ReasonNoRDMADevice, []string{"the node's RDMA devices: none", "rdma link add"}}},
		},
		"RDMA on an InternalIP that no interface has": {
			node: func(n *sizing.Node) { n.InternalIPs = []string{"203.0.113.9"} },
			edit: transports(rdma(4420, nil)),
			want: []refusal{{v1alpha1.ReasonNoRDMADevice, []string{"203.0.113.9 is on no physical interface"}}},
		},
		"two transports that come to one portal": {
			edit: transports(tcp(4420, nil), tcp(4420, cidr("192.0.2.0/24"))),
			want: []refusal{{v1alpha1.ReasonPortalFailed, []string{"transports[0] and transports[1]", "TCP 192.0.2.5:4420", "different ports"}}},
		},
		"no way to devices": {
			edit: func(s *v1alpha1.NvmfTargetSpec) { s.Devices = v1alpha1.Devices{} },
			want: []refusal{{v1alpha1.ReasonNoDevice, []string{"exactly one of selector, paths, classes and file", "has 0"}}},
		},
		"two ways to devices": {
			edit: func(s *v1alpha1.NvmfTargetSpec) { s.Devices.Paths = []string{"/dev/disk/by-id/nvme-eui.a"} },
			want: []refusal{{v1alpha1.ReasonNoDevice, []string{"exactly one of selector, paths, classes and file", "has 2"}}},
		},
		"a selector that matches nothing": {
			edit: selector(v1alpha1.DeviceSelector{Models: []string{"KIOXIA*"}}),
			want: []refusal{{v1alpha1.ReasonNoDevice, []string{"matches none", "nvme-SAMSUNG_PM9A3_S1 (SAMSUNG PM9A3, 1920 GiB)", "with paths"}}},
		},
		"a selector that matches only what cannot be used": {
			edit: selector(v1alpha1.DeviceSelector{Models: []string{"INTEL*", "TINY"}}),
			want: []refusal{{v1alpha1.ReasonForeignSignature, []string{"nvme2n1 contains", "ext4 filesystem", "blkdiscard -f /dev/nvme2n1", "nvme3n1 is unknown (I/O error)", "nvme4n1 has only 104857600 bytes"}}},
		},
		"a selector that matches only what cannot be read": {
			edit: selector(v1alpha1.DeviceSelector{ByID: []string{"*I2"}}),
			want: []refusal{{v1alpha1.ReasonNoDevice, []string{"nvme3n1 is unknown (I/O error)"}}},
		},
		"paths that name foreign and unreadable drives beside a good one": {
			edit: paths("/dev/disk/by-id/nvme-eui.a", "/dev/disk/by-id/nvme-INTEL_P4510_I1", "/dev/disk/by-id/nvme-INTEL_P4510_I2"),
			want: []refusal{
				{v1alpha1.ReasonForeignSignature, []string{"/dev/disk/by-id/nvme-INTEL_P4510_I1", "ext4 filesystem", "blkdiscard"}},
				{v1alpha1.ReasonNoDevice, []string{"/dev/disk/by-id/nvme-INTEL_P4510_I2", "I/O error"}},
			},
		},
		"paths of other nodes": {
			edit: paths("/dev/disk/by-id/nvme-elsewhere", "/dev/nvme0n1"),
			want: []refusal{{v1alpha1.ReasonNoDevice, []string{"/dev/disk/by-id/nvme-elsewhere", "nvme-TINY", "scsi-0QEMU", "ls -l /dev/disk/by-id"}}},
		},
		"everything at once": {
			node: func(n *sizing.Node) { n.Inventory.Modules = []string{"nvmet", "nvmet_tcp", "nvmet_rdma"} },
			edit: func(s *v1alpha1.NvmfTargetSpec) {
				transports(rdma(4420, nil), tcp(4421, iface("eth9")))(s)
				selector(v1alpha1.DeviceSelector{Models: []string{"NONE"}})(s)
			},
			want: []refusal{
				{v1alpha1.ReasonModuleMissing, []string{"xfs"}},
				{v1alpha1.ReasonNoRDMADevice, []string{"eno1"}},
				{v1alpha1.ReasonNoAddress, []string{"eth9"}},
				{v1alpha1.ReasonNoDevice, []string{"NVMe drives"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) { expectReasons(t, test.node, test.edit, test.want) })
	}
}

// A pool never turns into another one under its volumes.
func TestPlanNeverMovesAPool(t *testing.T) {
	onDrives := &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, Drives: []v1alpha1.PlannedDrive{{ID: "eui.a"}}}
	inFile := &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, File: &v1alpha1.DeviceFile{Path: "/var/lib/weft/a"}}
	for name, test := range map[string]struct {
		current *v1alpha1.Plan
		edit    func(*v1alpha1.NvmfTargetSpec)
		words   []string
	}{
		"from drives to a file":    {onDrives, file("/var/lib/weft/a"), []string{"on drives"}},
		"from a file to drives":    {inFile, selector(v1alpha1.DeviceSelector{Models: []string{"*"}}), []string{"/var/lib/weft/a", "cannot be changed to drives"}},
		"from one file to another": {inFile, file("/var/lib/weft/b"), []string{"/var/lib/weft/a", "/var/lib/weft/b"}},
		"from another engine":      {&v1alpha1.Plan{Engine: v1alpha1.EngineSPDK}, paths("/dev/disk/by-id/nvme-eui.a"), []string{"engine SPDK"}},
	} {
		t.Run(name, func(t *testing.T) {
			current := func(n *sizing.Node) { n.Current = test.current }
			expectReasons(t, current, test.edit, []refusal{{v1alpha1.ReasonDeviceInUse, append(test.words, "move its volumes away")}})
		})
	}
}

func expectReasons(t *testing.T, change func(*sizing.Node), edit func(*v1alpha1.NvmfTargetSpec), want []refusal) {
	t.Helper()
	node, s := server(), spec()
	if change != nil {
		change(&node)
	}
	if edit != nil {
		edit(&s)
	}
	plan, reasons := sizing.Plan(node, s)
	if plan != nil {
		t.Fatalf("got a plan: %v", plan)
	}
	if len(reasons) != len(want) {
		t.Fatalf("got %d reasons, want %d: %v", len(reasons), len(want), reasons)
	}
	for i, w := range want {
		if reasons[i].Reason != w.reason {
			t.Errorf("reason %d: got %s, want %s (%s)", i, reasons[i].Reason, w.reason, reasons[i].Message)
		}
		for _, word := range w.words {
			if !strings.Contains(reasons[i].Message, word) {
				t.Errorf("reason %d: %q does not say %q", i, reasons[i].Message, word)
			}
		}
	}
}

// How much may be promised is the plan's to say, for either engine and any pool; as much as there is needs no word.
func TestPlanBoundsPromises(t *testing.T) {
	for percent, want := range map[int32]int32{0: 0, 100: 0, 101: 101, 400: 400} {
		for name, s := range map[string]v1alpha1.NvmfTargetSpec{"file": spec(file("/var/lib/weft/pool.img")), "drives": spec(selector(v1alpha1.DeviceSelector{Models: []string{"SAMSUNG*"}}))} {
			s.OverProvisioningPercent = percent
			plan, reasons := sizing.Plan(server(), s)
			if len(reasons) > 0 || plan.OverProvisioningPercent != want {
				t.Errorf("%s, %d %%: %v, %v", name, percent, plan, reasons)
			}
		}
		s := spdk()
		s.OverProvisioningPercent = percent
		if plan, reasons := sizing.Plan(bigServer(), s); len(reasons) > 0 || plan.OverProvisioningPercent != want {
			t.Errorf("SPDK, %d %%: %v, %v", percent, plan, reasons)
		}
	}
}
