// SPDX-License-Identifier: Apache-2.0

package mapper

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Control is the kernel's device mapper. Devices are addressed by their labels. A call runs to its end.
type Control interface {
	// Create a device without a table. It fails with EBUSY when a device has the label or the UUID already.
	Create(label, uuid string) error
	// Load a table for the next Resume.
	Load(label string, t Table) error
	// Table in force of a device, with its key; none is the zero value.
	Table(label string) (Table, error)
	// Types of targets that the kernel has now.
	Types() ([]string, error)
	// Resume a device with the table that was loaded, if one was. It waits for I/O that is on its way through the
	// table in force. It neither freezes the filesystem nor waits for I/O that the device queues. EINTR says that a
	// signal came first: load the table again.
	Resume(label string) error
	// Suspend a device: from now on new I/O waits until it is resumed. It returns when I/O that is on its way has
	// ended. EINTR says that a signal came first, and that the device is not suspended.
	Suspend(label string) error
	// Rename a device.
	Rename(label, to string) error
	// Remove a device. It fails with EBUSY when the device is open.
	Remove(label string) error
	// RemoveLater removes a device as soon as nobody has it open.
	RemoveLater(label string) error
}

// Table of a device, which has one target.
type Table struct {
	// SizeBytes of the device, in sectors of 512 bytes.
	SizeBytes int64
	// Lower device, as major:minor, that the device shows. Empty for none: all I/O fails.
	Lower string
	// OffsetBytes in it where the device begins, in sectors.
	OffsetBytes int64
	// Cipher with which what is written is encrypted; nil for none.
	Cipher *Cipher
}

// Cipher of a device that encrypts. It holds the key, and is never logged.
type Cipher struct {
	// Name in the kernel's notation, such as aes-xts-plain64.
	Name string
	// Key of it.
	Key []byte `json:"-"`
	// SectorBytes that are encrypted at a time.
	SectorBytes int64
}

// String keeps the key out of messages.
func (c Cipher) String() string { return c.Name }

// GoString keeps the key out of messages.
func (c Cipher) GoString() string { return c.Name }

const (
	typeLinear = "linear"
	typeError  = "error"
	typeCrypt  = "crypt"
)

// target that a table has, and its parameters.
func (t Table) target() (kind, params string) {
	switch {
	case t.Lower == "":
		return typeError, ""
	case t.Cipher == nil:
		return typeLinear, fmt.Sprintf("%s %d", t.Lower, t.OffsetBytes/sectorBytes)
	}
	// The key is in the table itself and not in a keyring: so the table can be loaded again, larger or over another
	// device, by who does not have the Secret. The third field is added to the sector's number for the initialization
	// vector; LUKS2 has it 0.
	return typeCrypt, fmt.Sprintf("%s %x 0 %s %d 1 sector_size:%d", t.Cipher.Name, t.Cipher.Key, t.Lower, t.OffsetBytes/sectorBytes, t.Cipher.SectorBytes)
}

// parseTable of one target.
func parseTable(kind, params string, sizeBytes int64) (Table, error) {
	t := Table{SizeBytes: sizeBytes}
	var sectors int64
	var err error
	switch kind {
	case typeError:
		return t, nil
	case typeLinear:
		_, err = fmt.Sscanf(params, "%s %d", &t.Lower, &sectors)
	case typeCrypt:
		var c Cipher
		var iv int64
		_, err = fmt.Sscanf(params, "%s %x %d %s %d 1 sector_size:%d", &c.Name, &c.Key, &iv, &t.Lower, &sectors, &c.SectorBytes)
		if err == nil && iv != 0 {
			err = fmt.Errorf("%w: the first sector is %d", unix.EINVAL, iv)
		}
		t.Cipher = &c
	default:
		err = unix.EINVAL
	}
	if err != nil {
		return Table{}, fmt.Errorf("a table of type %s that this version does not make: %w", kind, err) // params has the key
	}
	t.OffsetBytes = sectors * sectorBytes
	return t, nil
}

// Linux is the Control of this machine.
type Linux struct{}

// Flags for udev, in the upper half of event_nr (libdevmapper.h: DM_UDEV_*). With them udev makes no link to the device
// in /dev/mapper or /dev/disk, does not probe it, and does not hand it to LVM, MD or multipath: whatever a pod writes
// to its volume, nothing on the host takes it up. The last says that the flags are to be kept for events that others
// cause.
const (
	udevNoMapperLinks = 1 << iota
	udevNoSubsystemRules
	udevNoDiskRules
	udevNoOtherRules
	_ // low priority for links
	_ // no fallback of the library's
	udevPrimarySource

	udevShift = 16
	leftAlone = (udevNoMapperLinks | udevNoSubsystemRules | udevNoDiskRules | udevNoOtherRules | udevPrimarySource) << udevShift
)

const controlPath = "/dev/mapper/control"

// message is one call to the kernel: the fixed part, then what the call takes.
type message struct {
	unix.DmIoctl
	data [dataBytes]byte
}

// dataBytes suffice for each table that this package loads, and for the list of the kernel's target types.
const dataBytes = 4096

// Create implements Control.
func (Linux) Create(label, uuid string) error {
	return call("create", unix.DM_DEV_CREATE, label, func(m *message) error {
		return text(m.Uuid[:], uuid)
	})
}

// Load implements Control.
func (Linux) Load(label string, t Table) error {
	return call("load a table into", unix.DM_TABLE_LOAD, label, func(m *message) error {
		target, params := t.target()
		if t.Cipher != nil {
			m.Flags = unix.DM_SECURE_DATA_FLAG // the kernel wipes its copy of the message
		}
		spec := unix.DmTargetSpec{Length: uint64(t.SizeBytes / sectorBytes), Next: uint32(len(m.data))}
		if err := text(spec.Target_type[:], target); err != nil {
			return err
		}
		n, err := binary.Encode(m.data[:], binary.NativeEndian, spec)
		if err != nil {
			return err
		}
		m.Target_count = 1
		return text(m.data[n:], params)
	})
}

// Table implements Control.
func (Linux) Table(label string) (Table, error) {
	var t Table
	m := message{}
	defer clear(m.data[:])
	m.Flags = unix.DM_STATUS_TABLE_FLAG | unix.DM_SECURE_DATA_FLAG
	if err := m.call("read the table of", unix.DM_TABLE_STATUS, label); err != nil || m.Target_count == 0 {
		return t, err
	}
	spec, params, err := m.line()
	if err == nil && (m.Target_count != 1 || m.Flags&unix.DM_BUFFER_FULL_FLAG != 0) {
		err = unix.EINVAL
	}
	if err != nil {
		return t, fmt.Errorf("device mapper: read the table of %s: %w", label, err)
	}
	return parseTable(unix.ByteSliceToString(spec.Target_type[:]), params, int64(spec.Length)*sectorBytes)
}

// line of the table that the kernel answered.
func (m *message) line() (spec unix.DmTargetSpec, params string, err error) {
	out := m.data[:]
	n, err := binary.Decode(out, binary.NativeEndian, &spec)
	if err != nil {
		return spec, "", err
	}
	return spec, unix.ByteSliceToString(out[n:]), nil
}

// versionsAt is where the name of a target type is behind its struct dm_target_versions: a __u32 and three of version.
const versionsAt = 16

// Types implements Control.
func (Linux) Types() ([]string, error) {
	var m message
	if err := m.call("list the types of targets of", unix.DM_LIST_VERSIONS, ""); err != nil {
		return nil, err
	}
	var types []string
	for at := 0; at+versionsAt < len(m.data); {
		types = append(types, unix.ByteSliceToString(m.data[at+versionsAt:]))
		next := int(binary.NativeEndian.Uint32(m.data[at:]))
		if next == 0 {
			break
		}
		at += next
	}
	return types, nil
}

// Resume implements Control. The one call that resumes a device with a table that was loaded suspends it before
// (do_resume in drivers/md/dm-ioctl.c; multipathd builds on it, too). So no process can die in between and leave the
// device suspended.
func (Linux) Resume(label string) error {
	return call("resume", unix.DM_DEV_SUSPEND, label, func(m *message) error {
		m.Flags = unix.DM_NOFLUSH_FLAG | unix.DM_SKIP_LOCKFS_FLAG
		m.Event_nr = leftAlone
		return nil
	})
}

// Suspend implements Control.
func (Linux) Suspend(label string) error {
	return call("suspend", unix.DM_DEV_SUSPEND, label, func(m *message) error {
		m.Flags = unix.DM_SUSPEND_FLAG | unix.DM_NOFLUSH_FLAG | unix.DM_SKIP_LOCKFS_FLAG
		m.Event_nr = leftAlone
		return nil
	})
}

// Rename implements Control.
func (Linux) Rename(label, to string) error {
	return call("rename", unix.DM_DEV_RENAME, label, func(m *message) error {
		m.Event_nr = leftAlone
		return text(m.data[:], to)
	})
}

// Remove implements Control.
func (Linux) Remove(label string) error { return remove(label, 0) }

// RemoveLater implements Control.
func (Linux) RemoveLater(label string) error { return remove(label, unix.DM_DEFERRED_REMOVE) }

func remove(label string, flags uint32) error {
	return call("remove", unix.DM_DEV_REMOVE, label, func(m *message) error {
		m.Flags, m.Event_nr = flags, leftAlone
		return nil
	})
}

// text puts a string and the zero behind it into a field.
func text(field []byte, s string) error {
	if len(s) >= len(field) {
		return fmt.Errorf("%q: %w", s, unix.ENAMETOOLONG)
	}
	copy(field, s)
	return nil
}

// call the kernel with what fill puts into a message about the device with a label.
func call(what string, request uint, label string, fill func(*message) error) error {
	var m message
	defer clear(m.data[:])
	if err := fill(&m); err != nil {
		return fmt.Errorf("device mapper: %s %s: %w", what, label, err)
	}
	return m.call(what, request, label)
}

func (m *message) call(what string, request uint, label string) error {
	m.Version = [3]uint32{unix.DM_VERSION_MAJOR, 0, 0} // any of this major version
	m.Data_size = uint32(unsafe.Sizeof(*m))
	m.Data_start = uint32(unsafe.Offsetof(m.data))
	err := text(m.Name[:], label)
	if err == nil {
		err = control(request, m)
	}
	if err != nil {
		return fmt.Errorf("device mapper: %s %s: %w", what, label, err)
	}
	return nil
}

func control(request uint, m *message) error {
	f, err := os.OpenFile(controlPath, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()                                                                                   //nolint:errcheck // nothing was written to it
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(unsafe.Pointer(m))) //nolint:gosec // the kernel fills it in
	runtime.KeepAlive(m)
	if errno != 0 {
		return errno
	}
	return nil
}
