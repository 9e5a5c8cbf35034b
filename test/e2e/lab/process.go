// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// termGrace is how long a process may take to end by itself.
	termGrace = 10 * time.Second
	// killGrace is how long the kernel may take to end it.
	killGrace = 20 * time.Second
)

// processID names one process for good: the kernel may give its PID to another
// one later, but not with the same start time during the same boot.
type processID struct {
	PID int `json:"pid"`
	// StartTicks is the start time in clock ticks since boot (proc(5), stat,
	// field 22).
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootID"`
}

// identifyProcess returns the identity of the running process pid. A process
// that has ended, or is a zombie, gives fs.ErrNotExist.
func identifyProcess(pid int) (processID, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, unix.ESRCH) {
		return processID{}, fs.ErrNotExist
	}
	if err != nil {
		return processID{}, err
	}
	procState, ticks, err := parseStat(string(stat))
	if err != nil {
		return processID{}, fmt.Errorf("process %d: %w", pid, err)
	}
	if procState == "Z" || procState == "X" {
		return processID{}, fs.ErrNotExist
	}
	boot, err := os.ReadFile(filepath.Join("/proc", "sys/kernel/random/boot_id"))
	if err != nil {
		return processID{}, err
	}
	return processID{PID: pid, StartTicks: ticks, BootID: strings.TrimSpace(string(boot))}, nil
}

// parseStat reads state and start time from /proc/PID/stat. The name, in
// parentheses, may itself contain spaces and parentheses.
func parseStat(stat string) (procState string, startTicks uint64, err error) {
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return "", 0, fmt.Errorf("stat has no name: %q", stat)
	}
	fields := strings.Fields(stat[end+1:])
	const startField = 22 - 3 // the first field after the name is number 3
	if len(fields) <= startField {
		return "", 0, fmt.Errorf("stat is too short: %q", stat)
	}
	ticks, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("start time: %w", err)
	}
	return fields[0], ticks, nil
}

// alive reports whether exactly this process is still running.
func (p processID) alive() (bool, error) {
	now, err := identifyProcess(p.PID)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && now == p, err
}

// signal ends the process with the signal and waits until it is gone. It
// reports false when it still runs after timeout.
func (p processID) signal(sig syscall.Signal, timeout time.Duration) (bool, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd) //nolint:errcheck // only a handle
	// The handle now pins whatever has this PID; only if that is ours may it
	// be signalled.
	if ours, err := p.alive(); err != nil || !ours {
		return !ours, err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false, nil
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
		if n > 0 {
			return true, nil
		}
	}
}

// freeze stops the process, and returns when none of its threads runs. Its files and connections stay as they are.
func (p processID) freeze(ctx context.Context) error {
	if err := p.tell(unix.SIGSTOP); err != nil {
		return err
	}
	ticker := time.NewTicker(endPeriod)
	defer ticker.Stop()
	for {
		if frozen, err := p.frozen(); err != nil || frozen {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d does not stop: %w", p.PID, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// thaw lets a process go on that was frozen.
func (p processID) thaw() error { return p.tell(unix.SIGCONT) }

// tell sends a signal to exactly this process, which must run.
func (p processID) tell(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd) //nolint:errcheck // only a handle
	if ours, err := p.alive(); err != nil || !ours {
		return errors.Join(err, fmt.Errorf("process %d has ended", p.PID))
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// frozen tells whether all threads of the process are stopped.
func (p processID) frozen() (bool, error) {
	stats, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(p.PID), "task", "*", "stat"))
	if err != nil || len(stats) == 0 {
		return false, errors.Join(err, fmt.Errorf("process %d has ended", p.PID))
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrNotExist) {
			continue // the thread ended
		}
		if err != nil {
			return false, err
		}
		if threadState, _, err := parseStat(string(stat)); err != nil || threadState != "T" {
			return false, err
		}
	}
	return true, nil
}

// stop ends the process, first politely, and returns when it is gone.
func (p processID) stop() error {
	gone, err := p.signal(unix.SIGTERM, termGrace)
	if err != nil || gone {
		return err
	}
	return p.kill()
}

// kill ends the process as a power failure would.
func (p processID) kill() error {
	gone, err := p.signal(unix.SIGKILL, killGrace)
	if err == nil && !gone {
		err = fmt.Errorf("process %d does not end, even when killed", p.PID)
	}
	return err
}

// endPeriod is how often wait looks.
const endPeriod = 100 * time.Millisecond

// wait until the process has ended by itself.
func (p processID) wait(ctx context.Context) error {
	ticker := time.NewTicker(endPeriod)
	defer ticker.Stop()
	for {
		if alive, err := p.alive(); err != nil || !alive {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d has not ended: %w", p.PID, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// daemon is a program that runs on after the command that started it.
type daemon struct {
	name string
	args []string
	// log receives what it prints.
	log string
}

func (l *Lab) pidFile(name string) string { return l.path("run", name+".json") }

// running returns the process of the daemon name, or false when it is not
// running.
func (l *Lab) running(name string) (processID, bool, error) {
	var p processID
	data, err := os.ReadFile(l.pidFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return p, false, fmt.Errorf("parse %s: %w", l.pidFile(name), err)
	}
	ok, err := p.alive()
	return p, ok, err
}

// start starts the daemon in the lab's network namespace unless it runs.
func (l *Lab) start(d daemon) error {
	if _, ok, err := l.running(d.name); err != nil || ok {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(d.log), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()                             //nolint:errcheck // the daemon has its own handle
	cmd := exec.Command(d.args[0], d.args[1:]...) //nolint:noctx // it outlives this program
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Dir = l.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := l.inNamespace(cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", d.name, err)
	}
	// Collects the process if it ends while this one still runs.
	go func() { _ = cmd.Wait() }()
	id, err := identifyProcess(cmd.Process.Pid)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s ended at once; see %s", d.name, d.log)
	}
	if err != nil {
		return err
	}
	return writeJSON(l.pidFile(d.name), id)
}

// stopDaemon ends the daemon name with fn and forgets it.
func (l *Lab) stopDaemon(name string, fn func(processID) error) error {
	p, ok, err := l.running(name)
	if err != nil {
		return err
	}
	if ok {
		if err := fn(p); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
	}
	if err := os.Remove(l.pidFile(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// daemons lists the daemons that were started and not stopped, sorted.
func (l *Lab) daemons() ([]string, error) {
	entries, err := os.ReadDir(l.path("run"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// strays returns the processes that live in the lab's network namespace. It is
// private to the lab, so they are daemons whose start was interrupted before
// it was written down, or somebody's shell inside the lab.
func (l *Lab) strays() ([]processID, error) {
	var ns unix.Stat_t
	if err := unix.Stat(l.namespacePath(), &ns); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		return nil, fmt.Errorf("look at the lab's network namespace: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []processID
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &st); err != nil || st.Ino != ns.Ino || st.Dev != ns.Dev {
			continue
		}
		id, err := identifyProcess(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}
