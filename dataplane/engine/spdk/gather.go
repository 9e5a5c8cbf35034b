// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/engine"
)

// Gather implements engine.Engine. Of a target that waits for its settings, Start was not
// called: it serves nothing, and its pools cannot be read.
func (e *Engine) Gather(ctx context.Context) (engine.State, error) {
	return e.gather(ctx, (*session).lookAtAll)
}

// Glance implements engine.Glancer.
func (e *Engine) Glance(ctx context.Context) (engine.State, error) {
	return e.gather(ctx, (*session).lookAgain)
}

func (e *Engine) gather(ctx context.Context, look func(*session) (*store, *network, error)) (engine.State, error) {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return engine.State{}, err
	}
	if err := s.wakeAll(); err != nil { //nolint:contextcheck // hosts that wait are woken, also when the call's time is over
		logr.FromContextOrDiscard(ctx).Error(err, "Hosts still wait; trying again")
	}
	s.awaitFirst()  //nolint:contextcheck // by the session's
	s.readmitLeft() //nolint:contextcheck // by the session's
	began := s.config.Now()
	st, n, err := look(s)
	if err == nil && st.counted.Before(began) && s.seemsToClear(st) {
		s.recount() // what hosts have written since would count as what is being cleared
		st, n, err = look(s)
	}
	if err != nil {
		return engine.State{}, err
	}
	s.findGone(st)
	s.findOpening(st)
	if err := s.uncacheOpened(st, s.uncached.set); err != nil {
		return engine.State{}, err
	}
	s.makeDurable(slices.DeleteFunc(slices.Clone(st.pools), func(p *pool) bool { return p.Err != nil })) //nolint:contextcheck // what a dead drive owes outlives the call
	s.admitCleared(st)
	s.lookForGarbage(st)
	for _, p := range st.pools {
		p.ClearingBytes = st.clearingBytes(p, s.hasUnlisted(p))
	}
	speaks, err := s.dialect()
	if err != nil {
		return engine.State{}, err
	}
	e.observed.Store(st.observed(speaks))
	state := st.state()
	state.LimitFiles(func(path string) string { return s.path(path) })
	volumes := st.byBdev()
	for _, nqn := range n.weft() {
		x := n.export(nqn, volumes)
		s.addLeft(&x)
		state.Exports = append(state.Exports, x)
	}
	for _, p := range n.portals {
		state.Portals = append(state.Portals, p)
	}
	slices.SortFunc(state.Portals, func(a, b engine.Portal) int { return engine.ComparePortals(a.Portal, b.Portal) })
	return state, nil
}

// seemsToClear says whether, by this store, anything in the pools is being overwritten.
func (s *session) seemsToClear(st *store) bool {
	return slices.ContainsFunc(st.pools, func(p *pool) bool { return st.clearingBytes(p, s.hasUnlisted(p)) > 0 })
}
