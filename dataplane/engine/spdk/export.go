// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/internal/dhchap"
)

// leastRoom is how many namespaces a subsystem has room for: that of its volume. Each that there is room for costs 0.4
// kB in each poll group, used or not (measured), and SPDK's default is 32. Subsystems that an earlier agent made with
// 32 stay as they are until the target restarts.
const leastRoom = 1

// change that an export needs. What takes away is done, for all exports of a call, before anything is given:
// a bdev can be in one subsystem only.
type change struct {
	nqn string
	// remove the subsystem, to make it again.
	remove           bool
	removeHosts      []spdkrpc.AllowedHost
	removeNamespaces []uint32

	create        *spdkrpc.NvmfCreateSubsystem
	addNamespaces []spdkrpc.Namespace
	// keys that the hosts have from now on. All others of the subsystem go in the end.
	keys     map[keyName]dhchap.Key
	setKeys  []spdkrpc.NvmfSubsystemSetKeys
	addHosts []spdkrpc.NvmfSubsystemAddHost
	listen   []v1alpha1.Portal

	// missing is why nothing is given: a volume that is not there, or may be where nothing can be read.
	missing error
}

func (c *change) takes() bool {
	return c.remove || len(c.removeHosts) > 0 || len(c.removeNamespaces) > 0
}

// diff from what is, nil for nothing, to what shall be. It fails with engine.ErrRestartNeeded when
// hosts know it by what would change. bdevs are those of the namespaces' volumes.
func diff(is *spdkrpc.Subsystem, want engine.Export, bdevs map[engine.ID]string, portals []v1alpha1.Portal) (*change, error) {
	c := &change{nqn: want.NQN}
	room := roomFor(want)
	if is != nil {
		differs := is.Serial != want.Serial || is.Model != want.Model || is.MaxNamespaces < room
		if differs && len(is.Hosts) > 0 {
			return nil, fmt.Errorf("serial number, model or room for namespaces of %s, which admits hosts: %w", want.NQN, engine.ErrRestartNeeded)
		}
		if differs || is.AllowAnyHost {
			c.remove, is = true, nil
		}
	}
	if is == nil {
		c.create = &spdkrpc.NvmfCreateSubsystem{
			NQN: want.NQN, Serial: want.Serial, Model: want.Model, MaxNamespaces: room, ANAReporting: true,
		}
		is = &spdkrpc.Subsystem{}
	}
	c.diffNamespaces(is.Namespaces, want, bdevs)
	c.removeHosts = unlisted(is.Hosts, want.Hosts)
	c.keys = keysOf(want)
	for _, host := range want.Hosts {
		at := slices.IndexFunc(is.Hosts, func(h spdkrpc.AllowedHost) bool { return h.NQN == host })
		if at < 0 {
			c.addHosts = append(c.addHosts, addHost(want, host))
		} else if change := setKeys(want, is.Hosts[at]); change != nil {
			c.setKeys = append(c.setKeys, *change)
		}
	}
	for _, p := range portals {
		if len(want.Hosts) > 0 && !listensOn(*is, p) {
			c.listen = append(c.listen, p)
		}
	}
	return c, nil
}

// unlisted are the admitted hosts that are no longer wanted.
func unlisted(admitted []spdkrpc.AllowedHost, want []string) []spdkrpc.AllowedHost {
	var gone []spdkrpc.AllowedHost
	for _, h := range admitted {
		if !slices.Contains(want, h.NQN) {
			gone = append(gone, h)
		}
	}
	return gone
}

// removes tells whether a host is taken away.
func (c *change) removes(host string) bool {
	return slices.ContainsFunc(c.removeHosts, func(h spdkrpc.AllowedHost) bool { return h.NQN == host })
}

func (c *change) diffNamespaces(is []spdkrpc.Namespace, want engine.Export, bdevs map[engine.ID]string) {
	kept := map[uint32]bool{}
	for _, ns := range is {
		at := slices.IndexFunc(want.Namespaces, func(w engine.Namespace) bool { return w.NSID == ns.NSID })
		if at >= 0 && serves(ns, want.Namespaces[at].Volume, bdevs) {
			kept[ns.NSID] = true
			continue
		}
		c.removeNamespaces = append(c.removeNamespaces, ns.NSID)
	}
	for _, w := range want.Namespaces {
		if !kept[w.NSID] {
			c.addNamespaces = append(c.addNamespaces, spdkrpc.Namespace{
				NSID: w.NSID, Bdev: bdevs[w.Volume], UUID: string(w.Volume), NGUID: strings.ToUpper(w.Volume.NGUID()),
			})
		}
	}
}

func serves(ns spdkrpc.Namespace, volume engine.ID, bdevs map[engine.ID]string) bool {
	return ns.Bdev == bdevs[volume] && strings.EqualFold(ns.UUID, string(volume)) && strings.EqualFold(ns.NGUID, volume.NGUID())
}

func roomFor(x engine.Export) uint32 {
	room := uint32(leastRoom)
	for _, ns := range x.Namespaces {
		room = max(room, ns.NSID)
	}
	return room
}

// Export implements engine.Engine.
func (e *Engine) Export(ctx context.Context, exports []engine.Export) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(exports), err)
	}
	speaks, err := s.dialect()
	if err != nil {
		return failAll(len(exports), err)
	}
	nqns := []string{anchorNQN}
	var volumes []engine.ID
	for _, x := range exports {
		nqns = append(nqns, x.NQN)
		for _, ns := range x.Namespaces {
			volumes = append(volumes, ns.Volume)
		}
	}
	serving := s.startSubsystems(nqns...)
	st, n, err := s.finish(s.startVolumes(volumes, s.listNames), serving)
	if err != nil {
		return failAll(len(exports), err)
	}
	errs := make([]error, len(exports))
	changes := make([]*change, len(exports))
	if err := s.lookAtFree(st); err != nil {
		return failAll(len(exports), err)
	}
	for i, x := range exports {
		changes[i], errs[i] = s.planExport(x, st, n)
		if c := changes[i]; c != nil && c.create != nil {
			speaks.hideDiscard(c.create)
		}
	}
	s.take(changes, errs, speaks) //nolint:contextcheck // it readmits hosts also when this ends
	s.give(changes, errs)
	s.explainInUse(changes, errs)
	s.dropFormerKeys(changes, errs)
	for i, err := range errs {
		if c := changes[i]; c != nil {
			err = errors.Join(c.missing, err)
		}
		if err != nil {
			errs[i] = fmt.Errorf("export %s: %w", exports[i].NQN, err)
		}
	}
	return errs
}

func (s *session) planExport(x engine.Export, st *store, n *network) (*change, error) {
	if err := x.Validate(); err != nil {
		return nil, err
	}
	var is *spdkrpc.Subsystem
	if found, ok := n.subsystems[x.NQN]; ok {
		is = &found
	}
	if err := s.noneLeft(x.NQN); err != nil {
		return shutOut(is, x, err), nil
	}
	bdevs := map[engine.ID]string{}
	busy := s.mayGive(x.NQN)
	for _, ns := range x.Namespaces {
		l, err := st.find(st.volumes, ns.Volume)
		if err == nil {
			err = s.serves(l.pool)
			busy = errors.Join(busy, s.unchanging(l))
		}
		if err != nil {
			return shutOut(is, x, fmt.Errorf("namespace %d: volume %w", ns.NSID, err)), nil
		}
		bdevs[ns.Volume] = l.bdev
	}
	c, err := diff(is, x, bdevs, n.open())
	if busy != nil && c != nil && (c.create != nil || len(c.addNamespaces) > 0 || len(c.listen) > 0) {
		return shutOut(is, x, busy), nil
	}
	return c, err
}

// shutOut the hosts that are no longer listed, where the rest cannot be as asked.
func shutOut(is *spdkrpc.Subsystem, want engine.Export, missing error) *change {
	c := &change{nqn: want.NQN, missing: missing}
	if is != nil {
		c.remove = is.AllowAnyHost
		c.removeHosts = unlisted(is.Hosts, want.Hosts)
	}
	return c
}

// open portals, in order.
func (n *network) open() []v1alpha1.Portal {
	return slices.SortedFunc(maps.Keys(n.portals), engine.ComparePortals)
}

// take away what must go before anything is given.
func (s *session) take(changes []*change, errs []error, speaks dialect) {
	b := s.batch(errs)
	for i, c := range changes {
		switch {
		case c == nil || errs[i] != nil || !c.takes():
			continue
		case c.remove:
			put(b, i, spdkrpc.NvmfDeleteSubsystem{NQN: c.nqn})
			continue
		case len(c.removeHosts) > 0:
			s.recordLeaving(c.nqn, c.removeHosts)
		}
		for _, host := range c.removeHosts {
			put(b, i, spdkrpc.NvmfSubsystemRemoveHost{NQN: c.nqn, Host: host.NQN})
		}
		for _, nsid := range c.removeNamespaces {
			put(b, i, spdkrpc.NvmfSubsystemRemoveNs{NQN: c.nqn, NSID: nsid})
		}
	}
	b.wait()
	if speaks.hostsLinger {
		s.awaitGone(changes, errs)
	}
	s.readmitThose(changes, errs)
}

// give what is missing: namespaces before the hosts that see them, listeners last. A host is admitted only when that
// export's namespaces are there: one that comes back and misses them would give up its block devices. And only when its
// keys are.
func (s *session) give(changes []*change, errs []error) {
	first, then := s.batch(errs), s.batch(errs)
	ends := make([]int, len(changes))
	for i, c := range changes {
		if c != nil && errs[i] == nil {
			if c.create != nil {
				put(first, i, *c.create)
			}
			for _, ns := range c.addNamespaces {
				put(first, i, spdkrpc.NvmfSubsystemAddNs{NQN: c.nqn, Namespace: ns})
			}
			if err := s.giveKeys(first, i, c); err != nil {
				errs[i] = err
			}
		}
		ends[i] = len(first.waits)
	}
	begin := 0
	for i, c := range changes {
		// The others' answers are under way meanwhile.
		for _, wait := range first.waits[begin:ends[i]] {
			wait()
		}
		begin = ends[i]
		if c == nil || errs[i] != nil {
			continue
		}
		for _, change := range c.setKeys {
			put(then, i, change)
		}
		for _, host := range c.addHosts {
			put(then, i, host)
		}
		for _, p := range c.listen {
			put(then, i, spdkrpc.NvmfSubsystemAddListener{NQN: c.nqn, Address: addressOf(p)})
		}
	}
	then.wait()
}

// dropFormerKeys of exports that are as asked.
func (s *session) dropFormerKeys(changes []*change, errs []error) {
	var nqns []string
	var keep []map[keyName]dhchap.Key
	var done []int
	for i, c := range changes {
		if c != nil && errs[i] == nil && c.missing == nil {
			nqns, keep, done = append(nqns, c.nqn), append(keep, c.keys), append(done, i)
		}
	}
	failed := make([]error, len(done))
	s.dropKeys(nqns, keep, failed)
	for at, i := range done {
		errs[i] = failed[at]
	}
}

// explainInUse says of each export whose namespaces were refused that another subsystem serves the volume, if one does:
// SPDK lets one subsystem claim a bdev, and only says that it could not open it.
func (s *session) explainInUse(changes []*change, errs []error) {
	var claimed map[string]string
	for i, c := range changes {
		if c == nil || errs[i] == nil {
			continue
		}
		for _, ns := range c.addNamespaces {
			if claimed == nil {
				n, err := s.finishNetwork(s.startSubsystems())
				if err != nil {
					return // the error that is there tells enough
				}
				claimed = n.exported()
			}
			if nqn := claimed[ns.Bdev]; nqn != "" && nqn != c.nqn {
				errs[i] = fmt.Errorf("%w: %s is served by %s: %w", engine.ErrInUse, ns.Bdev, nqn, errs[i])
			}
		}
	}
}

// Unexport implements engine.Engine.
func (e *Engine) Unexport(ctx context.Context, nqns []string) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(nqns), err)
	}
	n, err := s.finishNetwork(s.startSubsystems(nqns...))
	if err != nil {
		return failAll(len(nqns), err)
	}
	errs := make([]error, len(nqns))
	var remove []int
	for i, nqn := range nqns {
		errs[i] = engine.ValidateSubsystemNQN(nqn)
		if _, there := n.subsystems[nqn]; there && errs[i] == nil {
			remove = append(remove, i)
		}
	}
	if len(remove) > 0 {
		s.unexport(nqns, remove, errs)
	}
	s.dropKeys(nqns, make([]map[keyName]dhchap.Key, len(nqns)), errs)
	return errs
}

// unexport those that are there.
func (s *session) unexport(nqns []string, remove []int, errs []error) {
	call(s, remove, errs, func(i int) spdkrpc.Request[spdkrpc.Done] { return spdkrpc.NvmfDeleteSubsystem{NQN: nqns[i]} })
	after, err := s.finishNetwork(s.startSubsystems(nqns...))
	for _, i := range remove {
		if err != nil {
			errs[i] = err
			continue
		}
		_, there := after.subsystems[nqns[i]]
		switch {
		case !there:
			errs[i] = nil
		case errs[i] == nil:
			errs[i] = fmt.Errorf("%s still exists: %w", nqns[i], engine.ErrBusy)
		}
	}
}
