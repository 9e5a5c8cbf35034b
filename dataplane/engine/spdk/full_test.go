// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"bytes"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
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

// TestFullPoolOfARealTarget is what a host sees of it: a write that finds no room fails, and may be tried again; its
// other I/O goes on, and that of the other volumes.
func TestFullPoolOfARealTarget(t *testing.T) {
	spdktest.RealTarget(t)
	m := newMachine(t)
	m.interrupts()
	r := rigOn(t, m, m.file(128*mib))
	size := r.state().Pools[0].TotalBytes / engine.SizeUnit * engine.SizeUnit
	spare, other, greedy := r.create(engine.Source{}, 16*mib), r.create(engine.Source{}, size), r.create(engine.Source{}, size)
	r.fill(spare, 0, 16*mib, 'S')
	others, leaveOthers, err := r.serve(other)
	check(t, err)
	defer leaveOthers()
	host, leave, err := r.serve(greedy)
	check(t, err)
	defer leave()
	block := bytes.Repeat([]byte{'G'}, enginetest.BlockBytes)
	write := func(host *enginetest.WireHost, cluster int64) error {
		_, err := host.WriteAt(block, cluster*engine.SizeUnit)
		return err
	}
	check(t, write(others, 0))
	written := int64(0)
	for ; err == nil; written++ {
		err = write(host, written)
	}
	written--
	status, answered := enginetest.StatusOf(err)
	t.Logf("a write that finds no room: %v", err)
	r.Expect(answered).To(BeTrue(), "the connection stays: %v", err)
	r.Expect(status).To(BeEquivalentTo(noRoom))
	r.Expect(r.state().Pools[0].FreeBytes).To(BeZero())

	// What needs no room goes on.
	check(t, write(host, 0))
	check(t, write(others, 0))
	r.readsOf(host, func(at int64) byte {
		if at%engine.SizeUnit == 0 && at/engine.SizeUnit < written {
			return 'G'
		}
		return 0
	})
	fails := func(err error) {
		t.Helper()
		status, _ := enginetest.StatusOf(err)
		r.Expect(status).To(BeEquivalentTo(noRoom), "%v", err)
	}
	fails(write(others, 1))
	r.snap(other)
	fails(write(others, 0)) // its cluster is the snapshot's now

	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{spare}))
	r.clear()
	check(t, write(host, written))
	check(t, write(others, 0))
	check(t, write(others, 1))
}

// noRoom is what SPDK answers a write with that finds no room: Internal Error.
const noRoom = 0x006
