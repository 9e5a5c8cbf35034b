// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/weft-storage/weft/dataplane/engine"
)

// TargetWatch watches the target of the engine in use, if that can end and come back by itself
// (engine.Watcher). What it notices is reconciled at once: a target that came back is empty, and hosts
// wait for it. It is safe for concurrent use.
type TargetWatch struct {
	clock clock.PassiveClock
	// next engine to watch; one that was not taken yet is replaced.
	next    chan engine.Engine
	changed chan event.GenericEvent

	mu        sync.Mutex
	current   engine.Engine
	changes   uint64
	changedAt time.Time
	interrupt context.CancelFunc
}

// NewTargetWatch watches nothing until Use names an engine.
func NewTargetWatch(c clock.PassiveClock) *TargetWatch {
	return &TargetWatch{clock: c, next: make(chan engine.Engine, 1), changed: make(chan event.GenericEvent, 1)}
}

// Use an engine from now on; nil when there is none.
func (w *TargetWatch) Use(e engine.Engine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e == w.current {
		return
	}
	w.current = e
	select {
	case <-w.next:
	default:
	}
	w.next <- e // cannot block: only this puts something in, and it holds the lock
}

// Start watches until ctx ends.
func (w *TargetWatch) Start(ctx context.Context) error {
	stop := func() {}
	for {
		select {
		case <-ctx.Done():
			stop()
			return nil
		case e := <-w.next:
			stop()
			stop = w.follow(ctx, e)
		}
	}
}

// follow an engine until the answered function was called; it answers when the watch has ended.
func (w *TargetWatch) follow(ctx context.Context, e engine.Engine) (stop func()) {
	watcher, ok := e.(engine.Watcher)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watcher.Watch(ctx, w.note)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// note that the target was lost, or answers again.
func (w *TargetWatch) note() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes++
	w.changedAt = w.clock.Now()
	if w.interrupt != nil {
		w.interrupt()
	}
	select {
	case w.changed <- event.GenericEvent{}:
	default: // one is waiting already, and whoever takes it looks at the target as it then is
	}
}

// Changes counts what was noticed, and answers when the last of it was.
func (w *TargetWatch) Changes() (uint64, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes, w.changedAt
}

// UntilChanged answers a context that ends with the first change after the one that seen counts, and what ends it in
// any case.
func (w *TargetWatch) UntilChanged(ctx context.Context, seen uint64) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.interrupt = cancel
	if w.changes != seen {
		cancel()
	}
	return ctx, cancel
}
