// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// TestClonesHoldTheirDataAndLeaveNone: a real target's clone reads what its source had, and nothing is left of what a
// host wrote to it. What is in the pool's file tells both, without a host that reads.
func TestClonesHoldTheirDataAndLeaveNone(t *testing.T) {
	spdktest.RealTarget(t)
	perf := spdktest.RealPerf(t)
	r := newRig(t)
	source := r.create(engine.Source{}, 16*mib)
	r.fill(perf, source, 16*mib)
	written := r.filled()
	r.Expect(written).To(BeNumerically(">", 0))

	copied := r.create(engine.Source{Volume: source}, 16*mib)
	r.restarted()
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolDecoupleParent{Name: r.lvols()[string(copied)].Alias})
	check(t, err)
	r.Expect(r.filled()).To(Equal(2*written), "what the clone shared is its own now")
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{copied}))
	r.clear()
	r.Expect(r.filled()).To(Equal(written))

	clone := r.create(engine.Source{Volume: source}, 20*mib)
	r.fill(perf, clone, 20*mib)
	r.Expect(r.filled()).To(BeNumerically(">", written))
	snapshot := r.snap(clone)
	r.restarted()
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{clone}))
	r.done(r.engine.DeleteSnapshots(r.ctx, []engine.ID{snapshot}))
	r.clear()
	r.Expect(r.filled()).To(Equal(written))
	r.done(r.engine.DeleteVolumes(r.ctx, []engine.ID{source}))
	r.clear()
	r.Expect(r.lvols()).To(BeEmpty())
	r.Expect(r.filled()).To(BeZero())
}

// fill the first part of a volume from a host, however long that takes: no byte that it writes is zero.
func (r *rig) fill(perf string, id engine.ID, sizeBytes int) {
	r.t.Helper()
	x := r.exportOf(id)
	r.done(r.engine.Export(r.ctx, []engine.Export{x}))
	r.done(r.engine.OpenPortals(r.ctx, r.portals()))
	portal := r.portals()[0]
	out, err := exec.CommandContext(r.ctx, perf, perfArguments(portal, x,
		"-q", "4", "-o", strconv.Itoa(pieceBytes), "-w", "write", "-d", strconv.Itoa(sizeBytes/pieceBytes), "-t", "120")...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	r.done(r.engine.Unexport(r.ctx, []string{x.NQN}))
}

// filled pieces of the pool's file, of 128 KiB without a zero: no metadata looks like that.
func (r *rig) filled() int {
	r.t.Helper()
	f, err := os.Open(r.device.Path)
	check(r.t, err)
	defer func() { check(r.t, f.Close()) }()
	n, piece := 0, make([]byte, pieceBytes)
	for {
		_, err := io.ReadFull(f, piece)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return n
		}
		check(r.t, err)
		if !bytes.Contains(piece, []byte{0}) {
			n++
		}
	}
}
