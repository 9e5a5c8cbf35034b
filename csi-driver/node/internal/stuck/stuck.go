// SPDX-License-Identifier: Apache-2.0

// Package stuck notices when this node's kernel does not finish what it was asked for: a controller that stays in
// deleting; a connect, disconnect, mount, unmount, or the opening or reading of a device that does not return; or a
// program, such as mkfs or fsck, that is held in one uninterruptible sleep. What a program takes otherwise is its own
// affair. The kernel makes connections one after the other, so that a new volume would wait behind it, and its pod with
// it, without a word. While it lasts, the Node has a condition that says so, and new volumes are refused with the
// reason; those that are connected go on.
package stuck

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

// After is how long the kernel may take. It is as long as the kernel itself gives a task before it calls it hung
// (hung_task_timeout_secs, 120), twice the 60 s that it gives an admin command of a controller that it deletes
// (nvme_core.admin_timeout), and as long as the kubelet waits for a call.
const After = 2 * time.Minute

// Interval between looks.
const Interval = 10 * time.Second

// named is how many of the things that are stuck are named; a condition's message is for people.
const named = 3

// Error says what is stuck on this node.
type Error struct {
	// Reason is one of v1alpha1's: ReasonControllerStuck, ReasonKernelCallStuck.
	Reason string
	// Message names what is stuck, and since when.
	Message string
}

// Error names what is stuck.
func (e *Error) Error() string {
	return "this node takes no further volume until its kernel has finished: " + e.Message
}

// Report is where the state of the node is written. Its methods are called by one goroutine.
type Report interface {
	// Stuck tells whether the node was reported as stuck, by whichever process.
	Stuck(ctx context.Context) (bool, error)
	// Write reports what is stuck; nil for nothing. It is idempotent.
	Write(ctx context.Context, what *Error) error
}

// Watch of this node. Make it with New. Safe for concurrent use.
type Watch struct {
	clock clock.WithTicker
	proc  string

	mu    sync.Mutex
	calls map[*call]bool
	since map[string]time.Time // when a controller was first seen going, by name
	found *Error
}

// call into the kernel that has not returned.
type call struct {
	what  string
	begun time.Time
	// deletes is the controller that it deletes, if it does.
	deletes string
	// process that makes it, if that is a program: then begun is when its present sleep was first seen.
	process int
	sleep   string
}

// New makes a Watch, which sees calls that are made through Kernel, Mounter and Programs. The path is that of procfs:
// /proc on a real host.
func New(c clock.WithTicker, proc string) *Watch {
	return &Watch{clock: c, proc: proc, calls: map[*call]bool{}, since: map[string]time.Time{}}
}

// Check fails with an *Error when this node was stuck at the last look.
func (w *Watch) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.found == nil {
		return nil
	}
	return w.found
}

// begin notes a call into the kernel; end is called when it has returned.
func (w *Watch) begin(c *call) (end func()) {
	c.begun = w.clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[c] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.calls, c)
	}
}

// Controllers lists those that the kernel is taking away, as fabrics.Host.Going does.
type Controllers func() ([]fabrics.Controller, error)

// Run looks at once and then at each Interval until the context ends, and reports what changed.
func (w *Watch) Run(ctx context.Context, going Controllers, report Report) error {
	log := logr.FromContextOrDiscard(ctx).WithName("stuck")
	ticker := w.clock.NewTicker(Interval)
	defer ticker.Stop()
	recalled := false
	for {
		if !recalled {
			was, err := report.Stuck(ctx)
			if err != nil {
				log.Error(err, "Cannot read whether this node was stuck; trying again")
			}
			recalled = err == nil
			if was {
				w.recall(going)
			}
		}
		what, err := w.look(going)
		if err == nil && recalled {
			err = report.Write(ctx, what)
		}
		if err != nil {
			log.Error(err, "Cannot tell whether this node is stuck; trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// recall takes controllers that go now as stuck: this process is new, and did not see since when they have been going.
func (w *Watch) recall(going Controllers) {
	controllers, err := going()
	if err != nil {
		return // look fails too, and says so
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range controllers {
		w.since[c.Name] = w.clock.Now().Add(-After)
	}
}

// look at the controllers and the calls. When it fails, what was found before stands.
func (w *Watch) look(going Controllers) (*Error, error) {
	controllers, err := going()
	if err != nil {
		return nil, fmt.Errorf("list controllers: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	since := map[string]time.Time{}
	for _, c := range controllers {
		first, ok := w.since[c.Name]
		if !ok {
			first = now
		}
		since[c.Name] = first
	}
	w.since = since
	calls := make([]call, 0, len(w.calls))
	for c := range w.calls {
		if c.process != 0 {
			if sleep := w.sleep(c.process); sleep == "" || sleep != c.sleep {
				c.begun, c.sleep = now, sleep
			}
		}
		calls = append(calls, *c)
	}
	w.found = decide(now, controllers, since, calls)
	return w.found, nil
}

// decide what is stuck. Its words stay the same as long as what is stuck does.
func decide(now time.Time, controllers []fabrics.Controller, since map[string]time.Time, calls []call) *Error {
	type item struct {
		begun time.Time
		words string
	}
	var items []item
	reason := v1alpha1.ReasonKernelCallStuck
	for _, c := range controllers {
		if begun := since[c.Name]; now.Sub(begun) >= After {
			items = append(items, item{begun, c.String() + " is being deleted"})
			reason = v1alpha1.ReasonControllerStuck
		}
	}
	for _, c := range calls {
		// A deletion shows as its controller, once that goes.
		if _, shown := since[c.deletes]; !shown && now.Sub(c.begun) >= After {
			items = append(items, item{c.begun, c.what + " has not returned"})
		}
	}
	if len(items) == 0 {
		return nil
	}
	slices.SortFunc(items, func(a, b item) int {
		return cmp.Or(a.begun.Compare(b.begun), strings.Compare(a.words, b.words))
	})
	var words []string
	for _, i := range items[:min(named, len(items))] {
		words = append(words, i.words+" since "+i.begun.UTC().Format(time.RFC3339))
	}
	if more := len(items) - named; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return &Error{Reason: reason, Message: strings.Join(words, "; ")}
}
