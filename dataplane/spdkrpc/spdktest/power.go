// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// cacheWrites are the last writes that a volatile cache holds. A device writes out the oldest as new ones come.
const cacheWrites = 16

// syncFlag is FS_SYNC_FL of linux/fs.h, the attribute S of chattr(1).
const syncFlag = 0x8

// A covered part of a disk is what lies below a write that is in a volatile cache only.
type covered struct {
	at      int64
	content []byte
}

// write to a disk. Whoever reads sees it, so it goes into the file at once; what was there before is remembered while
// the write is in a volatile cache.
func (d *disk) write(content []byte, at int64) error {
	if d.acknowledgesEarly() {
		was := make([]byte, len(content))
		if _, err := d.file.ReadAt(was, at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		d.cached = append(d.cached, covered{at, was})
		d.cached = d.cached[max(0, len(d.cached)-cacheWrites):]
	} else {
		d.writeOut()
	}
	_, err := d.file.WriteAt(content, at)
	return err
}

// acknowledgesEarly says that a write is answered before it would survive a loss of power.
func (d *disk) acknowledgesEarly() bool { return d.volatile != nil && d.volatile() }

// writeOut what the cache holds.
func (d *disk) writeOut() { d.cached = nil }

// losePower of the disk's cache: all that it holds is gone, the last write first.
func (d *disk) losePower() error {
	if !d.acknowledgesEarly() {
		return nil
	}
	for _, c := range slices.Backward(d.cached) {
		if _, err := d.file.WriteAt(c.content, c.at); err != nil {
			return fmt.Errorf("lose what the cache of %s holds: %w", d.path, err)
		}
	}
	d.writeOut()
	return nil
}

// isAsynchronous says that a file's writes are answered before they would survive a loss of power: it has not that
// attribute, or its filesystem knows none. Whoever sets it syncs what was written before, which a fake cannot see.
func isAsynchronous(f *os.File) bool {
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	return err != nil || flags&syncFlag == 0
}

// LosePower ends the target as its node's loss of power does: like Kill, and of what was written to drives and files,
// the part is gone that they had acknowledged from a volatile cache. With any other end of the target they keep their
// power, and write it out. It does nothing to a target that has ended.
func (t *Target) LosePower() error {
	t.do(func() { t.app.powerless = true })
	return t.end(false)
}

// loseCaches of all devices.
func (a *app) loseCaches() error {
	var errs []error
	for _, b := range a.bdevs {
		if b.disk != nil {
			errs = append(errs, b.disk.losePower())
		}
	}
	return errors.Join(errs...)
}
