// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Limits of the kernel's RDMA target (drivers/nvme/target/rdma.c and
// include/linux/nvme-rdma.h): it cuts larger values down by itself, so the plan
// says what holds.
const (
	nvmetRDMAMaxInCapsule  = 16 << 10 // NVMET_RDMA_MAX_INLINE_DATA_SIZE
	nvmetRDMAMaxQueueDepth = 256      // NVME_RDMA_MAX_QUEUE_SIZE
)

// planPortals resolves each transport to an address of the node.
func planPortals(node Node, engine v1alpha1.Engine, transports []v1alpha1.Transport) ([]v1alpha1.PlannedPortal, []Reason) {
	if len(transports) == 0 {
		return nil, []Reason{reasonf(v1alpha1.ReasonNoAddress, "the target has no transports; add at least one of type TCP or RDMA")}
	}
	var portals []v1alpha1.PlannedPortal
	var reasons []Reason
	firstUse := map[v1alpha1.Portal]int{}
	for i, t := range transports {
		portal, why := planPortal(node, engine, i, t)
		if why != nil {
			reasons = append(reasons, *why)
			continue
		}
		if j, used := firstUse[portal.Portal]; used {
			reasons = append(reasons, reasonf(v1alpha1.ReasonPortalFailed,
				"transports[%d] and transports[%d] both use %s %s on this node; use different ports, or networks in which the node has different addresses",
				j, i, t.Type, netAddr(portal.Portal)))
			continue
		}
		firstUse[portal.Portal] = i
		portals = append(portals, portal)
	}
	return portals, reasons
}

func planPortal(node Node, engine v1alpha1.Engine, index int, t v1alpha1.Transport) (v1alpha1.PlannedPortal, *Reason) {
	candidates, why := addresses(node, index, t.Network)
	if why != nil {
		return v1alpha1.PlannedPortal{}, why
	}
	port := cmp.Or(t.Port, v1alpha1.DefaultPort)
	switch t.Type {
	case v1alpha1.TransportTCP:
	case v1alpha1.TransportRDMA:
		if candidates, why = overRDMA(node.Inventory, index, candidates); why != nil {
			return v1alpha1.PlannedPortal{}, why
		}
	default:
		return v1alpha1.PlannedPortal{}, new(reasonf(v1alpha1.ReasonPortalFailed,
			"transports[%d] has the unknown type %q; use TCP or RDMA", index, t.Type))
	}

	p := v1alpha1.PlannedPortal{
		Portal:            v1alpha1.Portal{Transport: t.Type, Address: choose(node.Current, t.Type, port, candidates).addr.String(), Port: port},
		MaxIOQueues:       cmp.Or(t.MaxIOQueues, v1alpha1.DefaultMaxIOQueues),
		QueueDepth:        cmp.Or(t.QueueDepth, v1alpha1.DefaultQueueDepth),
		InCapsuleDataSize: v1alpha1.DefaultInCapsuleDataSize,
	}
	if t.InCapsuleDataSize != nil {
		p.InCapsuleDataSize = t.InCapsuleDataSize.Value()
	}
	switch {
	case t.Type == v1alpha1.TransportRDMA && engine == v1alpha1.EngineNvmet:
		p.InCapsuleDataSize = min(p.InCapsuleDataSize, nvmetRDMAMaxInCapsule)
		p.QueueDepth = min(p.QueueDepth, nvmetRDMAMaxQueueDepth)
	case t.Type == v1alpha1.TransportRDMA && engine == v1alpha1.EngineSPDK:
		p.InCapsuleDataSize = max(p.InCapsuleDataSize, minRDMAInCapsule)
	}
	return p, nil
}

// A candidate is an address that a transport may listen on. nic is nil when the
// address is on no interface of the inventory: a bridge, say.
type candidate struct {
	addr netip.Addr
	nic  *v1alpha1.NIC
}

// addresses lists the node's addresses that the network allows, best first.
func addresses(node Node, index int, network *v1alpha1.Network) ([]candidate, *Reason) {
	switch {
	case network == nil:
		return internalAddresses(node, index)
	case network.CIDR != "":
		return addressesIn(node.Inventory, index, network.CIDR)
	default:
		return addressesOf(node.Inventory, index, network.Interface)
	}
}

func internalAddresses(node Node, index int) ([]candidate, *Reason) {
	onNIC := nicAddresses(node.Inventory)
	var found []candidate
	for _, ip := range node.InternalIPs {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			continue // the kubelet writes addresses; what is none cannot be listened on
		}
		c := candidate{addr: addr.Unmap()}
		if i := slices.IndexFunc(onNIC, func(n candidate) bool { return n.addr == c.addr }); i >= 0 {
			c.nic = onNIC[i].nic
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return nil, new(reasonf(v1alpha1.ReasonNoAddress,
			"Node %s has no InternalIP for transports[%d]; set --node-ip of the kubelet, or choose a network with transports[%d].network", node.Name, index, index))
	}
	return found, nil
}

func addressesIn(inv *v1alpha1.Inventory, index int, cidr string) ([]candidate, *Reason) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return nil, new(reasonf(v1alpha1.ReasonNoAddress,
			"transports[%d].network.cidr %q is not a network; use a network such as 10.20.0.0/16", index, cidr))
	}
	all := nicAddresses(inv)
	found := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return !prefix.Contains(c.addr) })
	if len(found) == 0 {
		return nil, new(reasonf(v1alpha1.ReasonNoAddress,
			"no interface of the node has an address in %s (transports[%d].network.cidr), only %s; add an address to an interface, or change the network",
			cidr, index, describe(all)))
	}
	return found, nil
}

func addressesOf(inv *v1alpha1.Inventory, index int, name string) ([]candidate, *Reason) {
	var names []string
	for i := range inv.NICs {
		names = append(names, inv.NICs[i].Name)
	}
	slices.Sort(names)
	if !slices.Contains(names, name) {
		return nil, new(reasonf(v1alpha1.ReasonNoAddress,
			"the node has no interface %q (transports[%d].network.interface), only %s; use one of them, or use network.cidr if names differ between nodes",
			name, index, list(names)))
	}
	found := slices.DeleteFunc(nicAddresses(inv), func(c candidate) bool { return c.nic.Name != name })
	if len(found) == 0 {
		return nil, new(reasonf(v1alpha1.ReasonNoAddress,
			"interface %s (transports[%d].network.interface) has no global address; add one", name, index))
	}
	return found, nil
}

// overRDMA keeps the addresses through which an active RDMA device is reached.
func overRDMA(inv *v1alpha1.Inventory, index int, candidates []candidate) ([]candidate, *Reason) {
	const load = "check its cable and driver, or load a driver for it (for a software device: rdma link add rxe0 type rxe netdev <interface>)"
	var active []candidate
	var problems []string
	for _, c := range candidates {
		if c.nic == nil {
			problems = append(problems, fmt.Sprintf("%s is on no physical interface", c.addr))
			continue
		}
		devices := rdmaDevicesOf(inv, c.nic)
		switch {
		case slices.ContainsFunc(devices, func(d v1alpha1.RDMADevice) bool { return d.Active }):
			active = append(active, c)
		case len(devices) > 0:
			problems = append(problems, fmt.Sprintf("RDMA device %s of %s (%s) is not active", devices[0].Name, c.nic.Name, c.addr))
		default:
			problems = append(problems, fmt.Sprintf("%s (%s) has no RDMA device", c.nic.Name, c.addr))
		}
	}
	if len(active) > 0 {
		return active, nil
	}
	var have []string
	for _, d := range inv.RDMADevices {
		have = append(have, fmt.Sprintf("%s on %s", d.Name, cmp.Or(d.Netdev, "no interface")))
	}
	slices.Sort(have)
	return nil, new(reasonf(v1alpha1.ReasonNoRDMADevice,
		"transports[%d] is RDMA, but %s; the node's RDMA devices: %s; %s, or choose another network with transports[%d].network",
		index, strings.Join(problems, ", and "), list(have), load, index))
}

// rdmaDevicesOf lists the RDMA devices that share a port with the interface
// itself, or with one that it runs over: an address on a VLAN or bond is
// in the GID table of the device below.
func rdmaDevicesOf(inv *v1alpha1.Inventory, nic *v1alpha1.NIC) []v1alpha1.RDMADevice {
	below := map[string]bool{}
	for next := []string{nic.Name}; len(next) > 0; next = next[1:] {
		if below[next[0]] {
			continue
		}
		below[next[0]] = true
		for i := range inv.NICs {
			if inv.NICs[i].Name == next[0] {
				next = append(next, inv.NICs[i].Lower...)
			}
		}
	}
	devices := slices.DeleteFunc(slices.Clone(inv.RDMADevices), func(d v1alpha1.RDMADevice) bool { return !below[d.Netdev] })
	slices.SortFunc(devices, func(a, b v1alpha1.RDMADevice) int { return cmp.Compare(a.Name, b.Name) })
	return devices
}

// choose takes the address that the current plan has for the same transport and
// port while it still is a candidate: moving a portal cuts every connection to
// it. Otherwise it takes the first on an interface that is up.
func choose(current *v1alpha1.Plan, t v1alpha1.TransportType, port int32, candidates []candidate) candidate {
	if current != nil {
		for _, c := range candidates {
			if slices.ContainsFunc(current.Portals, func(p v1alpha1.PlannedPortal) bool {
				return p.Portal == v1alpha1.Portal{Transport: t, Address: c.addr.String(), Port: port}
			}) {
				return c
			}
		}
	}
	for _, c := range candidates {
		if c.nic == nil || c.nic.Up {
			return c
		}
	}
	return candidates[0]
}

// nicAddresses lists all addresses of all interfaces, by the interface's name,
// then in the interface's own order.
func nicAddresses(inv *v1alpha1.Inventory) []candidate {
	nics := slices.Clone(inv.NICs)
	slices.SortStableFunc(nics, func(a, b v1alpha1.NIC) int { return cmp.Compare(a.Name, b.Name) })
	var found []candidate
	for i := range nics {
		for _, a := range nics[i].Addresses {
			prefix, err := netip.ParsePrefix(a)
			if err != nil {
				continue // not an address: nothing could listen on it
			}
			found = append(found, candidate{addr: prefix.Addr().Unmap(), nic: &nics[i]})
		}
	}
	return found
}

func describe(candidates []candidate) string {
	var s []string
	for _, c := range candidates {
		s = append(s, fmt.Sprintf("%s on %s", c.addr, c.nic.Name))
	}
	return list(s)
}

func netAddr(p v1alpha1.Portal) string {
	addr, err := netip.ParseAddr(p.Address)
	if err != nil {
		return fmt.Sprintf("%s port %d", p.Address, p.Port)
	}
	return netip.AddrPortFrom(addr, uint16(p.Port)).String()
}
