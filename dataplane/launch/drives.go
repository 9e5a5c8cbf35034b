// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/wait"
	kexec "k8s.io/utils/exec"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/inventory"
)

// Names of the kernel's drivers.
const (
	driverNVMe = "nvme"
	driverVFIO = "vfio-pci"
	driverUIO  = "uio_pci_generic"
)

// classNVMe starts the PCI class of NVMe drives: mass storage, non-volatile memory.
const classNVMe = "0x0108"

var namespaceName = regexp.MustCompile(`^nvme\d+(c\d+)?n\d+$`)

func wantedDriver(d v1alpha1.DriveDriver) string {
	if d == v1alpha1.DriverUIO {
		return driverUIO
	}
	return driverVFIO
}

// A drive that SPDK's own driver is to have.
type drive struct {
	address string
	// driver that has it now; empty when none does.
	driver string
	// id and content that were found, or that the record of an earlier start tells.
	id      string
	content v1alpha1.DriveContent
}

// returnUnsure gives planned drives back to the kernel that a dead target left with SPDK's driver, so that they can be
// looked at. Those that hold an lvstore stay as they are: what was blank when it was taken may hold one by now, but not
// the other way round. A drive that the kernel does not take stays as it is too.
func returnUnsure(ctx context.Context, m Machine, o Options, records device.Records) error {
	for _, address := range o.PCIAddresses {
		d, there, err := driveAt(m, address)
		if err != nil {
			return err
		}
		left := d.driver == driverVFIO || d.driver == driverUIO || d.driver == ""
		if !there || !left || records[address].Content == v1alpha1.ContentWeft && records[address].ID != "" {
			continue
		}
		if err := giveBack(ctx, m, o.Socket, records, []string{address}); err != nil {
			m.Log.Warn("what is on a drive stays unknown: the kernel does not take it back", "drive", address, "error", err)
			records[address] = device.Record{Content: v1alpha1.ContentUnknown, CheckedAt: m.Now().UTC()}
		}
	}
	return nil
}

// examineDrives looks at every planned drive, and changes nothing. A drive that is not
// there is left out: it must not take the other drives' volumes with it.
func examineDrives(ctx context.Context, m Machine, o Options, records device.Records) ([]drive, error) {
	var found []drive
	var kernels []int // those of found that the kernel drives
	for _, address := range o.PCIAddresses {
		d, there, err := driveAt(m, address)
		if err != nil {
			return nil, err
		}
		if !there {
			m.Log.Warn("a planned drive is not there; going on without it", "drive", address)
			continue
		}
		if err := checkIOMMU(m, o, address); err != nil {
			return nil, err
		}
		switch d.driver {
		case driverVFIO, driverUIO, "":
			// The kernel has no block device of it; the record is all there is.
			d.content = v1alpha1.ContentUnknown
			if record, ok := records[address]; ok {
				d.id, d.content = record.ID, record.Content
			}
		case driverNVMe:
			kernels = append(kernels, len(found))
		default:
			return nil, refuse(v1alpha1.ReasonDeviceInUse, "drive %s belongs to driver %s; unbind it there, or leave the drive out of the NvmfTarget's devices", address, d.driver)
		}
		found = append(found, d)
	}
	if len(found) == 0 {
		return nil, refuse(v1alpha1.ReasonDeviceMissing, "none of the planned drives is there: %s", strings.Join(o.PCIAddresses, ", "))
	}
	return found, examineKernels(ctx, m, found, kernels)
}

// examineKernels finds out what is on the drives that the kernel drives, by their indices.
func examineKernels(ctx context.Context, m Machine, drives []drive, indices []int) error {
	if len(indices) == 0 {
		return nil
	}
	shown := make([][]string, len(drives))
	for _, i := range indices {
		var err error
		if shown[i], err = awaitNamespaces(ctx, m, drives[i].address); err != nil {
			return err
		}
	}
	inv, err := inventory.Discover(ctx, inventory.Host{Root: m.Root, Addresses: noAddresses{}, Prober: m.Prober})
	if err != nil {
		return err
	}
	for _, i := range indices {
		at := slices.DeleteFunc(slices.Clone(inv.Drives), func(d v1alpha1.Drive) bool { return d.PCIAddress != drives[i].address })
		if drives[i].content, err = examine(ctx, m, drives[i].address, shown[i], at); err != nil {
			return err
		}
		if len(at) > 0 {
			drives[i].id = at[0].ID
		}
	}
	return nil
}

// driveAt reads what a PCI function is.
func driveAt(m Machine, address string) (d drive, there bool, err error) {
	class, err := m.read(devicesDir, address, "class")
	if errors.Is(err, fs.ErrNotExist) {
		return d, false, nil
	}
	if err != nil {
		return d, false, err
	}
	if !strings.HasPrefix(class, classNVMe) {
		return d, false, refuse(v1alpha1.ReasonInvalidSetting, "--pci %s is no NVMe drive, but of PCI class %s; give the drives' addresses only", address, class)
	}
	d = drive{address: address}
	d.driver, err = driverOf(m, address)
	return d, true, err
}

// examine says what is on a drive that the kernel drives. Anything that weft
// did not write, or that cannot be told, refuses it.
func examine(ctx context.Context, m Machine, address string, shown []string, known []v1alpha1.Drive) (v1alpha1.DriveContent, error) {
	if len(shown) == 0 {
		m.Log.Warn("a drive has no namespace, so nothing can be stored on it", "drive", address)
		return v1alpha1.ContentUnknown, nil
	}
	if len(shown) != len(known) {
		return "", refuse(v1alpha1.ReasonForeignSignature, "what is on drive %s cannot be told: it has %d namespaces (%s), and %d of them could be looked at; leave the drive out of the NvmfTarget's devices",
			address, len(shown), strings.Join(shown, ", "), len(known))
	}
	content := v1alpha1.ContentBlank
	for _, d := range known {
		one, err := examineNamespace(ctx, m, d)
		if err != nil {
			return "", err
		}
		if one != v1alpha1.ContentBlank {
			content = one
		}
	}
	return content, nil
}

func examineNamespace(ctx context.Context, m Machine, d v1alpha1.Drive) (v1alpha1.DriveContent, error) {
	shown := fmt.Sprintf("/dev/%s (%s)", d.Name, d.PCIAddress)
	found, err := m.Look(ctx, m.path("dev", d.Name))
	if ctxErr := ctx.Err(); ctxErr != nil {
		return "", ctxErr
	}
	// A filesystem that is mounted where this container does not see it still holds its shown.
	if errors.Is(err, device.ErrInUse) {
		return "", refuse(v1alpha1.ReasonDeviceInUse, "%s is in use: %s; free it, or leave the drive out of the NvmfTarget's devices",
			shown, orElse(d.ContentDetail, "something on the node holds it"))
	}
	foreign := func(what string) error {
		return refuse(v1alpha1.ReasonForeignSignature, "%s holds what weft did not write, or cannot recognise: %s; if it may go: blkdiscard -f /dev/%s, else leave the drive out of the NvmfTarget's devices",
			shown, what, d.Name)
	}
	switch {
	case d.Content == v1alpha1.ContentForeign:
		return "", foreign(d.ContentDetail)
	case d.Content == v1alpha1.ContentUnknown:
		why := d.ContentDetail
		if name := found.Name(); name != "" && name != device.Unnamed {
			why = name + "; " + why // such as a damaged filesystem, which blkid does not name
		}
		return "", refuse(v1alpha1.ReasonForeignSignature, "what is on %s cannot be told: %s", shown, why)
	case err != nil:
		return "", refuse(v1alpha1.ReasonForeignSignature, "what is on %s cannot be told: %w", shown, err)
	case found.HasPrefix(device.SPDKBlobstore):
		return v1alpha1.ContentWeft, nil
	case d.Content == v1alpha1.ContentWeft:
		return "", refuse(v1alpha1.ReasonForeignSignature, "%s is a pool of engine Nvmet, which SPDK cannot read; if its volumes may go: blkdiscard -f /dev/%s, else serve it with engine: Nvmet", shown, d.Name)
	case found.Name() != "":
		return "", foreign(found.Name())
	}
	return v1alpha1.ContentBlank, nil
}

// awaitNamespaces lists a drive's block devices. A kernel that has just taken the drive
// looks for them in the background.
func awaitNamespaces(ctx context.Context, m Machine, address string) (found []string, err error) {
	err = wait.PollUntilContextTimeout(ctx, bindInterval, m.BindTimeout, true, func(context.Context) (bool, error) {
		found, err = namespaces(m, address)
		return len(found) > 0, err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil
	}
	return found, err
}

// namespaces lists the block devices of a drive, multipath ones by the name of this path.
func namespaces(m Machine, address string) ([]string, error) {
	folders, err := filepath.Glob(m.path(devicesDir, address, "nvme/nvme*"))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if namespaceName.MatchString(e.Name()) {
				found = append(found, e.Name())
			}
		}
	}
	return found, nil
}

// checkIOMMU makes sure that the drive will reach SPDK's memory. Without an IOMMU, VFIO has a mode that
// protects no more than UIO does; it is refused, so that VFIO always means what it says.
func checkIOMMU(m Machine, o Options, address string) error {
	iommu, err := inventory.IOMMU(m.Root, filepath.Join(devicesDir, address))
	if err != nil {
		return err
	}
	if o.Driver == v1alpha1.DriverUIO {
		if iommu == v1alpha1.IOMMUTranslated {
			return refuse(v1alpha1.ReasonDriverNotAvailable, "drive %s is behind an IOMMU that lets it reach only what is mapped for it, and driver UIO maps nothing: it would never answer; use driver: VFIO, or boot the node with iommu.passthrough=1", address)
		}
		return nil
	}
	if iommu == v1alpha1.IOMMUNone {
		return refuse(v1alpha1.ReasonNoIOMMU, "drive %s is behind no IOMMU; switch it on in the firmware (and boot with intel_iommu=on), or use driver: UIO", address)
	}
	return checkIsolation(m, o, address)
}

// checkIsolation makes sure that the IOMMU keeps the drive apart from what the kernel still drives:
// vfio hands out whole IOMMU groups.
func checkIsolation(m Machine, o Options, address string) error {
	others, err := os.ReadDir(m.path(devicesDir, address, "iommu_group/devices"))
	if err != nil {
		return err
	}
	for _, other := range others {
		if slices.Contains(o.PCIAddresses, other.Name()) {
			continue
		}
		driver, err := driverOf(m, other.Name())
		if err != nil {
			return err
		}
		// Bridges stay with the kernel: they do no DMA of their own.
		if driver != "" && driver != driverVFIO && driver != "pcieport" {
			return refuse(v1alpha1.ReasonDriverNotAvailable, "drive %s shares its IOMMU group with %s, which driver %s has; unbind that too, or use driver: UIO or Kernel", address, other.Name(), driver)
		}
	}
	return nil
}

// checkDriver makes sure that the kernel has the driver, and loads it where that can be done from here.
func checkDriver(ctx context.Context, m Machine, driver string) error {
	there := func() bool {
		_, err := os.Stat(m.path(driversDir, driver))
		return err == nil
	}
	if there() {
		return nil
	}
	out, err := m.Command(ctx, "modprobe", driver)
	if ctxErr := ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if there() {
		return nil
	}
	why := strings.TrimSpace(out.Stderr)
	if err != nil {
		why = err.Error()
	}
	return refuse(v1alpha1.ReasonDriverNotAvailable, "the kernel does not have driver %s (%s); on the node: modprobe %s, and name it in /etc/modules-load.d", driver, orElse(why, "modprobe did not bring it"), driver)
}

// look at a device with this machine's blkid.
func look(ctx context.Context, path string) (device.Content, error) {
	return device.Look(ctx, kexec.New(), path)
}

// noAddresses stands for the addresses of the network, which do not matter here.
type noAddresses struct{}

// Addresses implements inventory.AddressSource.
func (noAddresses) Addresses(context.Context) (map[string][]netip.Prefix, error) { return nil, nil }

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
