// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// Mounter changes what is mounted. Safe for concurrent use at different targets.
type Mounter interface {
	// Mount a device, or bind a directory or a file, at a target that exists.
	Mount(source, target, fsType string, options []string) error
	// BindReadOnly binds a directory or a file at a target that exists, so that nobody can ever write through it.
	BindReadOnly(source, target string) error
	// Unmount what is mounted last at a target.
	Unmount(target string) error
}

// LinuxMounter is the running kernel (Linux 5.12 or later), with the machine's mount program.
type LinuxMounter struct{ mount.Interface }

// NewLinuxMounter makes one.
func NewLinuxMounter() LinuxMounter { return LinuxMounter{mount.NewWithoutSystemd("")} }

// BindReadOnly makes the mount read-only before it is put anywhere. The mount program does it afterwards, with a second
// call to the kernel, and until then the mount takes writes.
func (LinuxMounter) BindReadOnly(source, target string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	if err == nil {
		err = unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err = errors.Join(err, unix.Close(tree)); err != nil {
		return fmt.Errorf("bind %s read-only at %s: %w", source, target, err)
	}
	return nil
}
