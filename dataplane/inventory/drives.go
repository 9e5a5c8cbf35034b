// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
)

const blockDir = "sys/block"

var (
	nvmeController = regexp.MustCompile(`^nvme\d+$`)
	// Where the path of a device in sysfs shows that a network lies between: an iSCSI session, a Fibre Channel port.
	overNetwork = regexp.MustCompile(`/(session\d+|rport-[^/]+)/`)
)

// writeCaches are the kernel's words (Documentation/ABI/stable/sysfs-block). It asks an NVMe controller whether it has
// a volatile write cache (VWC of Identify), a SCSI disk for its caching mode page; others it does not know.
var writeCaches = map[string]v1alpha1.WriteCache{
	"write through": v1alpha1.WriteCacheThrough,
	"write back":    v1alpha1.WriteCacheBack,
}

// drives lists the node's own whole disks, by ID. A disk that has neither a
// world-wide id nor a serial number goes by where it is attached; one
// without even that cannot be told from another, and is not listed.
func drives(ctx context.Context, t tree, prober Prober) ([]v1alpha1.Drive, error) {
	names, err := t.list(blockDir)
	if err != nil {
		return nil, err
	}
	links, err := diskLinks(t)
	if err != nil {
		return nil, err
	}
	in, err := uses(t)
	if err != nil {
		return nil, err
	}
	var found []v1alpha1.Drive
	for _, name := range names {
		d, own, err := drive(t, name, links)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if !own {
			continue
		}
		if d.Content, d.ContentDetail, err = content(ctx, t, in, prober, name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found = append(found, d)
	}
	return oneEach(found), nil
}

// drive reads a disk; own is false when it is none of the node's own, or has just gone.
func drive(t tree, name string, links map[string]names) (d v1alpha1.Drive, own bool, err error) {
	dir := path.Join(blockDir, name)
	if hidden, _, err := t.number(dir, "hidden"); err != nil || hidden != 0 {
		return d, false, err // a path of a multipath NVMe namespace, such as nvme0c0n1
	}
	folder, err := t.real(dir, "device")
	if err != nil || folder == "" {
		return d, false, err // loop, dm, md, ram, zram, drbd, ...: nothing behind it
	}
	d = v1alpha1.Drive{Name: name, ByID: links[name].byID, ByPath: links[name].byPath}
	sectors, ok, err := t.number(dir, "size")
	if err != nil || !ok || sectors == 0 {
		return d, false, err // no medium in it
	}
	d.SizeBytes = sectors << 9 // always in units of 512 bytes
	blockSize, _, err := t.number(dir, "queue/logical_block_size")
	if err != nil {
		return d, false, err
	}
	d.BlockSizeBytes = int32(blockSize)
	cache, err := t.readIfSaid(dir, "queue/write_cache")
	if err != nil {
		return d, false, err
	}
	d.WriteCache = writeCaches[cache]

	switch {
	case strings.HasPrefix(name, "nvme"):
		d.NVMe = true
		own, err = nvmeDrive(t, &d, dir, folder)
	case strings.HasPrefix(name, "vd"):
		own, err = virtioDrive(t, &d, dir, folder)
	case strings.HasPrefix(name, "sd"):
		own, err = scsiDrive(t, &d, folder)
	}
	if err != nil || !own {
		return d, false, err
	}
	d.ID = cmp.Or(d.ID, d.Serial, at(device.ByPathPrefix, slices.Concat(d.ByPath, []string{""})[0]), at(device.ByPCIPrefix, d.PCIAddress))
	return d, d.ID != "", nil
}

func at(prefix, where string) string {
	if where == "" {
		return ""
	}
	return prefix + where
}

// nvmeDrive fills in an NVMe namespace. It is the node's own when each of its controllers is
// behind PCIe.
func nvmeDrive(t tree, d *v1alpha1.Drive, dir, device string) (own bool, err error) {
	controllers, err := controllersOf(t, device)
	if err != nil || len(controllers) == 0 {
		return false, err // no path to it: whose it is cannot be told
	}
	for _, c := range controllers {
		transport, err := t.read(c, "transport")
		if unsaid(err) {
			return false, nil // gone between two reads
		}
		if err != nil || transport != "pcie" {
			return false, err
		}
	}
	// A namespace with several controllers has as many places; the first stands for all.
	p, err := t.placeOf(controllers[0])
	if err != nil {
		return false, err
	}
	d.PCIAddress, d.NUMANode = p.pci, p.numa
	if p.pci != "" {
		if d.IOMMU, err = IOMMU(t.root, p.folder); err != nil {
			return false, err
		}
	}
	if d.ID, err = t.readIfSaid(dir, "wwid"); err != nil {
		return false, err
	}
	if d.Serial, err = t.readIfSaid(controllers[0], "serial"); err != nil {
		return false, err
	}
	d.Model, err = t.readIfSaid(controllers[0], "model")
	return err == nil, err
}

// controllersOf lists the folders of a namespace's controllers. The namespace's
// device is its controller, or with native multipath its subsystem, which
// links to all controllers.
func controllersOf(t tree, device string) ([]string, error) {
	if single, err := t.exists(device, "transport"); err != nil {
		return nil, err
	} else if single {
		return []string{device}, nil
	}
	entries, err := t.listIfThere(device)
	if err != nil {
		return nil, err
	}
	var controllers []string
	for _, e := range entries {
		if !nvmeController.MatchString(e) {
			continue
		}
		c, err := t.real(device, e)
		if err != nil {
			return nil, err
		}
		if c != "" {
			controllers = append(controllers, c)
		}
	}
	return controllers, nil
}

func virtioDrive(t tree, d *v1alpha1.Drive, dir, device string) (own bool, err error) {
	p, err := t.placeOf(device)
	if err != nil {
		return false, err
	}
	d.PCIAddress, d.NUMANode = p.pci, p.numa
	d.Serial, err = t.readIfSaid(dir, "serial")
	return err == nil, err
}

// scsiDrive fills in a SCSI or SATA disk, unless it is reached over a network.
func scsiDrive(t tree, d *v1alpha1.Drive, folder string) (own bool, err error) {
	if overNetwork.MatchString("/" + folder + "/") {
		return false, nil
	}
	p, err := t.placeOf(folder)
	if err != nil {
		return false, err
	}
	d.PCIAddress, d.NUMANode = p.pci, p.numa
	if d.ID, err = t.readIfSaid(folder, "wwid"); err != nil {
		return false, err
	}
	if d.Model, err = t.readIfSaid(folder, "model"); err != nil {
		return false, err
	}
	d.Serial, err = device.UnitSerial(t.path(folder))
	return err == nil, err
}

// names of a disk under /dev/disk.
type names struct{ byID, byPath []string }

// diskLinks reads udev's names of whole disks. Without udev there are none.
func diskLinks(t tree) (map[string]names, error) {
	found := map[string]names{}
	for _, kind := range []string{"by-id", "by-path"} {
		links, err := t.listIfThere("dev/disk", kind)
		if err != nil {
			return nil, err
		}
		for _, link := range links {
			target, err := os.Readlink(t.path("dev/disk", kind, link))
			if unsaid(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			n := found[path.Base(target)]
			if kind == "by-id" {
				n.byID = append(n.byID, link)
			} else {
				n.byPath = append(n.byPath, link)
			}
			found[path.Base(target)] = n
		}
	}
	return found, nil
}

// oneEach sorts drives by ID. Where several claim one ID, the first by name stays, with its content
// declared unknown: which of them an ID means could change with the next boot.
func oneEach(found []v1alpha1.Drive) []v1alpha1.Drive {
	slices.SortFunc(found, func(a, b v1alpha1.Drive) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Name, b.Name)) })
	var kept []v1alpha1.Drive
	for _, d := range found {
		if len(kept) == 0 || kept[len(kept)-1].ID != d.ID {
			kept = append(kept, d)
			continue
		}
		first := &kept[len(kept)-1]
		if first.Content != v1alpha1.ContentUnknown || !strings.HasPrefix(first.ContentDetail, "same id") {
			first.Content, first.ContentDetail = v1alpha1.ContentUnknown, "same id as"
		}
		first.ContentDetail += " " + d.Name
	}
	return kept
}
