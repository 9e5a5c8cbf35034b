// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A snapshot whose size its node has not reported is taken to hold what its replica can have written when its agent
// last looked: as much as is reported, and what is too little to be reported.
func TestPromiseToASnapshotInTheMaking(t *testing.T) {
	const size = 100 * gi
	for name, tc := range map[string]struct{ reported, promised int64 }{
		"nothing was written": {0, 0},
		"a part":              {10 * gi, 10*gi + (size+header)/20},
		"all of it":           {size + header, size + header},
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
