// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// discarding is a node of SPDK with a volume to be exported in pool a, whose hosts may discard; the pool is full.
func discarding(change func(*Observed)) func(*Observed) {
	return func(s *Observed) {
		plan := s.Node.Spec.Plan
		plan.Engine, plan.OverProvisioningPercent = v1alpha1.EngineSPDK, 200
		plan.SPDK = &v1alpha1.SPDKPlan{Discard: v1alpha1.SwitchEnabled}
		plan.Drives[0].Discard, plan.Drives[1].Discard = v1alpha1.TrustGuaranteed, v1alpha1.TrustVouched
		s.Target.State.Discard = true
		s.Target.State.Pools[0].FreeBytes, s.Target.State.Pools[0].Deallocated = 0, v1alpha1.DeallocatedZeroes
		s.Volumes = []*v1alpha1.NvmfVolume{testVolume(1, isCreatedOn("a"), ofSize("120Gi"))}
		s.Target.State.Volumes = []engine.Volume{{ID: id(1), Pool: "a", SizeBytes: 120*gib + header}}
		change(s)
	}
}

// Hosts may discard where the plan lets them, the target does, and the drive or the user promises zeroes, now. What is
// not known is no promise. The advice for a full pool follows.
func TestDecideDiscard(t *testing.T) {
	const trims = "discard in its volumes what they do not need (fstrim)"
	for name, test := range map[string]struct {
		change func(*Observed)
		may    bool
	}{
		"guaranteed":                  {func(*Observed) {}, true},
		"the drive says it no longer": {func(s *Observed) { s.Target.State.Pools[0].Deallocated = v1alpha1.DeallocatedUndefined }, false},
		"the drive does not answer":   {func(s *Observed) { s.Target.State.Pools[0].Deallocated = "" }, false},
		"it was not planned to":       {func(s *Observed) { s.Node.Spec.Plan.Drives[0].Discard = "" }, false},
		"vouched for, whatever it says": {func(s *Observed) {
			s.Node.Spec.Plan.Drives[0].Discard = v1alpha1.TrustVouched
			s.Target.State.Pools[0].Deallocated = ""
		}, true},
		"another drive is not trusted":   {func(s *Observed) { s.Node.Spec.Plan.SPDK.Discard = "" }, false},
		"the target was started without": {func(s *Observed) { s.Target.State.Discard = false }, false},
		"its drive is no longer planned": {func(s *Observed) { s.Node.Spec.Plan.Drives = s.Node.Spec.Plan.Drives[1:] }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := quietNode()
			discarding(test.change)(&s)
			d := Decide(s)
			g.Expect(d.Operations.Export).To(HaveExactElements(HaveField("Discard", test.may)))
			var pool v1alpha1.PoolStatus
			for _, p := range d.Node.Pools {
				if p.Device == "a" {
					pool = p
				}
			}
			want := v1alpha1.SwitchDisabled
			if test.may {
				want = v1alpha1.SwitchEnabled
			}
			g.Expect(pool.Discard).To(Equal(want))
			g.Expect(pool.Deallocated).To(Equal(s.Target.State.Pools[0].Deallocated))
			if pool.Reason != v1alpha1.ReasonNotClaimed {
				g.Expect(pool.Reason).To(Equal(v1alpha1.ReasonPoolFull))
				g.Expect(pool.Message).To(ContainSubstring("delete volumes or snapshots of it"))
				if test.may {
					g.Expect(pool.Message).To(ContainSubstring(trims))
				} else {
					g.Expect(pool.Message).NotTo(ContainSubstring(trims))
				}
			}
		})
	}
}

// An export that admits hosts stays as it is; one that does not is made again.
func TestDecideDiscardOfAnExport(t *testing.T) {
	for name, test := range map[string]struct {
		hosts []string
		does  int
	}{
		"no host": {nil, 1}, "a host": {[]string{hostA}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := quietNode()
			discarding(func(s *Observed) {
				s.Volumes[0] = testVolume(1, isCreatedOn("a"), ofSize("120Gi"), withHosts(test.hosts...))
				s.Target.State.Exports = []engine.Export{exported(1, test.hosts...)}
			})(&s)
			g.Expect(Decide(s).Operations.Export).To(HaveLen(test.does))
			s.Target.State.Exports[0].Discard = true
			g.Expect(Decide(s).Operations.Export).To(BeEmpty())
		})
	}
}
