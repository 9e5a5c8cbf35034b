// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
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
	// answers waits until the API server's answer to a dry run is so: refusal and warnings. The operator sees nodes a
	// moment later than the API server, and an emulated node may be too slow for it, which then goes on without.
	answers := func(ctx context.Context, target *v1alpha1.NvmfTarget, refusal, warned types.GomegaMatcher) {
		GinkgoHelper()
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			warnings = nil
			err := user.Create(ctx, target.DeepCopy(), client.DryRunAll)
			g.Expect(fmt.Sprint(err)).To(refusal)
			g.Expect(warnings).To(warned)
		}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
	stored := Equal("<nil>")

	It("refuses what no node can hold, warns of what some cannot, and stores nothing in a dry run", func(ctx SpecContext) {
		By("refusing a target with more cores than its one node has")
		label(ctx, clientNode, "admission")
		tooMany := spdkTarget("admission")
		*tooMany.Spec.Cores.Count = 200
		answers(ctx, tooMany, And(ContainSubstring("denied the request: no matching node can serve this target: "+clientNode),
			ContainSubstring(v1alpha1.ReasonNotEnoughCPUs)), BeEmpty())

		By("letting one through that the node can hold")
		answers(ctx, tryOut("admission", v1alpha1.TransportTCP), stored, BeEmpty())

		By("warning of one that another target keeps from a node")
		both := tryOut("admission", v1alpha1.TransportTCP)
		both.Spec.NodeSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "weft.storage/target", Operator: metav1.LabelSelectorOpIn, Values: []string{"admission", "fast"}},
		}}
		answers(ctx, both, stored, ContainElement(And(
			ContainSubstring("1 of 2 matching nodes cannot serve this target: "+storageNode), ContainSubstring(v1alpha1.ReasonClaimedByAnother))))

		By("warning of one that matches no node")
		answers(ctx, tryOut("nowhere", v1alpha1.TransportTCP), stored, ContainElement(ContainSubstring("no node matches spec.nodeSelector yet")))

		for _, name := range []string{"admission", "nowhere"} {
			gone, err := cluster.Gone(ctx, tryOut(name, v1alpha1.TransportTCP))
			Expect(err).NotTo(HaveOccurred())
			Expect(gone).To(BeTrue(), "%s was stored", name)
		}
	}, SpecTimeout(10*time.Minute))
})
