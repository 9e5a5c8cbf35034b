// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// grow asks for more.
func grow(ctx context.Context, claim *corev1.PersistentVolumeClaim, size string) {
	GinkgoHelper()
	before := claim.DeepCopy()
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	Expect(cluster.Patch(ctx, claim, client.MergeFrom(before))).To(Succeed())
}

// hasGrown waits until the claim's capacity is what was asked for: the filesystem has grown as well.
func hasGrown(ctx context.Context, claim *corev1.PersistentVolumeClaim, size string) {
	GinkgoHelper()
	want := resource.MustParse(size)
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		if claim.Status.Capacity.Storage().Cmp(want) != 0 {
			g.Expect(claim.Status.Capacity.Storage().String()).To(Equal(size), "claim %s: %s", claim.Name, eventsOf(ctx, claim))
		}
	}).WithTimeout(podTime).WithPolling(time.Second).Should(Succeed())
}

func number(s string) int {
	GinkgoHelper()
	n, err := strconv.Atoi(s)
	Expect(err).NotTo(HaveOccurred())
	return n
}

var _ = Describe("Growth", func() {
	It("reaches ext4, xfs and a block device under a running pod, and a volume that no pod uses", full, func(ctx SpecContext) {
		ns := newNamespace(ctx)
		ext4 := newClaim(ctx, ns, "ext4", "weft-fast")
		xfs := newClaim(ctx, ns, "xfs", "weft-fast-xfs", withSize(xfsSize))
		block := newClaim(ctx, ns, "block", "weft-fast", asBlock)
		idle := newClaim(ctx, ns, "idle", "weft-fast")
		other := newClaim(ctx, ns, "other", "weft-fast")
		pod := running(ctx, newPodOf(ctx, "pod", clientNode, ext4, xfs, block))
		sum := fill(ctx, pod)
		bound(ctx, idle)

		grow(ctx, ext4, "256Mi")
		grow(ctx, xfs, "512Mi")
		grow(ctx, block, "192Mi")
		grow(ctx, idle, "256Mi")
		hasGrown(ctx, ext4, "256Mi")
		hasGrown(ctx, xfs, "512Mi")
		hasGrown(ctx, block, "192Mi")

		mib := func(path string) int {
			GinkgoHelper()
			return number(sh(ctx, pod, `echo $(($(stat -f -c '%%b * %%S' %s) >> 20))`, path))
		}
		Expect(mib(mountPath)).To(BeNumerically(">", 200))
		Expect(mib(pathOf(mountPath, 1))).To(BeNumerically(">", 400))
		Expect(sh(ctx, pod, `blockdev --getsize64 %s`, pathOf(devicePath, 2))).To(Equal(fmt.Sprint(192 << 20)))
		Expect(checksum(ctx, pod)).To(Equal(sum))

		Eventually(ctx, func(ctx context.Context) string { return bound(ctx, idle).Spec.Size.String() }).
			WithTimeout(time.Minute).WithPolling(time.Second).Should(Equal("256Mi"))

		// Another claim: Kubernetes takes up no other size of one whose filesystem has yet to grow.
		By("telling how far a volume can grow when that is not far enough")
		before := bound(ctx, other).Spec.Size.String()
		grow(ctx, other, "1Ti")
		event(ctx, other, "has space for")
		Expect(bound(ctx, other).Spec.Size.String()).To(Equal(before))
	}, SpecTimeout(10*time.Minute))
})
