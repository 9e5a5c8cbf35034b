// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/weft-storage/weft/csi-driver/mirror"
)

// result of a task.
type result struct {
	err    error
	header mirror.Header
	names  []string
	of     []string
	ahead  bool
}

// tasks are calls that can block in the kernel, one at a time of each name. They are not cancelled: no deadline ends a
// call on a device that does not answer, and what it asked for can still happen.
type tasks struct {
	ctx   context.Context // never cancelled
	spawn func(func())
	done  func()

	mu      sync.Mutex
	running map[string]bool
	results map[string]result
}

// start a task, unless it runs or has a result that nobody took.
func (t *tasks) start(name string, do func(context.Context) result) {
	if !t.begin(name) {
		return
	}
	run := func() {
		r := do(t.ctx)
		t.mu.Lock()
		delete(t.running, name)
		t.results[name] = r
		t.mu.Unlock()
		t.done()
	}
	if t.spawn != nil {
		t.spawn(run)
		return
	}
	go run()
}

func (t *tasks) begin(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil {
		t.running, t.results = map[string]bool{}, map[string]result{}
	}
	if _, ended := t.results[name]; ended || t.running[name] {
		return false
	}
	t.running[name] = true
	return true
}

// result of a task that has ended. It is given once.
func (t *tasks) result(name string) (result, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ended := t.results[name]
	delete(t.results, name)
	return r, ended
}

// runs tells whether a task runs whose name begins with one of these.
func (t *tasks) runs(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return len(t.of(name)) > 0 })
}

// pending tells whether a task runs, or has a result that nobody took.
func (t *tasks) pending(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ended := t.results[name]
	return ended || t.running[name]
}

// of the running tasks whose names begin so, what follows that.
func (t *tasks) of(beginning string) map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]bool{}
	for running := range t.running {
		if rest, is := strings.CutPrefix(running, beginning); is {
			all[rest] = true
		}
	}
	return all
}

// busy tells whether a task runs.
func (t *tasks) busy(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[name]
}
