// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-storage/weft/test/e2e/internal/nodeconfig"
)

const (
	// restartDelay is the pause before a service that ended is started again.
	restartDelay = time.Second
	// pollPeriod is how often a service looks for what it waits for, and whether it is to stop.
	pollPeriod = 100 * time.Millisecond
	// stopTimeout is how long a service may take to end before it is killed, and startTimeout how long one that was
	// stopped may take to be started again.
	stopTimeout  = 10 * time.Second
	startTimeout = 30 * time.Second
)

// folders of the supervised services: one for their logs, one for their state.
type folders struct{ logs, state string }

func nodeFolders() folders { return folders{logs: nodeconfig.LogDir, state: "/run/weft-lab-services"} }

// running is a file that is there while the service runs.
func (f folders) running(service string) string { return filepath.Join(f.state, service+".running") }

// stopped is a file that is there while the service is not to run.
func (f folders) stopped(service string) string { return filepath.Join(f.state, service+".stopped") }

// supervise keeps the services running until ctx ends, but for those that are stopped.
func supervise(ctx context.Context, f folders, services []nodeconfig.Service, log *slog.Logger) error {
	if err := os.MkdirAll(f.state, 0o755); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for _, s := range services {
		wg.Go(func() {
			for waitUntil(ctx, func() bool { return exists(cmp.Or(s.WaitFor, f.state)) && !exists(f.stopped(s.Name)) }) {
				err := runService(ctx, f, s)
				log.Error("service ended", "service", s.Name, "error", err)
				pause(ctx, restartDelay)
			}
		})
	}
	wg.Wait()
	<-ctx.Done()
	return ctx.Err()
}

// runService runs the service until it ends, or is stopped.
func runService(ctx context.Context, f folders, s nodeconfig.Service) error {
	logFile, err := os.OpenFile(filepath.Join(f.logs, s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer logFile.Close() //nolint:errcheck // the service wrote it, not we
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if waitUntil(ctx, func() bool { return exists(f.stopped(s.Name)) }) {
			cancel()
		}
	}()
	cmd := exec.CommandContext(ctx, s.Args[0], s.Args[1:]...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(f.running(s.Name), nil, 0o644); err != nil {
		cancel()
		return errors.Join(err, cmd.Wait())
	}
	return errors.Join(cmd.Wait(), os.Remove(f.running(s.Name)))
}

// systemctl is what tests of Kubernetes ask of systemd's: to start and stop a service, and whether it is active.
func systemctl(ctx context.Context, out io.Writer, args ...string) error {
	cfg, err := readConfig(filepath.Join(nodeconfig.Dir, nodeconfig.File))
	if err != nil {
		return err
	}
	return control(ctx, out, nodeFolders(), cfg.Services, args...)
}

func control(ctx context.Context, out io.Writer, f folders, services []nodeconfig.Service, args ...string) error {
	if len(args) < 2 {
		return errors.New("give start, stop, restart or show, and a service")
	}
	name := strings.TrimSuffix(args[1], ".service")
	if !slices.ContainsFunc(services, func(s nodeconfig.Service) bool { return s.Name == name }) {
		return fmt.Errorf("unit %s.service not found", name)
	}
	switch verb := strings.Join(slices.Delete(slices.Clone(args), 1, 2), " "); verb {
	case "start":
		return start(ctx, f, name)
	case "stop":
		return stop(ctx, f, name)
	case "restart":
		return errors.Join(stop(ctx, f, name), start(ctx, f, name))
	case "show --property ActiveState --value":
		state := "inactive"
		if exists(f.running(name)) {
			state = "active"
		}
		_, err := fmt.Fprintln(out, state)
		return err
	default:
		return fmt.Errorf("%q is not known; the lab has start, stop, restart and show --property ActiveState --value", verb)
	}
}

func start(ctx context.Context, f folders, service string) error {
	if err := os.Remove(f.stopped(service)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if !waitUntil(ctx, func() bool { return exists(f.running(service)) }) {
		return fmt.Errorf("%s does not run after %s", service, startTimeout)
	}
	return nil
}

func stop(ctx context.Context, f folders, service string) error {
	if err := os.WriteFile(f.stopped(service), nil, 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*stopTimeout)
	defer cancel()
	if !waitUntil(ctx, func() bool { return !exists(f.running(service)) }) {
		return fmt.Errorf("%s still runs after %s", service, 2*stopTimeout)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// waitUntil waits until what is asked is so. It reports false when ctx ends first.
func waitUntil(ctx context.Context, so func() bool) bool {
	for !so() {
		if !pause(ctx, pollPeriod) {
			return false
		}
	}
	return ctx.Err() == nil
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
