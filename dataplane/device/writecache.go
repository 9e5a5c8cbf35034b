// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AdminCommand for an NVMe controller. What it leaves out is zero.
type AdminCommand struct {
	Opcode uint8
	// NSID of the namespace that it is about; 0 when it is about none.
	NSID         uint32
	CDW10, CDW11 uint32
	// DataBytes that the controller answers with.
	DataBytes uint32
}

// Admin carries out an admin command, and gives the completion's first double word and the data. It fails with an
// *AdminStatusError when the controller refuses the command.
type Admin func(AdminCommand) (result uint32, data []byte, err error)

// AdminStatusError is an NVMe controller's refusal.
type AdminStatusError struct {
	Opcode uint8
	// Status code and, above it, its type (NVMe Base Specification, "Status Field"), such as 0x10e.
	Status uint16
}

func (e *AdminStatusError) Error() string {
	return fmt.Sprintf("the controller rejects admin command %#02x with status %#x", e.Opcode, e.Status)
}

// Of the NVMe Base Specification: Identify Controller, and the feature Volatile Write Cache.
const (
	opcodeIdentify     = 0x06
	opcodeSetFeatures  = 0x09
	opcodeGetFeatures  = 0x0a
	identifyController = 0x01
	identifyBytes      = 4096
	identifyVWC        = 525
	featureWriteCache  = 0x06
)

// TurnOffWriteCache has an NVMe drive acknowledge what would survive a loss of power, until its controller is reset: it
// turns a volatile write cache off, and looks again. A drive that has none, or whose cache is off, is only looked at.
// It fails with ErrVolatile when the cache stays on; after any other error it is not known.
func TurnOffWriteCache(do Admin) error {
	controller, err := identify(do, identifyController, 0)
	if err != nil {
		return err
	}
	if controller[identifyVWC]&1 == 0 {
		return nil
	}
	on, err := writeCacheOn(do)
	if err != nil || !on {
		return err
	}
	var refused *AdminStatusError
	if _, _, err := do(AdminCommand{Opcode: opcodeSetFeatures, CDW10: featureWriteCache}); errors.As(err, &refused) {
		return fmt.Errorf("%w: it cannot be turned off: %w", ErrVolatile, err)
	} else if err != nil {
		return err
	}
	if on, err = writeCacheOn(do); err == nil && on {
		return fmt.Errorf("%w: the controller accepted the command to turn it off, but it is still on", ErrVolatile)
	}
	return err
}

func writeCacheOn(do Admin) (bool, error) {
	result, _, err := do(AdminCommand{Opcode: opcodeGetFeatures, CDW10: featureWriteCache})
	return result&1 != 0, err
}

// adminIoctl is NVME_IOCTL_ADMIN_CMD, and kernelAdminCommand its struct nvme_admin_cmd (linux/nvme_ioctl.h).
const adminIoctl = 3<<30 | 72<<16 | 'N'<<8 | 0x41

type kernelAdminCommand struct {
	opcode, flags         uint8
	_                     uint16
	nsid                  uint32
	_, _                  uint32
	metadata, addr        uint64
	metadataLen, dataLen  uint32
	cdw10, cdw11          uint32
	_, _, _, _            uint32
	timeoutMillis, result uint32
}

// KernelAdmin sends admin commands through the block device of an NVMe namespace that the kernel drives.
func KernelAdmin(path string) Admin {
	return func(c AdminCommand) (uint32, []byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return 0, nil, err
		}
		defer f.Close() //nolint:errcheck // nothing was written
		data := make([]byte, c.DataBytes)
		command := kernelAdminCommand{opcode: c.Opcode, nsid: c.NSID, cdw10: c.CDW10, cdw11: c.CDW11, dataLen: c.DataBytes}
		if len(data) > 0 {
			command.addr = uint64(uintptr(unsafe.Pointer(&data[0]))) //nolint:gosec // the kernel writes to the address
		}
		status, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), adminIoctl, uintptr(unsafe.Pointer(&command))) //nolint:gosec // an ioctl takes an address
		runtime.KeepAlive(data)
		switch {
		case errno != 0:
			return 0, nil, fmt.Errorf("admin command %#02x to %s: %w", c.Opcode, path, errno)
		case status != 0:
			return 0, nil, &AdminStatusError{Opcode: c.Opcode, Status: uint16(status)}
		}
		return command.result, data, nil
	}
}
