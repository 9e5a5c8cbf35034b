// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Reporter is an engine whose target tells what it runs with.
type Reporter interface {
	// Settings that the target runs with, read back from it and named as the choices of a plan, by name; with the
	// planned value where that differs. It fails with ErrUnavailable while the target waits for its settings.
	Settings(ctx context.Context, plan v1alpha1.Plan) ([]v1alpha1.EngineSetting, error)
}

// Adjustable is an engine whose target tells how it runs and fares, and can be adjusted while it serves. Its
// methods are as Engine's: safe for concurrent use, and each reads or does all in one call.
type Adjustable interface {
	Reporter

	// BufferWaits of the target's modules since it started, by module.
	BufferWaits(ctx context.Context) ([]BufferWaits, error)

	// Loads of the target's threads since it started.
	Loads(ctx context.Context) (Loads, error)

	// MoveThreads moves threads to cores, and reads back where they then are: a thread that is not on its core in the
	// end fails with ErrBusy. The application's own thread is refused with ErrInvalid, and so is a core that the target
	// does not have.
	MoveThreads(ctx context.Context, moves []ThreadMove) []error
}

// BufferWaits counts how often I/O of one module had to wait for a buffer.
type BufferWaits struct {
	// Module such as nvmf_TCP, nvmf_RDMA, bdev or accel.
	Module string
	// Small and Large: of which pool.
	Small, Large uint64
	// Pending I/Os that waited for either, where the module counts them (RDMA's pending_data_buffer).
	Pending uint64
}

// Loads of a target's threads.
type Loads struct {
	// Cores of the target, in order.
	Cores []int
	// Threads by ID.
	Threads []ThreadLoad
}

// ThreadLoad is one thread, where it is, and what it did since the target started.
type ThreadLoad struct {
	ID   uint64
	Name string
	// PollGroup: it serves connections. Other threads are not to be moved.
	PollGroup bool
	// Core it is on, and Allowed those that it may be on.
	Core    int
	Allowed []int
	// BusyTicks and IdleTicks of the processor's counter.
	BusyTicks, IdleTicks uint64
}

// ThreadMove moves a thread.
type ThreadMove struct {
	Thread uint64
	// Core it goes to.
	Core int
	// Allowed are the cores it may be on from now on, in order, Core among them; none: only that one.
	Allowed []int
}

func (m ThreadMove) allowed() []int {
	if len(m.Allowed) == 0 {
		return []int{m.Core}
	}
	return m.Allowed
}

// Check fails with ErrInvalid when the move is none that may be made.
func (l Loads) Check(m ThreadMove) error {
	at := slices.IndexFunc(l.Threads, func(t ThreadLoad) bool { return t.ID == m.Thread })
	switch {
	case at < 0:
		return fmt.Errorf("%w: the target has no thread %d", ErrInvalid, m.Thread)
	case !l.Threads[at].PollGroup:
		return fmt.Errorf("%w: thread %s serves no connections and cannot be moved", ErrInvalid, l.Threads[at].Name)
	case !slices.Contains(m.allowed(), m.Core):
		return fmt.Errorf("%w: thread %s cannot move to core %d, only to %v", ErrInvalid, l.Threads[at].Name, m.Core, m.Allowed)
	}
	for _, core := range m.allowed() {
		if !slices.Contains(l.Cores, core) {
			return fmt.Errorf("%w: the target has no core %d; it has %v", ErrInvalid, core, l.Cores)
		}
	}
	return nil
}

// On says whether a thread is where the move puts it, and may be where it says.
func (l Loads) On(m ThreadMove) bool {
	return slices.ContainsFunc(l.Threads, func(t ThreadLoad) bool {
		return t.ID == m.Thread && t.Core == m.Core && slices.Equal(t.Allowed, m.allowed())
	})
}
