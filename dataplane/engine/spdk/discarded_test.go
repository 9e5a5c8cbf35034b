// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// export a volume whose hosts may discard, or not.
func (r *rig) exportDiscarding(id engine.ID, discard bool) []error {
	r.t.Helper()
	x := r.exportOf(id)
	x.Discard = discard
	return r.engine.Export(r.ctx, []engine.Export{x})
}

// discarded is a volume of which hosts wrote 8 clusters, and then discarded 4.
func (r *rig) discarded() (id engine.ID, lvstore string) {
	r.t.Helper()
	id = r.create(engine.Source{}, 64*mib)
	r.done(r.exportDiscarding(id, true))
	alias := r.lvols()[string(id)].Alias
	check(r.t, r.fake().Write(alias, 0, 8))
	full := r.freeBytes()
	check(r.t, r.fake().Discard(alias, 0, 4))
	r.Expect(r.freeBytes()).To(Equal(full + 16*mib))
	lvstore, _, _ = strings.Cut(alias, "/")
	return id, lvstore
}

// freeBytes of the pool on the drive.
func (r *rig) freeBytes() int64 {
	r.t.Helper()
	pools := r.state().Pools
	at := slices.IndexFunc(pools, func(p engine.Pool) bool { return p.Device == r.device.ID })
	r.Expect(at).To(BeNumerically(">=", 0))
	return pools[at].FreeBytes
}

// heldBy says with which prefixes free clusters are held.
func (r *rig) heldBy() []string {
	r.t.Helper()
	all, err := spdkrpc.Call(r.ctx, r.client, spdkrpc.BdevLvolGetLvols{})
	check(r.t, err)
	var prefixes []string
	for _, l := range all {
		if prefix, _, found := strings.Cut(l.Name, "-"); found && len(prefix) == 1 {
			prefixes = append(prefixes, prefix)
		}
	}
	slices.Sort(prefixes)
	return slices.Compact(prefixes)
}

// TestDiscardedSpaceAfterALossOfPower: of a pool that hosts discarded in, nothing that is free is trusted when its
// target starts. A drive that promised zeroes deallocates it again; of one that a user vouches for it is overwritten.
func TestDiscardedSpaceAfterALossOfPower(t *testing.T) {
	for name, test := range map[string]struct {
		drive spdktest.Drive
		held  string
	}{
		"the drive promised zeroes": {promises, "u"},
		"a user did":                {spdktest.Drive{Forgets: true, Zeroes: true, WriteCache: spdktest.VolatileWriteCache}, "f"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, _ := discarding(t, "26.05", test.drive, v1alpha1.SwitchEnabled)
			r.clear()
			id, lvstore := r.discarded()
			r.clear()
			r.Expect(r.clean()).To(BeFalse(), "hosts may discard more")
			check(t, r.fake().LosePower())
			r.Expect(r.fake().Dirty(lvstore)).To(BeNumerically(">=", 4), "the fault is there")

			r.reopened()
			r.Expect(r.fake().Dirty(lvstore)).To(BeZero(), "it is held")
			r.Expect(r.freeBytes()).To(BeZero())
			r.Expect(r.heldBy()).To(ConsistOf(test.held))
			r.Expect(r.exportDiscarding(id, true)).To(HaveExactElements(MatchError(engine.ErrBusy)))
			r.clear()
			r.Expect(r.heldBy()).To(BeEmpty())
			r.done(r.exportDiscarding(id, true))
			r.writeAll()
		})
	}
}

// writeAll that is free, through a new volume.
func (r *rig) writeAll() {
	r.t.Helper()
	free := r.freeBytes()
	id := r.create(engine.Source{}, free)
	check(r.t, r.fake().Write(r.lvols()[string(id)].Alias, 0, uint64(free/engine.SizeUnit)))
}

// TestDeallocatedSpaceIsNotMarked: what was cleared by deallocation need not be clean after a loss of power, so only a
// target that writes zeroes marks the pool, after hosts discard no more.
func TestDeallocatedSpaceIsNotMarked(t *testing.T) {
	r, _, _ := discarding(t, "26.05", promises, v1alpha1.SwitchEnabled)
	r.Expect(r.heldBy()).To(ContainElement("u"), "of a new pool all is held")
	r.clear()
	r.Expect(r.clean()).To(BeFalse(), "though no host ever discarded")
	_, lvstore := r.discarded()

	r.engine = r.machine.engine(t)
	r.clear()
	r.Expect(r.clean()).To(BeFalse(), "another process does not know better")

	r.plan.SPDK = r.plan.SPDK.DeepCopy()
	r.plan.SPDK.Discard = ""
	check(t, r.fake().LosePower())
	r.reopened()
	r.Expect(r.heldBy()).To(ConsistOf("f"))
	r.clear()
	r.Expect(r.clean()).To(BeTrue())
	check(t, r.fake().LosePower())
	r.Expect(r.fake().Dirty(lvstore)).To(BeZero())
	r.reopened()
	r.Expect(r.heldBy()).To(BeEmpty())
	r.writeAll()
}

// TestHeldSpaceOfAnEarlierTarget that would have deallocated it is deallocated by one that writes zeroes, too, and not
// marked.
func TestHeldSpaceOfAnEarlierTarget(t *testing.T) {
	r, _, _ := discarding(t, "26.05", promises, v1alpha1.SwitchEnabled)
	r.Expect(r.heldBy()).To(ContainElement("u"))
	r.plan.SPDK = r.plan.SPDK.DeepCopy()
	r.plan.SPDK.Discard = ""
	r.reopened()
	r.clear()
	r.Expect(r.clean()).To(BeFalse())
	r.reopened()
	r.Expect(r.heldBy()).To(ConsistOf("f"))
	r.clear()
	r.Expect(r.clean()).To(BeTrue())
}

// TestCleanPoolIsSoiledBeforeHostsDiscard: whenever the target ends after that, what they freed is held.
func TestCleanPoolIsSoiledBeforeHostsDiscard(t *testing.T) {
	r, _, _ := discarding(t, "26.05", promises, "")
	r.clear()
	r.Expect(r.clean()).To(BeTrue())
	r.plan.SPDK = r.plan.SPDK.DeepCopy()
	r.plan.SPDK.Discard = v1alpha1.SwitchEnabled
	r.reopened()
	r.done(r.engine.OpenPortals(r.ctx, r.portals()))
	r.Expect(r.heldBy()).To(BeEmpty())
	id := r.create(engine.Source{}, 64*mib)
	r.done(r.exportDiscarding(id, false))
	r.Expect(r.clean()).To(BeTrue(), "these hosts may not discard")

	other := r.create(engine.Source{}, 64*mib)
	withdraw := r.fake().Inject(spdktest.Fault{Method: "bdev_lvol_create", Times: -1, Error: &spdktest.AnswerError{Code: -32602, Message: "Input/output error"}})
	r.Expect(r.exportDiscarding(other, true)).To(HaveExactElements(MatchError(ContainSubstring("its free space is not clean"))))
	r.Expect(r.state().Exports).To(HaveLen(1))
	withdraw()
	r.done(r.exportDiscarding(other, true))
	r.Expect(r.clean()).To(BeFalse())
	r.clear()
	r.Expect(r.clean()).To(BeFalse())
	lvstore, _, _ := strings.Cut(r.lvols()[string(other)].Alias, "/")
	check(t, r.fake().Write(r.lvols()[string(other)].Alias, 0, 2))
	check(t, r.fake().Discard(r.lvols()[string(other)].Alias, 0, 2))
	check(t, r.fake().LosePower())
	r.Expect(r.fake().Dirty(lvstore)).To(BeNumerically("==", 2), "the fault is there")
	r.reopened()
	r.Expect(r.fake().Dirty(lvstore)).To(BeZero())
	r.clear()
	r.writeAll()
}
