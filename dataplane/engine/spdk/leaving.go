// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// SPDK takes a host from the list of a subsystem first, and disconnects it then, which takes as long as the drive of
// its volume needs for what the host has sent. Who hears that a host is gone may give the volume to another, so one
// that is not gone is put on the list again. It is on record before it is taken off, for the case that this process
// ends in between.

// Whether hosts are gone is asked for about a second.
const (
	looksForHosts = 100
	betweenLooks  = 10 * time.Millisecond
	// readmitPatience with hosts that could not be disconnected.
	readmitPatience = 5 * time.Second
)

// awaitGone asks until the hosts that were taken away are disconnected.
func (s *session) awaitGone(changes []*change, errs []error) {
	var left []int
	for i, c := range changes {
		if c != nil && errs[i] == nil && len(c.removeHosts) > 0 {
			left = append(left, i)
		}
	}
	if len(left) == 0 {
		return
	}
	again := time.NewTicker(betweenLooks)
	defer again.Stop()
	for range looksForHosts {
		looks := make([]spdkrpc.NvmfSubsystemGetControllers, len(left))
		for at, i := range left {
			looks[at].NQN = changes[i].nqn
		}
		connected, failed := spdkrpc.Each(s.ctx, s.conn, looks)
		var still []int
		for at, i := range left {
			switch {
			case failed[at] != nil:
				errs[i] = mapError(failed[at])
			case slices.ContainsFunc(connected[at], func(is spdkrpc.Controller) bool { return changes[i].removes(is.Host) }):
				still = append(still, i)
			}
		}
		if left = still; len(left) == 0 {
			return
		}
		select {
		case <-again.C:
		case <-s.ctx.Done():
		}
	}
	for _, i := range left {
		errs[i] = fmt.Errorf("%w: its hosts are being disconnected", engine.ErrBusy)
	}
}

// readmitThose hosts that could not be taken away, also when this process is told to end, or the call's time is over.
func (s *session) readmitThose(changes []*change, errs []error) {
	patience, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), readmitPatience)
	defer cancel()
	beyond := s.under(patience)
	for i, c := range changes {
		if c == nil || len(c.removeHosts) == 0 {
			continue
		}
		if errs[i] != nil {
			connected, err := beyond.readmit(c.nqn, c.removeHosts)
			if len(connected) > 0 {
				errs[i] = fmt.Errorf("%w; still connected: %s", errs[i], strings.Join(connected, ", "))
			}
			if err != nil {
				errs[i] = fmt.Errorf("%w; whether its hosts are gone is unknown: %w", errs[i], err)
				continue // they stay on record
			}
		}
		if err := s.forgetLeaving(c.nqn); err != nil {
			errs[i] = errors.Join(errs[i], err)
		}
	}
}

// readmit the hosts of a subsystem that are still connected, so that the target does not say of them that they are
// gone; the next call takes them away again. They have to prove the same keys as before, which are in the keyring
// still.
func (s *session) readmit(nqn string, hosts []spdkrpc.AllowedHost) (connected []string, err error) {
	controllers, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfSubsystemGetControllers{NQN: nqn})
	if err != nil {
		return nil, mapError(err)
	}
	for _, host := range hosts {
		if !slices.ContainsFunc(controllers, func(c spdkrpc.Controller) bool { return c.Host == host.NQN }) {
			continue
		}
		connected = append(connected, host.NQN)
		// One that is still admitted is ErrUnknown.
		_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfSubsystemAddHost{NQN: nqn, Host: host.NQN, Key: host.Key, ControllerKey: host.ControllerKey})
		if err != nil && !errors.Is(err, spdkrpc.ErrUnknown) {
			return connected, mapError(err)
		}
	}
	return connected, nil
}

// readmitLeft hosts that a process before this one was taking away when it ended, or a call of this one that could not
// say whether they are gone.
func (s *session) readmitLeft() error {
	entries, err := os.ReadDir(s.leavingDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		nqn, err := url.PathUnescape(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(s.leavingRecord(nqn))
		if err != nil {
			return err
		}
		var hosts []spdkrpc.AllowedHost
		cutOff := json.Unmarshal(data, &hosts) != nil // before anything was taken away
		there, err := s.serving(nqn)
		if err == nil && there && !cutOff {
			_, err = s.readmit(nqn, hosts)
		}
		if err != nil {
			return fmt.Errorf("whether hosts of %s are gone: %w", nqn, err)
		}
		if err := s.forgetLeaving(nqn); err != nil {
			return err
		}
	}
	return nil
}

// serving a subsystem: a target that was started since knows it no more, and has no hosts.
func (s *session) serving(nqn string) (bool, error) {
	_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfGetSubsystems{NQN: nqn})
	if errors.Is(err, spdkrpc.ErrNotFound) || errors.Is(err, spdkrpc.ErrWrongState) {
		return false, nil
	}
	return err == nil, mapError(err)
}

func (e *Engine) leavingDir() string { return e.path(e.config.StateDir, "spdk/leaving") }

func (e *Engine) leavingRecord(nqn string) string {
	return filepath.Join(e.leavingDir(), url.PathEscape(nqn))
}

// recordLeaving says which hosts of a subsystem are about to be taken away, with the names of their keys.
func (e *Engine) recordLeaving(nqn string, hosts []spdkrpc.AllowedHost) error {
	if err := os.MkdirAll(e.leavingDir(), 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(hosts)
	if err != nil {
		return err
	}
	return os.WriteFile(e.leavingRecord(nqn), data, 0o600)
}

func (e *Engine) forgetLeaving(nqn string) error {
	if err := os.Remove(e.leavingRecord(nqn)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
