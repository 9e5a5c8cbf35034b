// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/dhchap"
)

// TestClonesHoldTheirDataAndLeaveNone: a real target's clone reads what its source had, and nothing is left of what a
// host wrote to it.
func TestClonesHoldTheirDataAndLeaveNone(t *testing.T) {
	spdktest.RealTarget(t)
	m := newMachine(t)
	m.interrupts()
	r := rigOf(t, m)
	source := r.create(engine.Source{}, 16*mib)
	r.fill(source, 0, 16*mib, 'A')
	written := r.dataBlocks()
	r.Expect(written).To(Equal(16 * mib / enginetest.BlockBytes))

	copied := r.create(engine.Source{Volume: source}, 16*mib)
	r.restarted()
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolDecoupleParent{Name: r.lvols()[string(copied)].Alias})
	check(t, err)
	r.Expect(r.dataBlocks()).To(Equal(2*written), "what the clone shared is its own now")
	r.reads(copied, only('A'))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{copied}))
	r.clear()
	r.Expect(r.dataBlocks()).To(Equal(written))

	clone := r.create(engine.Source{Volume: source}, 20*mib)
	r.fill(clone, 0, 20*mib, 'B')
	r.Expect(r.dataBlocks()).To(BeNumerically(">", written))
	snapshot := r.snap(clone)
	r.restarted()
	r.reads(clone, only('B'))
	r.reads(source, only('A'))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{clone}))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.clear()
	r.Expect(r.dataBlocks()).To(Equal(written))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{source}))
	r.clear()
	r.Expect(r.lvols()).To(BeEmpty())
	r.Expect(r.dataBlocks()).To(BeZero())
}

// serve a volume to a new host, which speaks NVMe/TCP itself. It fails with engine.ErrBusy while the free space of the
// pool may hold old data.
func (r *rig) serve(id engine.ID) (host *enginetest.WireHost, leave func(), err error) {
	r.t.Helper()
	x := r.exportOf(id)
	if err := errors.Join(r.engine.Export(r.ctx, []engine.Export{x})...); err != nil {
		return nil, nil, err
	}
	r.done(r.engine.OpenPortals(r.ctx, r.portals()))
	host, err = enginetest.ConnectWire(r.ctx, r.portals()[0].Portal, x.NQN, x.Hosts[0], dhchap.Pair{}, 1)
	r.Expect(err).NotTo(HaveOccurred())
	return host, func() {
		r.t.Helper()
		host.Close()
		r.done(r.engine.Unexport(r.ctx, []string{x.NQN}))
	}, nil
}

// use a volume as a host for a moment.
func (r *rig) use(id engine.ID, do func(*enginetest.WireHost)) {
	r.t.Helper()
	host, leave, err := r.serve(id)
	r.Expect(err).NotTo(HaveOccurred())
	do(host)
	leave()
}

// manyBytes are written and read at once: the target has the cores for little else.
const manyBytes = 4 * mib

// fill a part of a volume with one value.
func (r *rig) fill(id engine.ID, from, to int64, value byte) {
	r.t.Helper()
	r.use(id, func(host *enginetest.WireHost) {
		piece := bytes.Repeat([]byte{value}, manyBytes)
		for at := from; at < to; at += manyBytes {
			_, err := host.WriteAt(piece[:min(manyBytes, to-at)], at)
			r.Expect(err).NotTo(HaveOccurred())
		}
	})
}

// reads of a whole volume find in each block only the value that is wanted there.
func (r *rig) reads(id engine.ID, want func(at int64) byte) {
	r.t.Helper()
	r.use(id, func(host *enginetest.WireHost) { r.readsOf(host, want) })
}

func (r *rig) readsOf(host *enginetest.WireHost, want func(at int64) byte) {
	r.t.Helper()
	piece := make([]byte, manyBytes)
	for at := int64(0); at < host.SizeBytes(); at += manyBytes {
		piece = piece[:min(manyBytes, host.SizeBytes()-at)]
		_, err := host.ReadAt(piece, at)
		r.Expect(err).NotTo(HaveOccurred())
		for i := int64(0); i < int64(len(piece)); i += enginetest.BlockBytes {
			block, value := piece[i:i+enginetest.BlockBytes], want(at+i)
			if bytes.Count(block, []byte{value}) != len(block) {
				r.t.Fatalf("at %d a host reads other bytes than %#02x: % x ...", at+i, value, block[:16])
			}
		}
	}
}

// only one value in all blocks.
func only(value byte) func(int64) byte { return func(int64) byte { return value } }

// dataBlocks of the pool's file have at least one sector of what hosts write here, which is the same byte again and
// again. No metadata looks like that, but where all bits are set.
func (r *rig) dataBlocks() int {
	r.t.Helper()
	f, err := os.Open(r.device.Path)
	check(r.t, err)
	defer func() { check(r.t, f.Close()) }()
	n, piece := 0, make([]byte, manyBytes)
	for at := int64(0); ; {
		at, err = f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return n // holes until the end
		}
		check(r.t, err)
		at -= at % enginetest.BlockBytes
		read, err := f.ReadAt(piece, at)
		if !errors.Is(err, io.EOF) {
			check(r.t, err)
		}
		for i := 0; i+enginetest.BlockBytes <= read; i += enginetest.BlockBytes {
			if hasData(piece[i : i+enginetest.BlockBytes]) {
				n++
			}
		}
		at += int64(read)
	}
}

func hasData(block []byte) bool {
	const sector = 512
	for at := 0; at < len(block); at += sector {
		if first := block[at]; first != 0 && first != 0xff && bytes.Count(block[at:at+sector], []byte{first}) == sector {
			return true
		}
	}
	return false
}
