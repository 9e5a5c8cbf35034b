// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// anchorNQN is the subsystem whose listeners are the open portals. It admits nobody.
const anchorNQN = "nqn.2026-11.storage.weft.anchor:portals"

// network is what the target serves at one moment.
type network struct {
	subsystems map[string]spdkrpc.Subsystem
	// portals that are open, by address.
	portals    map[v1alpha1.Portal]engine.Portal
	transports map[v1alpha1.TransportType]spdkrpc.Transport
}

// networkReading has begun. Without transports nothing is known of the portals but where they are.
type networkReading struct {
	listed     []spdkrpc.Subsystem
	err        error
	subsystems *spdkrpc.Pending[[]spdkrpc.Subsystem]
	transports *spdkrpc.Pending[[]spdkrpc.Transport]
}

func (s *session) startNetwork() networkReading {
	r := s.startSubsystems()
	r.transports = spdkrpc.Start(s.ctx, s.conn, spdkrpc.NvmfGetTransports{})
	return r
}

// startSubsystems reads only who exports what: of these subsystems, or of all when none or too many are named. SPDK
// logs an error for each that is not there.
func (s *session) startSubsystems(nqns ...string) networkReading {
	var r networkReading
	if len(nqns) == 0 || !s.worthNaming(len(nqns)) {
		r.subsystems = spdkrpc.Start(s.ctx, s.conn, spdkrpc.NvmfGetSubsystems{})
		return r
	}
	r.listed, r.err = s.subsystemsNamed(nqns)
	return r
}

func (s *session) readNetwork() (*network, error) { return s.finishNetwork(s.startNetwork()) }

// finish what is read of the pools and of what is served, side by side on one connection.
func (s *session) finish(pools storeReading, serving networkReading) (*store, *network, error) {
	st, err := s.finishStore(pools)
	if err != nil {
		return nil, nil, err
	}
	n, err := s.finishNetwork(serving)
	return st, n, err
}

func (s *session) finishNetwork(r networkReading) (*network, error) {
	n := &network{
		subsystems: map[string]spdkrpc.Subsystem{},
		portals:    map[v1alpha1.Portal]engine.Portal{},
		transports: map[v1alpha1.TransportType]spdkrpc.Transport{},
	}
	subsystems, err := r.listed, r.err
	if r.subsystems != nil {
		subsystems, err = r.subsystems.Wait()
	}
	switch {
	case errors.Is(err, spdkrpc.ErrWrongState):
		return n, nil
	case err != nil:
		return nil, mapError(err)
	}
	for _, sub := range subsystems {
		n.subsystems[sub.NQN] = sub
	}
	if r.transports != nil {
		transports, err := r.transports.Wait()
		if err != nil {
			return nil, mapError(err)
		}
		for _, t := range transports {
			n.transports[v1alpha1.TransportType(t.Type)] = t
		}
	}
	for _, l := range n.subsystems[anchorNQN].Listeners {
		p, err := portalOf(l)
		if err != nil {
			return nil, err
		}
		t := n.transports[p.Transport]
		n.portals[p] = engine.Portal{Portal: p, QueueDepth: int(t.MaxQueueDepth), InCapsuleDataBytes: int(t.InCapsuleDataBytes)}
	}
	return n, nil
}

// weft's exports, in order.
func (n *network) weft() []string {
	var nqns []string
	for nqn := range n.subsystems {
		if strings.HasPrefix(nqn, v1alpha1.NQNPrefix) {
			nqns = append(nqns, nqn)
		}
	}
	slices.Sort(nqns)
	return nqns
}

// byBdev gives volumes by SPDK's name of their bdev.
func (st *store) byBdev() map[string]engine.ID {
	volumes := make(map[string]engine.ID, len(st.volumes))
	for id, lvols := range st.volumes {
		for _, l := range lvols {
			volumes[l.bdev] = id
		}
	}
	return volumes
}

// export as it is served.
func (n *network) export(nqn string, volumes map[string]engine.ID) engine.Export {
	sub := n.subsystems[nqn]
	x := engine.Export{NQN: nqn, Serial: sub.Serial, Model: sub.Model}
	for _, ns := range sub.Namespaces {
		id, ok := volumes[ns.Bdev]
		if !ok {
			id = engine.ID(strings.ToLower(ns.UUID))
		}
		x.Namespaces = append(x.Namespaces, engine.Namespace{NSID: ns.NSID, Volume: id})
	}
	for _, h := range sub.Hosts {
		x.Hosts = append(x.Hosts, h.NQN)
		if a := authenticationOf(nqn, h); a != nil {
			if x.Authentication == nil {
				x.Authentication = map[string]engine.Authentication{}
			}
			x.Authentication[h.NQN] = *a
		}
	}
	slices.Sort(x.Hosts)
	if len(x.Hosts) == 0 {
		return x
	}
	for _, l := range sub.Listeners {
		if p, err := portalOf(l); err == nil {
			if _, open := n.portals[p]; open {
				x.Portals = append(x.Portals, p)
			}
		}
	}
	slices.SortFunc(x.Portals, engine.ComparePortals)
	return x
}

// exported volumes, by SPDK's name of their bdev, and the subsystem of each.
func (n *network) exported() map[string]string {
	found := map[string]string{}
	for nqn, sub := range n.subsystems {
		for _, ns := range sub.Namespaces {
			found[ns.Bdev] = nqn
		}
	}
	return found
}

func listensOn(sub spdkrpc.Subsystem, portal v1alpha1.Portal) bool {
	return slices.ContainsFunc(sub.Listeners, func(a spdkrpc.Address) bool {
		p, err := portalOf(a)
		return err == nil && p == portal
	})
}

// addressOf a portal, as SPDK takes it.
func addressOf(p v1alpha1.Portal) spdkrpc.Address {
	a := spdkrpc.Address{Transport: string(p.Transport), Family: spdkrpc.FamilyIPv4, Address: p.Address, Port: strconv.Itoa(int(p.Port))}
	if addr, err := netip.ParseAddr(p.Address); err == nil && addr.Is6() {
		a.Family = spdkrpc.FamilyIPv6
	}
	return a
}

func portalOf(a spdkrpc.Address) (v1alpha1.Portal, error) {
	port, err := strconv.ParseInt(a.Port, 10, 32)
	if err != nil {
		return v1alpha1.Portal{}, fmt.Errorf("SPDK listens on port %q: %w", a.Port, err)
	}
	return v1alpha1.Portal{Transport: v1alpha1.TransportType(a.Transport), Address: a.Address, Port: int32(port)}, nil
}
