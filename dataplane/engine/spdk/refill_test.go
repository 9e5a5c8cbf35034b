// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/dataplane/engine"
)

// TestRefill: after the target's sudden end everything is exported as it was, and
// nobody can connect before all of it is there.
func TestRefill(t *testing.T) {
	g := NewWithT(t)
	x := newBench(t)
	all := x.things(many)
	x.all(x.engine.CreateVolumes(x.ctx, all.volumes))
	x.all(x.engine.Export(x.ctx, all.exports))
	before, err := x.engine.Gather(x.ctx)
	check(t, err)
	g.Expect(before.Exports).To(HaveLen(many))
	g.Expect(before.Exports[0].Portals).To(HaveLen(1))

	x.relaunch()
	empty, err := x.engine.Gather(x.ctx)
	check(t, err)
	g.Expect(empty.Exports).To(BeEmpty())
	g.Expect(empty.Pools).To(ConsistOf(HaveField("Err", MatchError(engine.ErrUnavailable))))
	check(t, x.engine.Start(x.ctx, x.plan))
	x.all(x.engine.OpenPools(x.ctx, []engine.Device{x.device}))
	x.all(x.engine.Export(x.ctx, all.exports))
	filled, err := x.engine.Gather(x.ctx)
	check(t, err)
	for _, e := range filled.Exports {
		g.Expect(e.Portals).To(BeEmpty(), "nobody listens yet")
	}
	x.all(x.engine.OpenPortals(x.ctx, x.portals()))
	after, err := x.engine.Gather(x.ctx)
	check(t, err)
	g.Expect(after).To(Equal(before))

	x.relaunch()
	x.refill(all)
}
