// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var _ = Describe("A target's tuning", func() {
	It("is set on its nodes, outlives the agent, and is put back when it is taken away", full, func(ctx SpecContext) {
		const settings = `cat /proc/sys/net/core/netdev_max_backlog /proc/sys/net/ipv4/tcp_rmem; for i in $(ls $(readlink -f /sys/class/net/eth0/device/..)/msi_irqs); do cat /proc/irq/$i/smp_affinity_list; done`
		before, elsewhere := on(ctx, storageNode, settings), on(ctx, clientNode, settings)
		DeferCleanup(tune, (*v1alpha1.Tuning)(nil))

		tune(ctx, &v1alpha1.Tuning{
			Sysctls: &v1alpha1.TuningSysctls{
				NetdevMaxBacklog: new(int32(4321)), TCPRmem: &v1alpha1.TCPBuffers{Min: 4096, Default: 131072, Max: 7654321},
			},
			Interrupts: &v1alpha1.NICInterrupts{CPUs: "1"},
		})
		tuned := MatchRegexp(`^4321\n4096\s131072\s7654321(\n1)+$`)
		Eventually(ctx, tunedReason).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Equal("AsExpected"))
		Expect(on(ctx, storageNode, settings)).To(tuned)
		Expect(on(ctx, clientNode, settings)).To(Equal(elsewhere))

		By("changing a value by hand")
		on(ctx, storageNode, `echo 1000 > /proc/sys/net/core/netdev_max_backlog`)
		kill(ctx, "agent")
		Eventually(ctx, tryOn).WithArguments(storageNode, settings).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(tuned)

		By("taking it away")
		tune(ctx, nil)
		Eventually(ctx, tunedReason).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Equal("NotNeeded"))
		Expect(on(ctx, storageNode, settings)).To(Equal(before))
	})
})

// tune the nodes of the samples' target.
func tune(ctx context.Context, tuning *v1alpha1.Tuning) {
	GinkgoHelper()
	target := &v1alpha1.NvmfTarget{}
	Expect(cluster.Get(ctx, client.ObjectKey{Name: Target}, target)).To(Succeed())
	before := target.DeepCopy()
	target.Spec.Tuning = tuning
	Expect(cluster.Patch(ctx, target, client.MergeFrom(before))).To(Succeed())
}

// tunedReason of the storage node, as of what it was asked last.
func tunedReason(ctx context.Context) (string, error) {
	target, node := &v1alpha1.NvmfTarget{}, &v1alpha1.NvmfNode{}
	if err := cluster.Get(ctx, client.ObjectKey{Name: Target}, target); err != nil {
		return "", err
	}
	if err := cluster.Get(ctx, client.ObjectKey{Name: storageNode}, node); err != nil {
		return "", err
	}
	is := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionTuned)
	if is == nil || node.Spec.Plan == nil || (len(node.Spec.Plan.Tuning) > 0) != (target.Spec.Tuning != nil) {
		return "", nil
	}
	return is.Reason, nil
}
