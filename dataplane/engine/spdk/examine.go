// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// By default SPDK examines every bdev that appears: it looks for an lvstore, a partition table or a RAID superblock,
// and opens what it finds. Volumes are bdevs too, and hosts write what they like to them. A volume with an lvstore of
// its own could not be exported after a restart, because SPDK had claimed it, and SPDK read what a host had made up.
// A drive that answers no read is examined without end, and SPDK answers no call that waits for that, for any drive.
// So targets are told not to examine anything by themselves. The engine names what is examined: drives and files,
// once it is known that they are what was planned, and that they can be read.

// readNVMe is the opcode of Read (NVM Command Set Specification).
const readNVMe = 0x02

// mutePatience with a drive that does not answer: a person may give it up after that.
const mutePatience = 10 * time.Minute

// examined reads again once SPDK has looked at devices that it holds without an lvstore: after a crash that takes long,
// and the call that attached them may not have waited for it. Until then nothing is done with them.
func (s *session) examined(st *store, devices []engine.Device) (*store, error) {
	for _, p := range st.pools {
		if p.Err == nil || p.base.Name == "" {
			continue
		}
		if err := s.awaitExamined(s.ctx); err != nil {
			return nil, fmt.Errorf("pool %s is being examined: %w", p.Device, err)
		}
		return s.readPools(devices)
	}
	return st, nil
}

// examine devices that the target has, and that are no pools yet. Their lvstores are open afterwards, with all that is
// in them.
func (s *session) examine(st *store, open []*opening, items []int, errs []error) error {
	s.checkDrives(st, open, items, errs)
	is, err := s.fixed()
	if err != nil {
		return err
	}
	if !is.examinesAll {
		s.life.examined = false
		named := make([]error, len(errs))
		copy(named, errs)
		call(s, items, named, func(i int) spdkrpc.Request[spdkrpc.Done] { return spdkrpc.BdevExamine{Name: open[i].base()} })
		for _, i := range items {
			if !errors.Is(named[i], spdkrpc.ErrExists) { // an earlier call has named it
				errs[i] = named[i]
			}
		}
	}
	return s.awaitExamined(s.ctx)
}

// awaitExamined waits until SPDK knows what is on each device that is examined. One that goes dead meanwhile holds it
// up for all.
func (s *session) awaitExamined(ctx context.Context) error {
	_, err := spdkrpc.Call(ctx, s.conn, spdkrpc.BdevWaitForExamine{})
	s.life.examined = s.life.examined || err == nil
	return mapError(err)
}

// awaitFirst has SPDK finish with what others had it examine, if this process does not know that it has. SPDK lists an
// lvstore before all that is in it.
func (s *session) awaitFirst() {
	if s.life.examined {
		return
	}
	brief, cancel := context.WithTimeout(s.ctx, examinePatience)
	defer cancel()
	_ = s.awaitExamined(brief) // findOpening says of which pools that matters
}

// findOpening marks pools of which this process cannot know whether SPDK lists all that is in them.
func (s *session) findOpening(st *store) {
	for _, p := range st.pools {
		if p.Err == nil && !s.life.examined && s.life.trust[p.Device] == nil {
			p.Err = fmt.Errorf("%w: SPDK has not opened all volumes of pool %s yet", engine.ErrBusy, p.Device)
		}
	}
}

// checkDrives that the target drives itself, once they are attached: whether they are what is planned, since the kernel
// cannot be asked any more, and what sits at a PCI address may have changed since it could. And whether they answer a
// read, which SPDK would wait for without end. Nothing was read from them yet, nor written to them, except by a target
// that examines all that it attaches. A drive that is another one, or that cannot be read, is given up again.
//
// Drives that are added while pools are open are not read first. If the target does not have enough memory for a
// drive's queue, the command crashes it (nvme_rpc_io_cmd_bdev_nvme of module/bdev/nvme/nvme_rpc.c does not check).
// Hosts use that memory by then, and would lose their volumes.
func (s *session) checkDrives(st *store, open []*opening, items []int, errs []error) {
	patience, cancel := context.WithTimeout(s.ctx, drivePatience)
	defer cancel()
	var all sync.WaitGroup
	for _, i := range items {
		o := open[i]
		if errs[i] != nil || o.PCIAddress == "" {
			continue
		}
		base := st.recorded(o.ID).base
		read := o.attached != nil || !st.serves()
		a := s.ask(s.life.checks, o.ID, func(beyond *session) error { return beyond.checkDriveItself(o, base, read) })
		all.Go(func() {
			err := a.wait(patience)
			switch {
			case err == nil:
			case !errors.Is(err, errNoAnswer):
				err = errors.Join(err, s.detach(o))
			case s.config.Now().Sub(a.since) < mutePatience:
				err = fmt.Errorf("%w: %w", engine.ErrBusy, err)
			}
			errs[i] = err
		})
	}
	all.Wait()
	forgetAnswered(s.life.checks)
}

// serves says whether any pool is open.
func (st *store) serves() bool {
	return slices.ContainsFunc(st.pools, func(p *pool) bool { return p.Err == nil })
}

// checkDriveItself asks a drive which it is, and may read its first block.
func (s *session) checkDriveItself(o *opening, base spdkrpc.Bdev, read bool) error {
	names, err := device.NVMeNames(s.admin(bdevName(o.ID)))
	if err != nil {
		return fmt.Errorf("which drive is at %s: %w", o.PCIAddress, err)
	}
	if err := names.Check(o.PCIAddress, o.ID); err != nil {
		return err
	}
	switch {
	case base.BlockBytes == 0:
		return fmt.Errorf("%w: SPDK has no block device of the drive at %s, as if another drive has the same id, or it is being formatted", engine.ErrInUse, o.PCIAddress)
	case base.MetadataBytes > 0:
		return fmt.Errorf("%w: blocks of the drive at %s have metadata, where SPDK makes no pools; format it without (nvme format --lbaf)", engine.ErrUnsupported, o.PCIAddress)
	case o.blank:
		physical, err := device.PhysicalBlockBytes(s.admin(bdevName(o.ID)), int64(base.BlockBytes))
		if err == nil && physical > pageBytes {
			err = fmt.Errorf("%w: SPDK would keep its metadata in pages of %d bytes on the drive at %s, because the drive prefers such writes, and could not read them after a crash; "+
				"set devices.driver to Kernel", engine.ErrUnsupported, physical, o.PCIAddress)
		}
		if err != nil {
			return err
		}
	}
	if !read {
		return nil
	}
	entry := make([]byte, spdkrpc.NvmeCommandBytes)
	entry[0] = readNVMe
	binary.LittleEndian.PutUint32(entry[4:], 1) // the namespace; everything else is zero: one block, the first
	_, status, _, err := s.command(bdevName(o.ID), spdkrpc.NvmeIO, entry, uint32(base.BlockBytes))
	if err == nil && status != 0 {
		err = fmt.Errorf("status %#x", status)
	}
	if err != nil {
		return fmt.Errorf("the first block of the drive at %s cannot be read: %w", o.PCIAddress, err)
	}
	return nil
}

// checkDrive that the kernel drives.
func (s *session) checkDrive(o *opening) error {
	info, err := os.Stat(s.path(o.Path))
	if err != nil {
		return err
	}
	return device.CheckKernel(s.config.Root, o.Path, info.Sys().(*syscall.Stat_t).Rdev, o.ID)
}

// errNoAnswer of a drive to a command.
var errNoAnswer = errors.New("the drive does not answer: it is dead, or busy with itself")

// asking a drive, without which the engine goes on.
type asking struct {
	done  chan struct{}
	err   error // read after done
	since time.Time
	// late: it was waited for in vain, which is not done twice.
	late bool
}

// ask a drive, unless it still owes an answer: a dead one would get a command more whenever it is looked at.
func (s *session) ask(owed map[string]*asking, drive string, question func(beyond *session) error) *asking {
	if a := owed[drive]; a != nil {
		return a
	}
	a := &asking{done: make(chan struct{}), since: s.config.Now()}
	owed[drive] = a
	beyond := s.under(context.WithoutCancel(s.ctx)) // it ends with the connection
	go func() {
		defer close(a.done)
		a.err = question(beyond)
	}()
	return a
}

func forgetAnswered(owed map[string]*asking) {
	for drive, a := range owed {
		if a.answered() {
			delete(owed, drive)
		}
	}
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
