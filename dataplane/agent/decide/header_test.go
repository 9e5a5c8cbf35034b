// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// What is made, grown and promised has a header in front of the data, and a trailer behind it; what people are told are
// sizes of data.
func TestDecideWithHeaders(t *testing.T) {
	for _, c := range []decideCase{
		{
			name: "the smallest volume has one as well",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofSize("4Mi"))}
			},
			does: []string{"CreateVolumes 1 on a"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.CreateVolumes[0].SizeBytes).To(Equal(int64(12 << 20)))
				g.Expect(d.Node.Pools[0].Promised.Value()).To(Equal(int64(12 << 20)))
				g.Expect(d.Node.Capacity.Allocated.Value()).To(Equal(int64(12 << 20)))
			},
		},
		{
			name: "and so has one that is to be made of data, as large as its source's",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a")), testVolume(2, fromVolume("v1"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does: []string{"CreateVolumes 2 on a from 1"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.CreateVolumes[0].SizeBytes).To(Equal(engineVolume(1, "a").SizeBytes))
			},
		},
		{
			name: "a drive takes a volume that fills it with its header",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofSize("102392Mi"))} // 100Gi less 8Mi
			},
			does: []string{"CreateVolumes 1 on a"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.CreateVolumes[0].SizeBytes).To(Equal(int64(100 * gib)))
				g.Expect(d.Node.Pools[0].Promised.Value()).To(Equal(int64(100 * gib)))
			},
		},
		{
			name: "and none that is larger, whatever may be promised",
			given: func(s *Observed) {
				s.Node.Spec.Plan.OverProvisioningPercent = 200
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofSize("100Gi"))}
			},
			volumes: map[string]says{"v1": {"Created": "False/NoSpace"}},
			also: func(g *WithT, d Decision) {
				c := meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionCreated)
				g.Expect(c.Message).To(Equal("no pool of this node has enough space for 107382571008 bytes, including 8388608 for its header and trailer"))
			},
		},
		{
			name: "one grows until its drive is full",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("102392Mi"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does: []string{"GrowVolumes 1 to 100Gi"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.GrowVolumes[0].SizeBytes).To(Equal(int64(100 * gib)))
				g.Expect(d.Node.Capacity.Free.Value()).To(Equal(int64(50 * gib)))
			},
		},
		{
			name: "and not beyond",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("100Gi"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v1": {"Degraded": "True/NoSpace", "Ready": "True/AsExpected"}},
			also: func(g *WithT, d Decision) {
				c := meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionDegraded)
				g.Expect(c.Message).To(HavePrefix("it cannot be expanded from 10737418240 to 107374182400 bytes"))
			},
		},
		{
			name: "a refusal to shrink tells what data there is",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("5Gi"))}
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v1": {"Degraded": "True/ShrinkRefused"}},
			also: func(g *WithT, d Decision) {
				c := meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionDegraded)
				g.Expect(c.Message).To(HavePrefix("it has 10737418240 bytes and cannot shrink to 5368709120"))
			},
		},
		{
			name: "an orphan is listed with the size that takes it back",
			given: func(s *Observed) {
				holds(engineVolume(1, "a"))(s)
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "a", SizeBytes: 10*gib + overhead, AllocatedBytes: gib}}
			},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Orphans).To(HaveLen(2))
				for _, o := range d.Node.Orphans {
					g.Expect(o.Size.String()).To(Equal("10Gi"), "%s", o.Kind)
				}
				g.Expect(d.Node.Orphans[1].Allocated.String()).To(Equal("1Gi"), "what is on the drive")
				g.Expect(d.Node.Pools[0].Promised.Value()).To(Equal(int64(11*gib + overhead)))
			},
		},
		{
			name: "with which it is neither grown nor refused",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isUsed)}
				holds(engineVolume(1, "a"))(s)
			},
			does:    []string{"Export v1 to 0"},
			volumes: map[string]says{"v1": {"Created": "True/AsExpected", "Degraded": "False/AsExpected"}},
		},
		{
			name: "one from before trailers gets one",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"))}
				holds(engine.Volume{ID: id(1), Pool: "a", SizeBytes: 10*gib + v1alpha1.HeaderBytes})(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does:    []string{"GrowVolumes 1 to 10Gi"},
			volumes: map[string]says{"v1": {"Degraded": "False/AsExpected", "Ready": "True/AsExpected"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Volumes["v1"].Size.Value()).To(Equal(int64(10 * gib)))
			},
		},
		{
			name: "and can do without, where there is no room",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("102396Mi"))} // 100Gi less 4Mi
				holds(engine.Volume{ID: id(1), Pool: "a", SizeBytes: 100 * gib})(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v1": {"Degraded": "False/AsExpected", "Ready": "True/AsExpected"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Volumes["v1"].Size.Value()).To(Equal(int64(100*gib - v1alpha1.HeaderBytes)))
			},
		},
		{
			name: "but not one that was made with one",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("102396Mi"), func(r *v1alpha1.NvmfReplica) {
					r.Spec.Description = &v1alpha1.VolumeDescription{Trailer: true}
				})}
				holds(engine.Volume{ID: id(1), Pool: "a", SizeBytes: 100 * gib})(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v1": {"Degraded": "True/NoSpace", "Ready": "True/AsExpected"}},
		},
		{
			name: "what cannot be read is promised with its header",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("4Mi"))}
				s.Target.State.Pools[0].Err = engine.ErrUnavailable
				s.Attempts[attempt{VerbOpenPool, "a"}] = engine.ErrUnavailable
			},
			volumes: map[string]says{"v1": {"Ready": "False/PoolFailed"}},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Capacity.Allocated.Value()).To(Equal(int64(12 << 20)))
			},
		},
	} {
		c.run(t)
	}
}

// The header's clusters are counted in what a volume has allocated: it may be more than the size of the data.
func TestAllocatedCountsTheHeader(t *testing.T) {
	g := NewWithT(t)
	s := quietNode()
	s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("4Mi"))}
	holds(engine.Volume{ID: id(1), Pool: "a", SizeBytes: 12 << 20, AllocatedBytes: 12 << 20})(&s)
	status := Decide(s).Volumes["v1"]
	g.Expect(status.Size.String()).To(Equal("4Mi"))
	g.Expect(status.Allocated.String()).To(Equal("12Mi"))
}
