// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const asChild = "WEFT_TEST_PREPARE"

// A process of its own is prepared, because that cannot be taken back. Without the rights, it says what it lacks.
func TestPrepare(t *testing.T) {
	if os.Getenv(asChild) != "" {
		prepared(t)
		return
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestPrepare$", "-test.v")
	command.Env = append(os.Environ(), asChild+"=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func prepared(t *testing.T) {
	err := Prepare()
	// Programs of weft are built without cgo, which is what a call in all threads needs.
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOTSUP) {
		t.Logf("not possible here: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmLck:") && strings.Contains(line, " 0 kB") {
			t.Errorf("no memory is locked: %s", line)
		}
		if strings.HasPrefix(line, "VmLck:") || strings.HasPrefix(line, "VmRSS:") {
			t.Log(strings.TrimSpace(line))
		}
	}
	// Threads that began before and later have it.
	flags := make(chan error)
	for range 8 {
		go func() {
			set, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
			if err == nil && set != 1 {
				err = fmt.Errorf("a thread is no I/O flusher")
			}
			flags <- err
		}()
	}
	for range 8 {
		if err := <-flags; err != nil {
			t.Error(err)
		}
	}
}
