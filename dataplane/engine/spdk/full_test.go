// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
)

// TestFullPool: more is promised than there is, and hosts write until there is no room. What was written stays, the
// engine says that nothing is free, and writes go on once a volume was deleted or the pool has grown. On nvmet the same
// is tried with real hosts.
func TestFullPool(t *testing.T) {
	r, fake := newFakeRig(t)
	pool := func() engine.Pool {
		t.Helper()
		pools := r.state().Pools
		r.Expect(pools).To(HaveLen(1))
		r.Expect(pools[0].Err).NotTo(HaveOccurred())
		return pools[0]
	}
	const unit = engine.SizeUnit
	size := pool().TotalBytes / 2 / unit * unit
	greedy, other, spare := r.create(engine.Source{}, 2*size), r.create(engine.Source{}, size), r.create(engine.Source{}, size)
	const held = 8
	for cluster := range uint64(held) {
		check(t, fake.WriteWord(string(other), cluster, cluster+1))
	}
	check(t, fake.Write(r.lvols()[string(spare)].Alias, 0, held))
	var err error
	written := uint64(0)
	for ; err == nil; written++ {
		err = fake.WriteWord(string(greedy), written, 1000+written)
	}
	written-- // the last was refused
	r.Expect(err).To(MatchError(syscall.ENOSPC))
	r.Expect(pool().FreeBytes).To(BeZero())

	intact := func() {
		t.Helper()
		for volume, first := range map[engine.ID]uint64{other: 1, greedy: 1000} {
			for cluster := range min(held, written) {
				r.Expect(fake.ReadWord(string(volume), cluster)).To(Equal(first + cluster))
			}
		}
	}
	intact()
	// What needs no room goes on, and what needs it is refused.
	check(t, fake.WriteWord(string(other), 0, 1))
	r.Expect(fake.WriteWord(string(other), held, 1)).To(MatchError(syscall.ENOSPC))
	snapshot := r.snap(other)
	r.Expect(fake.WriteWord(string(other), 0, 1)).To(MatchError(syscall.ENOSPC), "its cluster is the snapshot's now")
	intact()

	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{spare}))
	r.Expect(pool()).To(And(HaveField("FreeBytes", BeZero()), HaveField("ClearingBytes", BeEquivalentTo(held*unit))), "it is not cleared yet")
	r.clear()
	r.Expect(pool().ClearingBytes).To(BeZero())
	r.Expect(pool().FreeBytes).To(BeEquivalentTo(held * unit))
	check(t, fake.WriteWord(string(greedy), written, 1000+written))
	check(t, fake.WriteWord(string(other), held, held+1))
	r.device.FileBytes *= 2
	r.done(r.engine.OpenPools(r.ctx, []engine.Device{r.device}))
	r.Expect(pool().FreeBytes).To(BeNumerically(">=", r.device.FileBytes/2))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	intact()
}
