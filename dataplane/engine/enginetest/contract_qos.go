// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/dataplane/engine"
)

func qosCases() map[string]func(*suite) {
	first := engine.QoS{IOPS: 2000, MiBps: 100, ReadMiBps: 80}
	return map[string]func(*suite){
		"limits are as asked, read back, changed while exported, and lifted": func(s *suite) {
			s.needsQoS()
			d := s.openPool()
			id, other := s.create(d.ID, 4*mib), s.create(d.ID, 4*mib)
			s.exportAs(exportOf(id, newHost()))
			for _, want := range []engine.QoS{first, first, {IOPS: 50_000, WriteMiBps: 7}, {ReadMiBps: 1}, {}, {}, first} {
				s.done(s.fresh().SetQoS(s.ctx, []engine.VolumeQoS{{ID: id, QoS: want}}))
				s.Expect(s.volume(id).QoS).To(Equal(want))
				s.Expect(s.volume(other).QoS).To(Equal(engine.QoS{}))
			}
		},
		"a volume that is not exported takes its first limits": func(s *suite) {
			s.needsQoS()
			id := s.create(s.openPool().ID, 4*mib)
			for range 2 {
				s.done(s.engine.SetQoS(s.ctx, []engine.VolumeQoS{{ID: id, QoS: first}}))
				s.Expect(s.volume(id).QoS).To(Equal(first))
			}
			other := engine.QoS{IOPS: 7000}
			if err := s.one(s.engine.SetQoS(s.ctx, []engine.VolumeQoS{{ID: id, QoS: other}})); err != nil {
				s.Expect(err).To(MatchError(engine.ErrBusy))
				s.Expect(s.volume(id).QoS).To(Equal(first))
			}
			s.exportAs(exportOf(id))
			s.done(s.engine.SetQoS(s.ctx, []engine.VolumeQoS{{ID: id, QoS: other}}))
			s.Expect(s.volume(id).QoS).To(Equal(other))
		},
		"one bad limit does not stop the others": func(s *suite) {
			s.needsQoS()
			id := s.create(s.openPool().ID, 4*mib)
			errs := s.engine.SetQoS(s.ctx, []engine.VolumeQoS{
				{ID: newID(), QoS: first}, {ID: id, QoS: engine.QoS{IOPS: 1500}}, {ID: id, QoS: engine.QoS{MiBps: -1}}, {ID: id, QoS: first}, {ID: "x"},
			})
			s.Expect(errs).To(HaveLen(5))
			s.Expect(errs[0]).To(MatchError(engine.ErrNotFound))
			s.Expect(errs[1]).To(And(MatchError(engine.ErrInvalid), MatchError(ContainSubstring("1000 and 2000"))))
			s.Expect(errs[2]).To(MatchError(engine.ErrInvalid))
			s.Expect(errs[3]).NotTo(HaveOccurred())
			s.Expect(errs[4]).To(MatchError(engine.ErrInvalid))
			s.Expect(s.volume(id).QoS).To(Equal(first))
		},
		"a restart loses limits, and they can be put back before a portal opens": func(s *suite) {
			s.needsQoS()
			d := s.openPool()
			id := s.create(d.ID, 4*mib)
			x := exportOf(id, newHost())
			s.exportAs(x)
			s.done(s.engine.SetQoS(s.ctx, []engine.VolumeQoS{{ID: id, QoS: first}}))
			s.Restart(s.t)
			e := s.fresh()
			s.Expect(s.one(e.SetQoS(s.ctx, []engine.VolumeQoS{{ID: id, QoS: first}}))).To(And(HaveOccurred(), Not(MatchError(engine.ErrNotFound))))
			s.done(e.OpenPools(s.ctx, []engine.Device{d}))
			s.Expect(s.volume(id).QoS).To(Equal(engine.QoS{}))
			s.exportAs(x)
			s.done(e.SetQoS(s.ctx, []engine.VolumeQoS{{ID: id, QoS: first}}))
			s.Expect(s.volume(id).QoS).To(Equal(first))
		},
		"a target without limits says so, and takes none for an answer": func(s *suite) {
			if s.hasQoS() {
				s.t.Skip("this target has limits")
			}
			id := s.create(s.openPool().ID, 4*mib)
			s.done(s.engine.SetQoS(s.ctx, []engine.VolumeQoS{{ID: id}}))
			s.Expect(s.one(s.engine.SetQoS(s.ctx, []engine.VolumeQoS{{ID: id, QoS: first}}))).To(MatchError(engine.ErrUnsupported))
		},
	}
}

func (s *suite) hasQoS() bool {
	s.t.Helper()
	info, err := s.engine.Info(s.ctx)
	s.Expect(err).NotTo(HaveOccurred())
	return info.QoS
}

func (s *suite) needsQoS() {
	s.t.Helper()
	if !s.hasQoS() {
		s.t.Skip("this target has no limits of volumes")
	}
}
