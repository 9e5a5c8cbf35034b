// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"sync"
	"time"
)

// flights are creations or deletions of controllers that the kernel is busy with. The kernel cannot be told to
// stop one, so a caller whose time is up leaves it behind; the next caller for the same
// portal or controller joins it. A disconnect waits for creations, or their controllers would appear afterwards and
// stay.
type flights struct {
	mu      sync.Mutex
	pending map[flightKey]*flight
}

// flightKey has a host and a portal for a creation, and a controller's name for a deletion.
type flightKey struct{ nqn, host, portal, controller string }

type flight struct {
	begun time.Time
	done  chan struct{}
	err   error
}

// wait for the flight's end, or the context's, whose error it gives then.
func (fl *flight) wait(ctx context.Context) error {
	select {
	case <-fl.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// do runs f, unless it runs for the same key already, and waits for its end or the context's. When f fails with an
// error of the context of the caller that began it, the others who wait for it are not meant: one of them begins again.
func (s *flights) do(ctx context.Context, key flightKey, f func() error) error {
	for {
		fl, joined := s.begin(key, f)
		if err := fl.wait(ctx); err != nil {
			return err
		}
		givenUp := errors.Is(fl.err, context.Canceled) || errors.Is(fl.err, context.DeadlineExceeded)
		if !joined || !givenUp || ctx.Err() != nil {
			return fl.err
		}
	}
}

// begin runs f in the background, unless it runs for the same key already.
func (s *flights) begin(key flightKey, f func() error) (fl *flight, joined bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fl, joined = s.pending[key]; joined {
		return fl, true
	}
	if s.pending == nil {
		s.pending = map[flightKey]*flight{}
	}
	fl = &flight{begun: time.Now(), done: make(chan struct{})}
	s.pending[key] = fl
	go func() {
		fl.err = f()
		s.mu.Lock()
		delete(s.pending, key)
		s.mu.Unlock()
		close(fl.done)
	}()
	return fl, false
}

// nqns of the subsystems that something is under way for.
func (s *flights) nqns() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var nqns []string
	for key := range s.pending {
		nqns = append(nqns, key.nqn)
	}
	return nqns
}

// any tells whether something is under way that matches.
func (s *flights) any(matches func(flightKey) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.pending {
		if matches(key) {
			return true
		}
	}
	return false
}

// wait waits until nothing is under way that matches.
func (s *flights) wait(ctx context.Context, matches func(flightKey) bool) error {
	for {
		var next *flight
		s.mu.Lock()
		for key, fl := range s.pending {
			if matches(key) {
				next = fl
			}
		}
		s.mu.Unlock()
		if next == nil {
			return nil
		}
		if err := next.wait(ctx); err != nil {
			return err
		}
	}
}
