// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// handed fills in the sample of a PersistentVolume that is written by hand, and of its claim.
func handed(volume *v1alpha1.NvmfVolume) func(*unstructured.Unstructured) {
	set := func(o *unstructured.Unstructured, value string, fields ...string) {
		Expect(unstructured.SetNestedField(o.Object, value, fields...)).To(Succeed())
	}
	return func(o *unstructured.Unstructured) {
		if o.GetKind() == "PersistentVolume" {
			set(o, volume.Name, "spec", "csi", "volumeHandle")
			set(o, claimSize, "spec", "capacity", "storage")
			return
		}
		set(o, claimSize, "spec", "resources", "requests", "storage")
	}
}

var _ = Describe("A volume that outlived its claim", func() {
	It("is given to another by a PersistentVolume written by hand", full, func(ctx SpecContext) {
		retain := corev1.PersistentVolumeReclaimRetain
		newClass(ctx, "weft-retained", map[string]string{"target": "fast"}, func(c *storagev1.StorageClass) { c.ReclaimPolicy = &retain })
		first := newClaim(ctx, newNamespace(ctx), "first", "weft-retained")
		pod := runPod(ctx, first, "writer", clientNode)
		sum := fill(ctx, pod)
		volume := bound(ctx, first)
		remove(ctx, pod)
		remove(ctx, first)
		detached(ctx, volume)
		remove(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume.Name}})

		ns := newNamespace(ctx)
		Expect(cluster.ApplyFile(ctx, "config/samples/persistentvolume.yaml", ns, handed(volume))).To(Succeed())
		byHand := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "weft-by-hand"}}
		second := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: byHand.Name}}
		DeferCleanup(func(ctx context.Context) {
			remove(ctx, second)
			remove(ctx, byHand)
			erase(ctx, volume)
		})
		Expect(bound(ctx, second).Name).To(Equal(volume.Name))
		pod = runPod(ctx, second, "reader", storageNode)
		Expect(checksum(ctx, pod)).To(Equal(sum))
		Expect(sh(ctx, pod, `grep ' %s ' /proc/mounts`, mountPath)).To(ContainSubstring("noatime"))
		remove(ctx, pod)
	})
})
