// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/cli"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// kubectl weft cordon writes a field that the operator never touches, whatever else it writes; the operator tells of
// it, and of the Kubernetes Node's.
func TestCordonByHand(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("cordon-1", "cordon", capableModules...)
	c.node("cordon-2", "cordon", capableModules...)
	c.target("cordon", "cordon")
	for _, name := range []string{"cordon-1", "cordon-2"} {
		c.Eventually(c.claimant(name)).Should(Equal("cordon"))
	}
	c.Eventually(c.nodeCondition("cordon-1", v1alpha1.ConditionSchedulable)).Should(Equal("True/AsExpected"))
	c.replica("cordon-v", "cordon", "cordon-1")
	run := func(code int, args ...string) string {
		t.Helper()
		out, got := c.kubectlWeft(nil, args...)
		c.Expect(got).To(Equal(code), out)
		return out
	}
	unschedulable := func() bool { return c.nvmfNode("cordon-1").Spec.Unschedulable }

	c.Expect(run(0, "cordon", "--dry-run", "cordon-1")).To(ContainSubstring("node cordon-1 cordoned (dry run)"))
	c.Expect(unschedulable()).To(BeFalse())
	out := run(0, "cordon", "cordon-1")
	c.Expect(out).To(ContainSubstring("node cordon-1 cordoned\n  replicas that stay on it: 1"))
	c.Expect(unschedulable()).To(BeTrue())
	c.Eventually(c.nodeCondition("cordon-1", v1alpha1.ConditionSchedulable)).Should(Equal("False/Cordoned"))
	c.Expect(run(0, "cordon", "cordon-1")).To(ContainSubstring("node cordon-1 already cordoned"))
	c.Expect(run(cli.CodeError, "cordon", "cordon-3")).To(And(ContainSubstring("not found"), ContainSubstring("existing nodes: ")))

	// The operator's next write is of all its own fields: the node's label is gone, and it leaves the target.
	node := kubeNode("cordon-1")
	c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
	labels := node.Labels
	node.Labels = nil
	c.Expect(admin.Update(c.ctx, node)).To(Succeed())
	c.Eventually(c.nodeCondition("cordon-1", v1alpha1.ConditionSchedulable)).Should(Equal("False/Leaving"))
	c.Expect(unschedulable()).To(BeTrue())
	node.Labels = labels
	c.Expect(admin.Update(c.ctx, node)).To(Succeed())
	c.Eventually(c.nodeCondition("cordon-1", v1alpha1.ConditionSchedulable)).Should(Equal("False/Cordoned"))
	c.Expect(c.nvmfNode("cordon-1").Spec.Leaving).To(BeFalse())
	for _, f := range c.nvmfNode("cordon-1").ManagedFields {
		if f.Manager == v1alpha1.OperatorFieldManager {
			c.Expect(f.FieldsV1.GetRawString()).NotTo(ContainSubstring("f:unschedulable"))
		}
	}

	node.Spec.Unschedulable = true
	c.Expect(admin.Update(c.ctx, node)).To(Succeed())
	c.Expect(run(0, "uncordon", "--dry-run", "cordon-1")).To(ContainSubstring("node cordon-1 uncordoned (dry run)"))
	c.Expect(unschedulable()).To(BeTrue())
	c.Expect(run(0, "uncordon", "cordon-1", "cordon-2")).To(And(
		ContainSubstring("node cordon-1 uncordoned\n  it still gets no new volumes: its Kubernetes Node is cordoned"),
		ContainSubstring("node cordon-2 already uncordoned")))
	c.Expect(unschedulable()).To(BeFalse())
	c.Eventually(c.nodeCondition("cordon-1", v1alpha1.ConditionSchedulable)).Should(Equal("False/KubernetesNodeCordoned"))
	node.Spec.Unschedulable = false
	c.Expect(admin.Update(c.ctx, node)).To(Succeed())
	c.Eventually(c.nodeCondition("cordon-1", v1alpha1.ConditionSchedulable)).Should(Equal("True/AsExpected"))
}

// Where new volumes of the target go, cordon says beforehand.
func TestCordonSaysWhoIsLeft(t *testing.T) {
	c := newCluster(t)
	ready := []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected, LastTransitionTime: metav1.Now()}}
	for _, name := range []string{"left-1", "left-2"} {
		node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{Target: "left", Plan: &v1alpha1.Plan{
			Engine: v1alpha1.EngineNvmet, Portals: []v1alpha1.PlannedPortal{{
				Portal: v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 4420}, MaxIOQueues: 8, QueueDepth: 128,
			}},
		}}}
		c.create(node)
		node.Status.Conditions = ready
		c.Expect(admin.Status().Update(c.ctx, node)).To(Succeed())
	}
	out, code := c.kubectlWeft(nil, "cordon", "left-1")
	c.Expect(code).To(Equal(0), out)
	c.Expect(out).To(ContainSubstring("new volumes of NvmfTarget left go to left-2"))
	out, code = c.kubectlWeft(nil, "cordon", "--dry-run", "left-2")
	c.Expect(code).To(Equal(0), out)
	c.Expect(out).To(ContainSubstring("warning: no other node of NvmfTarget left accepts volumes, so claims for new volumes stay Pending"))
}

// What an earlier operator wrote into spec.unschedulable is gone with this one's first write, and nobody has to
// uncordon the node.
func TestUnschedulableOfAnEarlierOperator(t *testing.T) {
	c := newCluster(t)
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "earlier-1"}}
	c.create(node)
	leaving := v1alpha1.NvmfNodeSpec{Leaving: true}
	earlier := manifest.ForNodeSpec(node, leaving)
	*earlier.Spec = v1alpha1.NvmfNodeSpec{Unschedulable: true}
	c.Expect(admin.Apply(c.ctx, earlier, client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership)).To(Succeed())
	node = c.nvmfNode("earlier-1")
	c.Expect(node.Spec.Unschedulable).To(BeTrue())
	c.Expect(admin.Apply(c.ctx, manifest.ForNodeSpec(node, leaving), client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership)).To(Succeed())
	c.Expect(c.nvmfNode("earlier-1").Spec).To(Equal(leaving))
}
