// SPDX-License-Identifier: Apache-2.0

package controller

import "sync"

// locks lets one call at a time work on a volume or snapshot. It orders this process's calls only; what
// another replica does is met with resource versions.
type locks struct {
	mu   sync.Mutex
	held map[string]bool
}

// lock takes a volume's or snapshot's lock, or fails with reason busy: CSI asks a plugin to answer Aborted rather than
// queue calls.
func (l *locks) lock(kind, name string) (unlock func(), err error) {
	key := kind + " " + name
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[key] {
		return nil, failf(busy, "another operation on %s is in progress", key)
	}
	if l.held == nil {
		l.held = map[string]bool{}
	}
	l.held[key] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.held, key)
	}, nil
}

// taken tells whether a call works on a volume or snapshot now.
func (l *locks) taken(kind, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[kind+" "+name]
}
