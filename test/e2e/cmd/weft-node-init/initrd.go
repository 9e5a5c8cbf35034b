// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

// rootDevice is the first virtio disk.
const rootDevice = "/dev/vda"

// initrd loads modules, mounts the root filesystem and replaces itself with
// the init program there. It returns only on failure.
func initrd() error {
	for _, m := range []mountPoint{
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"devtmpfs", "/dev", "devtmpfs", 0, ""},
	} {
		if err := m.mount(); err != nil {
			return err
		}
	}
	list, err := os.ReadFile(nodeconfig.InitrdModules)
	if err != nil {
		return err
	}
	for _, path := range strings.Fields(string(list)) {
		if err := loadModule(path); err != nil {
			return err
		}
	}
	const newRoot = "/newroot"
	// The driver probes its disk before finit_module returns, so the device is
	// there already.
	root := mountPoint{rootDevice, newRoot, "ext4", unix.MS_NOATIME, ""}
	if err := root.mount(); err != nil {
		return err
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if err := unix.Mount(dir, newRoot+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	if err := unix.Chdir(newRoot); err != nil {
		return fmt.Errorf("enter the root filesystem: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root filesystem: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), unix.Chdir("/")); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	err = unix.Exec(nodeconfig.InitPath, []string{nodeconfig.InitPath}, []string{"PATH=" + searchPath, "HOME=/root"})
	return fmt.Errorf("run %s: %w", nodeconfig.InitPath, err)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", filepath.Base(path), err)
	}
	return nil
}

// mountPoint is one call of mount(2).
type mountPoint struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

func (m mountPoint) mount() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data)
	if err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
	}
	return nil
}
