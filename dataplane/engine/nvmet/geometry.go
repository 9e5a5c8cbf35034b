// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// geometry of an XFS.
type geometry struct {
	bytes   int64
	reflink bool
}

// From linux's fs/xfs/libxfs/xfs_fs.h: XFS_IOC_FSGEOMETRY_V1 is
// _IOR('X', 100, struct xfs_fsop_geom_v1) of 112 bytes, and where in it the fields are.
const (
	geometryBytes       = 112
	getGeometry         = 2<<30 | geometryBytes<<16 | 'X'<<8 | 100
	geometryBlockBytes  = 0
	geometryDataBlocks  = 32
	geometryFlags       = 92
	geometryFlagReflink = 1 << 20
)

// readGeometry of the XFS that a folder lies in.
func readGeometry(dir string) (geometry, error) {
	f, err := os.Open(dir)
	if err != nil {
		return geometry{}, err
	}
	var raw [geometryBytes]byte
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), getGeometry, uintptr(unsafe.Pointer(&raw[0]))) //nolint:gosec // an ioctl takes an address
	if err := f.Close(); err != nil {
		return geometry{}, err
	}
	if errno != 0 {
		return geometry{}, fmt.Errorf("%s is not on XFS: %w", dir, errno)
	}
	native := binary.NativeEndian
	return geometry{
		bytes:   int64(native.Uint32(raw[geometryBlockBytes:])) * int64(native.Uint64(raw[geometryDataBlocks:])),
		reflink: native.Uint32(raw[geometryFlags:])&geometryFlagReflink != 0,
	}, nil
}
