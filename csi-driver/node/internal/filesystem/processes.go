// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// mapsTimeout bounds the wait for a process's list of mapped files, which waits for its page faults.
const mapsTimeout = 100 * time.Millisecond

// Processes of this machine that use block devices: that have one, or a file on a filesystem on it, open or mapped, or
// that have their root or their working folder there. They are seen only from the machine's own PID namespace.
type Processes struct {
	// Proc is /proc of the machine's PID namespace.
	Proc string
	// Self is this process, which is never killed.
	Self int
	// Signal a process with SIGKILL; nil for the kernel's.
	Signal func(pid int) error
}

// Kill the processes that use one of the devices, by the devices' numbers as major:minor, and tell how many processes
// can still run. One that waits for I/O ends only when that does, but no instruction of it runs any more once it was
// killed: it does not count, and only a call after the one that killed it says so. Kill does no I/O, and never waits
// for it.
func (p *Processes) Kill(devices ...string) (left int, err error) {
	entries, err := os.ReadDir(p.Proc)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == p.Self || pid == 1 || !p.uses(pid, devices) {
			continue
		}
		if p.dying(pid) {
			continue
		}
		left++
		if err := p.kill(pid); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return left, errors.Join(errs...)
}

func (p *Processes) kill(pid int) error {
	if p.Signal != nil {
		return p.Signal(pid)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// dying tells whether no thread of a process returns to its program: each has ended or is about to, or has SIGKILL
// pending, which it acts on before that. It can start no other process either.
func (p *Processes) dying(pid int) bool {
	dir := filepath.Join(p.Proc, strconv.Itoa(pid), "task")
	threads, err := os.ReadDir(dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return !slices.ContainsFunc(threads, func(e os.DirEntry) bool {
		thread := filepath.Join(dir, e.Name())
		return !killed(thread) && !exiting(thread)
	})
}

// killed tells whether SIGKILL is pending for a thread, by proc(5).
func killed(thread string) bool {
	const sigkill = 1 << (unix.SIGKILL - 1)
	status, err := os.ReadFile(filepath.Join(thread, "status"))
	if err != nil {
		return ended(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, is := strings.CutPrefix(line, "SigPnd:"); is {
			pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && pending&sigkill != 0
		}
	}
	return false
}

// exiting tells whether a thread has acted on it: PF_EXITING is among its flags, the seventh field behind its name.
func exiting(thread string) bool {
	const pfExiting, flags = 0x4, 6
	stat, err := os.ReadFile(filepath.Join(thread, "stat"))
	if err != nil {
		return ended(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= flags {
		return false
	}
	is, err := strconv.ParseUint(fields[flags], 10, 64)
	return err == nil && is&pfExiting != 0
}

func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

func (p *Processes) uses(pid int, devices []string) bool {
	dir := filepath.Join(p.Proc, strconv.Itoa(pid))
	links := []string{filepath.Join(dir, "cwd"), filepath.Join(dir, "root"), filepath.Join(dir, "exe")}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false // it is ending
	}
	for _, fd := range fds {
		links = append(links, filepath.Join(dir, "fd", fd.Name()))
	}
	return slices.ContainsFunc(links, func(link string) bool { return onDevice(link, devices) }) || mapped(filepath.Join(dir, "maps"), devices)
}

// onDevice tells whether what a link of /proc leads to is one of the devices, or is on it. It asks the kernel for what
// it knows (AT_STATX_DONT_SYNC).
func onDevice(link string, devices []string) bool {
	var s unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &s); err != nil {
		return false
	}
	number := strconv.Itoa(int(s.Dev_major)) + ":" + strconv.Itoa(int(s.Dev_minor))
	if s.Mode&unix.S_IFMT == unix.S_IFBLK {
		number = strconv.Itoa(int(s.Rdev_major)) + ":" + strconv.Itoa(int(s.Rdev_minor))
	}
	return slices.Contains(devices, number)
}

// mapped tells whether a process has a file of one of the devices mapped.
func mapped(maps string, devices []string) bool {
	read := make(chan []byte, 1)
	go func() {
		data, _ := os.ReadFile(maps)
		read <- data
	}()
	select {
	case data := <-read:
		return inMaps(string(data), devices)
	case <-time.After(mapsTimeout):
		return false
	}
}

// inMaps reads /proc/PID/maps: the fourth field is the device, in hexadecimal.
func inMaps(text string, devices []string) bool {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		major, minor, ok := strings.Cut(fields[3], ":")
		a, err := strconv.ParseUint(major, 16, 32)
		b, minorErr := strconv.ParseUint(minor, 16, 32)
		if !ok || errors.Join(err, minorErr) != nil {
			continue
		}
		if slices.Contains(devices, strconv.FormatUint(a, 10)+":"+strconv.FormatUint(b, 10)) {
			return true
		}
	}
	return false
}
