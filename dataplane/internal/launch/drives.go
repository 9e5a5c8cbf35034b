// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// runWithDrives takes the drives from the kernel, and is nvmf_tgt's parent until it ends.
func runWithDrives(_ context.Context, _ Machine, o Options, _ []string) error {
	return refuse(v1alpha1.ReasonDriverNotAvailable, "--driver %s is not available in this version; give --driver Kernel", o.Driver)
}

// openExclusively asks the kernel for the device as a filesystem would.
func openExclusively(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
