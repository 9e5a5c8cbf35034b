// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// network of some portals of a target; without one, a network of several nodes.
type network struct {
	target string
	prefix netip.Prefix
}

func (n network) String() string {
	if n.target == "" {
		return "network " + n.prefix.String()
	}
	return fmt.Sprintf("network %s of NvmfTarget %s", n.prefix, n.target)
}

// interfaces of nodes in a network, by node. A node that has none is absent: how it reaches the network is not known.
type interfaces map[string]v1alpha1.NIC

// networks of the portals that are planned, with the interfaces of all nodes there. One that no inventory shows, such
// as that of an address of its own, is absent. As long as none is planned, and nodes were probed, they are all networks
// that nodes share: targets are likely to be in one of them.
func (s *survey) networks() map[network]interfaces {
	all := s.planned()
	if len(all) == 0 && len(s.probed) > 0 {
		all = s.shared()
	}
	for at, nics := range all {
		for i := range s.all {
			name := s.all[i].Name
			if _, serves := nics[name]; serves {
				continue
			}
			if nic, _ := interfaceWith(s.inventory(name), func(a netip.Prefix) bool { return at.prefix.Contains(a.Addr()) }); nic != nil {
				nics[name] = *nic
			}
		}
	}
	maps.DeleteFunc(all, func(at network, nics interfaces) bool { return at.target == "" && len(nics) < 2 })
	return all
}

// shared networks, as far as they are known: those of all interfaces.
func (s *survey) shared() map[network]interfaces {
	all := map[network]interfaces{}
	for i := range s.all {
		// Every address is looked at, and none is taken.
		interfaceWith(s.inventory(s.all[i].Name), func(a netip.Prefix) bool {
			if !a.IsSingleIP() {
				all[network{prefix: a.Masked()}] = interfaces{}
			}
			return false
		})
	}
	return all
}

// planned portals' networks, with the interfaces of the nodes that serve there.
func (s *survey) planned() map[network]interfaces {
	all := map[network]interfaces{}
	for name, node := range s.nvmf {
		if node.Spec.Plan == nil {
			continue
		}
		for _, portal := range node.Spec.Plan.Portals {
			address, err := netip.ParseAddr(portal.Address)
			if err != nil { // the schema allows addresses only
				continue
			}
			nic, prefix := interfaceWith(s.inventory(name), func(a netip.Prefix) bool { return a.Addr() == address })
			if nic == nil || prefix.IsSingleIP() {
				continue
			}
			at := network{node.Spec.Target, prefix.Masked()}
			if all[at] == nil {
				all[at] = interfaces{}
			}
			all[at][name] = *nic
		}
	}
	return all
}

// interfaceWith an address that is wanted, and the address; nil: there is none whose link is up.
func interfaceWith(inventory *v1alpha1.Inventory, wanted func(netip.Prefix) bool) (*v1alpha1.NIC, netip.Prefix) {
	if inventory == nil {
		return nil, netip.Prefix{}
	}
	for i := range inventory.NICs {
		for _, address := range inventory.NICs[i].Addresses {
			if a, err := netip.ParsePrefix(address); err == nil && inventory.NICs[i].Up && wanted(a) {
				return &inventory.NICs[i], a
			}
		}
	}
	return nil, netip.Prefix{}
}

// sortedNetworks by target and address.
func sortedNetworks(of map[network]interfaces) []network {
	return slices.SortedFunc(maps.Keys(of), func(a, b network) int {
		return cmp.Or(cmp.Compare(a.target, b.target), a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
}

// mtus that differ in a network which carries I/O.
func (s *survey) mtus() []finding {
	var found []finding
	all := s.networks()
	for _, at := range sortedNetworks(all) {
		having, concerns := map[int32][]string{}, false
		for _, node := range slices.Sorted(maps.Keys(all[at])) {
			if nic := all[at][node]; nic.MTU > 0 {
				having[nic.MTU] = append(having[nic.MTU], fmt.Sprintf("%s (%s)", node, nic.Name))
				concerns = concerns || s.checks(node)
			}
		}
		if len(having) < 2 || !concerns {
			continue
		}
		var words []string
		for _, mtu := range slices.Backward(slices.Sorted(maps.Keys(having))) {
			words = append(words, fmt.Sprintf("%d on %s", mtu, text.Few(having[mtu], maxNamed, ", ")))
		}
		found = append(found, finding{says: fmt.Sprintf("the interfaces in %s have different MTUs: %s; set the same MTU on all of them and on the switches between them: "+
			"connections over TCP use the smaller one, and those over RDMA can fail", at, strings.Join(words, "; "))})
	}
	return found
}

// elsewhere are the nodes that reach a target's portals through other networks, so that nothing shows the MTU of the
// way.
func (s *survey) elsewhere() []string {
	targets, in := map[string][]string{}, map[string]map[string]bool{}
	all := s.networks()
	for _, at := range sortedNetworks(all) {
		if at.target == "" {
			continue
		}
		targets[at.target] = append(targets[at.target], at.prefix.String())
		if in[at.target] == nil {
			in[at.target] = map[string]bool{}
		}
		for node := range all[at] {
			in[at.target][node] = true
		}
	}
	var said []string
	for _, target := range slices.Sorted(maps.Keys(targets)) {
		var nodes []string
		for i := range s.nodes {
			if name := s.nodes[i].Name; !in[target][name] && s.inventory(name) != nil {
				nodes = append(nodes, name)
			}
		}
		if len(nodes) > 0 {
			said = append(said, fmt.Sprintf("%s: the MTU on the way to NvmfTarget %s, because none of the interfaces that agents report is in its networks (%s)",
				text.Few(nodes, maxNamed, ", "), target, text.Few(targets[target], maxNamed, ", ")))
		}
	}
	return said
}
