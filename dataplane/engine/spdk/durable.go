// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// makeDurable has what the pools are on acknowledge writes that would survive a loss of power, and notes where that
// cannot be had, or not be known. It is done again and again: a drive's cache is on after each reset of its controller,
// which may happen at any time.
func (s *session) makeDurable(pools []*pool) {
	patience, cancel := context.WithTimeout(s.ctx, drivePatience)
	defer cancel()
	var all sync.WaitGroup
	for _, p := range pools {
		if len(p.base.Driver.NVMe) == 0 {
			all.Go(func() { p.NotDurable = s.makePoolDurable(p) })
			continue
		}
		a := s.ask(s.life.asked, p.Device, func(beyond *session) error { return device.TurnOffWriteCache(beyond.admin(bdevName(p.Device))) })
		all.Go(func() { p.NotDurable = a.wait(patience) })
	}
	all.Wait()
	forgetAnswered(s.life.asked)
}

// drivePatience with drives that SPDK drives itself. A dead one answers nothing, SPDK waits for it without end, and all
// other calls wait for this one.
const drivePatience = 2 * time.Second

func (s *session) makePoolDurable(p *pool) error {
	path := s.path(p.Path)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case isBlockDevice(info):
		return s.makeDiskDurable(path, info)
	default:
		return device.MakeSynchronous(path)
	}
}

// makeDiskDurable of a block device that the kernel drives. What SPDK writes to it the kernel passes on without FUA.
func (s *session) makeDiskDurable(path string, info os.FileInfo) error {
	cache, err := s.queueAttribute(info, "write_cache")
	if err != nil {
		return err
	}
	switch cache {
	case "write through":
		return nil
	case "write back":
	default:
		return fmt.Errorf("the kernel calls its write cache %q", cache)
	}
	folder, err := filepath.EvalSymlinks(s.sysfsOf(info))
	if err != nil {
		return err
	}
	if strings.HasPrefix(filepath.Base(folder), "nvme") {
		return device.TurnOffWriteCache(device.KernelAdmin(path))
	}
	return fmt.Errorf("%w: weft turns it off only on NVMe drives; turn it off if the drive supports it (/sys/class/scsi_disk/*/cache_type: write through), or use engine Nvmet", device.ErrVolatile)
}

// admin sends commands to the controller of a drive that the target drives itself.
func (s *session) admin(controller string) device.Admin {
	return func(c device.AdminCommand) (uint32, []byte, error) {
		entry := make([]byte, spdkrpc.NvmeCommandBytes)
		entry[0] = c.Opcode
		binary.LittleEndian.PutUint32(entry[4:], c.NSID)
		binary.LittleEndian.PutUint32(entry[40:], c.CDW10)
		binary.LittleEndian.PutUint32(entry[44:], c.CDW11)
		result, status, data, err := s.command(controller, spdkrpc.NvmeAdmin, entry, c.DataBytes)
		if err == nil && status != 0 {
			err = &device.AdminStatusError{Opcode: c.Opcode, Status: status}
		}
		return result, data, err
	}
}

// command for a controller's queue, and its completion: the first double word, the status, which is 0 where it was
// carried out, and so much data.
func (s *session) command(controller string, queue spdkrpc.NvmeCommandType, entry []byte, dataBytes uint32) (result uint32, status uint16, data []byte, err error) {
	reply, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevNvmeSendCmd{
		Name: controller, Type: queue, Direction: spdkrpc.NvmeFromController,
		Command: spdkrpc.EncodeBase64URL(entry), DataBytes: dataBytes,
	})
	if err != nil {
		return 0, 0, nil, mapError(err)
	}
	completion, err := reply.Completion.Bytes()
	if err != nil || len(completion) != completionBytes {
		return 0, 0, nil, fmt.Errorf("the reply to %s command %#02x has no valid completion: %q", queue, entry[0], reply.Completion)
	}
	data, err = reply.Data.Bytes()
	// The status lies beside the phase tag, and below the hint when to try again.
	return binary.LittleEndian.Uint32(completion), binary.LittleEndian.Uint16(completion[14:]) >> 1 & 0x7ff, data, err
}

// completionBytes of a completion queue entry.
const completionBytes = 16
