// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/dataplane/engine"
)

func volumeCases() map[string]func(*suite) {
	return map[string]func(*suite){
		"a volume has exactly its size, and nothing allocated": func(s *suite) {
			d := s.openPool()
			for _, size := range []int64{4 * mib, 12 * mib, 260 * mib} {
				id := s.create(d.ID, size)
				s.Expect(s.volume(id)).To(HaveValue(Equal(engine.Volume{ID: id, Pool: d.ID, SizeBytes: size, AllocatedBytes: 0})))
			}
		},
		"volumes are thin": func(s *suite) {
			d := s.openPool()
			p := s.pool(d.ID)
			size := p.TotalBytes / 2 / engine.SizeUnit * engine.SizeUnit
			for range 5 {
				s.create(d.ID, size)
			}
			s.Expect(s.pool(d.ID).FreeBytes).To(BeNumerically("~", p.FreeBytes, 4*mib))
		},
		"creating again changes nothing, and another size is refused": func(s *suite) {
			d, other := s.openPool(), s.openPool()
			id := s.create(d.ID, 4*mib)
			same := engine.VolumeSpec{ID: id, Pool: d.ID, SizeBytes: 4 * mib}
			elsewhere, larger := same, same
			elsewhere.Pool = other.ID
			larger.SizeBytes = 8 * mib
			errs := s.fresh().CreateVolumes(s.ctx, []engine.VolumeSpec{same, elsewhere, larger})
			s.Expect(errs).To(HaveLen(3))
			s.Expect(errs[0]).NotTo(HaveOccurred())
			s.Expect(errs[1]).NotTo(HaveOccurred(), "it exists with another pool, and is left alone")
			s.Expect(errs[2]).To(MatchError(engine.ErrExists))
			s.Expect(s.state().Volumes).To(ConsistOf(engine.Volume{ID: id, Pool: d.ID, SizeBytes: 4 * mib}))
		},
		"one bad volume does not stop the others": func(s *suite) {
			d := s.openPool()
			good, last := newID(), newID()
			errs := s.engine.CreateVolumes(s.ctx, []engine.VolumeSpec{
				{ID: good, Pool: d.ID, SizeBytes: 4 * mib},
				{ID: newID(), Pool: "no-such-pool", SizeBytes: 4 * mib},
				{ID: newID(), Pool: d.ID, SizeBytes: 4*mib + 4096},
				{ID: newID(), Pool: d.ID},
				{ID: "../../etc/passwd", Pool: d.ID, SizeBytes: 4 * mib},
				{ID: newID(), Pool: d.ID, SizeBytes: 1 << 50},
				{ID: newID(), SizeBytes: 4 * mib},
				{ID: newID(), SizeBytes: 4 * mib, Source: engine.Source{Snapshot: newID()}},
				{ID: newID(), SizeBytes: 4 * mib, Source: engine.Source{Volume: newID()}},
				{ID: newID(), SizeBytes: 4 * mib, Source: engine.Source{Volume: good, Snapshot: newID()}},
				{ID: last, Pool: d.ID, SizeBytes: 4 * mib},
			})
			s.Expect(errs).To(HaveLen(11))
			for i, want := range []error{
				nil, engine.ErrNotFound, engine.ErrInvalid, engine.ErrInvalid, engine.ErrInvalid, engine.ErrNoSpace,
				engine.ErrInvalid, engine.ErrNotFound, engine.ErrNotFound, engine.ErrInvalid, nil,
			} {
				if want == nil {
					s.Expect(errs[i]).NotTo(HaveOccurred(), "item %d", i)
				} else {
					s.Expect(errs[i]).To(MatchError(want), "item %d", i)
				}
			}
			s.Expect(s.state().Volumes).To(ConsistOf(HaveField("ID", good), HaveField("ID", last)))
		},
		"a volume grows to exactly its size, and never shrinks": func(s *suite) {
			d := s.openPool()
			id, still := s.create(d.ID, 4*mib), s.create(d.ID, 8*mib)
			grow := []engine.VolumeSize{
				{ID: id, SizeBytes: 12 * mib},
				{ID: newID(), SizeBytes: 12 * mib},
				{ID: still, SizeBytes: 4 * mib},
				{ID: still, SizeBytes: 12*mib + 1},
				{ID: still, SizeBytes: 1 << 50},
			}
			for range 2 {
				errs := s.fresh().GrowVolumes(s.ctx, grow)
				s.Expect(errs).To(HaveLen(5))
				s.Expect(errs[0]).NotTo(HaveOccurred())
				s.Expect(errs[1]).To(MatchError(engine.ErrNotFound))
				s.Expect(errs[2]).To(MatchError(engine.ErrShrink))
				s.Expect(errs[3]).To(MatchError(engine.ErrInvalid))
				s.Expect(errs[4]).To(MatchError(engine.ErrNoSpace))
			}
			s.Expect(s.volume(id)).To(HaveField("SizeBytes", 12*mib))
			s.Expect(s.volume(still)).To(HaveField("SizeBytes", 8*mib))
		},
		"deleting is idempotent, and an exported volume is kept": func(s *suite) {
			d := s.openPool()
			exported, free := s.create(d.ID, 4*mib), s.create(d.ID, 4*mib)
			x := exportOf(exported)
			s.exportAs(x)
			errs := s.engine.DeleteVolumes(s.ctx, []engine.ID{exported, free, newID(), "not a uuid"})
			s.Expect(errs).To(HaveLen(4))
			s.Expect(errs[0]).To(MatchError(engine.ErrInUse))
			s.Expect(errs[1]).NotTo(HaveOccurred())
			s.Expect(errs[2]).NotTo(HaveOccurred())
			s.Expect(errs[3]).To(MatchError(engine.ErrInvalid))
			s.Expect(s.state().Volumes).To(ConsistOf(HaveField("ID", exported)))

			s.done(s.engine.Unexport(s.ctx, []string{x.NQN}))
			for range 2 {
				s.done(s.fresh().DeleteVolumes(s.ctx, []engine.ID{exported, free}))
			}
			s.Expect(s.state().Volumes).To(BeEmpty())
		},
		"many at once": func(s *suite) {
			d := s.openPool()
			var specs []engine.VolumeSpec
			var ids []engine.ID
			for range 100 {
				id := newID()
				ids = append(ids, id)
				specs = append(specs, engine.VolumeSpec{ID: id, Pool: d.ID, SizeBytes: 4 * mib})
			}
			s.done(s.engine.CreateVolumes(s.ctx, specs))
			s.Expect(s.state().Volumes).To(HaveLen(100))
			s.done(s.engine.DeleteVolumes(s.ctx, ids))
			s.Expect(s.state().Volumes).To(BeEmpty())
		},
		"calls are safe at the same time": func(s *suite) {
			d := s.openPool()
			id := newID()
			results := make(chan error, 16)
			for i := range 8 {
				go func() {
					results <- s.engine.CreateVolumes(s.ctx, []engine.VolumeSpec{{ID: id, Pool: d.ID, SizeBytes: 4 * mib}})[0]
				}()
				go func() {
					_, err := s.engine.Gather(s.ctx)
					if i%2 == 0 && err == nil {
						err = s.engine.Export(s.ctx, []engine.Export{exportOf(id)})[0]
						// Only before the volume was made.
						if err != nil {
							s.t.Logf("export: %v", err)
							err = nil
						}
					}
					results <- err
				}()
			}
			for range 16 {
				s.Expect(<-results).NotTo(HaveOccurred())
			}
			s.Expect(s.state().Volumes).To(HaveLen(1))
		},
	}
}
