// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"errors"
	"slices"
)

// leave a mirror that this attachment does not hold any more. A write that one leg has and another has not must not be
// acknowledged now: the next holder may have only the other. But the kernel acknowledges it as soon as the other's
// controllers are deleted, whatever the order, if the first had completed it. Therefore the users are killed before any
// controller goes: a process that was killed gets no answer. Legs that answer go first, and the users are killed again
// before those that hang go: what has been started meanwhile finds no leg that could complete a write. The array is
// never let go of while a user is left.
func (k *Keeper) leave(v *view) Status {
	waits := Status{Phase: Leaving, Next: retry}
	answering := slices.DeleteFunc(v.inUse(), func(replica string) bool { return !v.live(replica) })
	if ready, err := k.read(v, answering); err != nil || !ready {
		waits.Err = err
		return waits // a header may say that the record is the past
	}
	exists, err := k.Top.Exists()
	if err != nil {
		waits.Err = err
		return waits
	}
	left := 0
	if exists {
		k.tasks.start("block", func(ctx context.Context) result { return result{err: k.Top.Block(ctx)} })
		if left, err = k.Users.Kill(); err != nil {
			waits.Err = err
			return waits
		}
	}
	for _, which := range []func(string) bool{
		func(replica string) bool { return v.legs[replica].State == LegLive },
		every,
	} {
		if d := k.disconnect(v, which); d.did {
			waits.Err = d.Err
			return waits
		}
	}
	switch {
	case left > 0:
		waits.Err = errors.New("the users of the mirror were killed, but have not ended")
	case exists:
		waits.Err = k.background(v, "fail the device", func(ctx context.Context) result {
			return result{err: k.Top.Fail(ctx)}
		}).Err
	case v.array.Exists:
		waits.Err = k.background(v, stopTask, func(ctx context.Context) result {
			return result{err: k.Array.Stop(ctx)}
		}).Err
	case v.busy:
		// What is being made is taken away, too. What still deletes must find nothing of the next attachment.
	default:
		return Status{Phase: Stopped, Next: interval}
	}
	return waits
}
