// SPDX-License-Identifier: Apache-2.0

package suite

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var _ = Describe("What was installed", func() {
	It("reports versions that work together", func(ctx SpecContext) {
		var driver storagev1.CSIDriver
		Expect(cluster.Get(ctx, client.ObjectKey{Name: v1alpha1.DriverName}, &driver)).To(Succeed())
		installed := driver.Labels[v1alpha1.VersionLabel]
		Expect(installed).NotTo(BeEmpty())
		for _, name := range nodes {
			By("asking for the agent of " + name)
			Eventually(func(g Gomega) {
				var node v1alpha1.NvmfNode
				g.Expect(cluster.Get(ctx, client.ObjectKey{Name: name}, &node)).To(Succeed())
				g.Expect(node.Status.AgentVersion).To(Equal(installed))
				skew := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionVersionSkew)
				g.Expect(skew).NotTo(BeNil())
				g.Expect(skew.Message).To(Equal("the agent's version " + installed + " works with the operator's, " + installed))
			}).WithContext(ctx).Should(Succeed())

			By("asking for the node plugin of " + name)
			Eventually(func(g Gomega) {
				var node corev1.Node
				g.Expect(cluster.Get(ctx, client.ObjectKey{Name: name}, &node)).To(Succeed())
				skew := v1alpha1.NodeCondition(&node, v1alpha1.ConditionNodeVersionSkew)
				g.Expect(skew).NotTo(BeNil())
				g.Expect(skew.Status).To(Equal(corev1.ConditionFalse))
				g.Expect(skew.Message).To(Equal("the node plugin's version " + installed + " works with the installed one, " + installed))
			}).WithContext(ctx).Should(Succeed())
		}
	})
})
