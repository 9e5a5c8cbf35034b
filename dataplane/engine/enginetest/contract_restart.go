// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/dataplane/engine"
)

func restartCases() map[string]func(*suite) {
	return map[string]func(*suite){
		"pools keep what they hold, and until they are open nothing is said to be gone": func(s *suite) {
			d := s.openPool()
			id := s.create(d.ID, 12*mib)
			snapshot := s.snap(id)
			taken := s.snapshot(snapshot).CreatedAt
			x := exportOf(id)
			s.exportAs(x)
			s.Restart(s.t)

			state := s.state()
			s.Expect(state.Exports).To(BeEmpty())
			s.Expect(state.Portals).To(BeEmpty())
			s.Expect(state.Volumes).To(BeEmpty())
			s.Expect(state.Pools).To(ContainElement(And(HaveField("Device", d.ID), HaveField("Err", HaveOccurred()))), "what is on it is unknown, not gone")
			e := s.fresh()
			s.Expect(s.one(e.Export(s.ctx, []engine.Export{x}))).To(And(HaveOccurred(), Not(MatchError(engine.ErrNotFound))))
			s.Expect(s.one(e.DeleteVolumes(s.ctx, []engine.ID{id}))).To(HaveOccurred())
			s.Expect(s.one(e.DeleteSnapshots(s.ctx, []engine.ID{snapshot}))).To(HaveOccurred())
			s.Expect(s.one(e.CreateVolumes(s.ctx, []engine.VolumeSpec{{ID: newID(), Pool: d.ID, SizeBytes: 4 * mib}}))).To(HaveOccurred())
			s.Expect(s.one(e.GrowVolumes(s.ctx, []engine.VolumeSize{{ID: id, SizeBytes: 16 * mib}}))).To(And(HaveOccurred(), Not(MatchError(engine.ErrNotFound))))

			s.done(e.OpenPools(s.ctx, []engine.Device{d}))
			s.Expect(s.pool(d.ID).Err).NotTo(HaveOccurred())
			s.Expect(s.volume(id)).To(HaveField("SizeBytes", 12*mib))
			s.Expect(s.snapshot(snapshot)).To(HaveField("CreatedAt", BeTemporally("==", taken)))
			s.clear()
			s.done(e.Export(s.ctx, []engine.Export{x}))
			s.Expect(s.export(x.NQN)).To(HaveValue(Equal(s.served(x))))
		},
		"a file is a pool again": func(s *suite) {
			d := s.File(s.t, PoolBytes)
			s.done(s.engine.OpenPools(s.ctx, []engine.Device{d}))
			id := s.create(d.ID, 4*mib)
			s.Restart(s.t)
			grown := d
			grown.FileBytes += 256 * mib
			s.done(s.fresh().OpenPools(s.ctx, []engine.Device{grown}))
			s.Expect(s.volume(id)).To(HaveField("SizeBytes", 4*mib))
			s.Expect(s.pool(d.ID).TotalBytes).To(BeNumerically(">", PoolBytes))
		},
		"hosts go on by themselves once the target is filled again, and know their namespaces": func(s *suite) {
			d := s.openPool()
			portals := s.openPortals()
			type attached struct {
				h *hostFixture
				w *writer
			}
			var all []attached
			var exports []engine.Export
			for i := range 3 * len(portals) {
				h := &hostFixture{suite: s, device: d, portal: portals[i%len(portals)], host: newHost()}
				h.id = s.create(d.ID, 16*mib)
				h.x = exportOf(h.id, h.host)
				s.exportAs(h.x)
				h.c, h.ns = s.attach(h.portal, h.x, h.host)
				s.write(h.ns, 9, "before the restart")
				w := startWriter(h.ns, 0)
				s.goesOn(w)
				all = append(all, attached{h, w})
				exports = append(exports, h.x)
			}
			before := s.state()

			for _, a := range all {
				a.w.stop.Store(true)
			}
			for _, a := range all {
				s.Eventually(a.w.ended).Should(Receive(BeNil()))
			}
			s.Restart(s.t)
			e := s.fresh()
			s.done(e.OpenPools(s.ctx, []engine.Device{d}))
			s.done(e.Export(s.ctx, exports))
			for _, x := range s.state().Exports {
				s.Expect(x.Portals).To(BeEmpty(), "nobody listens yet")
			}
			s.done(e.OpenPortals(s.ctx, portals))

			after := s.state()
			s.Expect(after.Exports).To(ConsistOf(before.Exports))
			s.Expect(after.Portals).To(Equal(before.Portals))
			for _, a := range all {
				h := a.h
				s.Eventually(func() error { _, err := h.ns.ReadAt(make([]byte, BlockBytes), 0); return err }).Should(Succeed())
				s.Expect(s.read(h.ns, 9)).To(Equal("before the restart"))
				s.Expect(s.number(h.ns, 0)).To(Equal(a.w.acknowledged.Load()), "nothing acknowledged is lost")
				s.Expect(h.ns.Identity()).To(Equal(h.identity()))
				w := startWriter(h.ns, 0)
				s.goesOn(w)
				s.finish(w, h.ns, 0)
				s.Expect(h.c.Gone()).To(BeFalse())
			}
		},
		"writes that wait for the target are done when it is back": func(s *suite) {
			d := s.openPool()
			portals := s.openPortals()
			x := exportOf(s.create(d.ID, 16*mib), newHost())
			s.exportAs(x)
			_, ns := s.attach(portals[0], x, x.Hosts[0])
			w := startWriter(ns, 0)
			s.goesOn(w)
			s.Restart(s.t)
			e := s.fresh()
			s.done(e.OpenPools(s.ctx, []engine.Device{d}))
			s.done(e.Export(s.ctx, []engine.Export{x}))
			s.done(e.OpenPortals(s.ctx, portals))
			s.goesOn(w)
			s.finish(w, ns, 0)
		},
	}
}
