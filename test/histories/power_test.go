// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"sync"
)

// losePower of the storage node, which comes back at once, without its agent's and its target's processes, and without
// what its drive, or its file, had acknowledged and did not keep.
func (w *world) losePower() error {
	w.tally.powers.Add(1)
	w.tell("    the storage node loses its power")
	return w.storage.LosePower(context.WithoutCancel(w.ctx), func() { w.agent.now().kill() })
}

// losePowerAt a crossing of the agent's, or when the caller is done at the latest: that calls done.
func (w *world) losePowerAt(crossings int) (done func()) {
	lose := sync.OnceValue(w.losePower)
	agent := w.agent.now()
	agent.light(crossings, false, func() { _ = lose() })
	return func() {
		agent.quench()
		if err := lose(); err != nil {
			w.Errorf("lose power: %v", err)
		}
	}
}

// powerLoss while pods write to a volume, which nobody flushes: whatever was acknowledged is there afterwards. Before
// it, the drive may have been reset, which turns its cache on, and the agent has turned that off again.
func (w *world) powerLoss(v *volume) {
	writes, reset := 2+w.rng.IntN(6), w.rng.IntN(4) == 0
	at := w.rng.IntN(writes)
	if reset {
		w.tell("  the drive is reset")
		w.storage.ResetDrive()
		w.await("the agent to turn the drive's cache off", func() bool { return !w.storage.CacheOn() })
	}
	done := func() {}
	for i := range writes {
		w.write(v)
		if i == at {
			done = w.meanwhile("lose power", w.losePower)
		}
	}
	done()
	for _, each := range w.volumes {
		w.read(each)
	}
}

// meanwhile something is done; done waits for it.
func (w *world) meanwhile(what string, do func() error) (done func()) {
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	return func() {
		if err := <-ended; err != nil {
			w.Errorf("%s: %v", what, err)
		}
	}
}
