// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/weft-storage/weft/dataplane/device"
)

// compareDrives that the target drives itself with what they are planned to be, once they are attached: the kernel
// cannot be asked any more, and what sits at a PCI address may have changed since it could. Nothing was written to them
// yet, but by SPDK to an lvstore that it found there. One that is another drive is given up again. A pool that is
// open stays: its lvstore's name says whose it is.
func (s *session) compareDrives(open []*opening, errs []error) {
	var all sync.WaitGroup
	for i, o := range open {
		if errs[i] != nil || o.PCIAddress == "" || o.attached != nil && o.attached.Err == nil {
			continue
		}
		all.Go(func() {
			names, err := device.NVMeNames(s.admin(bdevName(o.ID)))
			if err != nil {
				err = fmt.Errorf("which drive is at %s: %w", o.PCIAddress, err)
			} else {
				err = names.Check(o.PCIAddress, o.ID)
			}
			if err != nil {
				errs[i] = errors.Join(err, s.detach(o))
			}
		})
	}
	all.Wait()
}

// checkDrive that the kernel drives.
func (s *session) checkDrive(o *opening) error {
	info, err := os.Stat(s.path(o.Path))
	if err != nil {
		return err
	}
	return device.CheckKernel(s.config.Root, o.Path, info.Sys().(*syscall.Stat_t).Rdev, o.ID)
}
