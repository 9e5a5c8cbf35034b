// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
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

// leftOut are the planned drives that the target is started without, and why: one that is not right must not take the
// other drives' volumes with it.
type leftOut struct {
	log      *slog.Logger
	refusals device.Refusals
}

// out leaves drives out, by their IDs.
func (l leftOut) out(err error, ids ...string) {
	refusal := refuse(v1alpha1.ReasonPoolFailed, "%w", err)
	errors.As(err, &refusal)
	for _, id := range ids {
		l.log.Warn("continuing without a planned drive", "drive", id, "reason", refusal.Reason, "message", refusal.Message)
		l.refusals[id] = &device.RefusedError{Reason: refusal.Reason, Message: refusal.Message}
	}
}

// all of the planned drives are left out.
func (l leftOut) all() error {
	var messages []string
	ids := slices.Sorted(maps.Keys(l.refusals))
	for _, id := range ids {
		if message := l.refusals[id].Message; !slices.Contains(messages, message) {
			messages = append(messages, message)
		}
	}
	return refuse(l.refusals[ids[0]].Reason, "none of the planned drives can be served: %s", strings.Join(messages, "; "))
}

// returnUnsure gives planned drives back to the kernel that a dead target left with SPDK's driver, so that they can be
// looked at. Those that hold an lvstore stay as they are: what was blank when it was taken may hold one by now, but not
// the other way round. A drive that the kernel does not take stays as it is too.
func returnUnsure(ctx context.Context, m Machine, o Options, records device.Records) error {
	for _, address := range o.addresses() {
		d, err := driveAt(m, address)
		left := d.driver == driverVFIO || d.driver == driverUIO || d.driver == ""
		record := records[address]
		sure := record.Content == v1alpha1.ContentWeft && slices.Contains(o.planned(address), record.ID)
		if err != nil || !left || sure {
			continue // what is wrong with it examineDrives says
		}
		if err := giveBack(ctx, m, o.Socket, records, []string{address}); err != nil {
			m.Log.Warn("the content of a drive stays unknown: the kernel does not take the drive back", "drive", address, "error", err)
			records[address] = device.Record{Content: v1alpha1.ContentUnknown, CheckedAt: m.Now().UTC()}
		}
	}
	return ctx.Err()
}

// examineDrives looks at every planned drive, and changes nothing. What is not there, or another drive, or holds
// something that weft did not write, is left out. It fails when ctx ends, or the node's drives cannot be listed.
func examineDrives(ctx context.Context, m Machine, o Options, records device.Records, left leftOut) ([]drive, error) {
	var found []drive
	var known []v1alpha1.Drive
	for _, address := range o.addresses() {
		d, err := driveAt(m, address)
		if err == nil {
			err = checkIOMMU(m, o, address)
		}
		if err == nil && d.driver == driverNVMe && known == nil {
			known, err = kernelDrives(ctx, m, o)
			if err != nil {
				return nil, err
			}
		}
		if err == nil {
			err = identify(ctx, m, o, records, known, &d)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			left.out(err, o.planned(address)...)
			continue
		}
		found = append(found, d)
		for _, id := range o.planned(address) {
			namespace := slices.ContainsFunc(known, func(k v1alpha1.Drive) bool { return k.ID == id && k.PCIAddress == address })
			if d.id != "" && id != d.id && !namespace {
				left.out(swapped(address, d.id, id), id)
			}
		}
	}
	return found, nil
}

func swapped(address, is, planned string) error {
	return refuse(v1alpha1.ReasonDeviceSwapped, "%w", &device.SwappedError{Where: address, Planned: planned, Found: is})
}

// kernelDrives lists the node's drives, once the kernel has looked for the namespaces of those that it has just been
// given back.
func kernelDrives(ctx context.Context, m Machine, o Options) ([]v1alpha1.Drive, error) {
	for _, address := range o.addresses() {
		if d, err := driveAt(m, address); err != nil || d.driver != driverNVMe {
			continue
		}
		if err := awaitNamespaces(ctx, m, address); err != nil {
			return nil, err
		}
	}
	inv, err := inventory.Discover(ctx, inventory.Host{Root: m.Root, Addresses: noAddresses{}, Prober: m.Prober})
	if err != nil {
		return nil, err
	}
	return inv.Drives, nil
}

// identify a drive, and say what is on it. known are the drives that the kernel drives; of another the record is all
// there is, and SPDK will be asked which it is.
func identify(ctx context.Context, m Machine, o Options, records device.Records, known []v1alpha1.Drive, d *drive) error {
	planned := o.planned(d.address)
	switch d.driver {
	case driverNVMe:
	case driverVFIO, driverUIO, "":
		d.content = v1alpha1.ContentUnknown
		if record := records[d.address]; slices.Contains(planned, record.ID) {
			d.id, d.content = record.ID, record.Content
		}
		return nil
	default:
		return refuse(v1alpha1.ReasonDeviceInUse, "drive %s belongs to driver %s; unbind it, or remove the drive from the NvmfTarget's devices", d.address, d.driver)
	}
	at := slices.DeleteFunc(slices.Clone(known), func(k v1alpha1.Drive) bool { return k.PCIAddress != d.address })
	if len(at) == 0 {
		return refuse(v1alpha1.ReasonDeviceMissing, "the drive at %s has no namespace that identifies it: it is dead, is being formatted, or is another drive", d.address)
	}
	i := slices.IndexFunc(at, func(k v1alpha1.Drive) bool { return slices.Contains(planned, k.ID) })
	if i < 0 {
		return swapped(d.address, at[0].ID, planned[0])
	}
	d.id = at[i].ID
	shown, err := namespaces(m, d.address)
	if err == nil {
		d.content, err = examine(ctx, m, d.address, shown, at)
	}
	return err
}

// driveAt reads what a PCI function is, unless it is no NVMe drive.
func driveAt(m Machine, address string) (d drive, err error) {
	class, err := m.read(devicesDir, address, "class")
	if errors.Is(err, fs.ErrNotExist) {
		return d, refuse(v1alpha1.ReasonDeviceMissing, "no drive at %s; put it back into any slot of the node", address)
	}
	if err != nil {
		return d, err
	}
	if !strings.HasPrefix(class, classNVMe) {
		return d, refuse(v1alpha1.ReasonInvalidSetting, "--pci %s is not an NVMe drive, but has PCI class %s; use only addresses of drives", address, class)
	}
	d = drive{address: address}
	d.driver, err = driverOf(m, address)
	return d, err
}

// examine says what is on a drive that the kernel drives. Anything that weft
// did not write, or that cannot be told, refuses it.
func examine(ctx context.Context, m Machine, address string, shown []string, known []v1alpha1.Drive) (v1alpha1.DriveContent, error) {
	if len(shown) != len(known) {
		return "", refuse(v1alpha1.ReasonForeignSignature, "the content of drive %s is unknown: it has %d namespaces (%s), and only %d of them could be read; remove the drive from the NvmfTarget's devices",
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
		return "", refuse(v1alpha1.ReasonDeviceInUse, "%s is in use: %s; free it, or remove the drive from the NvmfTarget's devices",
			shown, orElse(d.ContentDetail, "something on the node uses it"))
	}
	foreign := func(what string) error {
		return refuse(v1alpha1.ReasonForeignSignature, "%s contains data that weft did not write or does not recognize: %s; if it can be lost, run: blkdiscard -f /dev/%s; otherwise remove the drive from the NvmfTarget's devices",
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
		return "", refuse(v1alpha1.ReasonForeignSignature, "the content of %s is unknown: %s", shown, why)
	case err != nil:
		return "", refuse(v1alpha1.ReasonForeignSignature, "the content of %s is unknown: %w", shown, err)
	case found.HasPrefix(device.SPDKBlobstore):
		return v1alpha1.ContentWeft, nil
	case d.Content == v1alpha1.ContentWeft:
		return "", refuse(v1alpha1.ReasonForeignSignature, "%s is a pool of engine Nvmet, which SPDK cannot read; if its volumes can be lost, run: blkdiscard -f /dev/%s; otherwise use engine: Nvmet", shown, d.Name)
	case found.Name() != "":
		return "", foreign(found.Name())
	}
	return v1alpha1.ContentBlank, nil
}

// awaitNamespaces of a drive: a kernel that has just taken it looks for them in the background. A drive without any is
// no error.
func awaitNamespaces(ctx context.Context, m Machine, address string) error {
	err := wait.PollUntilContextTimeout(ctx, bindInterval, m.BindTimeout, true, func(context.Context) (bool, error) {
		found, err := namespaces(m, address)
		return len(found) > 0, err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil
	}
	return err
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
			return refuse(v1alpha1.ReasonDriverNotAvailable, "drive %s is behind an IOMMU that allows access only to mapped memory, but driver UIO maps none: the drive would never answer; use driver: VFIO, or boot the node with iommu.passthrough=1", address)
		}
		return nil
	}
	if iommu == v1alpha1.IOMMUNone {
		return refuse(v1alpha1.ReasonNoIOMMU, "drive %s has no IOMMU; enable the IOMMU in the firmware (and boot with intel_iommu=on), or use driver: UIO", address)
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
		if slices.Contains(o.addresses(), other.Name()) {
			continue
		}
		driver, err := driverOf(m, other.Name())
		if err != nil {
			return err
		}
		// Bridges stay with the kernel: they do no DMA of their own.
		if driver != "" && driver != driverVFIO && driver != "pcieport" {
			return refuse(v1alpha1.ReasonDriverNotAvailable, "drive %s shares its IOMMU group with %s, which uses driver %s; unbind that device too, or use driver: UIO or Kernel", address, other.Name(), driver)
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
	return refuse(v1alpha1.ReasonDriverNotAvailable, "the kernel does not have driver %s (%s); on the node, run modprobe %s and add it to /etc/modules-load.d", driver, orElse(why, "modprobe did not load it"), driver)
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
