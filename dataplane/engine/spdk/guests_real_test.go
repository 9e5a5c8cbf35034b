// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// TestVolumesAreNotLookedInto: a host may write to its volume what SPDK looks for on drives, such as an lvstore of its
// own. A real target that starts again takes no notice, serves the volume, and does not take it for one that hosts use.
func TestVolumesAreNotLookedInto(t *testing.T) {
	spdktest.RealTarget(t)
	m := newMachine(t)
	m.interrupts()
	r := rigOf(t, m)
	volume := r.create(engine.Source{}, 64*mib)
	_, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolCreateLvstore{Bdev: r.lvols()[string(volume)].Alias, Name: "guest", ClusterBytes: 1 << 20, Clear: spdkrpc.ClearNone})
	check(t, err)
	looked := func() {
		t.Helper()
		lvstores, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolGetLvstores{})
		check(t, err)
		r.Expect(lvstores).To(HaveLen(1))
		bdevs, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevGetBdevs{})
		check(t, err)
		r.Expect(bdevs).To(HaveEach(Or(HaveField("Claimed", BeFalse()), HaveField("Product", Not(Equal("Logical Volume"))))))
	}
	r.restarted()
	looked()
	restored := r.create(engine.Source{Snapshot: r.snap(volume)}, 64*mib)
	looked()
	for _, id := range []engine.ID{volume, restored} {
		r.use(id, func(host *enginetest.WireHost) {
			head := make([]byte, enginetest.BlockBytes)
			_, err := host.ReadAt(head, 0)
			check(t, err)
			r.Expect(string(head[:8])).To(Equal("SPDKBLOB"), "the host has what it wrote")
		})
	}
}
