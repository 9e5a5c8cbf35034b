// SPDX-License-Identifier: Apache-2.0

package controller

import "sync"

// locks lets one call at a time work on a volume. It orders this process's calls only; what
// another replica does is met with resource versions.
type locks struct {
	mu   sync.Mutex
	held map[string]bool
}

// lock takes the volume's lock, or fails with reason busy: CSI asks a plugin to answer Aborted rather than queue calls.
func (l *locks) lock(volume string) (unlock func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[volume] {
		return nil, failf(busy, "another operation on volume %s is under way", volume)
	}
	if l.held == nil {
		l.held = map[string]bool{}
	}
	l.held[volume] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, volume)
	}, nil
}
