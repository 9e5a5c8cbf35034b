// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"errors"
	"sync"
)

var errKilled = errors.New("the process was killed")

// fuse of one life of a process. Whatever the process does to the outside crosses it. A lit fuse burns down with each
// crossing; when it blows, the process is killed there, before what it asked for is carried out or after, or else the
// call that is under way is cancelled.
type fuse struct {
	mu    sync.Mutex
	lit   bool
	left  int
	after bool
	// cancel the call, or end the process in another way; nil kills it.
	cancel func()
	// end of the process.
	end  func()
	dead bool
	// crossing now.
	crossing sync.WaitGroup
}

func (f *fuse) light(crossings int, after bool, cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lit, f.left, f.after, f.cancel = true, crossings, after, cancel
}

// quench a fuse that has not blown.
func (f *fuse) quench() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lit = false
}

func (f *fuse) isDead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

// kill the process between two crossings.
func (f *fuse) kill() {
	f.mu.Lock()
	f.dead = true
	f.mu.Unlock()
	f.end()
}

// enter a crossing; a dead process does not.
func (f *fuse) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.dead {
		f.crossing.Add(1)
	}
	return !f.dead
}

// burn for one crossing.
func (f *fuse) burn() (blown, after bool, cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.lit {
		return false, false, nil
	}
	if f.left--; f.left > 0 {
		return false, false, nil
	}
	f.lit = false
	f.dead = f.dead || f.cancel == nil
	return true, f.after, f.cancel
}

// cross has do carried out for a process that lives. It is an agenttest.Boundary.
func (f *fuse) cross(do func() error) error {
	if !f.enter() {
		return errKilled
	}
	defer f.crossing.Done()
	blown, after, cancel := f.burn()
	switch {
	case blown && cancel != nil:
		cancel()
		if f.isDead() {
			return errKilled
		}
	case blown:
		if after {
			_ = do()
		}
		f.end()
		return errKilled
	}
	err := do()
	if f.isDead() {
		return errKilled
	}
	return err
}
