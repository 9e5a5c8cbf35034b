// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"encoding/binary"
	"errors"
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
		a := s.ask(p.Device)
		all.Go(func() { p.NotDurable = a.wait(patience) })
	}
	all.Wait()
	for device, a := range s.life.asked {
		if a.answered() {
			delete(s.life.asked, device)
		}
	}
}

// drivePatience with drives that SPDK drives itself. A dead one answers nothing, SPDK waits for it without end, and all
// other calls wait for this one.
const drivePatience = 2 * time.Second

// errNoAnswer of a drive to an admin command.
var errNoAnswer = errors.New("the drive answers no command: it is dead, or busy with itself")

// asking a drive to turn its write cache off.
type asking struct {
	done chan struct{}
	err  error // read after done
	// late: it was waited for in vain, which is not done twice.
	late bool
}

// ask a drive, unless it still owes an answer: a dead one would get a command more whenever it is looked at.
func (s *session) ask(drive string) *asking {
	if a := s.life.asked[drive]; a != nil {
		return a
	}
	a := &asking{done: make(chan struct{})}
	s.life.asked[drive] = a
	beyond := &session{Engine: s.Engine, ctx: context.WithoutCancel(s.ctx), conn: s.conn} // it ends with the connection
	go func() {
		defer close(a.done)
		a.err = device.TurnOffWriteCache(beyond.admin(bdevName(drive)))
	}()
	return a
}

func (a *asking) answered() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// wait for the drive's answer, or say that it owes it.
func (a *asking) wait(patience context.Context) error {
	if !a.late {
		select {
		case <-a.done:
		case <-patience.Done():
			a.late = true
		}
	}
	if !a.answered() {
		return errNoAnswer
	}
	return a.err
}

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
		reply, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevNvmeSendCmd{
			Name: controller, Type: spdkrpc.NvmeAdmin, Direction: spdkrpc.NvmeFromController,
			Command: spdkrpc.EncodeBase64URL(entry), DataBytes: c.DataBytes,
		})
		if err != nil {
			return 0, nil, mapError(err)
		}
		completion, err := reply.Completion.Bytes()
		if err != nil || len(completion) != completionBytes {
			return 0, nil, fmt.Errorf("the reply to admin command %#02x has no valid completion: %q", c.Opcode, reply.Completion)
		}
		// Beside the phase tag, and below the hint when to try again.
		if status := binary.LittleEndian.Uint16(completion[14:]) >> 1 & 0x7ff; status != 0 {
			return 0, nil, &device.AdminStatusError{Opcode: c.Opcode, Status: status}
		}
		data, err := reply.Data.Bytes()
		return binary.LittleEndian.Uint32(completion), data, err
	}
}

// completionBytes of a completion queue entry.
const completionBytes = 16
