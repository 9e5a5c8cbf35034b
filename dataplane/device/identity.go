// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// SwappedError says that another drive is where a planned one was. weft neither makes nor opens a pool on it: it may be
// somebody else's, and whatever is written to it would go under the name of a drive that may come back.
type SwappedError struct {
	// Where it is: a path or a PCI address.
	Where string
	// Planned is the planned drive's ID, and Found what is known of the one that is there.
	Planned, Found string
}

func (e *SwappedError) Error() string {
	return fmt.Sprintf("%s is drive %s instead of the planned drive %s; put drive %s back, or let its NvmfTarget select the new one", e.Where, e.Found, e.Planned, e.Planned)
}

// Names of a drive: the IDs that an inventory may have it by, best first, which are none that depend on where it sits.
type Names []string

// Beginnings of the IDs of drives that have neither a world-wide id nor a serial number.
const (
	ByPathPrefix = "path-"
	ByPCIPrefix  = "pci-"
)

// Check that it is the planned drive: a *SwappedError when it is another. A drive without a name is refused unless the
// planned one has none either, and goes by where it sits.
func (n Names) Check(where, planned string) error {
	nameless := strings.HasPrefix(planned, ByPathPrefix) || strings.HasPrefix(planned, ByPCIPrefix)
	switch {
	case slices.Contains(n, planned), nameless && len(n) == 0:
		return nil
	case len(n) == 0:
		return fmt.Errorf("%s reports neither a world-wide ID nor a serial number, so it is unknown whether it is drive %s", where, planned)
	}
	return &SwappedError{Where: where, Planned: planned, Found: n[0]}
}

// CheckKernel compares a block device of the kernel with the planned drive: see Names.Check. root is the host's
// filesystem.
func CheckKernel(root, path string, rdev uint64, planned string) error {
	dir := filepath.Join(root, "sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev)))
	names, err := kernelNames(dir)
	if err != nil {
		return fmt.Errorf("which drive %s is: %w", path, err)
	}
	return names.Check(path, planned)
}

// kernelNames reads what the kernel tells in a block device's folder of sysfs: of an NVMe namespace, of a SCSI disk,
// and of a virtio disk.
func kernelNames(dir string) (Names, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err // it has just gone
	}
	var names Names
	for _, file := range []string{"wwid", "device/wwid", "serial", "device/serial"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil && !Unsaid(err) {
			return nil, err
		}
		if name := strings.TrimSpace(string(text)); name != "" {
			names = append(names, name)
		}
	}
	serial, err := UnitSerial(filepath.Join(dir, "device"))
	if serial != "" {
		names = append(names, serial)
	}
	return names, err
}

// Unsaid tells of an error of sysfs that the file is not there, or that its device does not say, also because it has
// just gone.
func Unsaid(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EOPNOTSUPP)
}

// UnitSerial reads a SCSI disk's vital product data page 0x80 in its folder of sysfs: four bytes of header, then the
// serial number. Empty when the disk has none.
func UnitSerial(folder string) (string, error) {
	page, err := os.ReadFile(filepath.Join(folder, "vpd_pg80"))
	if err != nil && !Unsaid(err) {
		return "", err
	}
	return strings.Trim(string(page[min(len(page), 4):]), " \x00\n"), nil
}

// Of the NVMe Base Specification: what Identify is asked for, where in its answers the names are, and the types of
// namespace identification descriptors.
const (
	identifyNamespace   = 0x00
	identifyDescriptors = 0x03
	namespaceNGUID      = 104
	namespaceEUI64      = 120
	descriptorEUI64     = 1
	descriptorNGUID     = 2
	descriptorUUID      = 3
)

// firstNamespace of a controller: the only one that pools are made on.
const firstNamespace = 1

// NVMeNames asks a controller for the names that Linux would give its first namespace (wwid in sysfs, see
// drivers/nvme/host/sysfs.c), and for its serial number. Which of them Linux takes depends on its list of drives whose
// world-wide ids are bogus, so all are given.
func NVMeNames(do Admin) (Names, error) {
	controller, err := identify(do, identifyController, 0)
	if err != nil {
		return nil, err
	}
	namespace, err := identify(do, identifyNamespace, firstNamespace)
	if err != nil {
		return nil, err
	}
	var refused *AdminStatusError
	descriptors, err := identify(do, identifyDescriptors, firstNamespace)
	if err != nil && !errors.As(err, &refused) { // a controller older than NVMe 1.3 has none
		return nil, err
	}
	ids := readDescriptors(descriptors)
	var names Names
	if id, err := uuid.FromBytes(ids[descriptorUUID]); err == nil && id != uuid.Nil {
		names = append(names, "uuid."+id.String())
	}
	for _, id := range [][]byte{
		ids[descriptorNGUID], namespace[namespaceNGUID : namespaceNGUID+16],
		ids[descriptorEUI64], namespace[namespaceEUI64 : namespaceEUI64+8],
	} {
		if len(bytes.Trim(id, "\x00")) > 0 {
			names = append(names, fmt.Sprintf("eui.%x", id))
		}
	}
	serial, model := bytes.TrimRight(controller[4:24], " \x00"), bytes.TrimRight(controller[24:64], " \x00")
	names = append(names, fmt.Sprintf("nvme.%04x-%x-%x-%08x", binary.LittleEndian.Uint16(controller), serial, model, firstNamespace))
	if text := strings.TrimSpace(string(serial)); text != "" {
		names = append(names, text)
	}
	return slices.Compact(names), nil
}

// What a controller and its namespace say of the size of writes, from 0, in blocks.
const (
	controllerAWUPF     = 528
	namespaceFeatures   = 24
	namespaceNAWUPF     = 36
	namespaceNABO       = 42
	namespaceNPWG       = 64
	featureOwnAtomics   = 1 << 1
	featurePerformances = 1 << 4
)

// PhysicalBlockBytes are what SPDK takes for the size of a physical block of a drive's first namespace, in which it
// writes its own metadata: what the drive prefers, or at most what it writes as a whole when it loses power
// (nvme_disk_create of SPDK's module/bdev/nvme/bdev_nvme.c). blockBytes is a logical block's.
func PhysicalBlockBytes(do Admin, blockBytes int64) (int64, error) {
	controller, err := identify(do, identifyController, 0)
	if err != nil {
		return 0, err
	}
	namespace, err := identify(do, identifyNamespace, firstNamespace)
	if err != nil {
		return 0, err
	}
	blocks := func(of []byte, at int) int64 { return 1 + int64(binary.LittleEndian.Uint16(of[at:])) }
	whole, preferred := int64(1), int64(1)
	if binary.LittleEndian.Uint16(namespace[namespaceNABO:]) == 0 {
		whole = blocks(controller, controllerAWUPF)
		if own := blocks(namespace, namespaceNAWUPF); namespace[namespaceFeatures]&featureOwnAtomics != 0 && own > 1 {
			whole = own
		}
	}
	if namespace[namespaceFeatures]&featurePerformances != 0 {
		preferred = blocks(namespace, namespaceNPWG)
	}
	return min(whole, preferred) * blockBytes, nil
}

func identify(do Admin, what, nsid uint32) ([]byte, error) {
	_, data, err := do(AdminCommand{Opcode: opcodeIdentify, NSID: nsid, CDW10: what, DataBytes: identifyBytes})
	if err == nil && len(data) != identifyBytes {
		err = fmt.Errorf("the controller identifies itself with %d bytes, not %d", len(data), identifyBytes)
	}
	return data, err
}

// readDescriptors by their type: a type, a length, two bytes that are reserved, and the identifier.
func readDescriptors(list []byte) map[byte][]byte {
	found := map[byte][]byte{}
	for len(list) >= 4 && list[1] != 0 && len(list) >= 4+int(list[1]) {
		end := 4 + int(list[1])
		found[list[0]], list = list[4:end], list[end:]
	}
	return found
}
