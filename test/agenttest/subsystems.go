// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"net"
	"slices"
	"strconv"

	"github.com/weft-storage/weft/csi-driver/node/nodetest"
	"github.com/weft-storage/weft/dataplane/engine"
)

// Subsystems that a target serves, as nodetest's kernel can be given them.
func Subsystems(state engine.State) []nodetest.Subsystem {
	var all []nodetest.Subsystem
	for _, x := range state.Exports {
		s := nodetest.Subsystem{NQN: x.NQN, Hosts: x.Hosts}
		for _, p := range x.Portals {
			s.Portals = append(s.Portals, net.JoinHostPort(p.Address, strconv.Itoa(int(p.Port))))
		}
		for _, ns := range x.Namespaces {
			i := slices.IndexFunc(state.Volumes, func(v engine.Volume) bool { return v.ID == ns.Volume })
			if i < 0 {
				continue
			}
			s.Namespaces = append(s.Namespaces, nodetest.Namespace{NGUID: ns.Volume.NGUID(), SizeBytes: state.Volumes[i].SizeBytes})
		}
		all = append(all, s)
	}
	return all
}
