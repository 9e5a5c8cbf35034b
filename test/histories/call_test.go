// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-storage/weft/csi-driver/controller"
	"github.com/weft-storage/weft/csi-driver/node"
)

// errGivenUp: a call was cut off, and its caller will not repeat it.
var errGivenUp = errors.New("given up")

// attemptTime of one call. A sidecar's is shorter than the patience of this test, too.
const attemptTime = 20 * time.Second

type kind int

// What may happen to a call.
const (
	plain kind = iota
	repeated
	twice
	cancelled
	killed
	splitKilled
	agentKilled
	targetKilled
	powerLost
)

func (k kind) String() string {
	return []string{"", ", repeated", ", twice at once", ", cancelled", ", killed", ", killed between a volume and its replica", ", agent killed", ", target killed", ", power lost"}[k]
}

// twist of a call, drawn before anything is known of how it goes.
type twist struct {
	kind kind
	// crossings after which the process, or the agent, is hit, and whether what it asked for then is carried out.
	crossings, agentCrossings int
	after                     bool
	// giveUp what was cut off.
	giveUp bool
}

func (w *world) twist() twist {
	t := twist{crossings: 1 + w.rng.IntN(9), agentCrossings: 1 + w.rng.IntN(40), after: w.rng.IntN(2) == 0, giveUp: w.rng.IntN(2) == 0}
	switch n := w.rng.IntN(100); {
	case n < 40:
	case n < 50:
		t.kind = repeated
	case n < 60:
		t.kind = twice
	case n < 70:
		t.kind = cancelled
	case n < 79:
		t.kind = killed
	case n < 84:
		t.kind = splitKilled
	case n < 96:
		t.kind = agentKilled
	case n < 98:
		t.kind = targetKilled
	default:
		t.kind = powerLost
	}
	return t
}

// process that serves calls.
type process interface {
	killable() *fuse
	over() context.Context
}

// call of the driver.
type call struct {
	name string
	// on the process that is alive.
	on func() process
	// do it there.
	do func(ctx context.Context, p process) error
	// final codes are answered to the caller; others that a caller repeats are repeated.
	final []codes.Code
	// again says of which codes the call is repeated.
	again func(codes.Code) bool
	// once says that it may be given up.
	once bool
}

// repeats of the controller's calls are those after which sidecars do not know what was done.
func repeats(c codes.Code) bool {
	return c == codes.Aborted || c == codes.Unavailable || c == codes.Canceled || c == codes.DeadlineExceeded
}

// kubeletRepeats all that may mend itself.
func kubeletRepeats(c codes.Code) bool { return c != codes.InvalidArgument && c != codes.OK }

func (w *world) onController(name string, do func(ctx context.Context, s *controller.Service) error, final ...codes.Code) call {
	return call{
		name: name, on: func() process { return w.controllerProcess() }, final: final, again: repeats,
		do: func(ctx context.Context, p process) error { return do(ctx, p.(*controllerLife).service) },
	}
}

func (h *host) onNode(name string, do func(ctx context.Context, s *node.Service) error, final ...codes.Code) call {
	return call{
		name: name, on: func() process { return h.process() }, final: final, again: kubeletRepeats,
		do: func(ctx context.Context, p process) error {
			// Meanwhile, the kernel has tried to connect again what is cut off.
			return errors.Join(h.look(), do(ctx, p.(*nodeLife).service))
		},
	}
}

// orGiveUp lets a call that was cut off stay so.
func (c call) orGiveUp() call {
	c.once = true
	return c
}

// make a call until it is answered with success or a final code, or is given up.
func (w *world) make(c call) error {
	w.Helper()
	w.tally.calls.Add(1)
	t := w.twist()
	w.tell("  %s%s", c.name, t.kind)
	p := c.on()
	err := w.twisted(c, p, t)
	if err != nil && c.once && t.giveUp && t.kind >= cancelled && !slices.Contains(c.final, status.Code(err)) {
		w.tally.givenUp.Add(1)
		w.tell("    given up: %v", err)
		return errGivenUp
	}
	err = w.settle(c, p, err)
	if err == nil && t.kind == repeated {
		err = w.settle(c, nil, w.attempt(c, c.on()))
	}
	return err
}

// settle the outcome of an attempt: it is repeated until it is one.
func (w *world) settle(c call, p process, err error) error {
	w.Helper()
	failed := w.until(c.name, func() (bool, error) {
		if err == nil || slices.Contains(c.final, status.Code(err)) {
			return true, nil
		}
		w.tell("    %v", err)
		panicked := strings.Contains(err.Error(), "internal error in")
		if cut := p != nil && p.killable().isDead(); panicked || !cut && !c.again(status.Code(err)) {
			return false, fmt.Errorf("%s: %w", c.name, err)
		}
		p = c.on()
		err = w.attempt(c, p)
		return err == nil || slices.Contains(c.final, status.Code(err)), nil
	})
	if failed != nil {
		w.Fatalf("%v; the last answer: %v", failed, err)
	}
	return err
}

func (w *world) attempt(c call, p process) error {
	ctx, cancel := context.WithTimeout(p.over(), attemptTime)
	defer cancel()
	return c.do(ctx, p)
}

// twisted is the first attempt.
func (w *world) twisted(c call, p process, t twist) error {
	ctx, cancel := context.WithTimeout(p.over(), attemptTime)
	defer cancel()
	switch t.kind {
	case twice:
		w.tally.twice.Add(1)
		return w.atOnce(ctx, c, p)
	case cancelled:
		w.tally.cancels.Add(1)
		p.killable().light(t.crossings, false, cancel)
		defer p.killable().quench()
	case killed:
		w.tally.kills.Add(1)
		p.killable().light(t.crossings, t.after, nil)
		defer p.killable().kill()
	case splitKilled:
		w.tally.kills.Add(1)
		if l, ok := p.(*controllerLife); ok {
			l.split.Store(true)
		} else {
			p.killable().light(t.crossings, t.after, nil)
		}
		defer p.killable().kill()
	case agentKilled:
		w.tally.kills.Add(1)
		w.agent.now().light(t.agentCrossings, t.after, nil)
	case targetKilled:
		w.tally.targets.Add(1)
		defer w.meanwhile("restart the target", func() error { return w.storage.RestartTarget(context.WithoutCancel(w.ctx)) })()
	case powerLost:
		defer w.losePowerAt(t.agentCrossings)()
	}
	return c.do(ctx, p)
}

// atOnce makes a call twice. One that is answered while the other is under way is told so, and nothing worse.
func (w *world) atOnce(ctx context.Context, c call, p process) error {
	var errs [2]error
	var wait sync.WaitGroup
	for i := range errs {
		wait.Go(func() { errs[i] = c.do(ctx, p) })
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil && status.Code(err) == codes.Aborted {
			return errs[1-i]
		}
	}
	return errors.Join(errs[0], errs[1])
}

// capacity that is left on a target.
func (l *controllerLife) capacity(target string) (int64, error) {
	resp, err := l.service.GetCapacity(l.ctx, &csi.GetCapacityRequest{Parameters: map[string]string{"target": target}})
	return resp.GetAvailableCapacity(), err
}
