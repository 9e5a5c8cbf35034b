// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

// A snapshot whose size its node has not reported is taken to hold what its replica can have written when its agent
// last looked: as much as is reported, and what is too little to be reported.
func TestPromiseToASnapshotInTheMaking(t *testing.T) {
	const size = 100 * gi
	for name, tc := range map[string]struct{ reported, promised int64 }{
		"nothing was written": {0, 0},
		"a part":              {10 * gi, 10*gi + (size+overhead)/20},
		"all of it":           {size + overhead, size + overhead},
	} {
		t.Run(name, func(t *testing.T) {
			rep := &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: "v-0"}}
			rep.Spec.Size, rep.Status.Allocated = *resource.NewQuantity(size, resource.BinarySI), resource.NewQuantity(tc.reported, resource.BinarySI)
			snap := &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: v1alpha1.NvmfSnapshotSpec{Replica: rep.Name}}
			var r reservations
			r.replicaChanged(rep, false)
			r.snapshotChanged(snap, false)
			if is := r.snapshotPromise(snap).SizeBytes; is != tc.promised {
				t.Errorf("%d bytes are promised, want %d", is, tc.promised)
			}
			snap.Status.Allocated = resource.NewQuantity(gi, resource.BinarySI)
			if is := r.snapshotPromise(snap).SizeBytes; is != gi {
				t.Errorf("%d bytes are promised to one whose size is known", is)
			}
		})
	}
}

// An event about a node may be handled late, or never come: what the cache shows of the node counts.
func TestVolumesArePlacedByWhatTheCacheShows(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	setNodeStatus(t, st.nodes[1], func(s *v1alpha1.NvmfNodeStatus) { s.Pools[0].Total = resource.NewQuantity(100*gi, resource.BinarySI) })
	s, _ := newService(t)
	seen(t, s, st)
	small, large := st.nodes[0], st.nodes[1]
	on := func(name string) string {
		t.Helper()
		return volume(t, newVolume(t, s, st, name)).Spec.Members[0].Node
	}
	if node := on("first"); node != large {
		t.Errorf("the first is on %s", node)
	}
	before := nvmfNode(t, large)
	cordoned := before.DeepCopy()
	cordoned.Spec.Unschedulable = true
	if err := api.Patch(t.Context(), cordoned, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	seen(t, s, st)
	s.reservations.nodeChanged(before, false)
	if node := on("while one is cordoned"); node != small {
		t.Errorf("one is on %s, which is cordoned", node)
	}
	for _, name := range st.nodes {
		s.reservations.nodeChanged(nvmfNode(t, name), true)
	}
	if node := on("where nothing was known"); node != small {
		t.Errorf("one is on %s", node)
	}
	s.reservations.nodeChanged(nvmfNode(t, small), true)
	candidates, err := s.reservations.candidates(t.Context(), placement.Request{Target: st.target})
	if err != nil || len(candidates) != 1 || candidates[0].Node != small {
		t.Errorf("candidates: %v, %v", candidates, err)
	}
}
