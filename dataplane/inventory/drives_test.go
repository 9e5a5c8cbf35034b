// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/inventory"
)

// driveOf discovers a virtual machine that was changed, and returns a drive by its name.
func driveOf(t *testing.T, name string, change func(machine), probe prober) *v1alpha1.Drive {
	t.Helper()
	h := vm(t)
	change(machine{t, h.Root})
	h.Prober = probe
	inv, err := inventory.Discover(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(inv.Drives, func(d v1alpha1.Drive) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	return &inv.Drives[i]
}

func finds(sig inventory.Signature) prober {
	return func(string) (inventory.Signature, error) { return sig, nil }
}

func unchanged(machine) {}

func TestContent(t *testing.T) {
	const disk = "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1/"
	mounted := func(m machine) { m.add(`proc/self/mountinfo = 21 1 259:0 / /mnt/a\040b rw - xfs /dev/nvme0n1 rw`) }
	for name, test := range map[string]struct {
		change  func(machine)
		probe   prober
		content v1alpha1.DriveContent
		detail  string
	}{
		"nothing":                              {unchanged, finds(inventory.Signature{}), v1alpha1.ContentBlank, ""},
		"a pool":                               {unchanged, finds(weftPool), v1alpha1.ContentWeft, v1alpha1.DetailNvmetPool},
		"a pool that serves":                   {mounted, finds(weftPool), v1alpha1.ContentWeft, v1alpha1.DetailNvmetPool},
		"a pool of SPDK":                       {unchanged, finds(lvolstore), v1alpha1.ContentWeft, v1alpha1.DetailSPDKPool},
		"a pool of SPDK, mounted":              {mounted, finds(lvolstore), v1alpha1.ContentForeign, "SPDK_blobstore signature, mounted on /mnt/a b"},
		"another blobstore of SPDK":            {unchanged, finds(inventory.Signature{Type: "SPDK_blobstore", Usage: "other", Label: "BLOBFS"}), v1alpha1.ContentForeign, "SPDK_blobstore signature"},
		"somebody else's XFS":                  {unchanged, finds(inventory.Signature{Type: "xfs", Usage: "filesystem", Label: "data"}), v1alpha1.ContentForeign, "xfs filesystem"},
		"a label alone is no pool":             {unchanged, finds(inventory.Signature{Type: "ext4", Usage: "filesystem", Label: inventory.PoolLabel}), v1alpha1.ContentForeign, "ext4 filesystem"},
		"a pool's label and a partition table": {unchanged, finds(inventory.Signature{Type: "xfs", Label: inventory.PoolLabel, PartitionTable: "dos"}), v1alpha1.ContentForeign, "dos partition table"},
		"a partition table":                    {unchanged, finds(gpt), v1alpha1.ContentForeign, "gpt partition table"},
		"a physical volume":                    {unchanged, finds(inventory.Signature{Type: "LVM2_member", Usage: "raid"}), v1alpha1.ContentForeign, "LVM2_member signature"},
		"a label of nothing":                   {unchanged, finds(inventory.Signature{Label: "x"}), v1alpha1.ContentForeign, "unknown signature"},
		"a contradiction":                      {unchanged, finds(inventory.Signature{Ambivalent: true}), v1alpha1.ContentForeign, "several signatures that contradict each other"},
		"mounted":                              {mounted, finds(ext4), v1alpha1.ContentForeign, "ext4 filesystem, mounted on /mnt/a b"},
		"mounted and not known to the prober":  {mounted, finds(inventory.Signature{}), v1alpha1.ContentForeign, "mounted on /mnt/a b"},
		"data without a signature":             {unchanged, finds(unnamed), v1alpha1.ContentUnknown, "first or last MiB is not zero, as on a drive that software uses directly; if its data can be lost, erase it: blkdiscard -f /dev/nvme0n1, or blkdiscard -zf /dev/nvme0n1"},
		"data without a signature, mounted":    {mounted, finds(unnamed), v1alpha1.ContentForeign, "data without a signature, mounted on /mnt/a b"},
		"mounted in many places": {func(m machine) {
			m.add(`proc/self/mountinfo = 1 1 259:0 / /a rw\n2 1 259:0 / /a rw\n3 1 259:0 / /b rw\n4 1 259:0 / /c rw\n5 1 259:0 / /d rw`)
		}, finds(ext4), v1alpha1.ContentForeign, "ext4 filesystem, mounted on /a, mounted on /b and 2 more"},
		"held": {func(m machine) { m.add(disk + "holders/md0/\n" + disk + "holders/dm-3/") }, finds(weftPool), v1alpha1.ContentForeign, "used by dm-3, md0"},
		"partitions": {func(m machine) {
			m.add(disk + "nvme0n1p1/partition = 1\n" + disk + "nvme0n1p1/dev = 259:5\n" + disk + "nvme0n1p1/holders/dm-0/\n" + disk + "nvme0n1p2/partition = 2\n" + disk + "nvme0n1p2/dev = 259:6")
		}, finds(inventory.Signature{}), v1alpha1.ContentForeign, "partitions nvme0n1p1 (used by dm-0), nvme0n1p2"},
		"read-only": {func(m machine) { m.add(disk + "ro = 1") }, finds(inventory.Signature{}), v1alpha1.ContentUnknown, "the disk is read-only"},
		"not to be probed": {unchanged, func(string) (inventory.Signature, error) {
			return inventory.Signature{}, errors.New("input/output error")
		}, v1alpha1.ContentUnknown, "input/output error"},
		"holders not readable": {func(m machine) { m.unreadable(disk + "holders") }, finds(inventory.Signature{}), v1alpha1.ContentUnknown, "holders"},
	} {
		t.Run(name, func(t *testing.T) {
			d := driveOf(t, "nvme0n1", test.change, test.probe)
			if d == nil {
				t.Fatal("the drive is not listed")
			}
			// The words of an Unknown come from the system; the others are ours.
			asWanted := d.ContentDetail == test.detail || d.Content == v1alpha1.ContentUnknown && strings.Contains(d.ContentDetail, test.detail)
			if d.Content != test.content || !asWanted {
				t.Errorf("got %s %q, want %s %q", d.Content, d.ContentDetail, test.content, test.detail)
			}
		})
	}
}

func TestProbesTheDiskItself(t *testing.T) {
	var probed []string
	h := vm(t)
	h.Prober = prober(func(path string) (inventory.Signature, error) {
		probed = append(probed, strings.TrimPrefix(path, h.Root))
		return inventory.Signature{}, nil
	})
	if _, err := inventory.Discover(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/dev/nvme0n1", "/dev/nvme1n1", "/dev/vda"}; !slices.Equal(probed, want) {
		t.Errorf("probed %v, want %v", probed, want)
	}
}

func TestIdentity(t *testing.T) {
	const (
		nvme0 = "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/"
		vda   = "sys/devices/pci0000:00/0000:00:03.0/virtio1/block/vda/"
	)
	for name, test := range map[string]struct {
		drive  string
		change func(machine)
		want   string
	}{
		"the world-wide id":            {"nvme0n1", unchanged, "nvme.1b36-776566742d30-51454d55204e564d65204374726c-00000001"},
		"the serial without it":        {"nvme0n1", func(m machine) { m.remove(nvme0 + "nvme0n1/wwid") }, "weft-0"},
		"the path without both":        {"vda", func(m machine) { m.add("dev/disk/by-path/pci-0000:00:03.0 -> ../../vda") }, "path-pci-0000:00:03.0"},
		"the PCI address without udev": {"vda", unchanged, "pci-0000:00:03.0"},
		"a virtio disk's serial":       {"vda", func(m machine) { m.add(vda + "serial = abc") }, "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			d := driveOf(t, test.drive, test.change, finds(inventory.Signature{}))
			if d == nil || d.ID != test.want {
				t.Errorf("got %+v, want the id %s", d, test.want)
			}
		})
	}
}

func TestWriteCache(t *testing.T) {
	const attribute = "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1/queue/write_cache"
	for name, test := range map[string]struct {
		change func(machine)
		want   v1alpha1.WriteCache
	}{
		"volatile":                    {func(m machine) { m.add(attribute + " = write back") }, v1alpha1.WriteCacheBack},
		"none":                        {func(m machine) { m.add(attribute + " = write through") }, v1alpha1.WriteCacheThrough},
		"not said, which is not none": {func(m machine) { m.remove(attribute) }, ""},
		"a word of a kernel to come":  {func(m machine) { m.add(attribute + " = write around") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := driveOf(t, "nvme0n1", test.change, finds(inventory.Signature{}))
			if d == nil || d.WriteCache != test.want {
				t.Errorf("got %+v, want the cache %q", d, test.want)
			}
		})
	}
}

// A host with two identical ids must not have one drive taken for the other.
func TestOneIDTwice(t *testing.T) {
	same := func(m machine) {
		for _, disk := range []string{"04.0/nvme/nvme0/nvme0n1", "05.0/nvme/nvme1/nvme1n1"} {
			m.add("sys/devices/pci0000:00/0000:00:" + disk + "/wwid = eui.1")
		}
	}
	d := driveOf(t, "nvme0n1", same, finds(inventory.Signature{}))
	if d == nil || d.Content != v1alpha1.ContentUnknown || d.ContentDetail != "same id as nvme1n1" {
		t.Errorf("got %+v, want it unknown", d)
	}
	if d := driveOf(t, "nvme1n1", same, finds(inventory.Signature{})); d != nil {
		t.Errorf("got a second drive of the same id: %+v", d)
	}
}

func TestNotItsOwn(t *testing.T) {
	const nvme0 = "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/"
	for name, change := range map[string]func(machine){
		"over TCP":              func(m machine) { m.add(nvme0 + "transport = tcp") },
		"over loop":             func(m machine) { m.add(nvme0 + "transport = loop") },
		"gone while being read": func(m machine) { m.remove(nvme0 + "transport") },
		"hidden":                func(m machine) { m.add(nvme0 + "nvme0n1/hidden = 1") },
		"without a medium":      func(m machine) { m.add(nvme0 + "nvme0n1/size = 0") },
		"without any controller": func(m machine) {
			m.remove("sys/block/nvme0n1").add(`
sys/devices/virtual/nvme-subsystem/nvme-subsys0:
  subsysnqn = nqn.2014-08.org:x
  nvme0n1/device -> ../../nvme-subsys0
  nvme0n1/size = 1000
  nvme0n1/dev = 259:0
sys/block/nvme0n1 -> ../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if d := driveOf(t, "nvme0n1", change, finds(inventory.Signature{})); d != nil {
				t.Errorf("it is listed: %+v", d)
			}
		})
	}
}
