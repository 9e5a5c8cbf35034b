// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package tuning_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/tuning"
)

// tree writes a machine's files, and links where the text starts with "->".
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if len(text) > 2 && text[:2] == "->" {
			err = os.Symlink(text[2:], path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestMachineReadsAndWrites(t *testing.T) {
	g := NewWithT(t)
	root := tree(t, map[string]string{
		"proc/sys/kernel/random/boot_id":    "0d9e5c1e-1\n",
		"proc/sys/net/ipv4/tcp_rmem":        "4096\t131072\t6291456\n",
		"proc/sys/net/core/rmem_max":        "212992\n",
		"proc/sys/kernel/core_pattern":      "core\n",
		"sys/class/net/bonding_masters":     "\n",
		"sys/class/net/lo/ifindex":          "1\n",
		"sys/class/net/eth0/ifindex":        "2\n",
		"sys/class/net/eth0/device":         "->../../../devices/pci0000:00/0000:00:02.0/virtio1",
		"sys/class/net/eth1/ifindex":        "3\n",
		"sys/class/net/eth1/device":         "->../../../devices/platform/nic",
		"sys/devices/platform/nic/modalias": "x",
		// The NIC's own function, and a bridge above it that has an interrupt too.
		"sys/devices/pci0000:00/msi_irqs/24":                         "msi\n",
		"sys/devices/pci0000:00/0000:00:02.0/msi_irqs/40":            "msix\n",
		"sys/devices/pci0000:00/0000:00:02.0/msi_irqs/41":            "msix\n",
		"sys/devices/pci0000:00/0000:00:02.0/msi_irqs/42":            "msix\n",
		"sys/devices/pci0000:00/0000:00:02.0/virtio1/net/eth0/dummy": "",
		"proc/irq/24/smp_affinity_list":                              "0-7\n",
		"proc/irq/40/smp_affinity_list":                              "0-7\n",
		"proc/irq/41/smp_affinity_list":                              "0-3\n",
	})
	m := tuning.NewMachine(root, nil)
	g.Expect(m.BootID(t.Context())).To(Equal("0d9e5c1e-1"))
	g.Expect(m.NICs(t.Context())).To(Equal(map[string]int32{"lo": 1, "eth0": 2, "eth1": 3}))

	sysctls, interrupts := tuning.Place{Group: tuning.Sysctls}, tuning.Place{NIC: "eth0", Group: tuning.Interrupts}
	g.Expect(m.Read(t.Context(), sysctls, []string{"net.core.rmem_max", "net.ipv4.tcp_rmem", "net.core.not_there"})).To(Equal(map[string]tuning.Reading{
		"net.core.rmem_max": {Value: "212992"}, "net.ipv4.tcp_rmem": {Value: "4096 131072 6291456"},
	}))
	g.Expect(m.Read(t.Context(), interrupts, nil)).To(Equal(map[string]tuning.Reading{"40": {Value: "0-7"}, "41": {Value: "0-3"}}), "42 is not in use, and 24 is the bridge's")
	for _, none := range []string{"lo", "eth1"} {
		g.Expect(m.Read(t.Context(), tuning.Place{NIC: none, Group: tuning.Interrupts}, nil)).To(BeEmpty())
	}

	g.Expect(m.Write(t.Context(), sysctls, map[string]string{"net.core.rmem_max": "16777216"})).To(Succeed())
	g.Expect(m.Write(t.Context(), interrupts, map[string]string{"40": "2"})).To(Succeed())
	g.Expect(os.ReadFile(filepath.Join(root, "proc/irq/40/smp_affinity_list"))).To(HavePrefix("2"))
	g.Expect(os.ReadFile(filepath.Join(root, "proc/sys/net/core/rmem_max"))).To(BeEquivalentTo("16777216"))
	g.Expect(m.Write(t.Context(), sysctls, map[string]string{"net.core.not_there": "1"})).To(MatchError(fs.ErrNotExist))
	g.Expect(filepath.Join(root, "proc/sys/net/core/not_there")).NotTo(BeAnExistingFile(), "a parameter is not made")
}

// A plan is written by the operator; it leads nowhere but to settings of the network all the same.
func TestMachineStaysWithTheNetwork(t *testing.T) {
	root := tree(t, map[string]string{"proc/sys/kernel/core_pattern": "core\n", "proc/irq/default_smp_affinity": "f\n"})
	m := tuning.NewMachine(root, nil)
	for _, name := range []string{"kernel.core_pattern", "net.core.../../kernel/core_pattern", "net..core", "net.core/x", "net.core.X", ""} {
		place := tuning.Place{Group: tuning.Sysctls}
		if err := m.Write(t.Context(), place, map[string]string{name: "1"}); err == nil {
			t.Errorf("%q was written", name)
		}
		if read, err := m.Read(t.Context(), place, []string{name}); err != nil || len(read) > 0 {
			t.Errorf("%q was read: %v, %v", name, read, err)
		}
	}
	for _, name := range []string{"../default_smp_affinity", "", "x"} {
		if err := m.Write(t.Context(), tuning.Place{NIC: "eth0", Group: tuning.Interrupts}, map[string]string{name: "1"}); err == nil {
			t.Errorf("interrupt %q was written", name)
		}
	}
}
