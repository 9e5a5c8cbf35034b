// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// TargetVariable names a real nvmf_tgt for the tests that can use one.
const TargetVariable = "WEFT_SPDK_TARGET"

// TB is what Start and StartReal need of testing.TB.
type TB interface {
	Helper()
	Context() context.Context
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Logf(format string, args ...any)
}

// Start starts a fake target for a test, and ends it with the test.
func Start(t TB, o Options) *Target {
	t.Helper()
	// The test's own context is cancelled before its cleanups run, which may still want to talk to the target.
	target, err := Listen(context.WithoutCancel(t.Context()), o)
	if err != nil {
		t.Fatalf("start a fake SPDK target: %v", err)
	}
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Logf("end of the fake SPDK target: %v", err)
		}
	})
	return target
}

// RealTarget is the path that WEFT_SPDK_TARGET names. Without the variable it skips the test, and says so.
func RealTarget(t TB) string {
	t.Helper()
	path := os.Getenv(TargetVariable)
	if path == "" {
		t.Skipf("%s is not set: set it to the path of an nvmf_tgt to run this against a real target", TargetVariable)
	}
	return path
}

// Release of a real nvmf_tgt, such as 25.05 of "SPDK v25.05.1 git sha1 ...". It has five bytes, so releases compare as
// text.
func Release(t TB, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path, "--version").CombinedOutput()
	release, ok := strings.CutPrefix(string(out), "SPDK v")
	if err != nil || !ok || len(release) < len("25.05") {
		t.Fatalf("%s --version: %v: %s", path, err, out)
	}
	return release[:len("25.05")]
}

// A Real is a running nvmf_tgt.
type Real struct {
	// Socket is its RPC socket.
	Socket string

	cmd  *exec.Cmd
	done chan struct{}
	out  *tail
}

// RealMemoryMiB of a real target.
const RealMemoryMiB = 640

// realFlags keep a real target off the machine's PCI devices, and out of other targets' way.
var realFlags = []string{"--no-pci", "-s", strconv.Itoa(RealMemoryMiB), "--disable-cpumask-locks", "--num-trace-entries", "0"}

const (
	// noHugepages is what a real target gets that is not given Hugepages.
	noHugepages = "--no-huge"
	// Hugepages among a real target's arguments: its memory is hugepages, which the machine must have free, and which
	// are free again at its end, however it comes.
	Hugepages = "--huge-unlink"
)

// StartReal starts the nvmf_tgt at path on the socket and waits until it answers; args are added to flags that keep it
// off PCI devices, and off hugepages but where args have Hugepages. The target ends with the test; its log goes to the
// test's when the test wants it.
func StartReal(t TB, path, socket string, args ...string) *Real {
	t.Helper()
	r, err := RunReal(context.WithoutCancel(t.Context()), path, socket, args...)
	if err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	t.Cleanup(r.Kill)
	return r
}

// readyWithin is how long a real target may take to listen.
const readyWithin = 30 * time.Second

// RunReal is StartReal outside a test. The target ends with ctx or Kill.
func RunReal(ctx context.Context, path, socket string, args ...string) (*Real, error) {
	r := &Real{Socket: socket, done: make(chan struct{}), out: &tail{}}
	flags := append([]string{"-r", socket}, realFlags...)
	if !slices.Contains(args, Hugepages) {
		flags = append(flags, noHugepages)
	}
	r.cmd = exec.CommandContext(ctx, path, append(flags, args...)...)
	r.cmd.Env = append(os.Environ(), "LC_ALL=C")
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = r.cmd.Wait() // ended by us, or with its last words in the log
		close(r.done)
	}()
	ready, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := r.waitReady(ready); err != nil {
		r.Kill()
		return nil, fmt.Errorf("%w\n%s", err, r.Log())
	}
	return r, nil
}

func (r *Real) waitReady(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", r.Socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the target does not listen: %w", errors.Join(ctx.Err(), err))
		case <-r.done:
			return errors.New("the target ended before it listened")
		case <-tick.C:
		}
	}
}

// Kill ends the target with SIGKILL, and returns when it is gone. The socket's file stays.
func (r *Real) Kill() {
	_ = r.cmd.Process.Kill() // it may be gone already
	<-r.done
}

// Stop ends it with SIGTERM, as a pod's end does, and returns when it is gone.
func (r *Real) Stop() {
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	<-r.done
}

// Pid of the target's process.
func (r *Real) Pid() int { return r.cmd.Process.Pid }

// Done is closed when it has ended.
func (r *Real) Done() <-chan struct{} { return r.done }

// Log is the end of what it wrote.
func (r *Real) Log() string { return r.out.String() }

// maxLog is how much of a target's log is kept.
const maxLog = 64 << 10

// A tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - maxLog; extra > 0 {
		t.buf = bytes.Clone(t.buf[extra:])
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
