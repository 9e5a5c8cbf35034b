// SPDX-License-Identifier: Apache-2.0

// Package filesystem makes, checks, grows and mounts filesystems, binds block devices, finds and kills the processes
// that use them, and makes and reads the LUKS headers of encrypted volumes.
//
// A device is formatted only through the fence (see Fence). When mkfs is cut off, by a crash of the machine or of this
// process, the volume's header says so, and it starts again. A call whose deadline passes does not cut it off: what
// changes a filesystem runs to its end.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
	"github.com/weft-storage/weft/internal/tracing"
)

// Host mounts on this machine. Safe for concurrent use on different devices.
type Host struct {
	// Mounter mounts and unmounts: NewLinuxMounter on a real host.
	Mounter Mounter
	// Exec runs blkid, mkfs, fsck and what grows filesystems.
	Exec exec.Interface
	// Open opens a device for reading: os.Open on a real host.
	Open func(device string) (Device, error)
	// MountInfo is the path of the mount table: /proc/self/mountinfo on a real host.
	MountInfo string
	// Sys is the path of sysfs: /sys on a real host.
	Sys string
	// PBKDFMemoryKiB that a guess at the passphrase of a new key slot takes; 0 for 64 MiB. Only tests take less.
	PBKDFMemoryKiB int
}

// Device that is open.
type Device = interface {
	io.ReaderAt
	io.Closer
}

// Filesystems that can be asked for.
const (
	Ext4 = "ext4"
	XFS  = "xfs"
)

// DefaultFilesystem of a volume that does not ask for one.
const DefaultFilesystem = Ext4

// maxStacked mounts at one path are taken away; one is the rule, and a second the trace of a race before a restart.
const maxStacked = 16

// Request is a filesystem that a device shall hold.
type Request struct {
	// Device is the path of the block device, and SizeBytes its size.
	Device    string
	SizeBytes int64
	// Type is Ext4 or XFS.
	Type string
	// ReadOnly: nothing may be written to the device, so it is not formatted. Call SetReadOnly before.
	ReadOnly bool
	Fence    Fence
	// WithToken: a LUKS header is not complete without a token.
	WithToken bool
	// Begin is called before a device is formatted. It must make durable that its formatting has begun.
	Begin func(ctx context.Context) error
}

// Prepare makes sure that a device holds the filesystem asked for: it formats it if the fence is open, and checks a
// filesystem that is there. It fails with ErrUnsupported, a *TooSmallError, a *RefusedError, Begin's error or the
// failed program's error, and then has not formatted, except when mkfs itself failed.
func (h *Host) Prepare(ctx context.Context, r Request) (err error) {
	ctx, span := tracing.Start(ctx, "prepare filesystem", tracing.StepKey.String("preparing "+r.Device))
	defer func() { tracing.End(span, err) }()
	if r.Type != Ext4 && r.Type != XFS {
		return fmt.Errorf("%w: %q; use ext4 or xfs", ErrUnsupported, r.Type)
	}
	found, err := h.probe(ctx, r.Device)
	if err != nil {
		return err
	}
	edges := false
	if found.empty() {
		// Read even where the answer does not matter: a device that cannot be read also probes as empty.
		if edges, err = h.edgesAreZero(ctx, r.Device, r.SizeBytes); err != nil {
			return fmt.Errorf("read %s: %w", r.Device, err)
		}
	}
	format, err := decide(r, found, edges)
	if err != nil {
		return err
	}
	if format {
		if err := r.Begin(ctx); err != nil {
			return err
		}
		return h.format(ctx, r, r.Fence.Header == HeaderNone && r.Fence.Blank && edges, !found.empty())
	}
	if r.Type == Ext4 && !r.ReadOnly {
		return h.check(ctx, r.Device)
	}
	return nil // XFS repairs itself from its log when it is mounted
}

// SetReadOnly makes the kernel take no writes to a device from anybody, or take them again. It is idempotent. The
// kernel keeps that for as long as the device is there, through reconnects and rescans (Linux 5.12 and later). With
// native multipath the device is the namespace's head, nvmeXnY, the only one with a device node: its flag stops what
// goes through any path.
//
// A filesystem that is mounted read-only still replays its journal, which on several nodes at once would destroy it.
// The kernel does not on a device that takes no writes: it then refuses to mount one that was not unmounted cleanly.
// And a container that is given a device node may write to it, however the node was bound.
func (h *Host) SetReadOnly(ctx context.Context, device string, readOnly bool) error {
	if readOnly {
		_, err := h.brief(ctx).Run("blockdev", "--setro", device)
		return err
	}
	ro, err := os.ReadFile(filepath.Join(h.Sys, "class/block", filepath.Base(device), "ro"))
	if err != nil || strings.TrimSpace(string(ro)) == "0" {
		return err
	}
	_, err = h.brief(ctx).Run("blockdev", "--setrw", device)
	return err
}

// Mount mounts a device at a directory, which is made if need be.
func (h *Host) Mount(ctx context.Context, device, target, fsType string, options []string) error {
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	switch fsType {
	case XFS:
		// A clone has its source's UUID, and XFS refuses a second filesystem with the same.
		options = append([]string{"nouuid"}, options...)
	case Ext4:
		// By default it goes on after an error, on what it now knows to be damaged.
		options = append([]string{"errors=remount-ro"}, options...)
	}
	defer doing.Begin(ctx, "mounting "+device+" at "+target)()
	return h.Mounter.Mount(device, target, fsType, options)
}

// BindDirectory shows a mounted directory at another place.
func (h *Host) BindDirectory(ctx context.Context, source, target string, readOnly bool) error {
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	return h.bind(ctx, source, target, readOnly)
}

// BindDevice shows a device node at another place, as a file. Read-only concerns the
// file's attributes: for the device there is SetReadOnly.
func (h *Host) BindDevice(ctx context.Context, device, target string, readOnly bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return h.bind(ctx, device, target, readOnly)
}

func (h *Host) bind(ctx context.Context, source, target string, readOnly bool) error {
	defer doing.Begin(ctx, "binding "+source+" at "+target)()
	if readOnly {
		return h.Mounter.BindReadOnly(source, target)
	}
	return h.Mounter.Mount(source, target, "", []string{"bind"})
}

// Unmount takes away everything that is mounted at a path; nothing there is no error. The path itself stays.
func (h *Host) Unmount(ctx context.Context, path string) error {
	for range maxStacked {
		m, mounted, err := h.At(path)
		if err != nil || !mounted {
			return err
		}
		if err := h.unmount(ctx, m.Path); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is still mounted after %d calls of umount", path, maxStacked)
}

func (h *Host) unmount(ctx context.Context, path string) error {
	defer doing.Begin(ctx, "unmounting "+path)()
	return h.Mounter.Unmount(path)
}

// Remove unmounts a path and removes the empty directory or the file that it was mounted on.
func (h *Host) Remove(ctx context.Context, path string) error {
	if err := h.Unmount(ctx, path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Grow makes a mounted filesystem as large as its device; one that is, is left alone.
func (h *Host) Grow(ctx context.Context, device, mountPoint string) error {
	defer doing.Begin(ctx, "growing the filesystem at "+mountPoint)()
	_, err := mount.NewResizeFs(h.lasting(ctx)).Resize(device, mountPoint)
	return err
}

// LoadModule loads a kernel module, with what it needs.
func (h *Host) LoadModule(ctx context.Context, name string) error {
	_, err := h.brief(ctx).Run("modprobe", name)
	return err
}

// edgesAreZero tells whether the first and the last MiB of a device read as zeros.
func (h *Host) edgesAreZero(ctx context.Context, device string, sizeBytes int64) (bool, error) {
	const edge = 1 << 20
	defer doing.Begin(ctx, "reading "+device)()
	f, err := h.Open(device)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, min(edge, sizeBytes))
	for _, offset := range []int64{0, max(0, sizeBytes-edge)} {
		if _, err := io.ReadFull(io.NewSectionReader(f, offset, int64(len(buf))), buf); err != nil {
			return false, err
		}
		for _, b := range buf {
			if b != 0 {
				return false, nil
			}
		}
	}
	return true, nil
}
