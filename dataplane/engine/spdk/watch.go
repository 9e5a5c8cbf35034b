// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/internal/cpus"
)

// pollGroupThread starts the name of each thread that serves connections; its number follows.
const pollGroupThread = "nvmf_tgt_poll_group_"

var _ engine.Adjustable = (*Engine)(nil)

// BufferWaits implements engine.Adjustable.
func (e *Engine) BufferWaits(ctx context.Context) ([]engine.BufferWaits, error) {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return nil, err
	}
	modules := spdkrpc.Start(ctx, s.conn, spdkrpc.IobufGetStats{})
	groups := spdkrpc.Start(ctx, s.conn, spdkrpc.NvmfGetStats{})
	counted, err := modules.Wait()
	stats, statsErr := groups.Wait()
	if err := errors.Join(err, statsErr); err != nil {
		return nil, mapError(err)
	}
	waits := make([]engine.BufferWaits, 0, len(counted))
	for _, m := range counted {
		w := engine.BufferWaits{Module: m.Module, Small: m.Small.Retry, Large: m.Large.Retry}
		for _, group := range stats.PollGroups {
			for _, t := range group.Transports {
				if m.Module == "nvmf_"+t.Type {
					w.Pending += t.PendingDataBuffer
				}
			}
		}
		waits = append(waits, w)
	}
	slices.SortFunc(waits, func(a, b engine.BufferWaits) int { return cmp.Compare(a.Module, b.Module) })
	return waits, nil
}

// Loads implements engine.Adjustable.
func (e *Engine) Loads(ctx context.Context) (engine.Loads, error) {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return engine.Loads{}, err
	}
	return s.loads()
}

func (s *session) loads() (engine.Loads, error) {
	reactors := spdkrpc.Start(s.ctx, s.conn, spdkrpc.FrameworkGetReactors{})
	threads := spdkrpc.Start(s.ctx, s.conn, spdkrpc.ThreadGetStats{})
	cores, err := reactors.Wait()
	stats, statsErr := threads.Wait()
	if err := errors.Join(err, statsErr); err != nil {
		return engine.Loads{}, mapError(err)
	}
	var loads engine.Loads
	on := map[uint64]int{}
	for _, r := range cores.Reactors {
		loads.Cores = append(loads.Cores, int(r.Core))
		for _, t := range r.Threads {
			on[t.ID] = int(r.Core)
		}
	}
	slices.Sort(loads.Cores)
	for _, t := range stats.Threads {
		core, there := on[t.ID]
		if !there {
			continue // it moves, or ended, between the two answers
		}
		allowed, err := cpus.ParseMask(t.Cpumask)
		if err != nil {
			return engine.Loads{}, fmt.Errorf("thread %s: %w", t.Name, err)
		}
		loads.Threads = append(loads.Threads, engine.ThreadLoad{
			ID: t.ID, Name: t.Name, PollGroup: strings.HasPrefix(t.Name, pollGroupThread),
			Core: core, Allowed: allowed.List(), BusyTicks: t.BusyTicks, IdleTicks: t.IdleTicks,
		})
	}
	slices.SortFunc(loads.Threads, func(a, b engine.ThreadLoad) int { return cmp.Compare(a.ID, b.ID) })
	return loads, nil
}

// lookAgain is how often a thread is looked for: it leaves its core on that core's next turn, so that one look more
// than the answer's own is plenty.
const lookAgain = 4

// MoveThreads implements engine.Adjustable. A thread that may be on several cores SPDK puts on the next of them in
// turn, so it is told as often as there are cores, and a few times more for what else takes turns.
func (e *Engine) MoveThreads(ctx context.Context, moves []engine.ThreadMove) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(moves), err)
	}
	is, err := s.loads()
	if err != nil {
		return failAll(len(moves), err)
	}
	errs := make([]error, len(moves))
	for i, m := range moves {
		if errs[i] = is.Check(m); errs[i] == nil {
			errs[i] = s.move(m, 2*len(is.Cores))
		}
	}
	return errs
}

// move one thread.
func (s *session) move(m engine.ThreadMove, tries int) error {
	allowed := m.Allowed
	if len(allowed) == 0 {
		allowed = []int{m.Core}
	}
	is, err := s.loads()
	for range tries {
		if err != nil || is.On(m) {
			return err
		}
		if _, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.ThreadSetCpumask{ID: m.Thread, Cpumask: cpus.Mask(cpuset.New(allowed...))}); err != nil {
			return mapError(err)
		}
		for range lookAgain {
			if is, err = s.loads(); err != nil || is.On(m) {
				return err
			}
		}
	}
	return fmt.Errorf("%w: thread %d is not on core %d yet", engine.ErrBusy, m.Thread, m.Core)
}
