// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/weft-storage/weft/dataplane/engine"
)

// Clearing lets an engine clear what was deleted (engine.Clearer), beside all that the Reconciler does. It is safe for
// concurrent use.
type Clearing struct {
	// next engine to clear; one that waits is replaced.
	next    chan engine.Clearer
	changed chan event.GenericEvent
}

// NewClearing clears nothing until it is told to.
func NewClearing() *Clearing {
	return &Clearing{next: make(chan engine.Clearer, 1), changed: make(chan event.GenericEvent, 1)}
}

// Use tells it to look whether an engine, which may be nil, has something to clear.
func (c *Clearing) Use(e engine.Engine) {
	clearer, ok := e.(engine.Clearer)
	if !ok {
		return
	}
	select {
	case c.next <- clearer:
	default: // it looks soon, at the same one or, after the next reconciliation, at this one
	}
}

// Start clears until ctx ends.
func (c *Clearing) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-c.next:
			cleared, err := e.Clear(ctx)
			if err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "Deleted data is not cleared yet")
			}
			if cleared {
				select {
				case c.changed <- event.GenericEvent{}:
				default: // one is waiting already
				}
			}
		}
	}
}
