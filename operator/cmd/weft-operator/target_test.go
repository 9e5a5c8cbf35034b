// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestTargetFromFirstLabelToReady(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.target("first", "first")
	c.Eventually(c.targetCondition("first", v1alpha1.ConditionReady)).Should(Equal("False/NoNodeMatches"))

	c.kubeNode("first-1", "first")
	c.Eventually(c.targetCondition("first", v1alpha1.ConditionReady)).Should(Equal("False/Pending"))
	c.Eventually(c.targetCondition("first", v1alpha1.ConditionProgressing)).Should(Equal("True/Pending"))

	c.agent("first-1", capableModules...)
	c.Eventually(c.claimant("first-1")).Should(Equal("first"))
	plan := c.nvmfNode("first-1").Spec.Plan
	c.Expect(plan.Portals).To(HaveLen(1))
	c.Expect(plan.Portals[0].Portal).To(Equal(v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 4420}))

	c.serve("first-1")
	c.Eventually(c.targetCondition("first", v1alpha1.ConditionReady)).Should(Equal("True/AsExpected"))
	c.replica("first-v", "first", "first-1")
	c.Eventually(func() string { return c.nvmfTarget("first").Status.Capacity.Allocated.String() }).Should(Equal("1032Mi"))

	status := c.nvmfTarget("first").Status
	c.Expect(status.ObservedGeneration).To(Equal(int64(1)))
	c.Expect(status.Nodes).To(Equal(v1alpha1.NodeCounts{Matching: 1, Capable: 1, Ready: 1}))
	c.Expect([]string{status.Capacity.Total.String(), status.Capacity.Free.String()}).To(Equal([]string{"10Gi", "9Gi"}))
	for kind, want := range map[string]string{v1alpha1.ConditionProgressing: "False/AsExpected", v1alpha1.ConditionDegraded: "False/AsExpected"} {
		c.Expect(brief(status.Conditions, kind)).To(Equal(want), kind)
	}
}

func TestOverlappingTargetsClaimANodeOnce(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("over-1", "over", capableModules...)
	// Of the same second or not, a is the older by time or by name.
	c.target("over-a", "over")
	c.target("over-b", "over")
	c.Eventually(c.claimant("over-1")).Should(Equal("over-a"))
	c.Eventually(c.targetCondition("over-b", v1alpha1.ConditionReady)).Should(Equal("False/NoNodeCapable"))
	c.Eventually(func() []v1alpha1.NotCapableNode { return c.nvmfTarget("over-b").Status.NotCapable }).Should(ConsistOf(
		HaveField("Reason", v1alpha1.ReasonClaimedByAnother)))
	c.Eventually(c.events("NvmfTarget", "over-b")).Should(ContainElement(HavePrefix("ClaimedByAnotherTarget over-1 over-1: NvmfTarget over-a already claims the node")))
	c.Consistently(c.claimant("over-1")).Should(Equal("over-a"))

	c.Expect(admin.Delete(c.ctx, c.nvmfTarget("over-a"))).To(Succeed())
	c.Eventually(c.claimant("over-1")).Should(Equal("over-b"))
	c.Expect(c.nvmfNode("over-1").Spec.Plan.File.Path).To(Equal("/var/lib/weft/over-b"))
	c.Eventually(c.targetCondition("over-b", v1alpha1.ConditionDegraded)).Should(Equal("True/Pending"), "waits for the agent only")
}

func TestClaimsAreSticky(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("sticky-1", "sticky", capableModules...)
	c.target("sticky-z", "sticky")
	c.Eventually(c.claimant("sticky-1")).Should(Equal("sticky-z"))

	// The newcomer matches too, and would be first by name.
	c.target("sticky-a", "other")
	c.Eventually(c.targetCondition("sticky-a", v1alpha1.ConditionReady)).Should(Equal("False/NoNodeMatches"))
	volume := c.replica("sticky-v", "sticky-z", "sticky-1")
	c.Eventually(func() string { return c.nvmfTarget("sticky-z").Status.Capacity.Allocated.String() }).Should(Equal("1032Mi"))

	c.label("sticky-1", "other")
	c.Eventually(func() []v1alpha1.NotCapableNode { return c.nvmfTarget("sticky-a").Status.NotCapable }).Should(HaveLen(1))
	c.Consistently(c.claimant("sticky-1")).Should(Equal("sticky-z"))
	c.Eventually(c.targetMessage("sticky-z", v1alpha1.ConditionReady)).Should(ContainSubstring("sticky-1"), "a node that serves without matching is named")

	c.remove(volume)
	c.Eventually(c.claimant("sticky-1")).Should(Equal("sticky-a"))
}

// The cache is not asked alone whether a node may be released: a volume that the CSI controller made a
// moment ago holds the claim. Created and relabelled in one breath, often enough to meet both orders.
func TestAVolumeMadeAMomentAgoHoldsTheClaim(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.target("breath", "breath")
	for i := range 10 {
		name := fmt.Sprintf("breath-%d", i)
		c.node(name, "breath", capableModules...)
		c.Eventually(c.claimant(name)).Should(Equal("breath"))
		c.replica(name+"-v", "breath", name)
		c.label(name, "elsewhere")
	}
	c.Eventually(c.targetCondition("breath", v1alpha1.ConditionReady)).Should(Equal("False/NoNodeMatches"))
	for i := range 10 {
		c.Expect(c.claimant(fmt.Sprintf("breath-%d", i))()).To(Equal("breath"))
	}
}

func TestNodesThatAreNotCapableHaveReasonsAndOneEventEach(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("reason-1", "reason")
	c.node("reason-2", "reason", "loop", "nvmet", "xfs")
	c.node("reason-3", "reason", capableModules...)
	c.target("reason", "reason")
	c.Eventually(c.claimant("reason-3")).Should(Equal("reason"))
	c.serve("reason-3")
	c.Eventually(c.targetCondition("reason", v1alpha1.ConditionReady)).Should(Equal("True/AsExpected"))
	c.Expect(c.targetCondition("reason", v1alpha1.ConditionDegraded)()).To(Equal("True/NodesNotCapable"))

	status := c.nvmfTarget("reason").Status
	c.Expect(status.Nodes).To(Equal(v1alpha1.NodeCounts{Matching: 3, Capable: 1, Ready: 1}))
	c.Expect(status.NotCapable).To(HaveExactElements(
		And(HaveField("Node", "reason-1"), HaveField("Reason", v1alpha1.ReasonNoInventory)),
		And(HaveField("Node", "reason-2"), HaveField("Reason", v1alpha1.ReasonModuleMissing), HaveField("Message", ContainSubstring("nvmet_tcp")))))

	perNode := func() []string {
		var out []string
		for _, e := range c.events("NvmfTarget", "reason")() {
			var reason, node string
			if _, err := fmt.Sscan(e, &reason, &node); err == nil && node != "-" {
				out = append(out, reason+" "+node)
			}
		}
		return out
	}
	once := ConsistOf("NoInventory reason-1", "KernelModuleMissing reason-2")
	c.Eventually(perNode).Should(once)
	before := c.reconciles("nvmftarget")
	for i := range 3 {
		c.report("reason-3", func(s *v1alpha1.NvmfNodeStatus) { s.Inventory.KernelVersion = fmt.Sprint("6.1.", i) })
	}
	c.Eventually(func() int { return c.reconciles("nvmftarget") }).Should(BeNumerically(">", before))
	c.Consistently(perNode).Should(once)

	// Another reason is news.
	c.report("reason-2", func(s *v1alpha1.NvmfNodeStatus) { s.Inventory = nil })
	c.Eventually(perNode).Should(ConsistOf("NoInventory reason-1", "KernelModuleMissing reason-2", "NoInventory reason-2"))
}

func TestDeletionWaitsForVolumesAndNamesThem(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("wait-1", "wait", capableModules...)
	c.node("wait-2", "wait", capableModules...)
	target := c.target("wait", "wait")
	c.Eventually(c.claimant("wait-1")).Should(Equal("wait"))
	c.Eventually(c.claimant("wait-2")).Should(Equal("wait"))
	var replicas []client.Object
	for i := range 12 {
		replicas = append(replicas, c.replica(fmt.Sprintf("wait-v%02d", i), "wait", "wait-1"))
	}
	volume := c.volume("wait-v11", "wait", "wait-1")

	c.Expect(admin.Delete(c.ctx, target)).To(Succeed())
	c.Eventually(c.targetCondition("wait", v1alpha1.ConditionProgressing)).Should(Equal("True/VolumesRemain"))
	c.Eventually(func() string {
		return meta.FindStatusCondition(c.nvmfTarget("wait").Status.Conditions, v1alpha1.ConditionProgressing).Message
	}).Should(And(ContainSubstring("12 volumes: wait-v00, wait-v01,"), ContainSubstring("wait-v09 and 2 more"), Not(ContainSubstring("wait-v10"))))
	c.Expect(c.targetCondition("wait", v1alpha1.ConditionReady)()).To(Equal("False/Deleting"))
	c.Eventually(c.events("NvmfTarget", "wait")).Should(ContainElement(HavePrefix("VolumesRemain - cannot delete the target while")))
	c.Consistently(c.claimant("wait-2")).Should(Equal("wait"), "volumes are deleted on a live target")

	for _, r := range replicas[:11] {
		c.remove(r)
	}
	c.Eventually(func() string {
		return meta.FindStatusCondition(c.nvmfTarget("wait").Status.Conditions, v1alpha1.ConditionProgressing).Message
	}).Should(ContainSubstring("1 volume: wait-v11"))
	c.Consistently(c.claimant("wait-1")).Should(Equal("wait"))

	c.remove(replicas[11])
	c.Consistently(func() error { return admin.Get(c.ctx, client.ObjectKeyFromObject(target), &v1alpha1.NvmfTarget{}) }).
		Should(Succeed(), "a volume names it, whose replica is still to be created")

	c.remove(volume)
	c.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(c.ctx, client.ObjectKeyFromObject(target), &v1alpha1.NvmfTarget{}))
	}).Should(BeTrue())
	for _, node := range []string{"wait-1", "wait-2"} {
		c.Expect(c.nvmfNode(node).Spec).To(Equal(v1alpha1.NvmfNodeSpec{}), node)
	}
}

func TestATargetRemovedByForceIsClearedUp(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	c.node("force-1", "force", capableModules...)
	c.node("force-2", "force", capableModules...)
	target := c.target("force", "force")
	c.Eventually(c.claimant("force-1")).Should(Equal("force"))
	c.Eventually(c.claimant("force-2")).Should(Equal("force"))
	volume := c.replica("force-v", "force", "force-1")
	stop()
	c.remove(target)
	startOperator(t, nil)
	c.Eventually(c.claimant("force-2")).Should(BeEmpty())
	c.Consistently(c.claimant("force-1")).Should(Equal("force"), "its volumes are served on")
	c.remove(volume)
	c.Eventually(c.claimant("force-1")).Should(BeEmpty())
}

func TestNothingIsWrittenWhenNothingChanged(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("still-1", "still", capableModules...)
	c.node("still-2", "still", "nvmet")
	c.target("still", "still")
	c.Eventually(c.claimant("still-1")).Should(Equal("still"))
	c.serve("still-1")
	c.Eventually(c.targetCondition("still", v1alpha1.ConditionReady)).Should(Equal("True/AsExpected"))
	c.Eventually(c.nodeCondition("still-1", v1alpha1.ConditionAgentAlive)).Should(Equal("Unknown/AgentSilent"))
	c.Eventually(c.nodeCondition("still-2", v1alpha1.ConditionAgentAlive)).Should(Equal("Unknown/AgentSilent"))
	c.Eventually(c.nodeCondition("still-2", v1alpha1.ConditionTargetPodReady)).Should(Equal("True/NotNeeded"))
	c.Eventually(c.judged("still-1", v1alpha1.ConditionTargetPodReady, v1alpha1.ConditionUpdated, v1alpha1.ConditionEvictable)).Should(BeTrue())
	c.Eventually(c.judged("still-2", v1alpha1.ConditionTargetPodReady, v1alpha1.ConditionEvictable)).Should(BeTrue())

	versions := func() map[string]string {
		return map[string]string{
			"target":  c.nvmfTarget("still").ResourceVersion,
			"still-1": c.nvmfNode("still-1").ResourceVersion,
			"still-2": c.nvmfNode("still-2").ResourceVersion,
		}
	}
	targets := c.reconciles("nvmftarget")
	want := versions()
	for i := range 5 { // a label that no selector looks at still makes every target look
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, i))
		c.Expect(admin.Patch(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "still-1"}}, patch)).To(Succeed())
		c.Eventually(func() int { return c.reconciles("nvmftarget") }).Should(BeNumerically(">", targets+i))
	}
	c.Consistently(versions).Should(Equal(want))

	// A new leader finds everything as it should be.
	nodes := c.reconciles("nvmfnode")
	startOperator(t, nil)
	c.Eventually(func() int { return c.reconciles("nvmfnode") }).Should(BeNumerically(">=", nodes+2))
	c.Consistently(versions).Should(Equal(want))
}

// reconciles counts how often a controller of this process ran.
func (c *cluster) reconciles(controller string) int {
	return int(metric(c.t, "controller_runtime_reconcile_total", controller))
}

func labelValue(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
