// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/weft-storage/weft/csi-driver/node/internal/doing"
)

// HeldUpError says that the kernel makes no connection now: it has been busy with one for doing.Limit or longer.
type HeldUpError struct {
	// Step is what it is busy with.
	doing.Step
}

// Error names what the kernel is busy with.
func (e *HeldUpError) Error() string {
	return "this node accepts no more volumes until its kernel has finished: " + e.String()
}

// turns of those who use /dev/nvme-fabrics. A write to it holds a lock of the kernel until the controller is connected
// or has failed, and a read of it takes the same lock (nvmf_dev_mutex in drivers/nvme/host/fabrics.c). No other call of
// this driver does: neither a controller that is being deleted nor a mount that waits for its device is in the way of
// another volume's connection. Since turns are taken here, one thread of this process at most waits in the kernel for
// that lock, and what holds it up is known.
type turns struct {
	// taken has room for one.
	taken chan struct{}
	mu    sync.Mutex
	// at is what whose turn it is does.
	at *doing.Step
}

func newTurns() turns { return turns{taken: make(chan struct{}, 1)} }

func (t *turns) set(at *doing.Step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at = at
}

// step that the kernel is busy with; nil for none.
func (t *turns) step() *doing.Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// HeldUp tells what holds up new connections; nil when nothing does.
func (h *Host) HeldUp() *HeldUpError {
	at := h.turns.step()
	if at == nil || !at.Overdue(h.Clock.Now()) {
		return nil
	}
	return &HeldUpError{Step: *at}
}

// inTurn runs what uses /dev/nvme-fabrics. It fails with a *HeldUpError at once, and with the context's error when it
// was not its turn until that ended: then f was not run.
func (h *Host) inTurn(ctx context.Context, what string, f func() error) error {
	if held := h.HeldUp(); held != nil {
		return held
	}
	select {
	case h.turns.taken <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.turns.taken }()
	h.turns.set(&doing.Step{What: what, Since: h.Clock.Now()})
	defer h.turns.set(nil)
	return f()
}

// waited adds to the error of a call whose time was up what it waited for.
func (h *Host) waited(ctx context.Context, err error) error {
	if at := h.turns.step(); at != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return err
}

// Ready returns nil when the kernel takes connections, or cannot take any for another reason than that it is busy. It
// fails when the context ends first, and with a *HeldUpError. Call it when a process begins, which does not know what
// an earlier one left the kernel with.
func (h *Host) Ready(ctx context.Context) error {
	_, err := h.knownOptions(ctx)
	var held *HeldUpError
	if ctx.Err() != nil || errors.As(err, &held) {
		return err
	}
	return nil
}

// knownOptions of the kernel, as it prints them; nil stands for "it does not say". They stay the same for as long as
// it runs.
func (h *Host) knownOptions(ctx context.Context) (map[string]bool, error) {
	h.mu.Lock()
	known := h.known
	h.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	err := h.flights.do(ctx, flightKey{portal: "options"}, func() error {
		return h.inTurn(ctx, "reading /dev/nvme-fabrics", h.readOptions)
	})
	if err != nil {
		return nil, fmt.Errorf("read the kernel's connect options: %w", h.waited(ctx, err))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return *h.known, nil
}

func (h *Host) readOptions() error {
	var known map[string]bool
	text, err := h.Kernel.Options()
	switch {
	case errors.Is(err, syscall.EINVAL): // before Linux 5.17
	case err != nil:
		return err
	default:
		known = map[string]bool{}
		for option := range strings.SplitSeq(strings.TrimSpace(text), ",") {
			key, _, _ := strings.Cut(option, "=")
			known[key] = true
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known = &known
	return nil
}
