// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/engine"
)

// SPDK before 26.01 asks the kernel, for each read and write of a block device, not to wait (RWF_NOWAIT), and takes its
// refusal (EAGAIN) for a lack of memory: it tries the same again until it is done. Two refusals do not pass by
// themselves, and the target then writes nothing of that range, and answers no call that needs it, for ever:
//
//   - A write of what the kernel holds in its page cache, because something read the device through it: udev after each
//     close of a device that was open for writing, blkid, weft's own inventory. The kernel keeps the pages as long as
//     the target has the device open.
//   - A request that the kernel would have to split, because it is larger than the device's queue/max_sectors_kb.
//
// So the engine has the kernel drop these pages, again and again, and refuses a device that takes less at once than
// SPDK sends.

const (
	// dropPause between two drops: as long may a write wait that a read got in the way of. A drop takes about 15 us.
	dropPause = 100 * time.Millisecond
	// largestKiB is what SPDK sends at once to a device with blocks of blockBytes: its large buffer, rounded down.
	largestKiB = 128
	// largestOddKiB is the same with smaller blocks: 131.5.
	largestOddKiB = 132
)

// uncached are block devices of which the kernel shall hold no pages. It is safe for concurrent use.
type uncached struct {
	drop   func(path string) error
	closed chan struct{}
	close  sync.Once

	// mu guards what follows.
	mu      sync.Mutex
	paths   map[string]bool
	running bool
}

func newUncached(drop func(path string) error) *uncached {
	return &uncached{drop: drop, closed: make(chan struct{}), paths: map[string]bool{}}
}

// set what there is from now on.
func (u *uncached) set(paths []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.paths)
	u.addLocked(paths)
}

// add to what there is.
func (u *uncached) add(paths []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.addLocked(paths)
}

func (u *uncached) addLocked(paths []string) {
	for _, path := range paths {
		u.paths[path] = true
	}
	if len(u.paths) > 0 && !u.running {
		u.running = true
		go u.run()
	}
}

// stop for good.
func (u *uncached) stop() { u.close.Do(func() { close(u.closed) }) }

// run until nothing is left, or stop.
func (u *uncached) run() {
	tick := time.NewTicker(dropPause)
	defer tick.Stop()
	for u.left() {
		for path := range u.all() {
			// What goes wrong otherwise may pass, and what can never work prepareNowait has said.
			if err := u.drop(path); errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENXIO) {
				u.remove(path)
			}
		}
		select {
		case <-tick.C:
		case <-u.closed:
			return
		}
	}
}

func (u *uncached) left() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running = len(u.paths) > 0
	return u.running
}

func (u *uncached) all() map[string]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.paths)
}

func (u *uncached) remove(path string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.paths, path)
}

// dropPages that the kernel holds of a device, but for those that are dirty: nobody but the target writes to a pool.
func dropPages(path string) error {
	f, err := os.Open(path) // only for reading, so that udev does not look at it when it is closed
	if err != nil {
		return err
	}
	err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// uncacheOpened gives the pools on block devices that the target has open to add or set, where it needs that.
func (s *session) uncacheOpened(st *store, to func(paths []string)) error {
	var devices []string
	for _, p := range st.pools {
		if p.base.Driver.AIO == nil {
			continue
		}
		path := s.path(p.Path)
		if info, err := os.Stat(path); err == nil && isBlockDevice(info) {
			devices = append(devices, path)
		}
	}
	if len(devices) > 0 {
		speaks, err := s.dialect()
		if err != nil {
			return err
		}
		if !speaks.nowait {
			devices = nil
		}
	}
	to(devices)
	return nil
}

func isBlockDevice(info os.FileInfo) bool {
	return info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0
}

// prepareNowait makes a block device fit for a target that does not wait, or refuses it.
func (s *session) prepareNowait(o *opening, info os.FileInfo) error {
	speaks, err := s.dialect()
	if err != nil || !speaks.nowait {
		return err
	}
	path := s.path(o.Path)
	bytes, err := sizeOf(path)
	if err != nil {
		return err
	}
	needs := largestOddKiB
	if bytes%blockBytes == 0 {
		// As its lvstore was made, also where SPDK would take the device's own smaller blocks.
		o.blockBytes, needs = blockBytes, largestKiB
	}
	takes, err := s.maxRequestKiB(info)
	if err != nil {
		return err
	}
	if takes < needs {
		return fmt.Errorf("%w: the maximum I/O size of %s is %d KiB, but SPDK before 26.01 requires %d (queue/max_sectors_kb in sysfs): use an image with SPDK 26.05, devices.driver VFIO for an NVMe drive, or engine Nvmet",
			engine.ErrUnsupported, o.Path, takes, needs)
	}
	s.uncached.add([]string{path})
	return dropPages(path)
}

// maxRequestKiB that the kernel gives to a block device without splitting it.
func (s *session) maxRequestKiB(info os.FileInfo) (int, error) {
	text, err := s.queueAttribute(info, "max_sectors_kb")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// sysfsOf a block device: a link to its folder.
func (e *Engine) sysfsOf(info os.FileInfo) string {
	rdev := info.Sys().(*syscall.Stat_t).Rdev
	return e.path("sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev)))
}

// queueAttribute of a block device. A partition has its disk's.
func (e *Engine) queueAttribute(info os.FileInfo, name string) (string, error) {
	dir := e.sysfsOf(info)
	text, err := os.ReadFile(filepath.Join(dir, "queue", name))
	if errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile(dir + "/../queue/" + name) // the kernel resolves ".."
	}
	return strings.TrimSpace(string(text)), err
}
