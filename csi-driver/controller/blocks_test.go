// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// ofBlocks gives the pools of the nodes logical blocks, and the first ones more space than the next.
func ofBlocks(t *testing.T, st storage, bytes ...int32) {
	t.Helper()
	for i, name := range st.nodes {
		setNodeStatus(t, name, func(s *v1alpha1.NvmfNodeStatus) {
			s.Pools[0].BlockSizeBytes = bytes[i]
			s.Pools[0].Total = resource.NewQuantity(int64(100-10*i)*gi, resource.BinarySI)
		})
	}
}

// The kernel takes no replica into a mirror whose blocks are larger than the mirror's: so all have the same.
func TestReplicasHaveTheSameBlocks(t *testing.T) {
	for name, tc := range map[string]struct {
		pools []int32
		nodes []int
		want  int32
	}{
		"the emptiest node has a partner": {[]int32{512, 4096, 512}, []int{0, 2}, 512},
		"and has none":                    {[]int32{512, 4096, 4096}, []int{1, 2}, 4096},
		"all are the same":                {[]int32{4096, 4096, 4096}, []int{0, 1}, 0},
		"one is not known":                {[]int32{512, 0, 4096}, []int{0, 1}, 512},
	} {
		t.Run(name, func(t *testing.T) {
			st := newStorage(t, 3, 10*gi)
			ofBlocks(t, st, tc.pools...)
			s, _ := newService(t)
			seen(t, s, st)
			vol := volume(t, newMirrored(t, s, st, "v"))
			g := NewWithT(t)
			g.Expect(vol.Spec.BlockSizeBytes).To(Equal(tc.want))
			for i, m := range vol.Spec.Members {
				g.Expect(m.Node).To(Equal(st.nodes[tc.nodes[i]]))
				g.Expect(replicaOf(t, m.Name).Spec.BlockSizeBytes).To(Equal(tc.want))
			}
		})
	}
}

// A replica that is added later, or moves, has the blocks of the others.
func TestAnotherReplicaHasTheSameBlocks(t *testing.T) {
	m := newMoves(t, 3)
	ofBlocks(t, m.st, 512, 4096, 512)
	seen(t, m.service(), m.st)
	m.id = newVolume(t, m.service(), m.st, "v")
	hold(t, m.service(), m.id, newHost(t, "host"))
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Replicas = 2 })
	m.until(m.has(m.id+"-0", m.id+"-1"))
	g := NewWithT(t)
	g.Expect(m.nodesOf()).To(Equal([]int{0, 2}))
	g.Expect(replicaOf(t, m.id+"-1").Spec.BlockSizeBytes).To(BeEquivalentTo(512))
	m.move(m.id+"-1", m.st.nodes[1])
	m.waits("it has no drive with logical blocks of 512 bytes")
}
