// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// withClasses: drive a, the larger one, is qlc, and drive b tlc.
func withClasses(s *Observed) {
	s.Node.Spec.Plan.Drives[0].DeviceClass, s.Node.Spec.Plan.Drives[1].DeviceClass = "qlc", "tlc"
}

func ofClassNamed(class string) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) { v.Spec.DeviceClass = class }
}

// A volume is made on a drive of its class, whatever room others have.
func TestDecideClasses(t *testing.T) {
	for _, c := range []decideCase{
		{
			name: "each on its class",
			given: func(s *Observed) {
				withClasses(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofClassNamed("tlc")), testVolume(2, ofClassNamed("qlc")), testVolume(3)}
			},
			does: []string{"CreateVolumes 1 on b", "CreateVolumes 2 on a", "CreateVolumes 3 on a"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Pools[0].DeviceClass).To(Equal("qlc"))
				g.Expect(d.Node.Pools[1].DeviceClass).To(Equal("tlc"))
			},
		},
		{
			name: "not on a drive that is retired",
			given: func(s *Observed) {
				withClasses(s)
				s.Node.Spec.UnschedulableDrives = []string{"a"}
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofClassNamed("qlc")), testVolume(2)}
			},
			does:    []string{"CreateVolumes 2 on b"},
			volumes: map[string]says{"v1": {"Created": "False/NoSpace"}},
		},
		{
			name: "no room in the class",
			given: func(s *Observed) {
				withClasses(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofClassNamed("tlc"), ofSize("60Gi"))}
			},
			volumes: map[string]says{"v1": {"Created": "False/NoSpace"}},
			also: func(g *WithT, d Decision) {
				g.Expect(meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionCreated).Message).To(ContainSubstring("no pool of this node of device class tlc has enough space"))
			},
		},
		{
			name: "no drive of the class",
			given: func(s *Observed) {
				withClasses(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofClassNamed("slc"))}
			},
			volumes: map[string]says{"v1": {"Created": "False/NoSpace"}},
			also: func(g *WithT, d Decision) {
				g.Expect(meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionCreated).Message).To(ContainSubstring("no pool of this node that is ready has device class slc"))
			},
		},
		{
			name: "a copy is where its source is",
			given: func(s *Observed) {
				withClasses(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofClassNamed("tlc"), isCreatedOn("b")), testVolume(2, func(v *v1alpha1.NvmfReplica) {
					v.Spec.Source = &v1alpha1.ReplicaSource{Replica: "v1"}
				})}
				holds(engine.Volume{ID: id(1), Pool: "b", SizeBytes: 10*gib + overhead})(s)
				s.Target.State.Exports = []engine.Export{exported(1)}
			},
			does: []string{"CreateVolumes 2 on b from 1"},
		},
	} {
		c.run(t)
	}
}

// A replica is made on a drive with the logical blocks of the volume's other replicas, whatever room others have.
func TestDecideBlocks(t *testing.T) {
	withBlocks := func(s *Observed) {
		s.Target.State.Pools[0].BlockBytes, s.Target.State.Pools[1].BlockBytes = 4096, 512
	}
	ofBlocks := func(bytes int32) func(*v1alpha1.NvmfReplica) {
		return func(v *v1alpha1.NvmfReplica) { v.Spec.BlockSizeBytes = bytes }
	}
	for _, c := range []decideCase{
		{
			name: "each on its blocks",
			given: func(s *Observed) {
				withBlocks(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofBlocks(512)), testVolume(2, ofBlocks(4096)), testVolume(3)}
			},
			does: []string{"CreateVolumes 1 on b", "CreateVolumes 2 on a", "CreateVolumes 3 on a"},
			also: func(g *WithT, d Decision) {
				g.Expect(d.Node.Pools[0].BlockSizeBytes).To(BeEquivalentTo(4096))
				g.Expect(d.Node.Pools[1].BlockSizeBytes).To(BeEquivalentTo(512))
			},
		},
		{
			name: "no drive with the blocks",
			given: func(s *Observed) {
				withBlocks(s)
				s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, ofBlocks(8192))}
			},
			volumes: map[string]says{"v1": {"Created": "False/NoSpace"}},
			also: func(g *WithT, d Decision) {
				g.Expect(meta.FindStatusCondition(d.Volumes["v1"].Conditions, v1alpha1.ConditionCreated).Message).To(
					ContainSubstring("no pool of this node that is ready has logical blocks of 8192 bytes"))
			},
		},
	} {
		c.run(t)
	}
}
