// SPDX-License-Identifier: Apache-2.0

package filesystem

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// procOf a machine on which a process, with a device as its working folder, has threads as /proc/PID/task shows them.
func procOf(t *testing.T, pid int, threads ...string) (proc string, of string) {
	t.Helper()
	proc = t.TempDir()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	for n, thread := range threads {
		task := filepath.Join(dir, "task", strconv.Itoa(pid+n))
		if err := os.MkdirAll(task, 0o700); err != nil {
			t.Fatal(err)
		}
		var flags, pending uint64
		switch thread {
		case "runs":
		case "killed":
			pending = 1 << (unix.SIGKILL - 1)
		case "exits":
			flags = 0x40000c
		default:
			t.Fatalf("no such thread: %s", thread)
		}
		write(t, filepath.Join(task, "stat"), fmt.Sprintf("%d (a) b) D 1 2 3 0 -1 %d 0 0", pid+n, flags))
		write(t, filepath.Join(task, "status"), fmt.Sprintf("Name:\ta) b\nSigPnd:\t%016x\nShdPnd:\t0000000000000100\n", pending))
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "cwd")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "fd"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "maps"), "")
	var s unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "cwd"), &s); err != nil {
		t.Fatal(err)
	}
	return proc, fmt.Sprintf("%d:%d", unix.Major(s.Dev), unix.Minor(s.Dev))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A process that was killed while it waits for I/O is there until that ends, and does not count: nothing of it runs.
func TestKill(t *testing.T) {
	const pid = 4711
	for name, c := range map[string]struct {
		threads []string
		left    int
	}{
		"runs":                               {[]string{"runs"}, 1},
		"all threads killed":                 {[]string{"killed", "killed"}, 0},
		"one thread ends, and one is killed": {[]string{"exits", "killed"}, 0},
		"one thread runs":                    {[]string{"killed", "runs"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			proc, device := procOf(t, pid, c.threads...)
			killed := 0
			p := &Processes{Proc: proc, Signal: func(got int) error {
				killed++
				if got != pid {
					t.Errorf("killed %d", got)
				}
				return nil
			}}
			left, err := p.Kill(device)
			if left != c.left || killed != c.left || err != nil {
				t.Errorf("left %d, killed %d: %v; want %d", left, killed, err, c.left)
			}
			if left, err := p.Kill("0:9999"); left != 0 || err != nil {
				t.Errorf("of another device: left %d: %v", left, err)
			}
		})
	}
}

// What this kernel shows of a process that was killed and has not been waited for.
func TestKilledProcessIsDying(t *testing.T) {
	sleeping, err := os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	p := &Processes{Proc: "/proc"}
	if p.dying(sleeping.Pid) {
		t.Error("a process that runs is dying")
	}
	if err := syscall.Kill(sleeping.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	NewWithT(t).Eventually(func() bool { return p.dying(sleeping.Pid) }).Should(BeTrue(), "a process that was killed is dying")
	if _, err := sleeping.Wait(); err != nil {
		t.Fatal(err)
	}
	if !p.dying(sleeping.Pid) {
		t.Error("a process that is gone is not dying")
	}
}
