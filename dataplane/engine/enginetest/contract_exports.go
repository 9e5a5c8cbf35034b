// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"slices"
	"strings"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

func exportCases() map[string]func(*suite) {
	return map[string]func(*suite){
		"an export is as given, and reached through the open portals once it admits a host": func(s *suite) {
			d := s.openPool()
			x := exportOf(s.create(d.ID, 4*mib))
			portals := s.openPortals()
			var all []v1alpha1.Portal
			for _, p := range portals {
				all = append(all, p.Portal)
			}
			slices.SortFunc(all, engine.ComparePortals)
			for range 2 {
				s.Expect(s.one(s.fresh().Export(s.ctx, []engine.Export{x}))).To(Succeed())
				s.Expect(s.export(x.NQN)).To(HaveValue(Equal(s.served(x))), "nobody may connect: no portals")
			}

			x.Hosts = []string{newHost(), newHost()}
			slices.Sort(x.Hosts)
			want := x
			want.Portals = all
			for range 2 {
				s.Expect(s.one(s.fresh().Export(s.ctx, []engine.Export{x}))).To(Succeed())
				s.Expect(s.export(x.NQN)).To(HaveValue(Equal(s.served(want))))
			}

			x.Hosts = nil
			s.Expect(s.one(s.fresh().Export(s.ctx, []engine.Export{x}))).To(Succeed())
			s.Expect(s.export(x.NQN)).To(HaveValue(Equal(s.served(x))))
		},
		"what differs is changed": func(s *suite) {
			d := s.openPool()
			first, second := s.create(d.ID, 4*mib), s.create(d.ID, 4*mib)
			x := exportOf(first)
			s.exportAs(x)
			x.Namespaces = append(x.Namespaces, engine.Namespace{NSID: 7, Volume: second})
			x.MaxIOQueues = 4
			x.Serial, x.Model = "other", "other model"
			s.Expect(s.one(s.fresh().Export(s.ctx, []engine.Export{x}))).To(Succeed())
			s.Expect(s.export(x.NQN)).To(HaveValue(Equal(s.served(x))))

			x.Namespaces = []engine.Namespace{{NSID: 1, Volume: second}}
			s.Expect(s.one(s.fresh().Export(s.ctx, []engine.Export{x}))).To(Succeed())
			s.Expect(s.export(x.NQN)).To(HaveValue(Equal(s.served(x))))
			s.done(s.engine.DeleteVolumes(s.ctx, []engine.ID{first}))
		},
		"what hosts know it by does not change under them": func(s *suite) {
			d := s.openPool()
			x := exportOf(s.create(d.ID, 4*mib), newHost())
			s.exportAs(x)
			changed := x
			changed.Serial = "another"
			s.Expect(s.one(s.engine.Export(s.ctx, []engine.Export{changed}))).To(MatchError(engine.ErrRestartNeeded))
			s.Expect(s.export(x.NQN)).To(HaveField("Serial", x.Serial))
		},
		"a volume is served by one subsystem at a time": func(s *suite) {
			d := s.openPool()
			x := exportOf(s.create(d.ID, 4*mib), newHost())
			s.exportAs(x)
			other := exportOf(x.Namespaces[0].Volume, newHost())
			other.NQN += "-other"
			for range 2 {
				s.Expect(s.one(s.engine.Export(s.ctx, []engine.Export{other}))).To(MatchError(engine.ErrInUse))
				s.Expect(s.export(x.NQN)).To(HaveField("Hosts", x.Hosts))
			}
			s.done(s.engine.Unexport(s.ctx, []string{x.NQN}))
			s.done(s.engine.Export(s.ctx, []engine.Export{other}))
			s.Expect(s.export(other.NQN)).To(HaveField("Hosts", other.Hosts))
		},
		"one bad export does not stop the others": func(s *suite) {
			d := s.openPool()
			good, last := exportOf(s.create(d.ID, 4*mib)), exportOf(s.create(d.ID, 4*mib), newHost())
			bad := func(change func(*engine.Export)) engine.Export {
				x := exportOf(good.Namespaces[0].Volume)
				x.NQN += "-bad"
				change(&x)
				return x
			}
			exports := []engine.Export{
				good,
				bad(func(x *engine.Export) { x.Namespaces[0].Volume = newID() }),
				bad(func(x *engine.Export) { x.NQN = "nqn.2014-08.org.nvmexpress.discovery" }),
				bad(func(x *engine.Export) { x.NQN = v1alpha1.NQNPrefix + "a/../b" }),
				bad(func(x *engine.Export) { x.NQN = v1alpha1.NQNPrefix + strings.Repeat("x", 300) }),
				bad(func(x *engine.Export) { x.Serial = strings.Repeat("s", 21) }),
				bad(func(x *engine.Export) { x.Model = strings.Repeat("m", 41) }),
				bad(func(x *engine.Export) { x.MaxIOQueues = 0 }),
				bad(func(x *engine.Export) { x.Namespaces[0].NSID = 0 }),
				bad(func(x *engine.Export) { x.Hosts = []string{"*"} }),
				bad(func(x *engine.Export) { x.Hosts = []string{last.Hosts[0], last.Hosts[0]} }),
				last,
			}
			errs := s.engine.Export(s.ctx, exports)
			s.Expect(errs).To(HaveLen(len(exports)))
			for i, err := range errs {
				switch i {
				case 0, len(exports) - 1:
					s.Expect(err).NotTo(HaveOccurred(), "item %d", i)
				case 1:
					s.Expect(err).To(MatchError(engine.ErrNotFound))
				default:
					s.Expect(err).To(MatchError(engine.ErrInvalid), "item %d", i)
				}
			}
			s.Expect(s.state().Exports).To(ConsistOf(HaveField("NQN", good.NQN), HaveField("NQN", last.NQN)))
		},
		"a host is shut out of what cannot be read, too, and nobody is let in": func(s *suite) {
			d := s.openPool()
			leaves, stays, comes := newHost(), newHost(), newHost()
			x := exportOf(s.create(d.ID, 4*mib), leaves, stays)
			s.exportAs(x)
			s.Lose(s.t, d)
			s.Expect(s.pool(d.ID).Err).To(HaveOccurred())
			x.Hosts = []string{stays, comes}
			for range 2 {
				err := s.one(s.fresh().Export(s.ctx, []engine.Export{x}))
				s.Expect(err).To(MatchError(engine.ErrUnavailable), "the volume is unknown, not gone")
				s.Expect(s.state().Exports).NotTo(ContainElement(HaveField("Hosts", Or(ContainElement(leaves), ContainElement(comes)))))
			}

			s.Restart(s.t)
			s.done(s.fresh().OpenPools(s.ctx, []engine.Device{d}))
			s.done(s.fresh().Export(s.ctx, []engine.Export{x}))
			s.Expect(s.export(x.NQN).Hosts).To(ConsistOf(stays, comes))
		},
		"unexporting is idempotent, and touches only weft's": func(s *suite) {
			d := s.openPool()
			x, other := exportOf(s.create(d.ID, 4*mib), newHost()), exportOf(s.create(d.ID, 4*mib))
			s.done(s.engine.Export(s.ctx, []engine.Export{x, other}))
			for range 2 {
				errs := s.fresh().Unexport(s.ctx, []string{"nqn.2014-08.org.nvmexpress:not-ours", x.NQN, v1alpha1.NQNPrefix + "never-there"})
				s.Expect(errs).To(HaveLen(3))
				s.Expect(errs[0]).To(MatchError(engine.ErrInvalid))
				s.Expect(errs[1]).NotTo(HaveOccurred())
				s.Expect(errs[2]).NotTo(HaveOccurred())
				s.Expect(s.state().Exports).To(ConsistOf(HaveField("NQN", other.NQN)))
			}
		},
	}
}

func portalCases() map[string]func(*suite) {
	return map[string]func(*suite){
		"a portal is as given": func(s *suite) {
			portals := s.Portals(s.t)
			slices.SortFunc(portals, func(a, b engine.Portal) int { return engine.ComparePortals(a.Portal, b.Portal) })
			for range 2 {
				s.done(s.fresh().OpenPortals(s.ctx, portals))
				s.Expect(s.state().Portals).To(Equal(portals))
			}
		},
		"other settings need a restart, and change nothing": func(s *suite) {
			portals := s.openPortals()
			for _, p := range portals {
				deeper, wider := p, p
				deeper.QueueDepth *= 2
				wider.InCapsuleDataBytes *= 2
				for _, changed := range []engine.Portal{deeper, wider} {
					s.Expect(s.one(s.engine.OpenPortals(s.ctx, []engine.Portal{changed}))).To(MatchError(engine.ErrRestartNeeded))
				}
				s.Expect(s.state().Portals).To(ContainElement(p))

				s.done(s.engine.ClosePortals(s.ctx, []v1alpha1.Portal{p.Portal}))
				err := s.one(s.engine.OpenPortals(s.ctx, []engine.Portal{deeper}))
				if s.Traits().FixedTransports {
					s.Expect(err).To(MatchError(engine.ErrRestartNeeded))
					s.Expect(s.state().Portals).NotTo(ContainElement(HaveField("Portal", p.Portal)))
					continue
				}
				s.Expect(err).NotTo(HaveOccurred())
				s.Expect(s.state().Portals).To(ContainElement(deeper))
			}
		},
		"closing is idempotent, and ends what exports say of it": func(s *suite) {
			d := s.openPool()
			x := exportOf(s.create(d.ID, 4*mib), newHost())
			portals := s.openPortals()
			s.exportAs(x)
			s.Expect(s.export(x.NQN).Portals).To(HaveLen(len(portals)))
			for range 2 {
				s.done(s.fresh().ClosePortals(s.ctx, []v1alpha1.Portal{portals[0].Portal}))
			}
			s.Expect(s.state().Portals).To(HaveLen(len(portals) - 1))
			s.Expect(s.export(x.NQN).Portals).NotTo(ContainElement(portals[0].Portal))
			s.Expect(s.export(x.NQN).Hosts).To(Equal(x.Hosts))
		},
		"one bad portal does not stop the others": func(s *suite) {
			good := s.Portals(s.t)[0]
			bad := func(change func(*engine.Portal)) engine.Portal {
				p := good
				p.Port++
				change(&p)
				return p
			}
			errs := s.engine.OpenPortals(s.ctx, []engine.Portal{
				bad(func(p *engine.Portal) { p.Address = "0.0.0.0" }),
				bad(func(p *engine.Portal) { p.Address = "storage-1" }),
				bad(func(p *engine.Portal) { p.Port = 0 }),
				bad(func(p *engine.Portal) { p.Transport = "FC" }),
				bad(func(p *engine.Portal) { p.QueueDepth = 8 }),
				bad(func(p *engine.Portal) { p.InCapsuleDataBytes = 1 << 20 }),
				good,
			})
			s.Expect(errs).To(HaveLen(7))
			for _, err := range errs[:6] {
				s.Expect(err).To(MatchError(engine.ErrInvalid))
			}
			s.Expect(errs[6]).NotTo(HaveOccurred())
			s.Expect(s.state().Portals).To(ConsistOf(good))
			info, err := s.engine.Info(s.ctx)
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(info.Version).NotTo(BeEmpty())
			s.Expect(info.Transports).To(ContainElement(good.Transport))
		},
	}
}
