// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"
)

// What mkfs.ext4 leaves when it is cut off is never mounted, and is formatted again only where the volume's header says
// that formatting has begun: no filesystem is found before its last write, which puts the superblock where blkid looks.
// When the process is killed, that is so between any two writes. When the machine is, any part of what was written
// since the last flush may be missing: mkfs.ext4 flushes right before the superblock, and writes nothing after it
// (e2fsprogs 1.47, lib/ext2fs/closefs.c: ext2fs_flush2).
func TestExt4ThatWasCutOff(t *testing.T) {
	for name, r := range map[string]Request{
		"blank":                             {SizeBytes: 16 << 20, Fence: Fence{Blank: true}},
		"format allowed, with 4 KiB blocks": {SizeBytes: 1 << 30, Fence: Fence{AllowFormat: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h, device := host(t, r.SizeBytes)
			r.Device, r.Type, r.Begin = device, Ext4, begin
			if r.Fence.AllowFormat {
				writeAt(t, device, r.SizeBytes/2, strings.Repeat("x", 1<<20))
			}
			m := &mkfs{T: t, Host: h, Request: r}
			h.Exec = stopping{exec.New(), m.before}
			if err := h.Prepare(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if last := m.flushed[len(m.flushed)-1]; len(m.flushed) < 2 || last != 1 || m.unflushed != 0 {
				t.Errorf("flushed after %v writes, and %d are not: the superblock must be alone in the last flush", m.flushed, m.unflushed)
			}
			if found, err := h.probe(t.Context(), device); err != nil || found.Type != Ext4 {
				t.Errorf("found %v, %v", found, err)
			}
			m.again()
		})
	}
}

// mkfs that is under way.
type mkfs struct {
	*testing.T
	*Host
	Request
	// flushed are the numbers of writes in between flushes, and unflushed that since the last.
	flushed   []int
	unflushed int
	// left are some of the states in which the device was, after as many writes.
	left   [][]byte
	writes int
}

// before a system call: if mkfs is killed now, this is what it leaves.
func (m *mkfs) before(number int) {
	switch number {
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		if m.unflushed > 0 {
			m.flushed, m.unflushed = append(m.flushed, m.unflushed), 0
		}
	case unix.SYS_PWRITE64:
		m.unflushed++
		m.look()
	}
}

func (m *mkfs) look() {
	found, err := m.probe(m.Context(), m.Device)
	if err != nil {
		m.Fatal(err)
	}
	edges, err := m.edgesAreZero(m.Context(), m.Device, m.SizeBytes)
	if err != nil {
		m.Fatal(err)
	}
	var refused *RefusedError
	for _, header := range []HeaderState{HeaderNone, HeaderFormatted} {
		r := m.Request
		r.Fence = Fence{Header: header}
		if format, err := decide(r, found, edges); format || !errors.As(err, &refused) {
			m.Errorf("header %d, without permission: format %t, %v; found %v", header, format, err, found)
		}
	}
	r := m.Request
	r.Fence = Fence{Header: HeaderFormatting}
	if format, err := decide(r, found, edges); !format || err != nil {
		m.Errorf("when it was begun: format %t, %v; found %v, zeros at the edges %t", format, err, found, edges)
	}
	// Each is like the others; a few will do, of a device that fits into memory.
	if m.writes++; m.writes%64 == 0 && m.SizeBytes <= 16<<20 {
		left, err := os.ReadFile(m.Device)
		if err != nil {
			m.Fatal(err)
		}
		m.left = append(m.left, left)
	}
}

// again formats what was cut off.
func (m *mkfs) again() {
	for _, left := range m.left {
		r := m.Request
		r.Device, r.Fence = filepath.Join(m.TempDir(), "again"), Fence{Header: HeaderFormatting}
		if err := os.WriteFile(r.Device, left, 0o600); err != nil {
			m.Fatal(err)
		}
		h := *m.Host
		h.Exec = exec.New()
		if err := h.Prepare(m.Context(), r); err != nil {
			m.Fatal(err)
		}
		if out, err := osexec.CommandContext(m.Context(), "fsck.ext4", "-f", "-n", r.Device).CombinedOutput(); err != nil {
			m.Errorf("%v: %s", err, out)
		}
	}
}

// stopping runs mkfs with a stop before each of its system calls.
type stopping struct {
	exec.Interface
	before func(number int)
}

func (i stopping) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	if !strings.HasPrefix(name, "mkfs.") {
		return i.Interface.CommandContext(ctx, name, args...)
	}
	return &testingexec.FakeCmd{OutputScript: []testingexec.FakeAction{func() ([]byte, []byte, error) {
		return nil, nil, trace(append([]string{name}, args...), i.before)
	}}}
}

// trace a program as strace does: before is called while the program is stopped before a system call, with the call's
// number.
func trace(argv []string, before func(number int)) error {
	const afterExec, atCall = unix.SIGTRAP, unix.SIGTRAP | 0x80 // PTRACE_O_TRACESYSGOOD, ptrace(2)
	runtime.LockOSThread()                                      // which is the tracer
	defer runtime.UnlockOSThread()
	path, err := osexec.LookPath(argv[0])
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close() //nolint:errcheck // nothing is kept there
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return fmt.Errorf("trace %s (in a container, allow ptrace: --cap-add=SYS_PTRACE): %w", path, err)
	}
	for entering := true; ; {
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
			return os.NewSyscallError("wait4", err)
		}
		if !status.Stopped() {
			if status != 0 {
				err = fmt.Errorf("%s: wait status %#x", argv[0], status)
			}
			return err
		}
		pass := 0 // a signal on
		switch status.StopSignal() {
		case afterExec:
			err = unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL)
		case atCall:
			if entering {
				var number int
				if number, err = nextCall(pid); err == nil {
					before(number)
				}
			}
			entering = !entering
		default:
			pass = int(status.StopSignal())
		}
		if err := errors.Join(err, unix.PtraceSyscall(pid, pass)); err != nil {
			return errors.Join(err, unix.Kill(pid, unix.SIGKILL))
		}
	}
}

// nextCall of a program that is stopped before it.
func nextCall(pid int) (number int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	if err == nil {
		_, err = fmt.Sscan(string(text), &number)
	}
	return number, err
}
