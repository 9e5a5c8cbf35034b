// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/dataplane/engine"
)

// writtenBytes of a volume in these tests: enough that copying it would show in the pool's free space.
const writtenBytes = 16 * mib

func snapshotCases() map[string]func(*suite) {
	return map[string]func(*suite){
		"a snapshot is idempotent, has its volume's size, and needs a volume": func(s *suite) {
			d := s.openPool()
			id := s.create(d.ID, 8*mib)
			before := time.Now().Add(-time.Minute)
			snapshot := newID()
			specs := []engine.SnapshotSpec{{ID: snapshot, Volume: id}, {ID: newID(), Volume: newID()}, {ID: "x", Volume: id}}
			var at time.Time
			for i := range 2 {
				errs := s.fresh().CreateSnapshots(s.ctx, specs)
				s.Expect(errs).To(HaveLen(3))
				s.Expect(errs[0]).NotTo(HaveOccurred())
				s.Expect(errs[1]).To(MatchError(engine.ErrNotFound))
				s.Expect(errs[2]).To(MatchError(engine.ErrInvalid))
				s.Expect(s.state().Snapshots).To(HaveLen(1))
				is := s.snapshot(snapshot)
				s.Expect(is).To(And(HaveField("Pool", d.ID), HaveField("SizeBytes", 8*mib)))
				s.Expect(is.CreatedAt).To(BeTemporally(">", before))
				if i > 0 {
					s.Expect(is.CreatedAt).To(Equal(at))
				}
				at = is.CreatedAt
			}
			s.Expect(s.state().Volumes).To(HaveLen(1), "a snapshot is not a volume")
		},
		"the volume may be deleted before its snapshot, and the snapshot before its clone": func(s *suite) {
			s.withHost(func(h *hostFixture) {
				h.write(h.ns, 3, "kept")
				snapshot := h.snap(h.id)
				clone := h.clone(engine.Source{Snapshot: snapshot}, 64*mib)
				h.detach()
				h.done(h.engine.DeleteVolumes(h.ctx, []engine.ID{h.id}))
				for range 2 {
					h.done(h.engine.DeleteSnapshots(h.ctx, []engine.ID{snapshot, newID()}))
				}
				h.Expect(h.state().Snapshots).To(BeEmpty())
				h.use(clone, func(ns Namespace) { h.Expect(h.read(ns, 3)).To(Equal("kept")) })
			})
		},
		"a clone has its source's data at that moment, and its own from then on": func(s *suite) {
			s.withHost(func(h *hostFixture) {
				h.write(h.ns, 0, "one")
				snapshot := h.snap(h.id)
				h.write(h.ns, 0, "two")
				fromSnapshot := h.clone(engine.Source{Snapshot: snapshot}, 64*mib)
				fromVolume := h.clone(engine.Source{Volume: h.id}, 80*mib)
				h.write(h.ns, 0, "three")

				h.use(fromSnapshot, func(ns Namespace) {
					h.Expect(h.read(ns, 0)).To(Equal("one"))
					h.write(ns, 0, "four")
					h.Expect(h.read(ns, 0)).To(Equal("four"))
				})
				h.use(fromVolume, func(ns Namespace) {
					h.Expect(ns.SizeBytes()).To(Equal(80 * mib))
					h.Expect(h.read(ns, 0)).To(Equal("two"))
				})
				h.Expect(h.read(h.ns, 0)).To(Equal("three"))
				again := h.clone(engine.Source{Snapshot: snapshot}, 64*mib)
				h.use(again, func(ns Namespace) { h.Expect(h.read(ns, 0)).To(Equal("one")) })
			})
		},
		"the blocks of a snapshot, and those that changed, are listed": listsBlocks,
		"a snapshot is the one before and what changed since":          rebuildsFromBlocks,
		"snapshots and clones copy nothing": func(s *suite) {
			s.withHost(func(h *hostFixture) {
				for block := range writtenBytes / BlockBytes / 16 {
					_, err := h.ns.WriteAt(make([]byte, 16*BlockBytes), block*16*BlockBytes)
					h.Expect(err).NotTo(HaveOccurred())
				}
				h.Eventually(func() int64 { return h.volume(h.id).AllocatedBytes }).Should(BeNumerically(">=", writtenBytes))
				free := h.pool(h.device.ID).FreeBytes
				for range 4 {
					snapshot := h.snap(h.id)
					h.clone(engine.Source{Snapshot: snapshot}, 64*mib)
					h.clone(engine.Source{Volume: h.id}, 64*mib)
				}
				h.Expect(h.pool(h.device.ID).FreeBytes).To(BeNumerically(">", free-writtenBytes/4))
			})
		},
		"a snapshot that several clones depend on is deleted, and they keep their data": func(s *suite) {
			s.withHost(func(h *hostFixture) {
				h.write(h.ns, 3, "kept")
				snapshot := h.snap(h.id)
				first, second := h.clone(engine.Source{Snapshot: snapshot}, 64*mib), h.clone(engine.Source{Snapshot: snapshot}, 64*mib)
				h.write(h.ns, 3, "changed")
				for range 2 {
					h.done(h.engine.DeleteSnapshots(h.ctx, []engine.ID{snapshot}))
					h.Expect(h.snapshot(snapshot)).To(BeNil())
				}
				h.use(first, func(ns Namespace) { h.Expect(h.read(ns, 3)).To(Equal("kept")) })
				h.done(h.engine.DeleteVolumes(h.ctx, []engine.ID{first}))
				h.use(second, func(ns Namespace) { h.Expect(h.read(ns, 3)).To(Equal("kept")) })
				h.Expect(h.read(h.ns, 3)).To(Equal("changed"))
			})
		},
		"a volume that was written is not blank, whatever was made of it": func(s *suite) {
			s.withHost(func(h *hostFixture) {
				blank := h.create(h.device.ID, 4*mib)
				h.write(h.ns, 3, "written")
				nothing := h.snap(blank)
				something := h.snap(h.id)
				for _, written := range []engine.ID{h.id, h.clone(engine.Source{Volume: h.id}, 64*mib), h.clone(engine.Source{Snapshot: something}, 64*mib)} {
					h.Expect(h.volume(written).AllocatedBytes).To(BeNumerically(">", 0))
				}
				for _, empty := range []engine.ID{blank, h.clone(engine.Source{Volume: blank}, 8*mib), h.clone(engine.Source{Snapshot: nothing}, 4*mib)} {
					h.Expect(h.volume(empty).AllocatedBytes).To(BeZero())
				}
			})
		},
		"a clone is not smaller than its source, and lies in its pool": func(s *suite) {
			d, other := s.openPool(), s.openPool()
			id := s.create(d.ID, 8*mib)
			snapshot := s.snap(id)
			larger := newID()
			errs := s.engine.CreateVolumes(s.ctx, []engine.VolumeSpec{
				{ID: newID(), SizeBytes: 4 * mib, Source: engine.Source{Snapshot: snapshot}},
				{ID: newID(), SizeBytes: 4 * mib, Source: engine.Source{Volume: id}},
				{ID: newID(), SizeBytes: 8 * mib, Pool: other.ID, Source: engine.Source{Volume: id}},
				{ID: larger, SizeBytes: 12 * mib, Pool: d.ID, Source: engine.Source{Snapshot: snapshot}},
			})
			s.Expect(errs).To(HaveLen(4))
			s.Expect(errs[0]).To(MatchError(engine.ErrInvalid))
			s.Expect(errs[1]).To(MatchError(engine.ErrInvalid))
			s.Expect(errs[2]).To(MatchError(engine.ErrInvalid))
			s.Expect(errs[3]).NotTo(HaveOccurred())
			s.Expect(s.volume(larger)).To(And(HaveField("SizeBytes", 12*mib), HaveField("Pool", d.ID)))
		},
	}
}
