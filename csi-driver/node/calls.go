// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
)

// Limits of a call's time.
const (
	// defaultTimeout of a call that comes without a deadline; the kubelet's is 2 minutes.
	defaultTimeout = 2 * time.Minute
	// answerMargin: one part in so many of a call's time is kept for its answer. A caller
	// whose deadline passed would only see "deadline exceeded", and not what was waited for.
	answerMargin = 10
)

// calls keeps calls for one volume apart, and outlives them. A system call on a device
// whose target does not answer cannot be broken off: such work is left behind when its
// caller's time is up, and its volume stays locked until it ends. Other volumes are not held up.
type calls struct {
	mu   sync.Mutex
	busy map[string]*underWay // by volume
	idle chan struct{}        // closed when busy becomes empty
}

// underWay is a call that has not ended.
type underWay struct {
	doing.Task
	operation, volume string
}

// String says what the call is at, too.
func (u *underWay) String() string {
	words := u.operation + " of volume " + u.volume
	if step, ok := u.Step(); ok {
		words += " (" + step.String() + ")"
	}
	return words
}

func (c *calls) begin(volume, operation string, now func() time.Time) (*underWay, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if current, ok := c.busy[volume]; ok {
		return nil, fmt.Errorf("%w: %s is still in progress", errBusy, current)
	}
	if c.busy == nil {
		c.busy = map[string]*underWay{}
	}
	if len(c.busy) == 0 {
		c.idle = make(chan struct{})
	}
	c.busy[volume] = &underWay{Task: doing.Task{Now: now}, operation: operation, volume: volume}
	return c.busy[volume], nil
}

// steps that calls are at, by volume.
func (c *calls) steps() map[string]doing.Step {
	c.mu.Lock()
	defer c.mu.Unlock()
	steps := map[string]doing.Step{}
	for volume, u := range c.busy {
		if step, ok := u.Step(); ok {
			steps[volume] = step
		}
	}
	return steps
}

func (c *calls) end(volume string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, volume)
	if len(c.busy) == 0 {
		close(c.idle)
	}
}

func (c *calls) wait(ctx context.Context) error {
	c.mu.Lock()
	busy, idle := len(c.busy), c.idle
	c.mu.Unlock()
	if busy == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call runs one operation on a volume, and gives its result or a gRPC status.
func call[T any](ctx context.Context, s *Service, operation, volume string, f func(context.Context) (*T, error)) (*T, error) {
	if err := required(field{"volume_id", volume}); err != nil {
		return nil, status(err)
	}
	under, err := s.calls.begin(volume, operation, s.now)
	if err != nil {
		return nil, status(err)
	}
	log := logr.FromContextOrDiscard(ctx).WithValues("volume", volume)
	ctx, cancel := context.WithTimeout(logr.NewContext(under.Context(ctx), log), defaultTimeout)
	defer cancel()

	type result struct {
		answer *T
		err    error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				log.Error(nil, "Panic", "operation", operation, "panic", p, "stack", string(debug.Stack()))
				r = result{err: fmt.Errorf("%w in %s of volume %s", errPanic, operation, volume)}
			}
			s.calls.end(volume)
			done <- r
		}()
		early, cancel := withMargin(ctx)
		defer cancel()
		r.answer, r.err = f(early)
	}()
	select {
	case r := <-done:
		return r.answer, status(r.err)
	case <-ctx.Done():
		return nil, status(fmt.Errorf("%s is still waiting for the kernel: %w", under, ctx.Err()))
	}
}

// withMargin ends a little before its parent does.
func withMargin(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/answerMargin))
}
