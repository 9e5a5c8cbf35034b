// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

// oldKernels is a file of xfsprogs with the features that Linux 5.15 knows. Without
// it mkfs.xfs uses features by its own age, and the node's kernel may be older.
const oldKernels = "usr/share/xfsprogs/mkfs/lts_5.15.conf"

// OpenPools implements engine.Engine.
func (e *Engine) OpenPools(ctx context.Context, devices []engine.Device) []error {
	end, err := e.begin(ctx)
	defer end()
	return each(ctx, devices, err, func(d engine.Device) error { return e.openPool(ctx, d) })
}

func (h *host) openPool(ctx context.Context, d engine.Device) error {
	if err := d.Validate(); err != nil {
		return err
	}
	dir, err := h.poolDir(d.ID)
	if err != nil {
		return err
	}
	mounts, err := h.mounts()
	if err != nil {
		return err
	}
	if m := mountedOn(mounts, dir); m != nil {
		return h.keepPool(ctx, d, dir, m)
	}
	block, err := h.preparePool(ctx, d, dir, mounts)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	options := "noatime,nodev,nosuid,noexec"
	if d.FileBytes > 0 {
		// So that the file gives back what is deleted in the pool.
		options += ",discard"
	}
	if _, err := h.run(ctx, "mount", "-t", "xfs", "-o", options, block, dir); err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	return h.finishPool(ctx, d, dir)
}

// keepPool sees that what is mounted is the device, and grows it when the device has grown.
func (h *host) keepPool(ctx context.Context, d engine.Device, dir string, m *mount.MountInfo) error {
	info, err := os.Stat(h.path(d.Path))
	if err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	if d.FileBytes == 0 {
		rdev := info.Sys().(*syscall.Stat_t).Rdev
		if int(unix.Major(rdev)) != m.Major || int(unix.Minor(rdev)) != m.Minor {
			return fmt.Errorf("device %s is open from %s, not %s: %w", d.ID, m.Source, d.Path, engine.ErrInUse)
		}
		if err := h.checkDrive(d); err != nil {
			return err
		}
		return h.finishPool(ctx, d, dir)
	}
	if is := h.poolPath(d.ID, m); is != d.Path {
		return fmt.Errorf("device %s is open from %s, not %s: %w", d.ID, is, d.Path, engine.ErrInUse)
	}
	if err := h.growFile(ctx, d); err != nil {
		return err
	}
	if err := h.refreshLoop(ctx, d, filepath.Base(m.Source)); err != nil {
		return err
	}
	return h.finishPool(ctx, d, dir)
}

// preparePool gives the block device to mount: blank ones get their filesystem.
func (h *host) preparePool(ctx context.Context, d engine.Device, dir string, mounts []mount.MountInfo) (string, error) {
	info, err := os.Stat(h.path(d.Path))
	switch {
	case isMissing(err) && d.FileBytes > 0:
		if _, known := os.Stat(dir); known == nil {
			return "", fmt.Errorf("pool file %s and its volumes are missing; to start with an empty pool, remove the directory %s: %w", d.Path, dir, engine.ErrNotFound)
		}
	case isMissing(err):
		return "", fmt.Errorf("device %s: %s: %w", d.ID, d.Path, engine.ErrNotFound)
	case err != nil:
		return "", fmt.Errorf("device %s: %w", d.ID, err)
	case d.FileBytes > 0 && !info.Mode().IsRegular():
		return "", fmt.Errorf("%w: device %s: %s is not a file", engine.ErrInvalid, d.ID, d.Path)
	case d.FileBytes == 0 && (info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0):
		return "", fmt.Errorf("%w: device %s: %s is not a block device; a file needs a size", engine.ErrInvalid, d.ID, d.Path)
	}
	if d.FileBytes == 0 {
		rdev := info.Sys().(*syscall.Stat_t).Rdev
		if err := device.CheckUnused(h.root, d.Path, rdev, mounts); err != nil {
			return "", err
		}
		if err := h.format(ctx, d, d.Path, dir); err != nil {
			return "", err
		}
		return d.Path, h.checkDrive(d)
	}
	if d.FileBytes < v1alpha1.MinXFSBytes {
		return "", fmt.Errorf("%w: pool file %s of %d bytes; the minimum is %d", engine.ErrInvalid, d.Path, d.FileBytes, v1alpha1.MinXFSBytes)
	}
	if err := h.growFile(ctx, d); err != nil {
		return "", err
	}
	// Before a loop device is made of it: what is refused leaves nothing behind.
	if _, err := h.probe(ctx, h.path(d.Path)); err != nil {
		return "", err
	}
	loop, err := h.attachLoop(ctx, d, mounts)
	if err != nil {
		return "", err
	}
	return loop, h.format(ctx, d, loop, dir)
}

// format a device unless it is a pool already. One that reads as blank and was mounted on dir is refused: what is left
// of a pool whose beginning was overwritten can be saved until another filesystem is made there.
func (h *host) format(ctx context.Context, d engine.Device, block, dir string) error {
	is, err := h.probe(ctx, h.path(block))
	if err != nil {
		return err
	}
	if err := h.checkDrive(d); err != nil {
		return err
	}
	// -K: it would have the drive discard all that it has first, however long that takes, and all other calls wait for
	// this one. Nobody needs it: what a volume never wrote is a hole of its file, and reads as zeroes, whatever the
	// drive holds there.
	args := []string{"-q", "-K", "-L", PoolLabel}
	switch is {
	case ours:
		return nil
	case unfinished:
		args = append(args, "-f")
	case blank:
		if _, err := os.Stat(dir); !isMissing(err) {
			return errors.Join(fmt.Errorf("device %s: %s reads as blank, but was a pool, and its volumes may be recoverable; to start with an empty pool, remove the directory %s: %w", d.ID, d.Path, dir, engine.ErrNotFound), err)
		}
		// Without -f: mkfs.xfs looks for signatures, too.
	}
	if _, err := os.Stat(h.path(oldKernels)); err == nil {
		args = append(args, "-c", "options="+h.path(oldKernels))
	} else {
		args = append(args, "-m", "reflink=1")
	}
	if _, err := h.run(ctx, "mkfs.xfs", append(args, h.path(block))...); err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	return nil
}

// ForgetPools implements engine.Engine.
func (e *Engine) ForgetPools(ctx context.Context, devices []string) []error {
	end, err := e.begin(ctx)
	defer end()
	var s *store
	if err == nil {
		s, err = e.scan()
	}
	return each(ctx, devices, err, func(id string) error { return e.forgetPool(s, id) })
}

func (h *host) forgetPool(s *store, id string) error {
	at := slices.IndexFunc(s.pools, func(p *pool) bool { return p.Device == id })
	if at < 0 {
		return nil
	}
	p := s.pools[at]
	if p.Err == nil {
		return fmt.Errorf("pool %s can be read: %w", id, engine.ErrInUse)
	}
	// Namespaces have its files open: it ends with the last of them, and hosts get I/O errors until then.
	if err := unix.Unmount(p.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount pool %s: %w", id, mapErrno(err))
	}
	if err := os.Remove(p.dir); err != nil && !isMissing(err) {
		return fmt.Errorf("pool %s: %w", id, mapErrno(err))
	}
	return nil
}

// checkDrive that it is the planned one: the kernel may have given its name to another since it was looked at.
func (h *host) checkDrive(d engine.Device) error {
	if d.FileBytes > 0 {
		return nil
	}
	info, err := os.Stat(h.path(d.Path))
	if err == nil {
		err = device.CheckKernel(h.root, d.Path, info.Sys().(*syscall.Stat_t).Rdev, d.ID)
	}
	if err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	return nil
}

// finishPool does what is left once the filesystem is mounted.
func (h *host) finishPool(ctx context.Context, d engine.Device, dir string) error {
	g, err := readGeometry(dir)
	if err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	if !g.reflink {
		return fmt.Errorf("device %s: its filesystem does not support reflinks, which snapshots require; back up its data and erase it (blkdiscard -f %s)", d.ID, d.Path)
	}
	deviceBytes, err := h.deviceBytes(dir)
	if err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	// A remainder too small for an allocation group of its own stays unused.
	if deviceBytes-g.bytes >= engine.SizeUnit {
		if _, err := h.run(ctx, "xfs_growfs", "-d", dir); err != nil {
			return fmt.Errorf("device %s: %w", d.ID, err)
		}
	}
	made := false
	for _, folder := range []string{volumesFolder, snapshotsFolder} {
		switch err := os.Mkdir(filepath.Join(dir, folder), 0o700); {
		case err == nil:
			made = true
		case !os.IsExist(err):
			return fmt.Errorf("device %s: %w", d.ID, mapErrno(err))
		}
	}
	if made {
		return syncFilesystem(dir)
	}
	return nil
}

// deviceBytes of the block device that a folder is mounted from.
func (h *host) deviceBytes(dir string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, err
	}
	text, err := h.readAttr(h.path("sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)), "size"))
	if err != nil {
		return 0, err
	}
	sectors, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, err
	}
	return sectors * 512, nil
}

// poolsDir is where pools are mounted.
func (h *host) poolsDir() string { return filepath.Join(h.stateDir, "pools") }

func (h *host) poolDir(id string) (string, error) {
	name := url.PathEscape(id)
	if len(name) > unix.NAME_MAX {
		return "", fmt.Errorf("%w: device ID %q is too long; it has at most %d bytes, a slash counting as three", engine.ErrInvalid, id, unix.NAME_MAX)
	}
	if strings.Trim(name, ".") == "" {
		return "", fmt.Errorf("%w: device ID %q", engine.ErrInvalid, id)
	}
	return filepath.Join(h.poolsDir(), name), nil
}

// poolPath is the device or file that a pool is made of.
func (h *host) poolPath(id string, m *mount.MountInfo) string {
	if name := filepath.Base(m.Source); strings.HasPrefix(name, "loop") {
		// A file's ID is its path.
		if file, err := h.readAttr(h.path("sys/block", name, "loop/backing_file")); err == nil && file == id {
			return file
		}
	}
	return m.Source
}

// mountedOn gives the topmost mount on a folder; nil when there is none.
func mountedOn(mounts []mount.MountInfo, dir string) *mount.MountInfo {
	for _, m := range slices.Backward(mounts) {
		if m.MountPoint == dir {
			return &m
		}
	}
	return nil
}

// growFile creates the file of a pool, or makes it larger.
func (h *host) growFile(ctx context.Context, d engine.Device) error {
	changed, created, err := device.SizeFile(h.path(d.Path), d.FileBytes)
	if err != nil {
		return fmt.Errorf("device %s: %w", d.ID, mapErrno(err))
	}
	if changed {
		logr.FromContextOrDiscard(ctx).Info("Resized the pool's file", "device", d.ID, "bytes", d.FileBytes, "created", created)
	}
	return nil
}

// attachLoop gives the loop device of a pool's file, as large as the file.
func (h *host) attachLoop(ctx context.Context, d engine.Device, mounts []mount.MountInfo) (string, error) {
	out, err := h.run(ctx, "losetup", "--noheadings", "--output", "NAME", "--associated", h.path(d.Path))
	if err != nil {
		return "", fmt.Errorf("device %s: %w", d.ID, err)
	}
	if loops := strings.Fields(out); len(loops) > 0 {
		for _, m := range mounts {
			if m.Source == loops[0] {
				return "", fmt.Errorf("device %s: %s is mounted on %s: %w", d.ID, d.Path, m.MountPoint, engine.ErrInUse)
			}
		}
		return loops[0], h.refreshLoop(ctx, d, filepath.Base(loops[0]))
	}
	out, err = h.run(ctx, "losetup", "--find", "--show", h.path(d.Path))
	if err != nil {
		return "", fmt.Errorf("device %s: %w", d.ID, err)
	}
	loop := strings.TrimSpace(out)
	// Else everything would be cached twice. Not every filesystem below can do it; it is correct without.
	if _, err := h.run(ctx, "losetup", "--direct-io=on", loop); err != nil {
		logr.FromContextOrDiscard(ctx).Info("The pool's file is used without direct I/O", "device", d.ID, "reason", err.Error())
	}
	return loop, nil
}

// refreshLoop makes a loop device as large as its file.
func (h *host) refreshLoop(ctx context.Context, d engine.Device, loop string) error {
	info, err := os.Stat(h.path(d.Path))
	if err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	text, err := h.readAttr(h.path("sys/block", loop, "size"))
	if err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	if sectors, err := strconv.ParseInt(text, 10, 64); err == nil && sectors == info.Size()/512 {
		return nil
	}
	if _, err := h.run(ctx, "losetup", "--set-capacity", "/dev/"+loop); err != nil {
		return fmt.Errorf("device %s: %w", d.ID, err)
	}
	return nil
}
