// SPDX-License-Identifier: Apache-2.0

// Package doing has how a call asks this machine's kernel for something: what it is doing there, and the modules that
// it needs. Neither a deadline nor a signal ends a system call on a device that does not answer, so whoever waits for
// the call is told what hangs, and since when.
package doing

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/weft-storage/weft/internal/tracing"
)

// Limit is how long a step may take before it is reported. It is as long as the kernel itself gives a task before it
// calls it hung (hung_task_timeout_secs, 120), twice the 60 s that it gives an admin command (nvme_core.admin_timeout),
// and as long as the kubelet waits for a call.
const Limit = 2 * time.Minute

// Step is one thing that the kernel was asked for, or a program that runs.
type Step struct {
	// What it is, such as "unmounting /mnt/x".
	What string
	// Since is when it began.
	Since time.Time
}

// Overdue tells whether the step has taken Limit or longer.
func (s Step) Overdue(now time.Time) bool { return now.Sub(s.Since) >= Limit }

func (s Step) String() string {
	return s.What + " has not returned since " + s.Since.UTC().Format(time.RFC3339)
}

// Task is a call, which takes one step after the other. Safe for concurrent use.
type Task struct {
	// Now by which steps begin.
	Now  func() time.Time
	mu   sync.Mutex
	step *Step
}

// Step that the task is at. It is false when the task is at none.
func (t *Task) Step() (Step, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.step == nil {
		return Step{}, false
	}
	return *t.step, true
}

func (t *Task) set(s *Step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step = s
}

type key struct{}

// Context for what belongs to the task.
func (t *Task) Context(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, t) }

// Begin a step of the context's task, until end is called. Without a task, only a trace has it.
func Begin(ctx context.Context, what string) (end func()) {
	_, span := tracing.Start(ctx, nameOf(what), tracing.StepKey.String(what))
	t, ok := ctx.Value(key{}).(*Task)
	if !ok {
		return func() { span.End() }
	}
	t.set(&Step{What: what, Since: t.Now()})
	return func() {
		t.set(nil)
		span.End()
	}
}

// nameOf a step in traces: its verb, and the program if one runs, so that steps of one kind have one name.
func nameOf(what string) string {
	verb, rest, _ := strings.Cut(what, " ")
	if verb == "running" {
		program, _, _ := strings.Cut(rest, " ")
		return verb + " " + program
	}
	return verb
}
