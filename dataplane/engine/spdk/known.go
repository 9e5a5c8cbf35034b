// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// SPDK answers on its first reactor, which serves I/O too unless the plan leaves it out. A list of everything stops
// that I/O: for 4 µs with each volume, and 3 µs with each subsystem (SPDK 26.05). With 4,000 of both that is 28 ms,
// several times for each volume that is attached. So a session can look again only at what calls may have changed since
// the last look: nobody but this process changes a target. What hosts have written it asks for from time to time, which
// takes 1.3 µs for each volume. See BenchmarkStorm.

// known is what a look found, as SPDK listed it.
type known struct {
	// at is when all of it was listed, and counted when the lvols' clusters were.
	at, counted time.Time
	// calm: nothing was going on when it was looked at.
	calm       bool
	lvstores   []lvstoreIdentity
	bdevs      map[string]spdkrpc.Bdev
	subsystems map[string]spdkrpc.Subsystem
}

// lvstoreIdentity is what stays the same of an lvstore as long as it is open.
type lvstoreIdentity struct{ uuid, name, base string }

const (
	// countedFor is how long the number of clusters that lvols have allocated is not asked for again. Whatever else is
	// in the pools than is known, such as what a process before this one had asked for, is found then, too.
	countedFor = 20 * time.Second
	// lateFor is how long calls of a process before this one may still be carried out, as far as looks rely on it.
	lateFor = 30 * time.Second
	// askedAtOnce are asked for by name at a time. SPDK answers all that it finds in its socket in one go.
	askedAtOnce = 32
	// namedPart of all is asked for by name at most. To ask for each takes SPDK and its host longer than a list.
	namedPart = 8
)

// worthNaming says whether to ask for so many by name.
func (s *session) worthNaming(n int) bool { return n <= max(askedAtOnce, s.life.listed/namedPart) }

// lookAtAll of what the target has.
func (s *session) lookAtAll() (*store, *network, error) {
	s.life.known = nil
	s.conn.Touched() // what changes from now on
	now, calm := s.config.Now(), s.calm()
	stored, serves := s.startStore(), s.startNetwork()
	bdevs, err := stored.bdevs.Wait()
	if err != nil {
		return s.finish(stored, serves)
	}
	subsystems, err := serves.subsystems.Wait()
	if err != nil {
		return s.finish(stored, serves)
	}
	k := &known{at: now, counted: now, calm: calm, bdevs: map[string]spdkrpc.Bdev{}, subsystems: map[string]spdkrpc.Subsystem{}}
	for _, b := range bdevs {
		k.bdevs[b.Name] = b
	}
	for _, sub := range subsystems {
		k.subsystems[sub.NQN] = sub
	}
	return s.know(k, stored, serves)
}

// lookAgain at what may have changed since the last look, or at all.
func (s *session) lookAgain() (*store, *network, error) {
	if st, n, err := s.glance(); st != nil || err != nil {
		return st, n, err
	}
	return s.lookAtAll()
}

// glance at what may have changed since the last look. Where that is not enough, all that it answers is nil.
func (s *session) glance() (*store, *network, error) {
	k := s.life.known
	now := s.config.Now()
	if k == nil || !s.calm() || now.Sub(k.at) >= s.life.glanceAge(k.at) {
		return nil, nil, nil
	}
	s.life.known = nil
	touched := s.conn.Touched()
	if touched.Everything || !s.worthNaming(len(touched.Subsystems)+len(touched.Bdevs)) {
		return nil, nil, nil
	}
	stored, serves := s.startPools(), networkReading{transports: spdkrpc.Start(s.ctx, s.conn, spdkrpc.NvmfGetTransports{})}
	if !s.askAgain(k, touched) || !s.countAgain(k, now) {
		_, _, _ = s.finish(stored, serves) // what was asked for is not left behind
		return nil, nil, nil
	}
	return s.know(k, stored, serves)
}

// recount with the next look.
func (s *session) recount() {
	if s.life.known != nil {
		s.life.known.counted = time.Time{}
	}
}

// countAgain the clusters of lvols, from time to time.
func (s *session) countAgain(k *known, now time.Time) bool {
	if now.Sub(k.counted) < countedFor {
		return true
	}
	k.counted = now
	lvols, err := spdkrpc.Call(s.ctx, s.conn, spdkrpc.BdevLvolGetLvols{})
	return err == nil && k.count(lvols)
}

// count the clusters of lvols. It fails when they are not those that are known.
func (k *known) count(lvols []spdkrpc.Lvol) bool {
	left := 0
	for _, b := range k.bdevs {
		if b.Driver.Lvol != nil {
			left++
		}
	}
	for _, l := range lvols {
		b, ok := k.bdevs[l.UUID]
		if !ok || b.Driver.Lvol == nil || !slices.Contains(b.Aliases, l.Alias) {
			return false
		}
		detail := *b.Driver.Lvol
		detail.AllocatedClusters = l.AllocatedClusters
		b.Driver.Lvol = &detail
		k.bdevs[l.UUID] = b
		left--
	}
	return left == 0
}

// calm: nothing goes on that this process did not wait for, or that failed half way.
func (s *session) calm() bool {
	l := &s.life
	for _, owed := range []map[string]*asking{l.asked, l.checks, l.waking, l.changing} {
		for _, a := range owed {
			if !a.answered() {
				return false
			}
		}
	}
	return l.recalled && len(l.uncleared)+len(l.merging)+len(l.condemned)+len(l.left) == 0
}

// glanceAge of what was listed at a time: shorter while calls of a process before this one may still be carried out.
func (l *life) glanceAge(at time.Time) time.Duration {
	if at.Before(l.began.Add(lateFor)) {
		return lateFor
	}
	return engine.GlanceAge
}

// askAgain for what was touched, for the bdevs of subsystems that were, of which hosts may have written more until
// then, and for those under the pools, which go with their drives. It answers whether all is known then.
func (s *session) askAgain(k *known, touched spdkrpc.Touched) bool {
	names := maps.Clone(touched.Bdevs)
	if names == nil {
		names = map[string]bool{}
	}
	under := 0
	for name, b := range k.bdevs {
		if b.Driver.Lvol == nil {
			names[name] = true
			under++
		}
	}
	claims := func(nqn string) {
		for _, ns := range k.subsystems[nqn].Namespaces {
			names[ns.Bdev] = true
		}
	}
	for nqn := range touched.Subsystems {
		claims(nqn)
		delete(k.subsystems, nqn)
	}
	subsystems, err := s.subsystemsNamed(slices.Collect(maps.Keys(touched.Subsystems)))
	if err != nil {
		return false
	}
	for _, sub := range subsystems {
		k.subsystems[sub.NQN] = sub
		claims(sub.NQN)
	}
	maps.DeleteFunc(k.bdevs, func(name string, b spdkrpc.Bdev) bool {
		return names[name] || names[b.UUID] || slices.ContainsFunc(b.Aliases, func(alias string) bool { return names[alias] })
	})
	bdevs, err := s.bdevsNamed(slices.Collect(maps.Keys(names)))
	for _, b := range bdevs {
		k.bdevs[b.Name] = b
		if b.Driver.Lvol == nil {
			under--
		}
	}
	return err == nil && under == 0
}

func (s *session) subsystemsNamed(nqns []string) ([]spdkrpc.Subsystem, error) {
	return byName(s, nqns, func(nqn string) spdkrpc.Request[[]spdkrpc.Subsystem] { return spdkrpc.NvmfGetSubsystems{NQN: nqn} })
}

func (s *session) bdevsNamed(names []string) ([]spdkrpc.Bdev, error) {
	return byName(s, names, func(name string) spdkrpc.Request[[]spdkrpc.Bdev] { return spdkrpc.BdevGetBdevs{Name: name} })
}

// byName asks for things, some at a time, and answers those that there are.
func byName[R any](s *session, names []string, request func(name string) spdkrpc.Request[[]R]) ([]R, error) {
	var found []R
	var failed error
	for some := range slices.Chunk(names, askedAtOnce) {
		var pending []*spdkrpc.Pending[[]R]
		for _, name := range some {
			pending = append(pending, spdkrpc.Start(s.ctx, s.conn, request(name)))
		}
		for _, p := range pending {
			is, err := p.Wait()
			if err != nil && !errors.Is(err, spdkrpc.ErrNotFound) {
				failed = cmp.Or(failed, err)
			}
			found = append(found, is...)
		}
		if failed != nil {
			return nil, failed
		}
	}
	return found, nil
}

// know what a look found, if nothing is going on. If a pool came or went since the last look, all is looked at.
func (s *session) know(k *known, stored storeReading, serves networkReading) (*store, *network, error) {
	lvstores, err := stored.lvstores.Wait()
	if err != nil {
		return nil, nil, mapError(err)
	}
	open := make([]lvstoreIdentity, len(lvstores))
	for i, l := range lvstores {
		open[i] = lvstoreIdentity{l.UUID, l.Name, l.BaseBdev}
	}
	if k.lvstores != nil && !slices.Equal(k.lvstores, open) {
		return s.lookAtAll()
	}
	k.lvstores = open
	s.life.listed = len(k.bdevs) + len(k.subsystems)
	st, n, err := s.finish(
		storeReading{lvstores: stored.lvstores, listed: inOrder(k.bdevs)}, networkReading{listed: inOrder(k.subsystems), transports: serves.transports})
	if err != nil {
		return nil, nil, err
	}
	if st.counted = k.counted; k.calm && s.calm() && s.life.examined {
		s.life.known = k
	}
	return st, n, nil
}

// inOrder of their names.
func inOrder[V any](m map[string]V) []V {
	all := make([]V, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[name])
	}
	return all
}
