// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

const mi = 1 << 20

// clusters of the pools' own.
func clusters(bytes int64) func(*Observed) {
	return func(s *Observed) {
		for i := range s.Target.State.Pools {
			s.Target.State.Pools[i].ClusterBytes = bytes
		}
	}
}

// inClusters is what the engine has of testVolume number n in pool a.
func inClusters(n int, bytes int64) engine.Volume {
	return engine.Volume{ID: id(n), Pool: "a", SizeBytes: bytes}
}

// A pool of large clusters serves more than was asked for; people and CSI see what was.
func TestDecideInClusters(t *testing.T) {
	sizeIs := func(want int64) func(*WithT, Decision) {
		return func(g *WithT, d Decision) {
			g.Expect(d.Volumes["v1"].Size.Value()).To(Equal(want))
			g.Expect(d.Node.Pools[0].ClusterSize.Value()).To(Equal(int64(16 * mi)))
		}
	}
	for _, c := range []decideCase{
		{
			name: "a volume is made in whole clusters, and promised so",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
				clusters(16 * mi)(s)
			},
			does: []string{"CreateVolumes 1 on a"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.CreateVolumes[0].SizeBytes).To(Equal(int64(10*gib + 16*mi)))
				g.Expect(d.Node.Pools[0].Promised.Value()).To(Equal(int64(10*gib + 16*mi)))
			},
		},
		{
			name: "what is there is as it was asked for",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"))}
				holds(inClusters(1, 10*gib+16*mi))(s)
				clusters(16 * mi)(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			volumes: map[string]says{"v1": {"Degraded": "False/AsExpected"}},
			also:    sizeIs(10 * gib),
		},
		{
			name: "what grows within its last cluster has grown",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("10248Mi"))}
				holds(inClusters(1, 10*gib+16*mi))(s)
				clusters(16 * mi)(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			also: sizeIs(10*gib + 8*mi),
		},
		{
			name: "what grows beyond it gets whole ones",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"), ofSize("10252Mi"))}
				holds(inClusters(1, 10*gib+16*mi))(s)
				clusters(16 * mi)(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does: []string{"GrowVolumes 1 to 10Gi"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.GrowVolumes[0].SizeBytes).To(Equal(int64(10*gib + 32*mi)))
			},
		},
		{
			name: "a snapshot can be restored to a volume of the size that its own was asked for with",
			given: func(s *Observed) {
				s.Snapshots = []*v1alpha1.NvmfSnapshot{testSnapshot(2, "gone", snapshotCreated)}
				s.Target.State.Snapshots = []engine.Snapshot{{ID: id(2), Pool: "a", SizeBytes: 10*gib + 16*mi, CreatedAt: now}}
				clusters(16 * mi)(s)
			},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Snapshots["s2"].Size.Value()).To(Equal(int64(10*gib-4*mi)), "the smallest size that takes as many clusters")
			},
		},
		{
			name: "the smallest clusters change nothing",
			given: func(s *Observed) {
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1)}
				clusters(1 * mi)(s)
			},
			does: []string{"CreateVolumes 1 on a"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.CreateVolumes[0].SizeBytes).To(Equal(int64(10*gib + overhead)))
			},
		},
		{
			name: "an open device is asked for with the plan's clusters",
			given: func(s *Observed) {
				s.Node.Spec.Plan.ClusterBytes = 2 * mi
				s.Target.State.Pools = nil
			},
			does: []string{"OpenPools a /dev/nvme0n1", "OpenPools b /dev/nvme1n1"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Operations.OpenPools).To(HaveEach(HaveField("ClusterBytes", int64(2*mi))))
			},
		},
		{
			name: "a pool that cannot be read is counted in the clusters that it had",
			given: func(s *Observed) {
				s.Node.Status.Pools = []v1alpha1.PoolStatus{{Device: "a", Ready: true, ClusterSize: resource.NewQuantity(16*mi, resource.BinarySI)}}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, isCreatedOn("a"))}
				s.Target.State.Pools = openPools()[1:]
			},
			does: []string{"OpenPools a /dev/nvme0n1"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Pools[0].ClusterSize.Value()).To(Equal(int64(16 * mi)))
			},
		},
	} {
		c.run(t)
	}
}
