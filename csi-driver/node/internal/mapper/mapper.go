// SPDX-License-Identifier: Apache-2.0

// Package mapper makes devices with the kernel's device mapper, most of them linear.
//
// A volume's device is what pods see. It is made of what the volume's target serves, from behind the header on, or of
// the mirror over its replicas. What is below a mounted filesystem can be exchanged through it, and the host's scanners
// find no signature at the start of a volume.
//
// Of an encrypted volume that device is one of dm-crypt. What is below it can be exchanged all the same: the key is
// taken from the table in force, in which the kernel has it. While the LUKS header at the start of the data is read or
// written, a linear device shows the data as they are stored. No pod ever sees that one.
//
// A slice is what a mirror has as a member: of one replica, from behind the record on to the end, for one subsystem.
//
// A device is found in sysfs, by its device mapper UUID: WEFT-<volume's UUID>-<attachment's UUID>, of an encrypted
// volume WEFT-CRYPT-<volume's UUID>-<attachment's UUID>, and of its header WEFT-LUKS-...; of a slice
// WEFT-LEG-<replica's UUID>-<the UUID in its subsystem's NQN>. It is addressed as /dev/dm-N, which the kernel itself
// makes. It has no link in /dev/mapper: udev is told to leave it alone.
package mapper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	uuidPrefix  = "WEFT-"
	namePrefix  = "weft-"
	slicePrefix = "WEFT-LEG-"
	sliceName   = "weft-leg-"
	cryptPrefix = "WEFT-CRYPT-"
	luksPrefix  = "WEFT-LUKS-"
	luksName    = "weft-luks-"
	// sectorBytes is the unit of tables, and of sizes in sysfs.
	sectorBytes = 512
)

// Errors of this package.
var (
	// ErrNotFound: there is no such device any more.
	ErrNotFound = errors.New("no such device of device mapper")
	// ErrForeign: a block device is not one that this package made.
	ErrForeign = errors.New("not the device of a volume or a replica")
	// ErrUnfit: a device cannot be put under another that is in use.
	ErrUnfit = errors.New("it does not fit under the device")
)

// Host is this machine's device mapper. Safe for concurrent use for different volumes.
type Host struct {
	// Root under which /sys and /dev are found; "/" on a real host.
	Root string
	// Control makes and changes devices.
	Control Control
	// LoadModule loads a kernel module; loading one that is there already is no error.
	LoadModule func(ctx context.Context, name string) error
	// OpenDevice opens a block device for reading.
	OpenDevice func(path string) (Opened, error)
}

// Opened device.
type Opened = interface {
	io.ReaderAt
	io.Closer
}

// Lower is the block device under a mapped one.
type Lower struct {
	// Name such as nvme0n1, and Number as major:minor.
	Name, Number string
}

// Device of a volume, or slice of a replica.
type Device struct {
	// Name of the block device, such as dm-3, Path of its node under the root, and Number as major:minor. The number is
	// not used again as long as something holds the device.
	Name, Path, Number string
	// SizeBytes of the device.
	SizeBytes int64
	// Label is device mapper's name, and UUID its UUID.
	Label, UUID string
	// Owner and Attachment that it was made for.
	Owner
	Attachment string
	// Lower is what is under it. It has no name when that is gone, or was never there.
	Lower Lower
}

// Owner of a device, by its UUID: a volume or a replica.
type Owner struct {
	// Volume that pods see through it.
	Volume string
	// Replica that it is a slice of.
	Replica string
	// Kind of a volume's device.
	Kind Kind
}

// Kind of a volume's device.
type Kind string

// Kinds of volumes' devices. Pods see the first two.
const (
	// Plain shows the data as they are stored.
	Plain Kind = ""
	// Crypt shows the data of an encrypted volume, behind its LUKS header. It never has a table of another kind, but
	// for one that fails all I/O.
	Crypt Kind = "crypt"
	// LUKS shows the data of an encrypted volume as they are stored, with the LUKS header at the start.
	LUKS Kind = "luks"
)

// prefixes of UUIDs, by the kind of a volume's device.
var prefixes = map[Kind]string{Plain: uuidPrefix, Crypt: cryptPrefix, LUKS: luksPrefix}

func (o Owner) uuid() string {
	if o.Replica != "" {
		return slicePrefix + o.Replica + "-"
	}
	return prefixes[o.Kind] + o.Volume + "-"
}

// Label of the owner's device.
func (o Owner) Label() string {
	switch {
	case o.Replica != "":
		return sliceName + o.Replica
	case o.Kind == LUKS:
		return luksName + o.Volume
	default:
		return namePrefix + o.Volume
	}
}

// DataBytes of the volume that are below the device, with those that it does not show.
func (d Device) DataBytes() int64 {
	if d.SizeBytes == 0 {
		return 0 // it never had a table
	}
	return d.SizeBytes + d.HiddenBytes()
}

// Lost tells whether nothing is under the device any more: all its I/O fails.
func (d Device) Lost() bool { return d.Lower.Name == "" }

var (
	deviceName = regexp.MustCompile(`^dm-[0-9]+$`)
	// uuid of a device. A number at its end tells it from one for the same attachment that is still held open.
	uuid = regexp.MustCompile(`^` + uuidPrefix + `(LEG-|CRYPT-|LUKS-)?([0-9a-f-]{36})-([0-9a-f-]{36})(-[0-9]+)?$`)
)

// Parse a device mapper UUID: whose device it is, and for which attachment. It is false for one of another's.
func Parse(dmUUID string) (owner Owner, attachment string, ours bool) {
	parts := uuid.FindStringSubmatch(dmUUID)
	if parts == nil {
		return Owner{}, "", false
	}
	switch uuidPrefix + parts[1] {
	case slicePrefix:
		return Owner{Replica: parts[2]}, parts[3], true
	case cryptPrefix:
		return Owner{Volume: parts[2], Kind: Crypt}, parts[3], true
	case luksPrefix:
		return Owner{Volume: parts[2], Kind: LUKS}, parts[3], true
	}
	return Owner{Volume: parts[2]}, parts[3], true
}

func (h *Host) sys(elem ...string) string {
	return filepath.Join(append([]string{h.Root, "sys"}, elem...)...)
}

// Of a volume, by its UUID: its device, that of its LUKS header, and those of earlier attachments that are not gone.
func (h *Host) Of(volume string) ([]Device, error) {
	return h.of(Owner{Volume: volume}, Owner{Volume: volume, Kind: Crypt}, Owner{Volume: volume, Kind: LUKS})
}

// Volumes are the devices of all volumes, as Of gives those of one.
func (h *Host) Volumes() ([]Device, error) {
	entries, err := os.ReadDir(h.sys("class/block"))
	if err != nil {
		return nil, err
	}
	all, err := h.findAll(slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !deviceName.MatchString(e.Name()) }))
	return slices.DeleteFunc(all, func(d Device) bool { return d.Volume == "" }), err
}

// Slices of a replica, by its UUID, and those of earlier attachments that are not gone.
func (h *Host) Slices(replica string) ([]Device, error) { return h.of(Owner{Replica: replica}) }

func (h *Host) of(owners ...Owner) ([]Device, error) {
	entries, err := os.ReadDir(h.sys("class/block"))
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		if !deviceName.MatchString(e.Name()) {
			return true
		}
		dmUUID, err := attribute(h.sys("class/block", e.Name()), "dm/uuid")
		ours := slices.ContainsFunc(owners, func(o Owner) bool { return strings.HasPrefix(dmUUID, o.uuid()) })
		return errors.Is(err, ErrNotFound) || err == nil && !ours
	})
	return h.findAll(entries)
}

// Over a block device: the volumes' devices that are made of it.
func (h *Host) Over(lower string) ([]Device, error) {
	return h.over(lower, func(d Device) bool { return d.Replica == "" })
}

// SlicesOver a block device: the slices that are made of it.
func (h *Host) SlicesOver(lower string) ([]Device, error) {
	return h.over(lower, func(d Device) bool { return d.Replica != "" })
}

func (h *Host) over(lower string, those func(Device) bool) ([]Device, error) {
	entries, err := os.ReadDir(h.sys("class/block", lower, "holders"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := h.findAll(entries)
	return slices.DeleteFunc(all, func(d Device) bool { return !those(d) }), err
}

// findAll of these block devices that are there and that this package made.
func (h *Host) findAll(entries []os.DirEntry) ([]Device, error) {
	var all []Device
	for _, e := range entries {
		d, err := h.Find(e.Name())
		if errors.Is(err, ErrNotFound) || errors.Is(err, ErrForeign) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// Find a device by its name or its number. It fails with ErrNotFound when there is none any more, and with ErrForeign
// when it is something else.
func (h *Host) Find(device string) (Device, error) {
	dir := h.sys("dev/block", device)
	if !strings.Contains(device, ":") {
		dir = h.sys("class/block", device)
	}
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Device{}, fmt.Errorf("block device %s: %w", device, ErrNotFound)
	}
	if err != nil {
		return Device{}, err
	}
	d := Device{Name: filepath.Base(dir)}
	d.Path = h.path(d.Name)
	if !deviceName.MatchString(d.Name) {
		return Device{}, fmt.Errorf("block device %s is %s: %w", device, d.Name, ErrForeign)
	}
	var size string
	for file, value := range map[string]*string{"dev": &d.Number, "size": &size, "dm/name": &d.Label, "dm/uuid": &d.UUID} {
		if *value, err = attribute(dir, file); err != nil {
			return Device{}, fmt.Errorf("block device %s: %w", device, err)
		}
	}
	var ours bool
	if d.Owner, d.Attachment, ours = Parse(d.UUID); !ours {
		return Device{}, fmt.Errorf("block device %s is %s: %w", device, d.Label, ErrForeign)
	}
	sectors, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return Device{}, fmt.Errorf("size of %s: %w", d.Name, err)
	}
	d.SizeBytes = sectors * sectorBytes
	d.Lower, err = lower(dir)
	return d, err
}

func (h *Host) path(name string) string { return strings.TrimSuffix(h.Root, "/") + "/dev/" + name }

// lower device that is there.
func lower(dir string) (Lower, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "slaves"))
	if errors.Is(err, fs.ErrNotExist) {
		return Lower{}, nil
	}
	for _, e := range entries {
		number, err := attribute(dir, "slaves", e.Name(), "dev")
		if errors.Is(err, ErrNotFound) {
			continue // it has lost its device, and keeps its name
		}
		return Lower{e.Name(), number}, err
	}
	return Lower{}, err
}

// attribute reads a file of sysfs. It fails with ErrNotFound when its device is no longer there, or is being removed:
// device mapper's own files then answer EINVAL or EIO, and nobody has the device open (drivers/md/dm-sysfs.c).
func attribute(elem ...string) (string, error) {
	file := filepath.Join(elem...)
	data, err := os.ReadFile(file)
	removed := filepath.Base(filepath.Dir(file)) == "dm" && (errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EIO))
	if removed || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return "", fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return strings.TrimSpace(string(data)), err
}

// Open keeps a device, and so its name and its number, until it is closed. It fails with ErrNotFound when they are
// another's by now.
func (h *Host) Open(d Device) (io.Closer, error) {
	f, err := h.OpenDevice(d.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("open %s: %w: %w", d.Path, ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	if err := h.Confirm(d); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Confirm that a device is the one that was found, over the same. It fails with ErrNotFound when it is not.
func (h *Host) Confirm(d Device) error {
	now, err := h.Find(d.Number)
	if err != nil {
		return err
	}
	if now.Name != d.Name || now.UUID != d.UUID || now.Lower != d.Lower {
		return fmt.Errorf("%s (%s) was %s over %s, and is %s over %s now: %w", d.Name, d.Number, d.UUID, d.Lower.Name, now.UUID, now.Lower.Name, ErrNotFound)
	}
	return nil
}
