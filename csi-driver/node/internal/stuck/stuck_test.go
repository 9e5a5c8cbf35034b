// SPDX-License-Identifier: Apache-2.0

package stuck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
)

var start = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	controller := func(name string) fabrics.Controller {
		return fabrics.Controller{Name: name, State: "deleting", Transport: v1alpha1.TransportTCP, Address: "10.0.0.1", Port: "4420"}
	}
	long, short := start.Add(-After), start.Add(-After+time.Second)
	const overdue = " since 2026-11-22T09:58:00Z"
	for name, c := range map[string]struct {
		controllers []fabrics.Controller
		since       map[string]time.Time
		calls       []call
		want        *Error
	}{
		"nothing": {},
		"not long": {
			[]fabrics.Controller{controller("nvme1")}, map[string]time.Time{"nvme1": short},
			[]call{{what: "mounting at /a", begun: short}}, nil,
		},
		"a call": {
			nil, nil, []call{{what: "mounting at /a", begun: long}, {what: "mounting at /b", begun: short}},
			&Error{v1alpha1.ReasonKernelCallStuck, "mounting at /a has not returned" + overdue},
		},
		"a controller, and what deletes it": {
			[]fabrics.Controller{controller("nvme1")}, map[string]time.Time{"nvme1": long},
			[]call{{what: "writing delete_controller of nvme1", begun: long, deletes: "nvme1"}},
			&Error{v1alpha1.ReasonControllerStuck, "nvme1 (TCP 10.0.0.1 port 4420, deleting) is being deleted" + overdue},
		},
		"a deletion that the kernel has not begun": {
			nil, nil, []call{{what: "writing delete_controller of nvme1", begun: long, deletes: "nvme1"}},
			&Error{v1alpha1.ReasonKernelCallStuck, "writing delete_controller of nvme1 has not returned" + overdue},
		},
		"many, the oldest first": {
			[]fabrics.Controller{controller("nvme1")}, map[string]time.Time{"nvme1": long},
			[]call{{what: "c", begun: long}, {what: "b", begun: long}, {what: "a", begun: long}, {what: "oldest", begun: long.Add(-time.Hour)}},
			&Error{v1alpha1.ReasonControllerStuck, "oldest has not returned since 2026-11-22T08:58:00Z; a has not returned" + overdue + "; b has not returned" + overdue + "; and 2 more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(start, c.controllers, c.since, c.calls)
			if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// node is a Report that was reported as stuck before, or cannot be read, and that gives each report to the test.
type node struct {
	was     bool
	failing chan error
	reports chan *Error
}

func (n *node) Stuck(context.Context) (bool, error) {
	select {
	case err := <-n.failing:
		return false, err
	default:
		return n.was, nil
	}
}

func (n *node) Write(ctx context.Context, what *Error) error {
	select {
	case n.reports <- what:
	case <-ctx.Done():
	}
	return nil
}

// next lets time pass until something is reported. It fails when nothing is, which is not the same as nil: that says
// that all is well.
func (n *node) next(t *testing.T, c *testingclock.FakeClock) *Error {
	t.Helper()
	for range 600 {
		c.Step(Interval)
		select {
		case got := <-n.reports:
			return got
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Fatal("nothing was reported")
	return nil
}

func run(t *testing.T, n *node, going Controllers) (*Watch, *testingclock.FakeClock) {
	t.Helper()
	c := testingclock.NewFakeClock(start)
	w := New(clock.WithTicker(c), t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx, going, n) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w, c
}

// A node plugin that was restarted must not say that all is well because it has not watched for long.
func TestRestartKeepsWhatIsStuck(t *testing.T) {
	for name, was := range map[string]bool{"was stuck": true, "was well": false} {
		t.Run(name, func(t *testing.T) {
			n := &node{was: was, reports: make(chan *Error)}
			w, c := run(t, n, func() ([]fabrics.Controller, error) {
				return []fabrics.Controller{{Name: "nvme1", State: "deleting"}}, nil
			})
			if got := <-n.reports; (got != nil) != was || (w.Check() != nil) != was {
				t.Errorf("at first: %v, and %v", got, w.Check())
			}
			c.Step(After)
			if got := <-n.reports; got == nil || w.Check() == nil {
				t.Error("not stuck after its time")
			}
		})
	}
}

func TestNothingIsReportedOfWhatIsNotKnown(t *testing.T) {
	failing := make(chan error, 1)
	failing <- errors.New("the API server is down")
	n := &node{was: true, failing: failing, reports: make(chan *Error)}
	looked := make(chan error, 1)
	_, c := run(t, n, func() ([]fabrics.Controller, error) {
		select {
		case err := <-looked:
			return nil, err
		default:
			return []fabrics.Controller{{Name: "nvme1", State: "deleting"}}, nil
		}
	})
	// The first look reports nothing: whether the node was stuck is not known. What comes first is the second's.
	if n.next(t, c) == nil {
		t.Error("the first report does not know that the node was stuck")
	}
	// A look that fails reports nothing either, and what was found stands.
	looked <- errors.New("sysfs cannot be read")
	c.Step(Interval)
	if n.next(t, c) == nil {
		t.Error("a look that failed was taken for one that found nothing")
	}
}

// A program that is at work is not stuck, however long it takes, and in whichever state it is found.
func TestProgramIsStuckInOneSleepOnly(t *testing.T) {
	for name, c := range map[string]struct {
		// status of the process at the nth look; empty when there is none.
		status func(look int) string
		stuck  bool
	}{
		"sleeps":           {func(int) string { return "D 7" }, true},
		"sleeps, at last":  {func(look int) string { return fmt.Sprintf("D %d", min(look, 5)) }, true},
		"waits often":      {func(look int) string { return fmt.Sprintf("D %d", look) }, false},
		"computes":         {func(int) string { return "R 7" }, false},
		"can be woken":     {func(int) string { return "S 7" }, false},
		"wakes in between": {func(look int) string { return string("DS"[look%2]) + " 7" }, false},
		"has ended":        {func(int) string { return "" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			clock, proc := testingclock.NewFakeClock(start), t.TempDir()
			w := New(clock, proc)
			defer w.begin(&call{what: "running mkfs", process: 42})()
			if err := os.Mkdir(filepath.Join(proc, "42"), 0o755); err != nil {
				t.Fatal(err)
			}
			for look := range 100 {
				clock.Step(Interval)
				if state, switches, there := strings.Cut(c.status(look), " "); there {
					text := "Name:\tmkfs\nState:\t" + state + " (words)\nvoluntary_ctxt_switches:\t" + switches + "\nnonvoluntary_ctxt_switches:\t3\n"
					if err := os.WriteFile(filepath.Join(proc, "42/status"), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := w.look(func() ([]fabrics.Controller, error) { return nil, nil }); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Check(); (err != nil) != c.stuck {
				t.Errorf("got %v", err)
			}
		})
	}
}
