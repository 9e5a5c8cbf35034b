// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"time"
)

// Notify that something has changed: the record, a replica's object, the array, a controller. It never waits, and is
// safe for concurrent use once Run has begun.
func (k *Keeper) Notify() {
	select {
	case k.notify <- struct{}{}:
	default:
	}
}

// Run steps until the context ends or the mirror is stopped, at each event and when the last step asked for it.
// Changed is called with each status.
func (k *Keeper) Run(ctx context.Context, events <-chan struct{}, changed func(Status)) {
	k.notify = make(chan struct{}, 1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-k.notify:
		case <-timer.C:
		}
		status := k.Step(ctx)
		changed(status)
		if status.Phase == Stopped {
			return
		}
		timer.Reset(status.Next)
	}
}
