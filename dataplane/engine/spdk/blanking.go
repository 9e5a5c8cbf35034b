// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

// blankPatience is how long OpenPools waits for the kernel, and all other calls with it: most devices, and files, are
// done before, and are pools with this call. What takes longer, as its size may make it, goes on without the lock.
const blankPatience = 2 * time.Second

// blanking of a device by the kernel, before the target has it.
type blanking struct {
	done chan struct{}
	// of is what the path led to, and err why it could not be done, once done is closed.
	of  os.FileInfo
	err error
}

// blank has the kernel deallocate blank devices and files, where it promises that they read as zeroes then and need not
// be written. However long that takes, OpenPools fails with engine.ErrBusy until it is done. What cannot be deallocated
// so is cleared like any other free space that may hold old data.
func (s *session) blank(ctx context.Context, open []*opening, errs []error) {
	var items []int
	for i, o := range open {
		if errs[i] != nil || !o.blank || o.attached != nil || o.PCIAddress != "" {
			continue
		}
		items = append(items, i)
		path := s.path(o.Path)
		if s.blanks[path] != nil {
			continue
		}
		b := &blanking{done: make(chan struct{})}
		s.blanks[path] = b
		goesOn := context.WithoutCancel(ctx) // when this call has ended
		go func() {
			defer close(b.done)
			b.of, b.err = s.zero(goesOn, o)
		}()
	}
	patience, cancel := context.WithTimeout(ctx, blankPatience)
	defer cancel()
	for _, i := range items {
		errs[i] = s.blanked(patience, open[i])
	}
}

// blanked says whether a device reads as zeroes now.
func (s *session) blanked(ctx context.Context, o *opening) error {
	path := s.path(o.Path)
	b := s.blanks[path]
	if b == nil {
		return fmt.Errorf("%w: %s is named twice", engine.ErrInvalid, o.Path)
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		return errBlanking(o)
	}
	delete(s.blanks, path)
	switch {
	case b.err == nil:
	case errors.Is(b.err, unix.EBUSY):
		return fmt.Errorf("%w: %w", engine.ErrBusy, b.err)
	case !errors.Is(b.err, unix.EOPNOTSUPP) && !errors.Is(b.err, unix.ENOTTY):
		return b.err
	default:
		logr.FromContextOrDiscard(ctx).Info("The device cannot deallocate with zeros, so all of it is written", "device", o.ID, "reason", b.err.Error())
	}
	is, err := os.Stat(path)
	if err != nil {
		return err
	}
	o.zeroed = b.err == nil && os.SameFile(is, b.of) && is.Sys().(*syscall.Stat_t).Rdev == b.of.Sys().(*syscall.Stat_t).Rdev
	return nil
}

func errBlanking(o *opening) error {
	return fmt.Errorf("%w: the kernel is deallocating all of %s", engine.ErrBusy, o.Path)
}

// checkBlanked: a device that is being deallocated is claimed for that, and cannot be looked at.
func (s *session) checkBlanked(o *opening) error {
	b := s.blanks[s.path(o.Path)]
	if b == nil {
		return nil
	}
	select {
	case <-b.done:
		return nil
	default:
		return errBlanking(o)
	}
}

// zero a device that nobody else has, that is the one meant, and that still is blank.
func (e *Engine) zero(ctx context.Context, o *opening) (of os.FileInfo, err error) {
	path := e.path(o.Path)
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_EXCL, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	if of, err = f.Stat(); err != nil {
		return nil, err
	}
	if o.FileBytes == 0 {
		// Its number is not given to another drive while it is open.
		if err := device.CheckKernel(e.config.Root, o.Path, of.Sys().(*syscall.Stat_t).Rdev, o.ID); err != nil {
			return nil, err
		}
	}
	found, err := device.LookOpen(ctx, e.config.Exec, f)
	if err != nil {
		return nil, err
	}
	if name := found.Name(); name != "" {
		return nil, &device.ForeignSignatureError{Device: path, Signature: name}
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		return nil, err
	}
	return of, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size)
}
