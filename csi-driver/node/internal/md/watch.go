// SPDX-License-Identifier: Apache-2.0

package md

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"golang.org/x/sys/unix"
)

// watched attributes are those of which the kernel tells when they change (sysfs_notify). That members come and go is
// told of by /proc/mdstat, for all arrays together.
var watched = []string{"array_state", "sync_action", "sync_completed", "degraded"}

// Watch implements Mirrors.
func (h *Host) Watch(ctx context.Context, a Array, changed func(State)) error {
	wake, err := newWake(ctx)
	if err != nil {
		return err
	}
	defer wake.close()
	var last *State
	for {
		now, err := h.watchMembers(ctx, a, wake, last, changed)
		if err != nil || ctx.Err() != nil {
			return err
		}
		last = now
	}
}

// watchMembers tells of changes until members come or go.
func (h *Host) watchMembers(ctx context.Context, a Array, w wake, last *State, changed func(State)) (*State, error) {
	s, err := h.State(a)
	if err != nil {
		return nil, err
	}
	files, err := h.openWatched(a, s)
	defer closeAll(files)
	if errors.Is(err, ErrNotFound) { // a member left meanwhile, or the array did
		return last, nil
	}
	if err != nil {
		return nil, err
	}
	fds := []unix.PollFd{{Fd: int32(w.read), Events: unix.POLLIN}}
	for _, f := range files {
		fds = append(fds, unix.PollFd{Fd: int32(f.Fd()), Events: unix.POLLPRI})
	}
	for members := names(s); ; {
		for _, f := range files {
			// What was read counts as seen. An attribute that is gone is told of by the state.
			_, _ = f.ReadAt(make([]byte, 4096), 0)
		}
		now, err := h.State(a)
		if err != nil {
			return nil, err
		}
		if last == nil || !reflect.DeepEqual(*last, now) {
			last = &now
			changed(now)
		}
		if ctx.Err() != nil || !reflect.DeepEqual(names(now), members) {
			return last, nil
		}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("watch %s: %w", a.Name, err)
		}
	}
}

func names(s State) []string {
	var all []string
	for _, m := range s.Members {
		all = append(all, m.Name)
	}
	return all
}

func (h *Host) openWatched(a Array, s State) ([]*os.File, error) {
	dir := h.sys("class/block", a.Name, "md")
	paths := []string{filepath.Join(h.Root, "proc/mdstat")}
	for _, file := range watched {
		paths = append(paths, filepath.Join(dir, file))
	}
	for _, m := range s.Members {
		paths = append(paths, filepath.Join(dir, stateOf(m.Slice)))
	}
	var files []*os.File
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return files, notFound(err)
		}
		files = append(files, f)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// wake ends a poll when a context ends.
type wake struct {
	read, write int
	stop        func() bool
}

func newWake(ctx context.Context) (wake, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return wake{}, fmt.Errorf("make a pipe: %w", err)
	}
	w := wake{read: fds[0], write: fds[1]}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_, _ = unix.Write(w.write, []byte{0})
	})
	w.stop = func() bool {
		if !stop() {
			<-done // it must not write to what is closed
		}
		return true
	}
	return w, nil
}

func (w wake) close() {
	w.stop()
	_, _ = unix.Close(w.read), unix.Close(w.write)
}

// Wait implements Mirrors.
func (h *Host) Wait(ctx context.Context, a Array, until func(State) bool) (State, error) {
	return Wait(ctx, h, a, until)
}

// Wait by watching.
func Wait(ctx context.Context, m Mirrors, a Array, until func(State) bool) (State, error) {
	watching, enough := context.WithCancel(ctx)
	defer enough()
	var last State
	met := false
	err := m.Watch(watching, a, func(s State) {
		if !met {
			last, met = s, until(s)
		}
		if met {
			enough()
		}
	})
	if err == nil && !met {
		err = ctx.Err()
	}
	return last, err
}
