// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// syncFlag is FS_SYNC_FL of linux/fs.h, the attribute S of chattr(1). The kernel looks at it with each write, direct
// I/O of another process or of the kernel itself included.
const syncFlag = 0x8

// MakeSynchronous has a write to a file complete once it would survive a loss of power; when it answers, so would every
// write before. A file that is synchronous already is only looked at. It fails with ErrVolatile where the filesystem
// knows no such attribute.
func MakeSynchronous(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	changed, err := SetSynchronous(f)
	if err == nil && changed {
		err = f.Sync()
	}
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("%w: %w", ErrVolatile, err)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("make the writes to %s synchronous: %w", path, err)
	}
	return nil
}

// SetSynchronous is MakeSynchronous without what was written before, and without waiting until the attribute itself
// would survive a loss of power. It says whether the file was not synchronous yet.
func SetSynchronous(f *os.File) (changed bool, err error) {
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&syncFlag != 0 {
		return false, err
	}
	return true, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags|syncFlag))
}
