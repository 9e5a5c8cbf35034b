// SPDX-License-Identifier: Apache-2.0

// Package own deletes NVMe controllers that are weft's, and has no way to delete another: a Controller is made by Open
// alone, which looks at what it is, and Delete writes through what Open looked at.
package own

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// ErrForeign says that a controller is not weft's.
var ErrForeign = errors.New("controller was not connected by weft")

// Controller of a subsystem of weft's, connected as a host of weft's. Make it with Open, and close it.
type Controller struct {
	// dir is the controller's directory in sysfs. It stays that controller's when another takes its name.
	dir  *os.Root
	name string
}

// Open a controller by its directory in sysfs, such as /sys/class/nvme/nvme3, which was found to be of a subsystem and
// a host. It fails with ErrForeign unless the subsystem's NQN is one that weft gives to volumes, and the host's one
// that weft gives to hosts; and with fs.ErrNotExist or syscall.ENODEV when it is gone, be it that another has its name.
func Open(path, subsystem, host string) (*Controller, error) {
	_, volume := v1alpha1.ReplicaOfSubsystem(subsystem)
	if _, ours := v1alpha1.AttachmentOfHost(host); !volume || !ours {
		return nil, fmt.Errorf("%s: %w: subsystem %s, host %s", filepath.Base(path), ErrForeign, subsystem, host)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(is(dir, "subsysnqn", subsystem), is(dir, "hostnqn", host)); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Base(path), err), dir.Close())
	}
	return &Controller{dir: dir, name: filepath.Base(path)}, nil
}

// is fails with fs.ErrNotExist when a directory's file holds another text.
func is(dir *os.Root, file, text string) error {
	got, err := dir.ReadFile(file)
	if err == nil && strings.TrimSpace(string(got)) != text {
		err = fmt.Errorf("%s is %s, and was %s: %w", file, strings.TrimSpace(string(got)), text, fs.ErrNotExist)
	}
	return err
}

// Name such as nvme3.
func (c *Controller) Name() string { return c.name }

// Delete asks the kernel to delete the controller. It returns when that is done, which may be never, and fails with
// fs.ErrNotExist or syscall.ENODEV when it is gone.
func (c *Controller) Delete() error {
	f, err := c.dir.OpenFile("delete_controller", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("1")
	return errors.Join(err, f.Close())
}

// Close forgets the controller.
func (c *Controller) Close() error { return c.dir.Close() }
