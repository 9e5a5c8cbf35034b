// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	. "github.com/onsi/gomega/gstruct"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
	launch "github.com/weft-storage/weft/dataplane/cmd/weft-launch"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/inventory"
)

const (
	first  = "0000:5e:00.0"
	second = "0000:5f:00.0"
)

// lvstore is how SPDK begins the device of a logical volume store.
var lvstore = "SPDKBLOB" + strings.Repeat("\x00", 48) + "LVOLSTORE"

// newVFIO is a start with two blank drives for SPDK's own driver.
func newVFIO(t *testing.T) *start {
	t.Helper()
	s := newStart(t)
	s.options.Driver, s.options.Drives = v1alpha1.DriverVFIO, planned(first, second)
	s.node.AddDriver("vfio-pci")
	s.node.AddDriver("uio_pci_generic")
	s.node.AddDrive(first, 0, "")
	s.node.AddDrive(second, 1, "")
	return s
}

// planned drives at these addresses: they are numbered from the first on.
func planned(addresses ...string) []launch.PlannedDrive {
	drives := make([]launch.PlannedDrive, len(addresses))
	for i, address := range addresses {
		drives[i] = launch.PlannedDrive{Address: address, ID: wwid(int(address[6] - first[6]))}
		if address >= "0000:60" {
			drives[i].ID = wwid(int(address[6]-'0') + 2)
		}
	}
	return drives
}

// leftOut are the refusals of the start, by the drives' IDs.
func (s *start) leftOut() device.Refusals {
	refusals, err := device.ReadRefusals(s.options.Socket)
	s.Expect(err).NotTo(HaveOccurred())
	return refusals
}

func (s *start) records() device.Records {
	records, err := device.ReadRecords(s.options.Socket)
	s.Expect(err).NotTo(HaveOccurred())
	return records
}

// at is what the launcher records at the time of these tests of the drive with a number.
func at(number int, content v1alpha1.DriveContent) device.Record {
	return device.Record{ID: wwid(number), Content: content, CheckedAt: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)}
}

// remember writes the records of an earlier start.
func (s *start) remember(text string) {
	s.node.Write("records", text)
	s.Expect(unix.Mkdir(filepath.Dir(s.options.Socket), 0o700)).To(Succeed())
	s.Expect(unix.Rename(filepath.Join(s.node.Root, "records"), filepath.Join(filepath.Dir(s.options.Socket), "drives.json"))).To(Succeed())
}

func TestTakeDrives(t *testing.T) {
	for driver, kernel := range map[v1alpha1.DriveDriver]string{v1alpha1.DriverVFIO: "vfio-pci", v1alpha1.DriverUIO: "uio_pci_generic"} {
		t.Run(string(driver), func(t *testing.T) {
			s := newVFIO(t)
			s.options.Driver = driver
			s.node.AddDrive("0000:60:00.0", 2, "") // not planned
			if driver == v1alpha1.DriverUIO {
				s.node.Write("sys/kernel/iommu_groups/"+first+"/type", "identity")
				s.node.Remove("sys/devices/pci0000:00/" + second + "/iommu_group")
			}
			s.Expect(s.run(t)).To(Succeed())
			s.Expect(strings.Contains(s.log.String(), "--iova-mode pa")).To(Equal(driver == v1alpha1.DriverUIO))
			s.Expect(s.node.Driver(first)).To(Equal(kernel))
			s.Expect(s.node.Driver(second)).To(Equal(kernel))
			s.Expect(s.node.Driver("0000:60:00.0")).To(Equal("nvme"))
			s.Expect(s.records()).To(Equal(device.Records{first: at(0, v1alpha1.ContentBlank), second: at(1, v1alpha1.ContentBlank)}))
			s.Expect(s.log.String()).To(ContainSubstring("--pci-allowed " + first + " --pci-allowed " + second))
			s.Expect(s.log.String()).NotTo(ContainSubstring("--no-pci"))
			s.Expect(s.argv).To(BeNil(), "somebody has to give the drives back")
		})
	}
}

func TestDrivesAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*start)
		reason string
		want   []string
		all    bool // of the drives are refused
	}{
		"with a signature": {func(s *start) {
			s.machine.Prober = finds("nvme1n1", inventory.Signature{Type: "ext4", Usage: "filesystem"})
		},
			v1alpha1.ReasonForeignSignature, []string{"/dev/nvme1n1 (" + second + ")", "ext4 filesystem", "blkdiscard -f /dev/nvme1n1"}, false},
		"with a blobstore that is no lvstore": {func(s *start) {
			s.node.AddDrive("0000:60:00.0", 2, strings.Replace(lvstore, "LVOLSTORE", "BLOBFS", 1))
			s.options.Drives = planned("0000:60:00.0")
			s.machine.Prober = finds("nvme2n1", inventory.Signature{Type: "SPDK_blobstore", Usage: "other", Label: "BLOBFS"})
		}, v1alpha1.ReasonForeignSignature, []string{"/dev/nvme2n1 (0000:60:00.0)", "SPDK_blobstore signature", "blkdiscard -f /dev/nvme2n1"}, false},
		"a pool of the other engine": {func(s *start) {
			s.machine.Prober = finds("nvme1n1", inventory.Signature{Type: "xfs", Usage: "filesystem", Label: inventory.PoolLabel})
		}, v1alpha1.ReasonForeignSignature, []string{"/dev/nvme1n1", "pool of engine Nvmet", "engine: Nvmet"}, false},
		"with a damaged filesystem, which blkid does not see": {func(s *start) {
			s.node.AddDrive("0000:60:00.0", 2, "XFSB")
			s.options.Drives = planned("0000:60:00.0")
		},
			v1alpha1.ReasonForeignSignature, []string{"/dev/nvme2n1 (0000:60:00.0)", "damaged xfs filesystem"}, false},
		"with data that has no signature": {func(s *start) {
			s.node.AddDrive("0000:60:00.0", 2, "raw")
			s.options.Drives = planned("0000:60:00.0")
		},
			v1alpha1.ReasonForeignSignature, []string{"/dev/nvme2n1 (0000:60:00.0)", "not zero", "blkdiscard -f /dev/nvme2n1"}, false},
		"that cannot be read": {func(s *start) { s.node.Remove("dev/nvme1n1") },
			v1alpha1.ReasonForeignSignature, []string{"/dev/nvme1n1", "is unknown", "no such file"}, false},
		"mounted": {func(s *start) {
			s.node.Mounts("36 22 259:1 / /data rw - ext4 /dev/nvme1n1 rw", "35 22 0:31 / /dev/hugepages rw,relatime - hugetlbfs hugetlbfs rw,pagesize=2M")
		}, v1alpha1.ReasonForeignSignature, []string{"/dev/nvme1n1", "mounted on /data"}, false},
		"held by a mount that nobody sees": {func(s *start) {
			s.machine.Look = func(_ context.Context, path string) (device.Content, error) {
				if strings.HasSuffix(path, "/dev/nvme1n1") {
					return device.Content{}, fmt.Errorf("probe %s: %w", path, device.ErrInUse)
				}
				return device.Content{}, nil
			}
		}, v1alpha1.ReasonDeviceInUse, []string{"/dev/nvme1n1 (" + second + ") is in use: something on the node uses it"}, false},
		"used for swap": {func(s *start) { s.node.Write("proc/swaps", "Filename Type\n/dev/nvme1n1 partition") },
			v1alpha1.ReasonForeignSignature, []string{"used for swap"}, false},
		"held by a volume group": {func(s *start) {
			s.node.Write("sys/devices/pci0000:00/"+second+"/nvme/nvme1/nvme1n1/holders/dm-0/dev", "253:0")
		}, v1alpha1.ReasonForeignSignature, []string{"used by dm-0"}, false},
		"with partitions": {func(s *start) {
			s.node.Write("sys/devices/pci0000:00/"+second+"/nvme/nvme1/nvme1n1/nvme1n1p1/partition", "1")
			s.node.Write("sys/devices/pci0000:00/"+second+"/nvme/nvme1/nvme1n1/nvme1n1p1/dev", "259:7")
		}, v1alpha1.ReasonForeignSignature, []string{"partitions nvme1n1p1"}, false},
		"with a namespace that cannot be looked at": {func(s *start) {
			s.node.Write("sys/devices/pci0000:00/"+second+"/nvme/nvme1/nvme1n2/size", "0")
		}, v1alpha1.ReasonForeignSignature, []string{"2 namespaces", "1 of them could be read"}, false},
		"of another driver": {func(s *start) { s.node.AddDriver("mydriver"); s.node.SetDriver(second, "mydriver") },
			v1alpha1.ReasonDeviceInUse, []string{second + " belongs to driver mydriver"}, false},
		"that are network cards": {func(s *start) { s.node.Write("sys/devices/pci0000:00/"+second+"/class", "0x020000") },
			v1alpha1.ReasonInvalidSetting, []string{second, "not an NVMe drive", "0x020000"}, false},
		"all gone": {func(s *start) { s.options.Drives = planned("0000:60:00.0", "0000:61:00.0") },
			v1alpha1.ReasonDeviceMissing, []string{"no drive at 0000:60:00.0", "no drive at 0000:61:00.0"}, true},
		"without an IOMMU": {func(s *start) { s.node.Remove("sys/devices/pci0000:00/" + second + "/iommu_group") },
			v1alpha1.ReasonNoIOMMU, []string{second + " has no IOMMU", "driver: UIO"}, false},
		"without an IOMMU, where vfio would do without": {func(s *start) {
			s.node.Write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y")
			s.node.Write("sys/kernel/iommu_groups/"+second+"/name", "vfio-noiommu")
		}, v1alpha1.ReasonNoIOMMU, []string{second + " has no IOMMU", "driver: UIO"}, false},
		"that UIO cannot map memory for": {func(s *start) { s.options.Driver = v1alpha1.DriverUIO },
			v1alpha1.ReasonDriverNotAvailable, []string{first, "would never answer", "driver: VFIO", "iommu.passthrough=1"}, true},
		"beside a network card": {func(s *start) {
			s.node.Write("sys/kernel/iommu_groups/"+second+"/devices/0000:00:1f.6/class", "0x020000")
			s.node.AddDriver("e1000e")
			s.node.Write("sys/bus/pci/devices/0000:00:1f.6/class", "0x020000")
			s.Expect(unix.Symlink("../../drivers/e1000e", filepath.Join(s.node.Root, "sys/bus/pci/devices/0000:00:1f.6/driver"))).To(Succeed())
		}, v1alpha1.ReasonDriverNotAvailable, []string{second + " shares its IOMMU group with 0000:00:1f.6, which uses driver e1000e"}, false},
		"without the driver": {func(s *start) { s.node.Remove("sys/bus/pci/drivers/vfio-pci") },
			v1alpha1.ReasonDriverNotAvailable, []string{"does not have driver vfio-pci (module not found)", "modprobe vfio-pci"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newVFIO(t)
			test.change(s)
			before := s.node.Driver(second)
			first, alone := s.options.Drives[0], len(s.options.Drives) == 1
			if alone || test.all {
				s.refused(t, test.reason, test.want...)
				s.Expect(s.records()).To(BeEmpty())
				s.Expect(s.node.Driver(first.Address)).NotTo(HavePrefix("vfio"), "nothing was changed")
			} else {
				s.Expect(s.run(t)).To(Succeed(), "the other drive is served")
				s.Expect(s.node.Driver(first.Address)).To(Equal("vfio-pci"))
				s.Expect(s.records()).To(HaveLen(1))
				s.Expect(s.leftOut()).To(HaveLen(1))
				said := s.leftOut()[wwid(1)]
				s.Expect(said).NotTo(BeNil())
				s.Expect(said.Reason).To(Equal(test.reason))
				for _, w := range test.want {
					s.Expect(said.Message).To(ContainSubstring(w))
				}
				s.Expect(s.log.String()).NotTo(ContainSubstring("--pci-allowed " + second))
			}
			s.Expect(s.node.Driver(second)).To(Equal(before), "nothing was changed")
		})
	}
}

// finds is a prober that finds a signature on one device.
type finder struct {
	name  string
	found inventory.Signature
}

func finds(name string, found inventory.Signature) inventory.Prober { return finder{name, found} }

// Probe implements inventory.Prober.
func (f finder) Probe(_ context.Context, path string) (inventory.Signature, error) {
	if filepath.Base(path) == f.name {
		return f.found, nil
	}
	return inventory.Signature{}, nil
}

func TestLvstoreIsOurs(t *testing.T) {
	s := newVFIO(t)
	s.node.AddDrive("0000:60:00.0", 2, lvstore)
	s.options.Drives = append(s.options.Drives, planned("0000:60:00.0")...)
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.records()).To(HaveKeyWithValue("0000:60:00.0", at(2, v1alpha1.ContentWeft)))
	s.Expect(s.records()).To(HaveKeyWithValue(first, at(0, v1alpha1.ContentBlank)))
}

func TestOneDriveIsMissing(t *testing.T) {
	s := newVFIO(t)
	s.options.Drives = append(s.options.Drives, planned("0000:60:00.0")...)
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.leftOut()).To(MatchAllKeys(Keys{wwid(2): HaveField("Reason", v1alpha1.ReasonDeviceMissing)}))
	s.Expect(s.log.String()).To(ContainSubstring(`"continuing without a planned drive" drive=` + wwid(2)))
	s.Expect(s.records()).To(HaveLen(2))
}

// TestDrivesOfAPredecessor: a target was killed, so its drives still have SPDK's driver. What was blank when
// it was taken may hold an lvstore by now: the kernel has to look again.
func TestDrivesOfAPredecessor(t *testing.T) {
	s := newVFIO(t)
	s.node.AddDrive("0000:60:00.0", 2, lvstore)
	s.node.AddDrive("0000:61:00.0", 3, "XFSB")
	s.node.AddDrive("0000:62:00.0", 4, "")
	s.options.Drives = planned(first, second, "0000:60:00.0", "0000:61:00.0", "0000:62:00.0")
	s.remember(`{"` + first + `": {"content": "Blank", "checkedAt": "2026-11-19T09:00:00Z"},
		"0000:60:00.0": {"content": "Blank", "checkedAt": "2026-11-19T09:00:00Z"},
		"0000:61:00.0": {"id": "eui.0000000000000003", "content": "Weft", "checkedAt": "2026-11-19T09:00:00Z"}}`)
	for _, d := range s.options.Drives {
		address := d.Address
		s.node.SetDriver(address, "vfio-pci")
		s.node.Write("sys/devices/pci0000:00/"+address+"/driver_override", "vfio-pci")
	}
	s.node.Refuse("nvme", "0000:62:00.0")
	s.machine.BindTimeout = 300 * time.Millisecond
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.records()).To(Equal(device.Records{
		first:          at(0, v1alpha1.ContentBlank),
		second:         at(1, v1alpha1.ContentBlank),
		"0000:60:00.0": at(2, v1alpha1.ContentWeft),
		// The kernel was not asked, or it would have been refused.
		"0000:61:00.0": {ID: wwid(3), Content: v1alpha1.ContentWeft, CheckedAt: time.Date(2026, 11, 19, 9, 0, 0, 0, time.UTC)},
		"0000:62:00.0": {Content: v1alpha1.ContentUnknown, CheckedAt: at(4, "").CheckedAt},
	}))
	for _, d := range s.options.Drives {
		address := d.Address
		s.Expect(s.node.Driver(address)).To(Equal("vfio-pci"), address)
	}
}

func TestRecordLvstore(t *testing.T) {
	s := newVFIO(t)
	s.Expect(s.run(t)).To(Succeed())
	later := time.Date(2026, 11, 20, 11, 0, 0, 0, time.UTC)
	s.Expect(device.RecordLvstore(s.options.Socket, first, later)).To(Succeed())
	s.Expect(s.records()).To(Equal(device.Records{first: {ID: wwid(0), Content: v1alpha1.ContentWeft, CheckedAt: later}, second: at(1, v1alpha1.ContentBlank)}))
	s.Expect(device.RecordLvstore(s.options.Socket, "0000:60:00.0", later)).To(MatchError(ContainSubstring("weft-launch did not take it")))
}

// TestNoNamespace: a dead drive may still be there, without any. The others are served.
func TestNoNamespace(t *testing.T) {
	s := newVFIO(t)
	s.machine.BindTimeout = 100 * time.Millisecond
	s.node.Remove("sys/devices/pci0000:00/" + second + "/nvme/nvme1")
	s.node.Remove("sys/block/nvme1n1")
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.records()).To(HaveLen(1))
	s.Expect(s.leftOut()[wwid(1)]).To(And(HaveField("Reason", v1alpha1.ReasonDeviceMissing), HaveField("Message", ContainSubstring("no namespace"))))
	s.Expect(s.node.Driver(second)).To(Equal("nvme"))
}

// TestSwappedDrive: another drive is at the address of a planned one. Selected or not, blank or with a pool, it is not
// taken under the name of the one before, and the other drives are served.
func TestSwappedDrive(t *testing.T) {
	gone := launch.PlannedDrive{Address: second, ID: "eui.gone"}
	for name, test := range map[string]struct {
		content  string
		selected bool
	}{
		"blank": {"", false}, "with a pool": {lvstore, false}, "blank, and planned too": {"", true}, "with a pool, and planned too": {lvstore, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newVFIO(t)
			s.node.AddDrive("0000:60:00.0", 2, test.content)
			gone.Address = "0000:60:00.0"
			s.options.Drives = append(planned(first), gone)
			if test.selected {
				s.options.Drives = append(s.options.Drives, planned("0000:60:00.0")...)
			}
			s.Expect(s.run(t)).To(Succeed())
			s.Expect(s.leftOut()).To(MatchAllKeys(Keys{gone.ID: And(
				HaveField("Reason", v1alpha1.ReasonDeviceSwapped), HaveField("Message", ContainSubstring("is drive "+wwid(2)+" instead of the planned drive "+gone.ID)))}))
			s.Expect(s.node.Driver(first)).To(Equal("vfio-pci"))
			if !test.selected {
				s.Expect(s.records()).To(HaveLen(1))
				s.Expect(s.node.Driver(gone.Address)).To(Equal("nvme"))
				s.Expect(s.log.String()).NotTo(ContainSubstring("--pci-allowed " + gone.Address))
				return
			}
			s.Expect(s.records()[gone.Address].ID).To(Equal(wwid(2)))
			s.Expect(strings.Count(s.log.String(), "--pci-allowed "+gone.Address)).To(Equal(1))
		})
	}
}

// TestRecordOfAnotherDrive: what is recorded at an address is not of a drive that is planned there, so the kernel
// looks.
func TestRecordOfAnotherDrive(t *testing.T) {
	for name, id := range map[string]string{"of the drive before": "eui.gone", "of an earlier release": ""} {
		t.Run(name, func(t *testing.T) {
			s := newVFIO(t)
			s.remember(`{"` + second + `": {"id": "` + id + `", "content": "Weft", "checkedAt": "2026-11-19T09:00:00Z"}}`)
			s.node.SetDriver(second, "vfio-pci")
			s.Expect(s.run(t)).To(Succeed())
			s.Expect(s.records()).To(HaveKeyWithValue(second, at(1, v1alpha1.ContentBlank)))
		})
	}
}

// TestKernelHadItMeanwhile: a record is worth nothing once the kernel has had the drive again.
func TestKernelHadItMeanwhile(t *testing.T) {
	s := newVFIO(t)
	s.remember(`{"` + first + `": {"content": "Weft", "checkedAt": "2026-11-19T09:00:00Z"}}`)
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.records()).To(HaveKeyWithValue(first, at(0, v1alpha1.ContentBlank)))
}

func TestAnotherUserSpaceDriver(t *testing.T) {
	s := newVFIO(t)
	s.remember(`{"` + first + `": {"id": "` + wwid(0) + `", "content": "Weft", "checkedAt": "2026-11-19T09:00:00Z"}}`)
	s.node.SetDriver(first, "uio_pci_generic")
	s.node.SetDriver(second, "")
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.node.Driver(first)).To(Equal("vfio-pci"))
	s.Expect(s.node.Driver(second)).To(Equal("vfio-pci"))
	s.Expect(s.records()[first].Content).To(Equal(v1alpha1.ContentWeft))
	s.Expect(s.records()[second].Content).To(Equal(v1alpha1.ContentBlank))
}

// TestForgottenDrives: the plan does not name them any more, and who took them could not give them back.
func TestForgottenDrives(t *testing.T) {
	s := newVFIO(t)
	s.remember(`{"` + first + `": {"content": "Weft", "checkedAt": "2026-11-19T09:00:00Z"}, "0000:77:00.0": {"content": "Weft", "checkedAt": "2026-11-19T09:00:00Z"}}`)
	s.node.SetDriver(first, "vfio-pci")
	s.node.Write("sys/devices/pci0000:00/"+first+"/driver_override", "vfio-pci")
	s.options.Driver, s.options.Drives = v1alpha1.DriverKernel, nil
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.argv).To(ContainElement("--no-pci"))
	s.Expect(s.node.Driver(first)).To(Equal("nvme"))
	s.Expect(s.records()).To(BeEmpty())
}

func TestUnreadableRecords(t *testing.T) {
	s := newVFIO(t)
	s.remember(`{`)
	s.Expect(s.run(t)).To(MatchError(And(ContainSubstring("drives.json"), ContainSubstring("remove it"))))
	s.Expect(s.node.Driver(first)).To(Equal("nvme"))
}

// TestDriverRefusesOne: the kernel has it back, and the others are served.
func TestDriverRefusesOne(t *testing.T) {
	s := newVFIO(t)
	s.machine.BindTimeout = 200 * time.Millisecond
	s.node.Refuse("vfio-pci", second)
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.leftOut()[wwid(1)]).To(And(HaveField("Reason", v1alpha1.ReasonDriverNotAvailable), HaveField("Message", ContainSubstring("vfio-pci did not take drive "+second))))
	s.Expect(s.node.Driver(first)).To(Equal("vfio-pci"))
	s.Expect(s.node.Driver(second)).To(Equal("nvme"))
	s.Expect(s.records()).To(HaveLen(1))
}

func TestDriverIsLoaded(t *testing.T) {
	s := newVFIO(t)
	s.node.Remove("sys/bus/pci/drivers/vfio-pci")
	s.machine.Command = func(_ context.Context, name string, args ...string) (inventory.Output, error) {
		s.Expect(append([]string{name}, args...)).To(Equal([]string{"modprobe", "vfio-pci"}))
		s.node.AddDriver("vfio-pci")
		return inventory.Output{}, nil
	}
	s.Expect(s.run(t)).To(Succeed())
	s.Expect(s.node.Driver(first)).To(Equal("vfio-pci"))
}

// TestStoppedBeforeTheStart: drives go back also when SPDK never ran.
func TestStoppedBeforeTheStart(t *testing.T) {
	s := newVFIO(t)
	s.node.SetDriver(first, "vfio-pci")
	ctx, cancel := context.WithCancel(t.Context())
	s.machine.Look = func(context.Context, string) (device.Content, error) { cancel(); return device.Content{}, nil }
	_ = launch.Run(ctx, s.machine, s.options)
	s.Expect(s.node.Driver(first)).To(Equal("nvme"))
	s.Expect(s.node.Driver(second)).To(Equal("nvme"))
	s.Expect(s.records()).To(BeEmpty())
	s.Expect(s.log.String()).NotTo(ContainSubstring("starting SPDK"))
}
