// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// node is a machine with eight CPUs and, unless a test changes that, 4 GiB of hugepages of
// 2 MiB that a cgroup without limits may use.
type node struct {
	// Root of its tree.
	Root string
	t    testing.TB

	mu sync.Mutex
	// refused names devices by the driver that does not take them.
	refused map[string]string
}

// newNode makes a node without drives.
func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{Root: t.TempDir(), t: t, refused: map[string]string{}}
	for path, text := range map[string]string{
		"proc/sys/kernel/osrelease":       "6.12.0",
		"proc/meminfo":                    "MemTotal: 16000000 kB",
		"proc/self/cgroup":                "0::/",
		"proc/swaps":                      "Filename Type Size Used Priority",
		"sys/devices/system/cpu/online":   "0-7",
		"sys/fs/cgroup/cgroup.procs":      "",
		"sys/bus/pci/drivers/nvme/module": "",
	} {
		n.Write(path, text)
	}
	n.Mounts(Hugetlbfs("/dev/hugepages", "2M"))
	n.Pages("hugepages-2048kB", 2048, 2048)
	for _, dir := range []string{"sys/block", "sys/class/block", "sys/class/net", "sys/bus/pci/devices", "dev/hugepages"} {
		n.mkdir(dir)
	}
	n.pipe("sys/bus/pci/drivers_probe", n.probe)
	n.AddDriver("nvme")
	return n
}

// Write makes a file, and the folders above it.
func (n *node) Write(path, text string) {
	n.t.Helper()
	n.mkdir(filepath.Dir(path))
	n.must(os.WriteFile(n.path(path), []byte(text+"\n"), 0o600))
}

// Read returns a file's text without the last newline.
func (n *node) Read(path string) string {
	n.t.Helper()
	text, err := os.ReadFile(n.path(path))
	n.must(err)
	return strings.TrimSuffix(string(text), "\n")
}

// Remove removes a file, or a folder with all in it.
func (n *node) Remove(path string) {
	n.t.Helper()
	n.must(os.RemoveAll(n.path(path)))
}

// Mounts are what the process sees besides the root filesystem, as lines of mountinfo.
func (n *node) Mounts(lines ...string) {
	n.t.Helper()
	n.Write("proc/self/mountinfo", strings.Join(append([]string{"22 1 252:1 / / rw,relatime - ext4 /dev/vda1 rw"}, lines...), "\n"))
}

// Hugetlbfs is the line of mountinfo for one.
func Hugetlbfs(at, pageSize string) string {
	return fmt.Sprintf("35 22 0:31 / %s rw,relatime - hugetlbfs hugetlbfs rw,pagesize=%s", at, pageSize)
}

// Pages sets how many hugepages there are, and how many are free.
func (n *node) Pages(pool string, total, free int) {
	n.t.Helper()
	n.Write("sys/kernel/mm/hugepages/"+pool+"/nr_hugepages", fmt.Sprint(total))
	n.Write("sys/kernel/mm/hugepages/"+pool+"/free_hugepages", fmt.Sprint(free))
	n.Write("sys/kernel/mm/hugepages/"+pool+"/resv_hugepages", "0")
}

// AddDriver adds a PCI driver to the kernel.
func (n *node) AddDriver(name string) {
	n.t.Helper()
	dir := "sys/bus/pci/drivers/" + name
	n.Write(dir+"/uevent", "")
	n.pipe(dir+"/unbind", func(address string) error { return n.unbind(name, address) })
}

// Refuse makes a driver not take a device.
func (n *node) Refuse(driver, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused[driver] = address
}

// AddDrive adds an NVMe drive with one namespace, nvme<number>n1, that begins with content. The kernel
// drives it.
func (n *node) AddDrive(address string, number int, content string) {
	n.t.Helper()
	name := fmt.Sprintf("nvme%d", number)
	device := n.device(address)
	namespace := device + "/nvme/" + name + "/" + name + "n1"
	for path, text := range map[string]string{
		device + "/class":                              "0x010802",
		device + "/driver_override":                    "(null)",
		device + "/nvme/" + name + "/transport":        "pcie",
		device + "/nvme/" + name + "/model":            "TEST DRIVE",
		device + "/nvme/" + name + "/serial":           "S" + fmt.Sprint(number),
		namespace + "/dev":                             fmt.Sprintf("259:%d", number),
		namespace + "/size":                            "8192",
		namespace + "/ro":                              "0",
		namespace + "/wwid":                            wwid(number),
		namespace + "/queue/logical_block_size":        "512",
		"sys/kernel/iommu_groups/" + address + "/type": "DMA",
	} {
		n.Write(path, text)
	}
	n.link("../../"+name, namespace+"/device")
	n.link("../../../kernel/iommu_groups/"+address, device+"/iommu_group")
	n.link("../../../../devices/pci0000:00/"+address, "sys/kernel/iommu_groups/"+address+"/devices/"+address)
	n.link("../../../devices/pci0000:00/"+address, "sys/bus/pci/devices/"+address)
	n.must(os.WriteFile(n.path("dev/"+name+"n1"), []byte(content), 0o600))
	n.must(os.Truncate(n.path("dev/"+name+"n1"), 4<<20))
	n.must(n.bind("nvme", address))
}

// wwid of the drive with a number.
func wwid(number int) string { return fmt.Sprintf("eui.%016d", number) }

// SetDriver moves a device to a driver, whatever either thinks of it; "" takes it from all.
func (n *node) SetDriver(address, driver string) {
	n.t.Helper()
	if now := n.Driver(address); now != "" {
		n.must(n.unbind(now, address))
	}
	if driver != "" {
		n.must(n.bind(driver, address))
	}
}

// Driver of a device; "" when none has it.
func (n *node) Driver(address string) string {
	n.t.Helper()
	link, err := os.Readlink(n.path(n.device(address) + "/driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	n.must(err)
	return filepath.Base(link)
}

func (n *node) device(address string) string { return "sys/devices/pci0000:00/" + address }

// probe does what the kernel does for a device without driver: the one that is named for it takes it, or else
// the one for its class.
func (n *node) probe(address string) error {
	override, err := os.ReadFile(n.path(n.device(address) + "/driver_override"))
	if err != nil {
		return err
	}
	driver := strings.TrimSpace(string(override))
	if driver == "" || driver == "(null)" {
		driver = "nvme"
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refused[driver] == address {
		return nil
	}
	return n.bind(driver, address)
}

// Folders in which the kernel lists block devices.
var blockClasses = []string{"sys/block/", "sys/class/block/"}

// bind makes the links by which a driver has a device. Only NVMe's makes block devices.
func (n *node) bind(driver, address string) error {
	device := n.path(n.device(address))
	if driver == "nvme" {
		if err := os.Rename(device+"/.nvme", device+"/nvme"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		found, err := filepath.Glob(device + "/nvme/nvme*/nvme*n*")
		if err != nil {
			return err
		}
		for _, namespace := range found {
			for _, class := range blockClasses {
				if err := os.Symlink(namespace, n.path(class+filepath.Base(namespace))); err != nil {
					return err
				}
			}
		}
	}
	return os.Symlink("../../../bus/pci/drivers/"+driver, device+"/driver")
}

func (n *node) unbind(driver, address string) error {
	device := n.path(n.device(address))
	if driver == "nvme" {
		found, err := filepath.Glob(device + "/nvme/nvme*/nvme*n*")
		if err != nil {
			return err
		}
		for _, namespace := range found {
			for _, class := range blockClasses {
				if err := os.Remove(n.path(class + filepath.Base(namespace))); err != nil {
					return err
				}
			}
		}
		if err := os.Rename(device+"/nvme", device+"/.nvme"); err != nil {
			return err
		}
	}
	return os.Remove(device + "/driver")
}

// pipe makes a file that acts on each line that is written to it.
func (n *node) pipe(path string, act func(line string) error) {
	n.t.Helper()
	n.mkdir(filepath.Dir(path))
	n.must(syscall.Mkfifo(n.path(path), 0o600))
	// Open for writing too, so that it does not end when a writer closes it.
	f, err := os.OpenFile(n.path(path), os.O_RDWR, 0)
	n.must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if err := act(lines.Text()); err != nil {
				n.t.Errorf("%s: %v", path, err)
			}
		}
	}()
	n.t.Cleanup(func() {
		_ = f.Close()
		<-done
	})
}

func (n *node) link(target, path string) {
	n.t.Helper()
	n.mkdir(filepath.Dir(path))
	n.must(os.Symlink(target, n.path(path)))
}

func (n *node) mkdir(path string) {
	n.t.Helper()
	n.must(os.MkdirAll(n.path(path), 0o700))
}

func (n *node) path(path string) string { return filepath.Join(n.Root, path) }

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}
