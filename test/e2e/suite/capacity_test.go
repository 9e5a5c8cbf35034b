// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// sizeStep in which volumes are made.
const sizeStep = 4 << 20

func waitForConsumer(class *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class.VolumeBindingMode = &mode
}

// published waits until the storage node counts volumes of these sizes on its one drive, with their headers, and
// csi-provisioner has published for the class, once for all nodes, what one more can have there. It returns the largest
// volume that fits.
func published(ctx context.Context, class string, sizes ...int64) int64 {
	GinkgoHelper()
	var largest, allocated int64
	for _, size := range sizes {
		allocated += v1alpha1.WithOverhead(size)
	}
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		var node v1alpha1.NvmfNode
		g.Expect(cluster.Get(ctx, client.ObjectKey{Name: storageNode}, &node)).To(Succeed())
		g.Expect(node.Status.Capacity.Allocated).NotTo(BeNil())
		g.Expect(node.Status.Capacity.Allocated.Value()).To(Equal(allocated))
		g.Expect(node.Status.Capacity.Free).NotTo(BeNil())
		left := v1alpha1.WithoutOverhead(node.Status.Capacity.Free.Value())
		var all storagev1.CSIStorageCapacityList
		g.Expect(cluster.List(ctx, &all)).To(Succeed())
		var of []storagev1.CSIStorageCapacity
		for _, c := range all.Items {
			if c.StorageClassName == class {
				of = append(of, c)
			}
		}
		g.Expect(of).To(HaveLen(1))
		g.Expect(of[0].Capacity.Value()).To(Equal(left))
		g.Expect(of[0].MaximumVolumeSize.Value()).To(Equal(left / sizeStep * sizeStep))
		largest = of[0].MaximumVolumeSize.Value()
	}).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	return largest
}

var _ = Describe("Capacity", func() {
	It("is published, and a pod is scheduled when its claim fits", func(ctx SpecContext) {
		nothingLeft(ctx) // a volume of an earlier spec would make room when it goes
		newClass(ctx, "weft-late", map[string]string{"target": "fast", "csi.storage.k8s.io/fstype": "ext4"}, waitForConsumer)
		before := published(ctx, "weft-late")
		ns := newNamespace(ctx)
		fits := newClaim(ctx, ns, "fits", "weft-late")
		large := newClaim(ctx, ns, "large", "weft-late", withSize(resource.NewQuantity(before+sizeStep, resource.BinarySI).String()))
		refused := newPod(ctx, large, "refused", "")
		running(ctx, newPod(ctx, fits, "running", clientNode))
		event(ctx, refused, "did not have enough free storage")
		Expect(cluster.Get(ctx, client.ObjectKeyFromObject(large), large)).To(Succeed())
		Expect(large.Status.Phase).To(Equal(corev1.ClaimPending))

		By("publishing what is left, and binding the volume to no node")
		volume := bound(ctx, fits)
		left := published(ctx, "weft-late", volume.Spec.Size.Value())
		Expect(left).To(BeNumerically("<", before))
		var pv corev1.PersistentVolume
		Expect(cluster.Get(ctx, client.ObjectKey{Name: volume.Name}, &pv)).To(Succeed())
		Expect(pv.Spec.NodeAffinity).To(BeNil())

		By("binding a claim of all that is published")
		all := newClaim(ctx, ns, "all", "weft-fast", asBlock, withSize(resource.NewQuantity(left, resource.BinarySI).String()))
		Expect(bound(ctx, all).Spec.Size.Value()).To(Equal(left))
		Expect(published(ctx, "weft-late", volume.Spec.Size.Value(), left)).To(BeZero())
	}, SpecTimeout(10*time.Minute))
})
