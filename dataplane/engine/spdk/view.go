// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// store is what the pools hold at one moment.
type store struct {
	pools     []*pool
	volumes   map[engine.ID][]*lvol
	snapshots map[engine.ID][]*lvol
	// counted is when the lvols' clusters were, in a store of all that there is.
	counted time.Time
	// condemned are those of the volumes and snapshots that nobody may use.
	condemned condemned
	// strangers are the names of lvstores that are not weft's, by their base bdev.
	strangers map[string]string
	// rest are the lvols between clones and their sources, marks, deleted volumes, and what interrupted clones left, of
	// readable pools.
	rest []*lvol
}

// pool that was opened once, whether it can be read now or not.
type pool struct {
	engine.Pool
	// lvstore is its name.
	lvstore string
	// base bdev.
	base spdkrpc.Bdev
	// clusters for data.
	clusters int64
	lvols    map[string]*lvol
	// unmerged are snapshots of which it is not known that SPDK merged them, and merging says that SPDK merges one for
	// this process: see merges.go.
	unmerged []unmerged
	merging  bool
	// reserved metadata pages, and mapped bytes of memory, once they were asked for: see reserveSnapshot.
	reserved, mapped int64
}

// lvol is a volume, a snapshot, or one of those that only the engine knows.
type lvol struct {
	pool *pool
	kind kind
	id   engine.ID
	// name in the lvstore, and SPDK's own name of its bdev.
	name, bdev string
	sizeBytes  int64
	// ownBytes that it has allocated, without those that it shares with what it is based on.
	ownBytes int64
	// snapped in this call.
	snapped int
	// limits in force.
	limits spdkrpc.QoS
	// claimed: it is a namespace of a subsystem.
	claimed bool
	// condemned: it is to be deleted as it is.
	condemned bool
	// base and clones are names in the same lvstore. SPDK leaves a clone out that it has forgotten; then clones may be
	// empty, and not nil.
	base   string
	clones []string
	// created is a snapshot's time.
	created time.Time
}

// alias by which SPDK knows it.
func (l *lvol) alias() string { return l.pool.lvstore + "/" + l.name }

// allocatedBytes with what it is based on: a snapshot takes its volume's clusters over, and the
// volume was written all the same. At most its size.
func (l *lvol) allocatedBytes() int64 {
	sum := int64(0)
	// An lvstore's chains have no loops; the bound is for a target that says otherwise.
	for at, n := l, 0; at != nil && n <= len(l.pool.lvols); at, n = l.pool.lvols[at.base], n+1 {
		sum += at.ownBytes
		if at.base != "" && l.pool.lvols[at.base] == nil {
			return l.sizeBytes // what it is based on was not listed, and may hold anything
		}
	}
	return min(sum, l.sizeBytes)
}

// storeReading of the pools has begun. One of listed, bdevs and names is set, or none when there is nothing to name.
type storeReading struct {
	lvstores *spdkrpc.Pending[[]spdkrpc.Lvstore]
	listed   []spdkrpc.Bdev
	err      error
	bdevs    *spdkrpc.Pending[[]spdkrpc.Bdev]
	names    *spdkrpc.Pending[[]spdkrpc.Lvol]
}

func (s *session) startPools() storeReading {
	return storeReading{lvstores: spdkrpc.Start(s.ctx, s.conn, spdkrpc.BdevLvolGetLvstores{})}
}

func (s *session) startStore() storeReading {
	r := s.startPools()
	s.listBdevs(&r)
	return r
}

// startNames reads only what there is: no sizes, and nothing of how lvols depend on each
// other. SPDK says that in a quarter of the time.
func (s *session) startNames() storeReading {
	r := s.startPools()
	s.listNames(&r)
	return r
}

func (s *session) listBdevs(r *storeReading) {
	r.bdevs = spdkrpc.Start(s.ctx, s.conn, spdkrpc.BdevGetBdevs{})
}

func (s *session) listNames(r *storeReading) {
	r.names = spdkrpc.Start(s.ctx, s.conn, spdkrpc.BdevLvolGetLvols{})
}

// startVolumes reads these volumes by name, whichever pool they are in; where there are too many, all that list reads.
func (s *session) startVolumes(ids []engine.ID, list func(*storeReading)) storeReading {
	r := s.startPools()
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if s.worthNaming(len(ids)) {
		lvstores, _ := r.lvstores.Wait() // whose error finishStore sees
		// Of the names of each volume one is there at most, and SPDK logs the others.
		missing := len(ids) * (len(lvstores) - 1)
		if s.worthNaming(len(ids)*len(lvstores)) && missing <= askedAtOnce {
			var names []string
			for _, l := range lvstores {
				for _, id := range ids {
					names = append(names, l.Name+"/"+string(id))
				}
			}
			r.listed, r.err = s.bdevsNamed(names)
			return r
		}
	}
	list(&r)
	return r
}

// readStore reads the pools. A target that waits for its settings has none that could be read.
func (s *session) readStore() (*store, error) { return s.finishStore(s.startStore()) }

func (s *session) finishStore(r storeReading) (*store, error) {
	st := &store{volumes: map[engine.ID][]*lvol{}, snapshots: map[engine.ID][]*lvol{}, condemned: s.life.condemned}
	if err := s.readRecords(st); err != nil {
		return nil, err
	}
	lvstores, err := r.lvstores.Wait()
	bdevs := r.listed
	var names []spdkrpc.Lvol
	listErr := r.err
	if r.names != nil {
		names, listErr = r.names.Wait()
	}
	if r.bdevs != nil {
		bdevs, listErr = r.bdevs.Wait()
	}
	if err = errors.Join(err, listErr); err != nil && !errors.Is(err, spdkrpc.ErrWrongState) {
		return nil, mapError(err)
	}
	byUUID := map[string]*pool{}
	for _, l := range lvstores {
		if p := st.readable(l); p != nil {
			byUUID[l.UUID] = p
		}
	}
	for _, b := range bdevs {
		if device, path, ok := parseBase(b); ok {
			p := st.recorded(device)
			p.Path, p.base = path, b
		}
		if b.Driver.Lvol == nil || len(b.Aliases) == 0 {
			continue
		}
		if p := byUUID[b.Driver.Lvol.LvstoreUUID]; p != nil {
			_, name, _ := strings.Cut(b.Aliases[0], "/")
			st.add(&lvol{
				pool: p, name: name, bdev: b.Name,
				sizeBytes: int64(b.Blocks * b.BlockBytes),
				ownBytes:  int64(b.Driver.Lvol.AllocatedClusters) * p.ClusterBytes,
				base:      b.Driver.Lvol.Base,
				clones:    b.Driver.Lvol.Clones,
				limits:    b.Limits,
				claimed:   b.Claimed,
			})
		}
	}
	for _, l := range names {
		if p := byUUID[l.Lvstore.UUID]; p != nil {
			st.add(&lvol{pool: p, name: l.Name, bdev: l.UUID})
		}
	}
	if err := s.readMerges(st); err != nil {
		return nil, err
	}
	slices.SortFunc(st.pools, func(a, b *pool) int { return cmp.Compare(a.Device, b.Device) })
	return st, nil
}

// readable pool of an lvstore; nil when it is not weft's. The name of its bdev says which device it is on, and its own
// that it belongs there.
func (st *store) readable(l spdkrpc.Lvstore) *pool {
	device, ok := strings.CutPrefix(l.BaseBdev, bdevPrefix)
	if !ok {
		return nil
	}
	if l.Name != lvstoreName(device) {
		device = strings.TrimSuffix(device, firstNamespace)
	}
	if l.Name != lvstoreName(device) {
		return nil
	}
	p := st.recorded(device)
	p.ClusterBytes, p.clusters = int64(l.ClusterBytes), int64(l.TotalClusters)
	p.TotalBytes, p.FreeBytes = p.clusters*p.ClusterBytes, int64(l.FreeClusters)*p.ClusterBytes
	p.BlockBytes = int32(l.BlockBytes)
	p.Err = nil
	return p
}

// parseBase tells the device ID and path of a bdev that OpenPools made.
func parseBase(b spdkrpc.Bdev) (device, path string, ok bool) {
	name, ok := strings.CutPrefix(b.Name, bdevPrefix)
	switch {
	case !ok:
		return "", "", false
	case b.Driver.AIO != nil:
		return name, b.Driver.AIO.Path, true
	case len(b.Driver.NVMe) > 0:
		device, ok = strings.CutSuffix(name, firstNamespace)
		return device, b.Driver.NVMe[0].PCIAddress, ok
	}
	return "", "", false
}

func (st *store) add(l *lvol) {
	l.kind, l.id, l.created = parseName(l.name)
	l.pool.lvols[l.name] = l
	if l.condemned = st.condemned.see(l); l.condemned && l.kind == volumeLvol {
		l.kind = deletedLvol
	}
	switch l.kind {
	case volumeLvol:
		st.volumes[l.id] = append(st.volumes[l.id], l)
	case snapshotLvol:
		st.snapshots[l.id] = append(st.snapshots[l.id], l)
		if l.condemned {
			st.rest = append(st.rest, l)
		}
	case cloneLvol, markLvol, newLvol, holdLvol, deletedLvol, freeLvol:
		st.rest = append(st.rest, l)
	case cleanLvol, soiledLvol, foreignLvol:
	}
}

// clonesOf the lvol that are listed.
func (l *lvol) clonesOf() []*lvol {
	var all []*lvol
	for _, name := range l.clones {
		if of := l.pool.lvols[name]; of != nil {
			all = append(all, of)
		}
	}
	return all
}

// cleared lvols are nobody's, and depend on nothing.
func (l *lvol) cleared() bool { return l.kind == deletedLvol || l.kind == freeLvol }

// unfinished lvols are needed only while a clone is being made.
func (l *lvol) unfinished() bool { return l.kind == newLvol || l.kind == holdLvol }

// marked snapshots were deleted by their user.
func (l *lvol) marked() bool { return l.condemned || l.pool.lvols[markName(l.id)] != nil }

// recorded pool by its device; until its lvstore is seen it has an Err.
func (st *store) recorded(device string) *pool {
	for _, p := range st.pools {
		if p.Device == device {
			return p
		}
	}
	p := &pool{lvstore: lvstoreName(device), lvols: map[string]*lvol{}}
	p.Device = device
	p.Err = fmt.Errorf("%w: pool %s is not open", engine.ErrUnavailable, device)
	st.pools = append(st.pools, p)
	return p
}

// recordsDir has a link for each pool that was opened once.
func (e *Engine) recordsDir() string { return e.path(e.config.StateDir, "spdk/pools") }

func (s *session) readRecords(st *store) error {
	dir := s.recordsDir()
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list pools: %w", err)
	}
	for _, entry := range entries {
		device, err := url.PathUnescape(entry.Name())
		if err != nil {
			continue // not a name that record makes
		}
		p := st.recorded(device)
		if p.Path, err = os.Readlink(filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("list pools: %w", err)
		}
		p.Err = fmt.Errorf("%w; if its drive is permanently lost, use kubectl weft drop", p.Err)
	}
	return nil
}

// record that a device is a pool, and where it is now.
func (e *Engine) record(device, path string) error {
	link := e.recordOf(device)
	if is, err := os.Readlink(link); err == nil && is == path {
		return nil
	}
	if err := os.MkdirAll(e.recordsDir(), 0o700); err != nil {
		return err
	}
	temporary := filepath.Join(e.path(e.config.StateDir, "spdk"), ".new")
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(path, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, link)
}

// pool by its device, readable.
func (st *store) pool(device string) (*pool, error) {
	for _, p := range st.pools {
		if p.Device == device {
			return p, p.Err
		}
	}
	return nil, fmt.Errorf("pool %s: %w", device, engine.ErrNotFound)
}

// find the one lvol of that ID. When there is none, and a pool cannot be read,
// nobody knows: that is engine.ErrUnavailable, not engine.ErrNotFound.
func (st *store) find(in map[engine.ID][]*lvol, id engine.ID) (*lvol, error) {
	found := slices.DeleteFunc(slices.Clone(in[id]), func(l *lvol) bool { return l.kind == snapshotLvol && l.marked() })
	switch len(found) {
	case 0:
		var unknown []error
		for _, p := range st.pools {
			if p.Err != nil {
				unknown = append(unknown, p.Err)
			}
		}
		if len(unknown) > 0 {
			return nil, fmt.Errorf("%s may be in a pool that cannot be read: %w", id, errors.Join(unknown...))
		}
		return nil, fmt.Errorf("%s: %w", id, engine.ErrNotFound)
	case 1:
		return found[0], nil
	default:
		return nil, fmt.Errorf("%s is in two pools, as %s and %s: %w", id, found[0].alias(), found[1].alias(), engine.ErrExists)
	}
}

// state of the pools and what they hold, in order.
func (st *store) state() engine.State {
	var state engine.State
	for _, p := range st.pools {
		state.Pools = append(state.Pools, p.Pool)
	}
	for _, id := range sortedKeys(st.volumes) {
		for _, l := range st.volumes[id] {
			state.Volumes = append(state.Volumes, l.volume())
		}
	}
	for _, id := range sortedKeys(st.snapshots) {
		for _, l := range st.snapshots[id] {
			if !l.marked() {
				state.Snapshots = append(state.Snapshots, l.snapshot())
			}
		}
	}
	st.condemned.addTo(&state, st)
	return state
}

func (l *lvol) volume() engine.Volume {
	return engine.Volume{ID: l.id, Pool: l.pool.Device, SizeBytes: l.sizeBytes, AllocatedBytes: l.allocatedBytes(), QoS: qosOf(l.limits)}
}

func (l *lvol) snapshot() engine.Snapshot {
	return engine.Snapshot{ID: l.id, Pool: l.pool.Device, SizeBytes: l.sizeBytes, AllocatedBytes: l.allocatedBytes(), CreatedAt: l.created}
}

func sortedKeys[V any](m map[engine.ID]V) []engine.ID {
	keys := make([]engine.ID, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
