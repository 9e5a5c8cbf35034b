// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var _ = Describe("The webhook", func() {
	var (
		user     client.Client
		warnings []string
	)
	BeforeEach(func() {
		warnings = nil
		var err error
		user, err = cluster.Client(func(text string) { warnings = append(warnings, text) })
		Expect(err).NotTo(HaveOccurred())
	})
	// The operator's answer, once it has seen the nodes as they are.
	answer := func(ctx context.Context, target *v1alpha1.NvmfTarget) (string, []string) {
		warnings = nil
		if err := user.Create(ctx, target.DeepCopy(), client.DryRunAll); err != nil {
			return err.Error(), nil
		}
		return "", warnings
	}

	It("refuses what no node can hold, warns of what some cannot, and stores nothing in a dry run", func(ctx SpecContext) {
		By("refusing a target with more cores than its one node has")
		label(ctx, clientNode, "admission")
		tooMany := spdkTarget("admission")
		*tooMany.Spec.Cores.Count = 200
		Eventually(ctx, func() string {
			refusal, _ := answer(ctx, tooMany)
			return refusal
		}).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(And(
			ContainSubstring("denied the request: no matching node can hold this target: "+clientNode),
			ContainSubstring(v1alpha1.ReasonNotEnoughCPUs)))
		Expect(user.Create(ctx, tooMany)).To(MatchError(ContainSubstring("no matching node can hold this target")))

		By("letting one through that the node can hold")
		refusal, warned := answer(ctx, tryOut("admission", v1alpha1.TransportTCP))
		Expect(refusal).To(BeEmpty())
		Expect(warned).To(BeEmpty())

		By("warning of one that another target keeps from a node")
		both := tryOut("admission", v1alpha1.TransportTCP)
		both.Spec.NodeSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "weft.storage/target", Operator: metav1.LabelSelectorOpIn, Values: []string{"admission", "fast"}},
		}}
		refusal, warned = answer(ctx, both)
		Expect(refusal).To(BeEmpty())
		Expect(warned).To(ContainElement(And(
			ContainSubstring("1 of 2 matching nodes cannot hold this target: "+storageNode), ContainSubstring(v1alpha1.ReasonClaimedByAnother))))

		By("warning of one that matches no node")
		refusal, warned = answer(ctx, tryOut("nowhere", v1alpha1.TransportTCP))
		Expect(refusal).To(BeEmpty())
		Expect(warned).To(ContainElement(ContainSubstring("no node has the labels of spec.nodeSelector yet")))

		for _, name := range []string{"admission", "nowhere"} {
			gone, err := cluster.Gone(ctx, tryOut(name, v1alpha1.TransportTCP))
			Expect(err).NotTo(HaveOccurred())
			Expect(gone).To(BeTrue(), "%s was stored", name)
		}
	}, SpecTimeout(5*time.Minute))
})
