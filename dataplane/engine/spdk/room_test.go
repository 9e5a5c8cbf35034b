// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// Each namespace that a subsystem has room for costs memory in each poll group, used or not.
func TestSubsystemsHaveRoomForOneNamespace(t *testing.T) {
	r := newRig(t)
	x := r.exportOf(r.create(engine.Source{}, 4*mib))
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))

	all, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.NvmfGetSubsystems{})
	check(t, err)
	ours := 0
	for _, s := range all {
		if s.Subtype == spdkrpc.SubtypeNVMe {
			ours++
			r.Expect(s.MaxNamespaces).To(BeEquivalentTo(1), s.NQN)
		}
	}
	r.Expect(ours).To(Equal(2), "the export's, and that of the portals")
	r.Expect(r.state().Exports[0].Namespaces).To(Equal(x.Namespaces))

	lvstores, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolGetLvstores{})
	check(t, err)
	other := spdkrpc.Namespace{NSID: 2, Bdev: lvstores[0].Name + "/" + string(r.create(engine.Source{}, 4*mib))}
	_, err = spdkrpc.Call(r.ctx, r.client, spdkrpc.NvmfSubsystemAddNs{NQN: x.NQN, Namespace: other})
	r.Expect(err).To(MatchError(ContainSubstring("Invalid parameters")))
}

// An agent from before made subsystems with room for 32: hosts that know them keep them.
func TestSubsystemsOfAnEarlierAgentStay(t *testing.T) {
	r := newRig(t)
	id := r.create(engine.Source{}, 4*mib)
	x := r.exportOf(id)
	for _, err := range []error{
		second(spdkrpc.Call(r.ctx, r.client, spdkrpc.NvmfCreateSubsystem{NQN: x.NQN, Serial: x.Serial, Model: x.Model, MaxNamespaces: 32, ANAReporting: true})),
		second(spdkrpc.Call(r.ctx, r.client, spdkrpc.NvmfSubsystemAddHost{NQN: x.NQN, Host: x.Hosts[0]})),
	} {
		check(t, err)
	}
	for range 2 {
		r.done(r.engine.Export(r.ctx, []engine.Export{x}))
		s, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.NvmfGetSubsystems{NQN: x.NQN})
		check(t, err)
		r.Expect(s[0].MaxNamespaces).To(BeEquivalentTo(32))
		r.Expect(r.state().Exports[0].Namespaces).To(Equal(x.Namespaces))
	}
}

// A target serves as many exports as its plan has subsystems, and refuses the next.
func TestAsManyExportsAsSubsystems(t *testing.T) {
	m := newMachine(t)
	m.plan.SPDK.MaxSubsystems = 3
	r := rigOf(t, m)
	for range m.plan.SPDK.MaxSubsystems {
		r.done(r.engine.Export(r.ctx, []engine.Export{r.exportOf(r.create(engine.Source{}, 4*mib))}))
	}
	r.Expect(r.state().Exports).To(HaveLen(3))
	one := r.exportOf(r.create(engine.Source{}, 4*mib))
	r.Expect(r.engine.Export(r.ctx, []engine.Export{one})[0]).To(HaveOccurred())
	r.Expect(r.state().Exports).To(HaveLen(3))
}

func second[T any](_ T, err error) error { return err }
