// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// SPDK takes a host from the list of a subsystem first, and disconnects it then, which takes as long as the drive of
// its volume needs for what the host has sent. Who hears that a host is gone may give the volume to another, so one
// that is not gone is put on the list again. It is on record before it is taken off, for the case that this process
// ends in between. The record is beside the target's socket, on a memory filesystem: it means nothing after a reboot,
// and hosts are taken away whether or not it can be written.

// Whether hosts are gone is asked for about a second.
const (
	looksForHosts = 100
	betweenLooks  = 10 * time.Millisecond
	// readmitPatience with hosts that could not be disconnected.
	readmitPatience = 5 * time.Second
	// leftPatience with what is on record, for which all other calls wait.
	leftPatience = 2 * time.Second
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
		if len(s.life.left[c.nqn]) == 0 {
			s.forgetLeaving(c.nqn)
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
		_, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfSubsystemAddHost{NQN: nqn, Host: host.NQN, Key: host.Key, ControllerKey: host.ControllerKey})
		if err != nil && !s.admits(nqn, host.NQN) { // else it was never taken off
			return connected, mapError(err)
		}
	}
	return connected, nil
}

// readmitLeft hosts that a process before this one was taking away when it ended, or a call of this one that could not
// say whether they are gone. Those of which it still cannot be said are left: nobody else gets their subsystems.
func (s *session) readmitLeft() {
	s.life.left = map[string][]spdkrpc.AllowedHost{}
	leaving, _ := s.leavingRecords().of() // a folder that cannot be read was never written to
	if len(leaving) == 0 {
		return
	}
	s.life.known = nil // they may have written until now
	patience, cancel := context.WithTimeout(s.ctx, leftPatience)
	defer cancel()
	look := s.under(patience)
	for _, nqn := range leaving {
		var hosts []spdkrpc.AllowedHost
		if err := s.leavingRecords().read(nqn, &hosts); err != nil {
			hosts = nil // it was cut off, before anything was taken away
		}
		there, known := look.subsystem(nqn)
		if known && there == nil { // the target was started since
			s.forgetLeaving(nqn)
			continue
		}
		_, err := look.readmit(nqn, hosts)
		if err == nil {
			s.forgetLeaving(nqn)
			continue
		}
		s.life.left[nqn] = hosts
		logr.FromContextOrDiscard(s.ctx).Error(err, "Whether hosts that were taken away are gone is unknown; trying again", "nqn", nqn)
	}
}

// addLeft hosts to an export, as it is served: they count as admitted.
func (s *session) addLeft(x *engine.Export) {
	left := s.life.left[x.NQN]
	if len(left) == 0 {
		return
	}
	for _, host := range left {
		if !slices.Contains(x.Hosts, host.NQN) {
			x.Hosts = append(x.Hosts, host.NQN)
		}
	}
	slices.Sort(x.Hosts)
}

// noneLeft fails with engine.ErrBusy while it is unknown whether hosts of a subsystem are gone.
func (s *session) noneLeft(nqn string) error {
	if len(s.life.left[nqn]) > 0 {
		return fmt.Errorf("%w: whether hosts that were taken away are gone is unknown", engine.ErrBusy)
	}
	return nil
}

// subsystem as it is, nil for none; a target that waits for its settings has none.
func (s *session) subsystem(nqn string) (is *spdkrpc.Subsystem, known bool) {
	all, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.NvmfGetSubsystems{NQN: nqn})
	switch {
	case errors.Is(err, spdkrpc.ErrNotFound), errors.Is(err, spdkrpc.ErrWrongState):
		return nil, true
	case err != nil || len(all) != 1:
		return nil, false
	}
	return &all[0], true
}

func (s *session) admits(nqn, host string) bool {
	is, _ := s.subsystem(nqn)
	return is != nil && slices.ContainsFunc(is.Hosts, func(h spdkrpc.AllowedHost) bool { return h.NQN == host })
}

// leavingRecords say which hosts of a subsystem are being taken away, with the names of their keys.
func (e *Engine) leavingRecords() records { return e.besideSocket("leaving") }

// recordLeaving before hosts of a subsystem are taken away, beside those that are left.
func (s *session) recordLeaving(nqn string, hosts []spdkrpc.AllowedHost) {
	if err := s.leavingRecords().write(nqn, slices.Concat(s.life.left[nqn], hosts)); err != nil {
		logr.FromContextOrDiscard(s.ctx).Error(err, "Hosts are taken away without a record; do not kill this process now", "nqn", nqn)
	}
}

func (s *session) forgetLeaving(nqn string) {
	if err := s.leavingRecords().remove(nqn); err != nil {
		logr.FromContextOrDiscard(s.ctx).Error(err, "A record of hosts that are gone stays", "nqn", nqn)
	}
}
