// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/dataplane/engine"
)

// Clearing lets an engine clear what was deleted (engine.Clearer), beside all that the Reconciler does, and each pool
// beside the others: one may be cleared for hours, or its drive not answer any more. It is safe for concurrent use.
type Clearing struct {
	// next pools to clear; those that wait are replaced.
	next    chan []clearable
	changed chan event.GenericEvent

	mu sync.Mutex
	// running are the pools that are being cleared, and whether they are to be looked at again.
	running map[clearable]bool
}

// clearable is a pool of an engine, by its device.
type clearable struct {
	engine engine.Clearer
	pool   string
}

// NewClearing clears nothing until it is told to.
func NewClearing() *Clearing {
	return &Clearing{next: make(chan []clearable, 1), changed: make(chan event.GenericEvent, 1), running: map[clearable]bool{}}
}

// Use tells it to look whether an engine, which may be nil, has something to clear in these pools.
func (c *Clearing) Use(e engine.Engine, pools []engine.Pool) {
	clearer, ok := e.(engine.Clearer)
	if !ok {
		return
	}
	var next []clearable
	for _, p := range pools {
		if p.Err == nil {
			next = append(next, clearable{clearer, p.Device})
		}
	}
	select {
	case <-c.next:
	default:
	}
	c.next <- next // there is room: nobody else puts anything there
}

// Start clears until ctx ends, and ends when nothing is being cleared any more.
func (c *Clearing) Start(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case next := <-c.next:
			for _, of := range next {
				if c.begin(of) {
					all.Go(func() { c.clear(ctx, of) })
				}
			}
		}
	}
}

func (c *Clearing) clear(ctx context.Context, of clearable) {
	for again := true; again; again = c.again(of) {
		cleared, err := of.engine.Clear(ctx, of.pool)
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Deleted data is not cleared yet", "device", of.pool)
		}
		if cleared {
			select {
			case c.changed <- event.GenericEvent{}:
			default: // one is waiting already
			}
		}
	}
}

// begin to clear a pool. One that is being cleared is looked at again afterwards.
func (c *Clearing) begin(of clearable) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, running := c.running[of]
	c.running[of] = running
	return !running
}

// again says whether a pool that was cleared is to be looked at again, and else that it is not being cleared any more.
func (c *Clearing) again(of clearable) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[of] {
		c.running[of] = false
		return true
	}
	delete(c.running, of)
	return false
}
