// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Mount is one entry of the mount table. Reading the table touches no
// filesystem, so that it never waits for a device without a path.
type Mount struct {
	// Path where it is mounted.
	Path string
	// Device number (major:minor) of a filesystem.
	Device string
	// Node is the name of the device, such as nvme0n1, when a device node is bound here; else empty.
	Node string
	// NodeGone: the bound device node is not in /dev any more.
	NodeGone bool
	// Type of filesystem.
	Type string
	// ReadOnly at this place.
	ReadOnly bool
	// TurnedReadOnly: it was mounted for writing here, and the kernel has stopped that: it met an error.
	TurnedReadOnly bool
}

// failed are the options of a filesystem itself, not of a place where it is mounted, by which the kernel shows that it
// takes no more writes: ext4 shows ro up to Linux 6.11 and emergency_ro from 6.14 on, and in between nothing (see
// hasErrors); others show shutdown.
var failed = []string{"ro", "emergency_ro", "shutdown"}

// devtmpfs is the filesystem of /dev; a table entry with another root in it is a bound device node.
const devtmpfs = "devtmpfs"

// deletedSuffix is how the kernel marks a bound file that was removed (fs/d_path.c).
const deletedSuffix = "//deleted"

// At tells what is mounted at a path: the uppermost, if several are. A path that does not exist has nothing mounted.
func (h *Host) At(path string) (Mount, bool, error) {
	// The table has no symbolic links. The last element is not looked at: it would be asked of a filesystem that may
	// not answer.
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return Mount{}, false, nil
	}
	if err != nil {
		return Mount{}, false, err
	}
	path = filepath.Join(dir, filepath.Base(path))
	part := path
	if strings.ContainsAny(path, " \t\n\\#") {
		part = "" // the table has such characters as octal numbers
	}
	all, err := h.mounts(func(m Mount) bool { return m.Path == path }, part)
	if err != nil || len(all) == 0 {
		return Mount{}, false, err
	}
	return all[len(all)-1], true, nil
}

// MountsOf lists where a block device is mounted, or bound, by its number and its name.
func (h *Host) MountsOf(device, name string) ([]string, error) {
	all, err := h.of(device, name)
	paths := make([]string, len(all))
	for i, m := range all {
		paths[i] = m.Path
	}
	return paths, err
}

func (h *Host) of(device, name string) ([]Mount, error) {
	return h.mounts(func(m Mount) bool { return m.Device == device || m.Node == name && !m.NodeGone }, " "+device+" ", "/"+name)
}

// Shown lists the mounts of a block device, and where it is bound, by its number and its name, with whether its
// filesystem has failed.
func (h *Host) Shown(device, name string) ([]Mount, error) {
	all, err := h.of(device, name)
	if err != nil || len(all) == 0 {
		return all, err
	}
	failed, err := h.hasErrors(name)
	for i, m := range all {
		all[i].TurnedReadOnly = m.TurnedReadOnly || failed && m.Node == "" && !m.ReadOnly
	}
	return all, err
}

// hasErrors tells whether an ext4 filesystem met an error since it was last checked, which is whenever it is mounted.
// The first one ends all writing, by errors=remount-ro.
func (h *Host) hasErrors(name string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(h.Sys, "fs/ext4", name, "errors_count"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // another filesystem, or none
	}
	return err == nil && strings.TrimSpace(string(data)) != "0", err
}

// mounts that are to be kept, each of which has at least one of the parts in its line of the table. Other lines are not
// taken apart: a node with hundreds of volumes has thousands.
func (h *Host) mounts(keep func(Mount) bool, parts ...string) ([]Mount, error) {
	table, err := os.ReadFile(h.MountInfo)
	if err != nil {
		return nil, err
	}
	var lines strings.Builder
	for line := range strings.Lines(string(table)) {
		if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(line, part) }) {
			lines.WriteString(line)
		}
	}
	infos, err := mountinfo.GetMountsFromReader(strings.NewReader(lines.String()), nil)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", h.MountInfo, err)
	}
	var all []Mount
	for _, info := range infos {
		m := Mount{
			Path: info.Mountpoint, Type: info.FSType,
			Device:   strconv.Itoa(info.Major) + ":" + strconv.Itoa(info.Minor),
			ReadOnly: slices.Contains(strings.Split(info.Options, ","), "ro"),
		}
		if info.FSType == devtmpfs && info.Root != "/" {
			m.Node, m.NodeGone = strings.CutSuffix(strings.TrimPrefix(info.Root, "/"), deletedSuffix)
		} else if !m.ReadOnly {
			m.TurnedReadOnly = slices.ContainsFunc(strings.Split(info.VFSOptions, ","), func(o string) bool { return slices.Contains(failed, o) })
		}
		if keep(m) {
			all = append(all, m)
		}
	}
	return all, nil
}

// Usage of a filesystem, in bytes and in inodes.
type Usage struct {
	TotalBytes, UsedBytes, AvailableBytes    int64
	TotalInodes, UsedInodes, AvailableInodes int64
}

// Usage asks the filesystem at a path. It may wait for the device, for ever. It fails with syscall.EIO on a filesystem
// that the kernel has shut down: the folder is opened for that, since XFS still counts its blocks then.
func (h *Host) Usage(path string) (Usage, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil {
		return Usage{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	unit := s.Frsize
	if unit == 0 {
		unit = s.Bsize
	}
	return Usage{
		TotalBytes: int64(s.Blocks) * unit, UsedBytes: int64(s.Blocks-s.Bfree) * unit, AvailableBytes: int64(s.Bavail) * unit,
		TotalInodes: int64(s.Files), UsedInodes: int64(s.Files - s.Ffree), AvailableInodes: int64(s.Ffree),
	}, nil
}
