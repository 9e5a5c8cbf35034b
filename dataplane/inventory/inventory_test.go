// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/inventory"
)

var update = flag.Bool("update", false, "write the inventories in testdata anew; then read their diff")

// addresses are those of a machine, recorded.
type addresses map[string][]string

func (a addresses) Addresses(context.Context) (map[string][]netip.Prefix, error) {
	found := map[string][]netip.Prefix{}
	for name, list := range a {
		for _, s := range list {
			found[name] = append(found[name], netip.MustParsePrefix(s))
		}
	}
	return found, nil
}

// signatures are what probing a machine's disks finds, by name; the others hold nothing.
type signatures struct {
	found map[string]inventory.Signature
	err   map[string]error
}

func (s signatures) Probe(_ context.Context, path string) (inventory.Signature, error) {
	name := filepath.Base(path)
	return s.found[name], s.err[name]
}

var (
	ext4     = inventory.Signature{Type: "ext4", Usage: "filesystem"}
	gpt      = inventory.Signature{PartitionTable: "gpt"}
	weftPool = inventory.Signature{Type: "xfs", Usage: "filesystem", Label: inventory.PoolLabel}
	// lvolstore is what probing finds on a drive that SPDK made a pool of.
	lvolstore = inventory.Signature{Type: "SPDK_blobstore", Usage: "other", Label: "LVOLSTORE"}
)

// server is the tree of the same name with its CPUs and drives.
func server(t *testing.T) inventory.Host {
	t.Helper()
	m := recorded(t, "server")
	for core := range 32 {
		for _, cpu := range []int{core, core + 32} {
			first := core / 16 * 16
			m.add(fmt.Sprintf(`
sys/devices/system/cpu/cpu%[1]d:
  topology/thread_siblings_list = %[2]d,%[3]d
  cache/index0/level = 1
  cache/index0/type = Data
  cache/index0/size = 48K
  cache/index0/shared_cpu_list = %[2]d,%[3]d
  cache/index1/level = 1
  cache/index1/type = Instruction
  cache/index1/size = 32K
  cache/index1/shared_cpu_list = %[2]d,%[3]d
  cache/index2/level = 2
  cache/index2/type = Unified
  cache/index2/size = 1280K
  cache/index2/shared_cpu_list = %[2]d,%[3]d
  cache/index3/level = 3
  cache/index3/type = Unified
  cache/index3/size = 24576K
  cache/index3/shared_cpu_list = %[4]d-%[5]d,%[6]d-%[7]d`,
				cpu, core, core+32, first, first+15, first+32, first+47))
		}
	}
	for i := range 8 {
		root, model, serial, sectors := "pci0000:5d", "SAMSUNG MZQL21T9HCJR-00A07", fmt.Sprintf("S64GNE0R10000%d", i+1), 3750748848
		if i >= 4 {
			root, model, serial, sectors = "pci0000:d7", "INTEL SSDPE2KX010T8", fmt.Sprintf("BTLJ00000%d1P0FGN", i), 1953525168
		}
		m.nvme(i, fmt.Sprintf("%s/0000:%s:0%d.0/0000:%x:00.0", root, root[8:], i%4, map[bool]int{true: 0x5e, false: 0xd8}[i < 4]+i%4), i/4, model, serial, sectors)
	}
	// Each of the first four has another IOMMU: one that translates, one that does not, one that does not say, and
	// vfio's word for none.
	m.add(`
sys/kernel/iommu_groups:
  15/type = DMA-FQ
  16/type = identity
  17/type = blocked
  0/name = vfio-noiommu
sys/devices/pci0000:5d:
  0000:5d:00.0/0000:5e:00.0/iommu_group -> ../../../../kernel/iommu_groups/15
  0000:5d:01.0/0000:5f:00.0/iommu_group -> ../../../../kernel/iommu_groups/16
  0000:5d:02.0/0000:60:00.0/iommu_group -> ../../../../kernel/iommu_groups/17
  0000:5d:03.0/0000:61:00.0/iommu_group -> ../../../../kernel/iommu_groups/0`)
	// The last has two ports, and so a multipath node though only one is connected.
	m.remove("sys/block/nvme7n1").add(`
sys/devices/virtual/nvme-subsystem/nvme-subsys7:
  nvme7 -> ../../../pci0000:d7/0000:d7:03.0/0000:db:00.0/nvme/nvme7
  nvme7n1/device -> ../../nvme-subsys7
  nvme7n1/hidden = 0
  nvme7n1/dev = 259:7
  nvme7n1/size = 1953525168
  nvme7n1/queue/logical_block_size = 512
  nvme7n1/wwid = eui.0025385b00000008
sys/devices/pci0000:d7/0000:d7:03.0/0000:db:00.0/nvme/nvme7/nvme7c7n1/hidden = 1
sys/block/nvme7c7n1 -> ../devices/pci0000:d7/0000:d7:03.0/0000:db:00.0/nvme/nvme7/nvme7c7n1
sys/block/nvme7n1 -> ../devices/virtual/nvme-subsystem/nvme-subsys7/nvme7n1`)
	// One drive is in a volume group.
	m.add(`sys/devices/pci0000:5d/0000:5d:03.0/0000:61:00.0/nvme/nvme3/nvme3n1/holders/dm-0 -> ../../../../../../../virtual/block/dm-0`)

	return inventory.Host{Root: m.root, Architecture: "amd64",
		Addresses: addresses{
			"lo":          {"127.0.0.1/8", "::1/128"},
			"ens1f0np0":   {"10.20.0.5/16", "fd00:20::5/64", "fe80::1/64"},
			"ens1f0np0.7": {"10.27.0.5/16"},
			"bond0":       {"192.0.2.5/24", "169.254.7.7/16"},
			"cni0":        {"10.244.0.1/24"},
		},
		Prober: signatures{
			found: map[string]inventory.Signature{"nvme1n1": ext4, "nvme2n1": weftPool, "nvme4n1": gpt},
			err:   map[string]error{"nvme5n1": errors.New("reading /dev/nvme5n1 at 0: input/output error"), "sda": errors.New("a disk with partitions needs no probe")},
		}}
}

// nvme adds a drive behind PCIe.
func (m machine) nvme(number int, pci string, numa int, model, serial string, sectors int) {
	m.t.Helper()
	m.add(fmt.Sprintf(`
sys/devices/%[2]s:
  numa_node = %[3]d
  nvme/nvme%[1]d/device -> ../../../%[7]s
  nvme/nvme%[1]d/transport = pcie
  nvme/nvme%[1]d/model = %[4]s
  nvme/nvme%[1]d/serial = %[5]s
  nvme/nvme%[1]d/nvme%[1]dn1/device -> ../../nvme%[1]d
  nvme/nvme%[1]d/nvme%[1]dn1/hidden = 0
  nvme/nvme%[1]d/nvme%[1]dn1/ro = 0
  nvme/nvme%[1]d/nvme%[1]dn1/dev = 259:%[1]d
  nvme/nvme%[1]d/nvme%[1]dn1/size = %[6]d
  nvme/nvme%[1]d/nvme%[1]dn1/queue/logical_block_size = 512
  nvme/nvme%[1]d/nvme%[1]dn1/wwid = eui.0025385b0000000%[8]d
  nvme/nvme%[1]d/nvme%[1]dn1/holders/
sys/block/nvme%[1]dn1 -> ../devices/%[2]s/nvme/nvme%[1]d/nvme%[1]dn1`,
		number, pci, numa, model, serial, sectors, filepath.Base(pci), number+1))
}

func arm64(t *testing.T) inventory.Host {
	t.Helper()
	return inventory.Host{Root: recorded(t, "arm64").root, Architecture: "arm64", Addresses: addresses{"eth0": {"192.0.2.7/24"}}, Prober: signatures{}}
}

func vm(t *testing.T) inventory.Host {
	t.Helper()
	return inventory.Host{Root: recorded(t, "vm").root, Architecture: "amd64", Addresses: addresses{"eth0": {"10.77.0.11/24"}},
		Prober: signatures{found: map[string]inventory.Signature{"vda": ext4, "nvme1n1": weftPool}}}
}

func TestDiscover(t *testing.T) {
	for name, host := range map[string]func(*testing.T) inventory.Host{"server": server, "arm64": arm64, "vm": vm} {
		t.Run(name, func(t *testing.T) {
			h := host(t)
			inv, err := inventory.Discover(t.Context(), h)
			if err != nil {
				t.Fatal(err)
			}
			again, err := inventory.Discover(t.Context(), h)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(inv, again); diff != "" {
				t.Errorf("the same machine, another answer:\n%s", diff)
			}
			got, err := yaml.Marshal(inv)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, append([]byte("# SPDX-License-Identifier: Apache-2.0\n"), got...), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want v1alpha1.Inventory
			if err := yaml.UnmarshalStrict(text, &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&want, inv); diff != "" {
				t.Errorf("inventory (-want +got):\n%s", diff)
			}
		})
	}
}

// What matters and cannot be read is an error that names it, never left out.
func TestDiscoverFailsAsAWhole(t *testing.T) {
	for name, test := range map[string]struct {
		change func(machine)
		want   string
	}{
		"no kernel version":               {func(m machine) { m.remove("proc/sys/kernel/osrelease") }, "the kernel's version"},
		"modules.dep cannot be read":      {func(m machine) { m.unreadable("lib/modules/6.12.48+deb13-amd64/modules.dep") }, "kernel modules"},
		"no memory":                       {func(m machine) { m.add("sys/devices/system/node/node0/meminfo = Node 0 MemFree: 1 kB") }, "no MemTotal"},
		"CPUs that are none":              {func(m machine) { m.add("sys/devices/system/node/node0/cpulist = many") }, `CPU list "many"`},
		"CPUs backwards":                  {func(m machine) { m.add("sys/devices/system/node/node0/cpulist = 7-0") }, `range "7-0"`},
		"no sysfs for networks":           {func(m machine) { m.remove("sys/class/net") }, "network interfaces"},
		"no sysfs for disks":              {func(m machine) { m.remove("sys/block") }, "drives"},
		"an MTU that is none":             {func(m machine) { m.add("sys/class/net/eth0/mtu = wide") }, "eth0/mtu"},
		"a state that cannot be read":     {func(m machine) { m.unreadable("sys/class/infiniband/rxe0/ports/1/state") }, "RDMA devices"},
		"a size that cannot be read":      {func(m machine) { m.unreadable("sys/block/nvme0n1/size") }, "nvme0n1"},
		"a wwid that cannot be read":      {func(m machine) { m.unreadable("sys/block/nvme0n1/wwid") }, "nvme0n1"},
		"a transport that cannot be read": {func(m machine) { m.unreadable("sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/transport") }, "nvme0n1"},
		"mounts that cannot be read":      {func(m machine) { m.remove("proc/self/mountinfo") }, "mountinfo"},
		"mounts that are none":            {func(m machine) { m.add("proc/self/mountinfo = 21 1") }, "mountinfo"},
	} {
		t.Run(name, func(t *testing.T) {
			h := vm(t)
			m := machine{t, h.Root}
			m.add("lib/modules/6.12.48+deb13-amd64/modules.dep =")
			test.change(m)
			inv, err := inventory.Discover(t.Context(), h)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, %v; want an error about %q", inv, err, test.want)
			}
		})
	}
}

func TestDiscoverEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := vm(t)
	h.Prober = prober(func(string) (inventory.Signature, error) {
		cancel()
		return inventory.Signature{}, errors.New("signal: killed")
	})
	if inv, err := inventory.Discover(ctx, h); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v; a probe that was cut off says nothing of the drive", inv, err)
	}
}

type prober func(path string) (inventory.Signature, error)

func (p prober) Probe(_ context.Context, path string) (inventory.Signature, error) { return p(path) }

// NUMA nodes of one die share its last-level cache: each has its part, and all of them together no more than there is.
func TestACacheThatNUMANodesShare(t *testing.T) {
	h := server(t)
	for cpu := range 64 {
		file := filepath.Join(h.Root, fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", cpu))
		if err := os.WriteFile(file, []byte("0-63\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inv, err := inventory.Discover(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range inv.NUMANodes {
		if n.LLCBytes != 12288<<10 {
			t.Errorf("NUMA node %d has %d bytes of the 24576 KiB that two share", n.ID, n.LLCBytes)
		}
	}
}
