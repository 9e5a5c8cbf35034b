// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const rackLabel = "example.com/rack"

// newRacks is a target with a node in each of these racks, all in one zone. The last one has the most space.
func newRacks(t *testing.T, racks ...string) storage {
	t.Helper()
	st := newStorage(t, len(racks), 10*gi)
	for i, rack := range racks {
		create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: st.nodes[i], Labels: map[string]string{rackLabel: rack, corev1.LabelTopologyZone: "all"}}})
		setNodeStatus(t, st.nodes[i], func(s *v1alpha1.NvmfNodeStatus) {
			s.Pools[0].Total = resource.NewQuantity(int64(i+10)*gi, resource.BinarySI)
		})
	}
	return st
}

// inRacks requests a volume of a class with these zones.
func inRacks(t *testing.T, m *moves, replicas, zones string) {
	t.Helper()
	req := createRequest(m.st, own(t, "v"), gi)
	req.Parameters["replicas"], req.Parameters["zones"], req.Parameters["zoneLabel"] = replicas, zones, rackLabel
	if zones == "" {
		delete(req.Parameters, "zones")
	}
	if _, err := m.service().CreateVolume(within(t, enough), req); err != nil {
		t.Fatal(err)
	}
	m.id = req.Name
}

// nodesOf the volume's members, as indexes of the storage's nodes.
func (m *moves) nodesOf() []int {
	m.t.Helper()
	var nodes []int
	for _, member := range volume(m.t, m.id).Spec.Members {
		nodes = append(nodes, slices.Index(m.st.nodes, member.Node))
	}
	return nodes
}

// A replica that is added later is in the zones of the class, and apart from the others by the class's label, as the
// first ones are: with another number of replicas, and when one moves.
func TestLaterReplicasAreInTheZonesOfTheClass(t *testing.T) {
	m := movesOf(t, newRacks(t, "a", "b", "a", "c"))
	g := NewWithT(t)
	inRacks(t, m, "1", "a,b")
	g.Expect(volume(t, m.id).Spec).To(And(HaveField("Zones", []string{"a", "b"}), HaveField("ZoneLabel", rackLabel)))
	g.Expect(m.nodesOf()).To(Equal([]int{2}), "the one with the most space of a and b")
	hold(t, m.service(), m.id, newHost(t, "host"))
	_, err := m.service().ControllerModifyVolume(within(t, enough), &csi.ControllerModifyVolumeRequest{VolumeId: m.id, MutableParameters: map[string]string{"replicas": "2"}})
	g.Expect(err).NotTo(HaveOccurred())
	m.until(m.has(m.id+"-0", m.id+"-1"))
	g.Expect(m.nodesOf()).To(Equal([]int{2, 1}), "in the other rack")

	m.move(m.id+"-0", "")
	m.until(m.has(m.id+"-1", m.id+"-2"))
	g.Expect(m.nodesOf()).To(Equal([]int{1, 0}), "in rack a again, though c has more space")

	m.move(m.id+"-2", m.st.nodes[3])
	m.waits(`it is in zone "c", not in a or b`)
	m.cancel()

	// As a volume of an earlier version, which does not record its zones: all nodes are good.
	m.edit(func(spec *v1alpha1.NvmfVolumeSpec) { spec.Zones, spec.ZoneLabel = nil, "" })
	m.move(m.id+"-2", "")
	m.until(m.has(m.id+"-1", m.id+"-3"))
	g.Expect(m.nodesOf()).To(Equal([]int{1, 3}), "on the node with the most space")
}

// The label of the class keeps replicas apart, also without zones. Nodes that differ in it are in one zone by the
// usual label.
func TestLaterReplicasAreApartByTheLabelOfTheClass(t *testing.T) {
	m := movesOf(t, newRacks(t, "a", "b", "b", "b"))
	g := NewWithT(t)
	inRacks(t, m, "2", "")
	g.Expect(m.nodesOf()).To(Equal([]int{3, 0}), "in rack a, though the others of rack b have more space")
	hold(t, m.service(), m.id, newHost(t, "host"))
	m.move(m.id+"-1", "") // to rack b, for lack of another
	m.until(m.has(m.id+"-0", m.id+"-2"))
	g.Expect(m.nodesOf()).To(Equal([]int{3, 2}))
	m.move(m.id+"-0", "")
	m.until(m.has(m.id+"-2", m.id+"-3"))
	g.Expect(m.nodesOf()).To(Equal([]int{2, 0}), "in rack a again")
}
