// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"errors"
	"strings"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

func poolCases() map[string]func(*suite) {
	return map[string]func(*suite){
		"a blank device becomes a pool, once": func(s *suite) {
			d := s.BlankDevice(s.t)
			s.Expect(s.pool(d.ID)).To(BeNil())
			s.Expect(s.one(s.engine.OpenPools(s.ctx, []engine.Device{d}))).To(Succeed())
			id := s.create(d.ID, 16*mib)

			s.Expect(s.one(s.fresh().OpenPools(s.ctx, []engine.Device{d}))).To(Succeed())

			p := s.pool(d.ID)
			s.Expect(p).NotTo(BeNil())
			s.Expect(p.Err).NotTo(HaveOccurred())
			s.Expect(p.Path).To(Equal(d.Path))
			s.Expect(p.TotalBytes).To(BeNumerically(">", PoolBytes*3/4))
			s.Expect(p.FreeBytes).To(And(BeNumerically(">", p.TotalBytes/2), BeNumerically("<=", p.TotalBytes)))
			s.Expect(s.volume(id)).To(HaveField("Pool", d.ID))
		},
		"a device with a foreign signature is refused by name, and others are opened": func(s *suite) {
			foreign, words := s.ForeignDevice(s.t)
			blank := s.BlankDevice(s.t)
			for range 2 {
				errs := s.engine.OpenPools(s.ctx, []engine.Device{foreign, blank})
				s.Expect(errs).To(HaveLen(2))
				var refused *device.ForeignSignatureError
				s.Expect(errors.As(errs[0], &refused)).To(BeTrue(), "%v", errs[0])
				s.Expect(refused.Device).To(Equal(foreign.Path))
				s.Expect(refused.Signature).To(ContainSubstring(words))
				s.Expect(errs[1]).NotTo(HaveOccurred())
			}
			s.Expect(s.pool(foreign.ID)).To(BeNil())
			s.Expect(s.pool(blank.ID)).NotTo(BeNil())
		},
		"a file is created, grown, and never shrunk": func(s *suite) {
			d := s.File(s.t, PoolBytes)
			s.Expect(s.one(s.engine.OpenPools(s.ctx, []engine.Device{d}))).To(Succeed())
			small := s.pool(d.ID)
			s.Expect(small).NotTo(BeNil())
			s.Expect(small.Path).To(Equal(d.Path))
			id := s.create(d.ID, 8*mib)

			grown := d
			grown.FileBytes = 2 * PoolBytes
			s.Expect(s.one(s.fresh().OpenPools(s.ctx, []engine.Device{grown}))).To(Succeed())
			large := s.pool(d.ID)
			s.Expect(large.TotalBytes).To(BeNumerically(">", small.TotalBytes+PoolBytes*3/4))

			s.Expect(s.one(s.fresh().OpenPools(s.ctx, []engine.Device{d}))).To(Succeed())
			s.Expect(s.pool(d.ID).TotalBytes).To(Equal(large.TotalBytes))
			s.Expect(s.volume(id)).To(HaveField("SizeBytes", 8*mib))
		},
		"a pool that cannot be read is forgotten, and only that": forgets,
		"a note stays with what it is about, and goes with it":   keepsNotes,
		"a device that is missing is not found, and others are opened": func(s *suite) {
			missing := s.BlankDevice(s.t)
			missing.ID, missing.Path = missing.ID+"-missing", missing.Path+"-missing"
			missing.FileBytes = 0
			blank := s.BlankDevice(s.t)
			errs := s.engine.OpenPools(s.ctx, []engine.Device{missing, {ID: "", Path: blank.Path}, {ID: "relative", Path: "pool.img"}, {ID: "another", Path: missing.Path, FileBytes: PoolBytes}, blank})
			s.Expect(errs).To(HaveLen(5))
			s.Expect(errs[0]).To(MatchError(engine.ErrNotFound))
			s.Expect(errs[1]).To(MatchError(engine.ErrInvalid))
			s.Expect(errs[2]).To(MatchError(engine.ErrInvalid))
			s.Expect(errs[3]).To(MatchError(engine.ErrInvalid), "a file's ID is its path")
			s.Expect(errs[4]).NotTo(HaveOccurred())
		},
	}
}

// forgets a pool whose device is gone, beside one that serves.
func forgets(s *suite) {
	dead, well := s.BlankDevice(s.t), s.BlankDevice(s.t)
	for _, err := range s.engine.OpenPools(s.ctx, []engine.Device{dead, well}) {
		s.Expect(err).NotTo(HaveOccurred())
	}
	lost, kept := s.create(dead.ID, 16*mib), s.create(well.ID, 16*mib)
	s.Expect(s.one(s.engine.ForgetPools(s.ctx, []string{dead.ID}))).To(MatchError(engine.ErrInUse))
	export := []engine.Export{exportOf(lost, newHost())}
	s.exportAs(export[0])
	s.Lose(s.t, dead)
	s.Expect(s.one(s.engine.Export(s.ctx, export))).To(MatchError(engine.ErrUnavailable))

	errs := s.fresh().ForgetPools(s.ctx, []string{dead.ID, well.ID, "never there"})
	s.Expect(errs).To(HaveLen(3))
	s.Expect(errs[0]).NotTo(HaveOccurred())
	s.Expect(errs[1]).To(MatchError(engine.ErrInUse))
	s.Expect(errs[2]).NotTo(HaveOccurred())

	s.Expect(s.pool(dead.ID)).To(BeNil())
	s.Expect(s.pool(well.ID)).To(HaveField("Err", BeNil()))
	s.Expect(s.volume(kept)).To(HaveField("Pool", well.ID))
	s.Expect(s.one(s.engine.Export(s.ctx, export))).To(MatchError(engine.ErrNotFound), "the volume is gone, not unknown")
	s.Expect(s.one(s.engine.ForgetPools(s.ctx, []string{dead.ID}))).To(Succeed())
}

// keepsNotes in pools, unless its traits say that it does not.
func keepsNotes(s *suite) {
	keeper, ok := s.engine.(engine.NoteKeeper)
	s.Expect(ok).To(Equal(!s.Traits().NoNotes))
	if !ok {
		return
	}
	d, other := s.BlankDevice(s.t), s.BlankDevice(s.t)
	s.done(s.engine.OpenPools(s.ctx, []engine.Device{d, other}))
	volume := s.create(d.ID, 16*mib)
	snapshot := s.snap(volume)
	note := func(id engine.ID, text string) engine.Note {
		return engine.Note{ID: id, Pool: d.ID, Text: []byte(text)}
	}
	read := func(id engine.ID) (string, error) {
		notes := []engine.Note{{ID: id, Pool: d.ID}}
		err := s.one(s.fresh().(engine.NoteKeeper).ReadNotes(s.ctx, notes))
		return string(notes[0].Text), err
	}
	_, err := read(volume)
	s.Expect(err).To(MatchError(engine.ErrNotFound))
	s.done(keeper.WriteNotes(s.ctx, []engine.Note{note(volume, "first"), note(snapshot, "of the snapshot")}))
	s.done(keeper.WriteNotes(s.ctx, []engine.Note{note(volume, "second")}))
	s.Expect(read(volume)).To(Equal("second"))
	s.Expect(read(snapshot)).To(Equal("of the snapshot"))

	errs := keeper.WriteNotes(s.ctx, []engine.Note{
		note(newID(), "of nothing"), {ID: volume, Pool: other.ID, Text: []byte("elsewhere")}, {ID: volume, Pool: "no-pool", Text: []byte("nowhere")},
		note(volume, strings.Repeat("x", engine.MaxNoteBytes+1)), note("../volumes", "outside"),
	})
	s.Expect(errs).To(HaveExactElements(MatchError(engine.ErrNotFound), MatchError(engine.ErrNotFound), MatchError(engine.ErrUnavailable), MatchError(engine.ErrInvalid), MatchError(engine.ErrInvalid)))
	s.Expect(read(volume)).To(Equal("second"))

	s.done(s.engine.DeleteVolumes(s.ctx, []engine.ID{volume}))
	_, err = read(volume)
	s.Expect(err).To(MatchError(engine.ErrNotFound))
	s.Expect(read(snapshot)).To(Equal("of the snapshot"))
	s.Lose(s.t, d)
	_, err = read(snapshot)
	s.Expect(err).To(HaveOccurred(), "a pool that is gone says nothing")
}
