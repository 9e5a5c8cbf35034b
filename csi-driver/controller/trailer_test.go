// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A new volume has a trailer. A copy has one if the data that it is made of ends before one: else they may reach to the
// end.
func TestTrailers(t *testing.T) {
	st := newStorage(t, 1, 20*gi)
	s, _ := newService(t)
	seen(t, s, st)
	g := NewWithT(t)
	source := newVolume(t, s, st, "source")
	g.Expect(volume(t, source).Spec.Trailer).To(BeTrue())
	taken, err := s.CreateSnapshot(within(t, enough), &csi.CreateSnapshotRequest{Name: own(t, "snap"), SourceVolumeId: source})
	g.Expect(err).NotTo(HaveOccurred())
	copyOf := func(name string, of v1alpha1.VolumeSource) bool {
		t.Helper()
		req := createRequest(st, own(t, name), gi)
		req.VolumeContentSource = contentSource(&of)
		resp, err := s.CreateVolume(within(t, enough), req)
		g.Expect(err).NotTo(HaveOccurred())
		return volume(t, resp.Volume.VolumeId).Spec.Trailer
	}
	g.Expect(copyOf("clone", v1alpha1.VolumeSource{Volume: source})).To(BeTrue())
	g.Expect(copyOf("restored", v1alpha1.VolumeSource{Snapshot: taken.Snapshot.SnapshotId})).To(BeTrue())

	snap := &v1alpha1.NvmfSnapshot{}
	g.Expect(api.Get(t.Context(), client.ObjectKey{Name: taken.Snapshot.SnapshotId}, snap)).To(Succeed())
	g.Expect(snap.Spec.Trailer).To(BeTrue())
	old := &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "old-" + snap.Name, Annotations: snap.Annotations, Finalizers: snap.Finalizers}, Spec: snap.Spec}
	old.Spec.UUID, old.Spec.Trailer = uuid.NewString(), false // as one that was taken before there were any
	silence(t, st.nodes[0])                                   // its agent has not taken it
	create(t, old)
	snap.Status.DeepCopyInto(&old.Status)
	g.Expect(api.Status().Update(t.Context(), old)).To(Succeed())
	g.Eventually(func() (bool, error) {
		is, err := s.snapshots.read(t.Context(), old.Name)
		return is != nil && is.Status.Ready, err
	}).WithTimeout(enough).Should(BeTrue())
	req := createRequest(st, own(t, "restored-of-old"), gi)
	req.VolumeContentSource = contentSource(&v1alpha1.VolumeSource{Snapshot: old.Name})
	g.Expect(inVain(t, func(ctx context.Context) error {
		_, err := s.CreateVolume(ctx, req)
		return err
	})).To(MatchError(ContainSubstring("is not Created yet")))
	g.Expect(volume(t, req.Name).Spec.Trailer).To(BeFalse())
}
