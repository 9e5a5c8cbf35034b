// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"sync"
)

// flights are creations of controllers that the kernel is busy with. The kernel cannot be told to
// stop one, so a caller whose time is up leaves it behind; the next caller for the same
// portal joins it, and a disconnect waits for it, or its controller would appear afterwards and stay.
type flights struct {
	mu      sync.Mutex
	pending map[flightKey]*flight
}

type flightKey struct{ nqn, portal string }

type flight struct {
	done chan struct{}
	err  error
}

// do runs f, unless it runs for the same key already, and waits for its end or the context's.
func (s *flights) do(ctx context.Context, key flightKey, f func() error) error {
	s.mu.Lock()
	if s.pending == nil {
		s.pending = map[flightKey]*flight{}
	}
	fl, ok := s.pending[key]
	if !ok {
		fl = &flight{done: make(chan struct{})}
		s.pending[key] = fl
		go func() {
			fl.err = f()
			s.mu.Lock()
			delete(s.pending, key)
			s.mu.Unlock()
			close(fl.done)
		}()
	}
	s.mu.Unlock()
	select {
	case <-fl.done:
		return fl.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait waits until nothing is under way for a subsystem.
func (s *flights) wait(ctx context.Context, nqn string) error {
	for {
		var next *flight
		s.mu.Lock()
		for key, fl := range s.pending {
			if key.nqn == nqn {
				next = fl
			}
		}
		s.mu.Unlock()
		if next == nil {
			return nil
		}
		select {
		case <-next.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
