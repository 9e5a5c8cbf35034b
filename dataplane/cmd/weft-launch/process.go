// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
)

// replaceProcess becomes another program.
func replaceProcess(path string, argv, env []string) error {
	return syscall.Exec(path, argv, env)
}

// ExitError is how nvmf_tgt ended, when it did not end well.
type ExitError struct {
	// Code that the launcher exits with: nvmf_tgt's own, or 128 and the signal's number, as a shell has it.
	Code int
	// Signal that ended it; 0 when none did.
	Signal syscall.Signal
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("nvmf_tgt was killed by a signal: %s", e.Signal)
	}
	return fmt.Sprintf("nvmf_tgt exited with code %d", e.Code)
}

// runWithDrives takes the drives from the kernel, and is nvmf_tgt's parent until
// it ends. The drives go back only when ctx has ended: after a crash the next start comes at once, and finds them
// as they are.
func runWithDrives(ctx context.Context, m Machine, o Options, argv []string, records device.Records, lock *os.File) error {
	err := takeAndSupervise(ctx, m, o, argv, records, lock)
	if ctx.Err() == nil {
		return err
	}
	return errors.Join(err, giveAllBack(ctx, m, o, records))
}

func takeAndSupervise(ctx context.Context, m Machine, o Options, argv []string, records device.Records, lock *os.File) error {
	if err := returnUnsure(ctx, m, o, records); err != nil {
		return err
	}
	left := leftOut{log: m.Log, refusals: device.Refusals{}}
	drives, err := examineDrives(ctx, m, o, records, left)
	if err != nil {
		return err
	}
	if len(drives) > 0 {
		if err := checkDriver(ctx, m, wantedDriver(o.Driver)); err != nil {
			return err
		}
		if drives, err = takeDrives(ctx, m, o, drives, records, left); err != nil {
			return err
		}
	}
	if err := errors.Join(ctx.Err(), left.refusals.Write(o.Socket)); err != nil {
		return err
	}
	// Without any, DPDK would probe every PCI device of the node, network cards included.
	if len(drives) == 0 {
		return left.all()
	}
	for _, d := range drives {
		argv = append(argv, "--pci-allowed", d.address)
	}
	m.Log.Info("starting SPDK", "command", strings.Join(argv, " "))
	return supervise(ctx, argv, lock)
}

// supervise runs a child, which has the lock open as well, to its end. It asks the child to stop when ctx ends, passes
// on the signals that a program may be sent for its own purposes, and, as a container's first process, takes care of
// orphans.
func supervise(ctx context.Context, argv []string, lock *os.File) error {
	// The kernel sends the parent-death signal when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)

	child, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{nil, os.Stdout, os.Stderr, lock},
		// Without its parent nobody would give the drives back, nor tell the next launcher to wait.
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return refuse(v1alpha1.ReasonTargetNotFound, "cannot run %s: %w", argv[0], err)
	}
	defer child.Release() //nolint:errcheck // it has been waited for
	ended := make(chan error, 1)
	go func() { ended <- reap(child.Pid) }()

	asked := ctx.Done()
	for {
		select {
		case err := <-ended:
			return err
		case <-asked:
			asked = nil
			// It may have ended just now, which ended will tell.
			_ = child.Signal(syscall.SIGTERM)
		case s := <-signals:
			_ = child.Signal(s)
		}
	}
}

// reap waits for the child, and as process 1 for whatever else ends before it.
func reap(child int) error {
	which := child
	if os.Getpid() == 1 {
		which = -1
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(which, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for nvmf_tgt: %w", err)
		case pid != child:
		case status.Signaled():
			return &ExitError{Code: 128 + int(status.Signal()), Signal: status.Signal()}
		case status.ExitStatus() != 0:
			return &ExitError{Code: status.ExitStatus()}
		default:
			return nil
		}
	}
}
