// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"slices"
	"sync"
)

// order of the names of the objects that the cache shows, kept as events come: a page of a list costs what is on it,
// and no sorting of all. It is safe for concurrent use.
type order struct {
	mu     sync.Mutex
	sorted []string
	// changed since sorted was made: whether there is an object of this name.
	changed map[string]bool
}

// set whether there is an object of this name.
func (o *order) set(name string, exists bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, is := slices.BinarySearch(o.sorted, name); is == exists {
		delete(o.changed, name)
		return
	}
	if o.changed == nil {
		o.changed = map[string]bool{}
	}
	o.changed[name] = exists
}

// has tells whether there is an object of this name.
func (o *order) has(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if exists, is := o.changed[name]; is {
		return exists
	}
	_, is := slices.BinarySearch(o.sorted, name)
	return is
}

// after a name, all names; all there are after "". The caller changes nothing in them. They stay as they are, whatever
// is set later.
func (o *order) after(name string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.merge()
	at, found := slices.BinarySearch(o.sorted, name)
	if found {
		at++
	}
	return o.sorted[at:]
}

// merge what changed. The caller holds the lock.
func (o *order) merge() {
	if len(o.changed) == 0 {
		return
	}
	added := slices.DeleteFunc(slices.Sorted(maps.Keys(o.changed)), func(name string) bool { return !o.changed[name] })
	merged := make([]string, 0, len(o.sorted)+len(added))
	for _, name := range o.sorted {
		for len(added) > 0 && added[0] < name {
			merged, added = append(merged, added[0]), added[1:]
		}
		if exists, is := o.changed[name]; exists || !is {
			merged = append(merged, name)
		}
	}
	merged = append(merged, added...)
	o.sorted, o.changed = merged, nil
}
