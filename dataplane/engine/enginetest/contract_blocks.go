// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/dataplane/engine"
)

// listed blocks of a snapshot within so many bytes of it.
func (s *suite) listed(of engine.Blocks) []engine.Range {
	s.t.Helper()
	var all []engine.Range
	s.Expect(s.fresh().(engine.BlockLister).ListBlocks(s.ctx, of, func(r engine.Range) error {
		all = append(all, r)
		return nil
	})).To(Succeed())
	return all
}

// listsBlocks that were written, unless its traits say that it does not.
func listsBlocks(s *suite) {
	_, ok := s.engine.(engine.BlockLister)
	s.Expect(ok).To(Equal(!s.Traits().NoBlockLists))
	if !ok {
		return
	}
	s.withHost(func(h *hostFixture) {
		blocks := func(first, n int64) engine.Range {
			return engine.Range{Offset: first * BlockBytes, Bytes: n * BlockBytes}
		}
		of := engine.Blocks{Pool: h.device.ID, Within: blocks(0, 64*mib/BlockBytes)}
		of.Snapshot = h.snap(h.id)
		h.Expect(h.listed(of)).To(BeEmpty(), "nothing was written")
		for _, n := range []int64{3, 4, 700} {
			h.write(h.ns, n, "before")
		}
		of.Snapshot = h.snap(h.id)
		h.Expect(h.listed(of)).To(Equal([]engine.Range{blocks(3, 2), blocks(700, 1)}))

		for _, n := range []int64{4, 5, 9} {
			h.write(h.ns, n, "after")
		}
		of.Base = of.Snapshot
		h.Expect(h.listed(of)).To(BeEmpty(), "of a snapshot from itself")
		of.Snapshot = h.snap(h.id)
		h.Expect(h.listed(of)).To(Equal([]engine.Range{blocks(4, 2), blocks(9, 1)}))
		back := of
		back.Snapshot, back.Base = of.Base, of.Snapshot
		h.Expect(h.listed(back)).To(Equal([]engine.Range{blocks(4, 2), blocks(9, 1)}))
		of.Within = engine.Range{Offset: 5*BlockBytes + 100, Bytes: 200}
		h.Expect(h.listed(of)).To(Equal([]engine.Range{of.Within}), "no more than was asked for")

		lister := h.fresh().(engine.BlockLister)
		stop := errors.New("stop")
		h.Expect(lister.ListBlocks(h.ctx, of, func(engine.Range) error { return stop })).To(MatchError(stop))
		for err, wrong := range map[error]engine.Blocks{
			engine.ErrNotFound:    {Pool: of.Pool, Snapshot: newID(), Within: of.Within},
			engine.ErrUnavailable: {Pool: of.Pool + "-other", Snapshot: of.Snapshot, Within: of.Within},
			engine.ErrInvalid:     {Pool: of.Pool, Snapshot: of.Snapshot, Base: "../" + of.Base, Within: of.Within},
		} {
			h.Expect(lister.ListBlocks(h.ctx, wrong, func(engine.Range) error { return nil })).To(MatchError(err))
		}
		h.done(h.engine.DeleteSnapshots(h.ctx, []engine.ID{of.Base}))
		h.Expect(lister.ListBlocks(h.ctx, of, func(engine.Range) error { return nil })).To(MatchError(engine.ErrNotFound))
	})
}

// rebuildsFromBlocks writes at random, and makes each snapshot of the one before and the blocks that are listed. What
// it makes is what hosts see of the snapshot.
func rebuildsFromBlocks(s *suite) {
	if s.Traits().NoBlockLists {
		return
	}
	const total = 512
	s.withHost(func(h *hostFixture) {
		seen := func(ns Namespace) []byte {
			all := make([]byte, total*BlockBytes)
			_, err := ns.ReadAt(all, 0)
			h.Expect(err).NotTo(HaveOccurred())
			return all
		}
		copied := make([]byte, total*BlockBytes)
		of := engine.Blocks{Pool: h.device.ID, Within: engine.Range{Bytes: int64(len(copied))}}
		for round := range 6 {
			for n := range rand.N(40) { //nolint:gosec // it is no secret
				h.write(h.ns, rand.N[int64](total), fmt.Sprintf("%d.%d", round, n))
			}
			of.Snapshot = h.snap(h.id)
			h.use(h.clone(engine.Source{Snapshot: of.Snapshot}, 64*mib), func(ns Namespace) {
				is := seen(ns)
				for _, r := range h.listed(of) {
					copy(copied[r.Offset:r.End()], is[r.Offset:r.End()])
				}
				h.Expect(bytes.Equal(copied, is)).To(BeTrue(), "round %d", round)
			})
			of.Base = of.Snapshot
		}
	})
}
