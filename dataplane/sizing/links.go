// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// links are the network interfaces that a target's portals are on.
type links struct {
	numa      map[int32]bool  // NUMA nodes of their devices
	tcpQueues map[int32]int64 // receive queues of those that TCP uses, by NUMA node
	mbps      map[v1alpha1.TransportType]int64
	byName    map[string]link
}

type link struct {
	mbps      int64
	tcp, rdma bool
}

// linksOf finds the interface of each portal. One whose interface is not known, or does not say
// its speed, counts for nothing.
func linksOf(inv *v1alpha1.Inventory, portals []v1alpha1.PlannedPortal) links {
	l := links{numa: map[int32]bool{}, tcpQueues: map[int32]int64{}, mbps: map[v1alpha1.TransportType]int64{}, byName: map[string]link{}}
	all := nicAddresses(inv)
	for _, p := range portals {
		addr, err := netip.ParseAddr(p.Address)
		if err != nil {
			continue
		}
		i := slices.IndexFunc(all, func(c candidate) bool { return c.addr == addr })
		if i < 0 {
			continue
		}
		physical := lowest(inv, all[i].nic)
		speed := speedOf(all[i].nic, physical)
		name := all[i].nic.Name
		if len(physical) == 1 {
			name = physical[0].Name // a VLAN shares its interface's link
		}
		known := l.byName[name]
		isTCP := p.Transport == v1alpha1.TransportTCP
		if isTCP && !known.tcp || !isTCP && !known.rdma {
			l.mbps[p.Transport] += speed
		}
		for _, nic := range physical {
			if nic.NUMANode == nil {
				continue
			}
			l.numa[*nic.NUMANode] = true
			if isTCP && !known.tcp && nic.RxQueues > 0 {
				l.tcpQueues[*nic.NUMANode] = max(l.tcpQueues[*nic.NUMANode], int64(nic.RxQueues))
			}
		}
		l.byName[name] = link{mbps: speed, tcp: known.tcp || isTCP, rdma: known.rdma || !isTCP}
	}
	return l
}

// LinkMbps of the interfaces that portals are on, each counted once, in megabits a second; 0 when none reports its
// speed.
func LinkMbps(inv *v1alpha1.Inventory, portals []v1alpha1.PlannedPortal) int64 {
	var sum int64
	for _, k := range linksOf(inv, portals).byName {
		sum += k.mbps
	}
	return sum
}

// lowest are the interfaces with a device that an interface runs over; itself when it has none below.
func lowest(inv *v1alpha1.Inventory, nic *v1alpha1.NIC) []*v1alpha1.NIC {
	seen := map[string]bool{}
	var found []*v1alpha1.NIC
	for next := []*v1alpha1.NIC{nic}; len(next) > 0; next = next[1:] {
		n := next[0]
		if seen[n.Name] {
			continue
		}
		seen[n.Name] = true
		below := 0
		for i := range inv.NICs {
			if slices.Contains(n.Lower, inv.NICs[i].Name) {
				below++
				next = append(next, &inv.NICs[i])
			}
		}
		if below == 0 {
			found = append(found, n)
		}
	}
	return found
}

// speedOf is an interface's own speed, else the sum of those below; 0 when unknown.
func speedOf(nic *v1alpha1.NIC, physical []*v1alpha1.NIC) int64 {
	// Bounded, so that no arithmetic on it can overflow: the fastest Ethernet is 1.6 Tb/s.
	const fastest = 10_000_000
	if nic.SpeedMbps > 0 {
		return min(nic.SpeedMbps, fastest)
	}
	var sum int64
	for _, n := range physical {
		sum += min(max(n.SpeedMbps, 0), fastest)
	}
	return min(sum, fastest)
}

// coresNeeded to keep the links busy; 0 when no speed is known.
func (l links) coresNeeded() int {
	// In units of the smallest common denominator: 1 / rdmaMbpsPerCore of a core.
	var sum int64
	for _, k := range l.byName {
		if k.tcp {
			sum += k.mbps * (rdmaMbpsPerCore / tcpMbpsPerCore)
		} else {
			sum += k.mbps
		}
	}
	return int(ceilDiv(sum, rdmaMbpsPerCore))
}

// speeds writes the links as "ens1f0 100 Gb/s, ens2f0 100 Gb/s".
func (l links) speeds() string {
	var s []string
	for name, k := range l.byName {
		if k.mbps > 0 {
			s = append(s, fmt.Sprintf("%s %g Gb/s", name, float64(k.mbps)/1000))
		}
	}
	slices.Sort(s)
	return strings.Join(s, ", ")
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

func roundUp(a, unit int64) int64 { return ceilDiv(a, unit) * unit }
