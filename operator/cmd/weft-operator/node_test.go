// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestAgentThatFallsSilentAndReturns(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("silent-1", "silent", capableModules...)
	c.target("silent", "silent")
	c.Eventually(c.nodeCondition("silent-1", v1alpha1.ConditionAgentAlive)).Should(Equal("Unknown/AgentSilent"))
	c.Eventually(c.claimant("silent-1")).Should(Equal("silent"))
	c.serve("silent-1")

	lease := c.lease("silent-1", time.Now(), 3600)
	c.Eventually(c.nodeCondition("silent-1", v1alpha1.ConditionAgentAlive)).Should(Equal("True/AsExpected"))
	c.Eventually(c.targetCondition("silent", v1alpha1.ConditionReady)).Should(Equal("True/AsExpected"))
	renew := func(at time.Time, seconds int32) {
		c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(lease), lease)).To(Succeed())
		lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = new(metav1.NewMicroTime(at)), &seconds
		c.Expect(admin.Update(c.ctx, lease)).To(Succeed())
	}

	// It is renewed once more; then nothing happens, and that is noticed.
	renewed := time.Now()
	renew(renewed, 2)
	c.Eventually(c.nodeCondition("silent-1", v1alpha1.ConditionAgentAlive)).Should(Equal("False/AgentSilent"))
	alive := meta.FindStatusCondition(c.nvmfNode("silent-1").Status.Conditions, v1alpha1.ConditionAgentAlive)
	c.Expect(alive.Message).To(ContainSubstring("since " + renewed.UTC().Format(time.RFC3339)))
	c.Eventually(c.targetCondition("silent", v1alpha1.ConditionReady)).Should(Equal("False/NodesNotReady"))
	c.Expect(c.targetCondition("silent", v1alpha1.ConditionDegraded)()).To(Equal("True/NodesNotReady"))
	c.Expect(c.nvmfTarget("silent").Status.Nodes.Ready).To(BeZero())
	c.Eventually(c.events("NvmfNode", "silent-1")).Should(ContainElement(HavePrefix("AgentSilent - the agent of node silent-1 has not renewed its Lease since")))
	c.Expect(c.claimant("silent-1")()).To(Equal("silent"), "silence takes no claim away")

	renew(time.Now(), 3600)
	c.Eventually(c.nodeCondition("silent-1", v1alpha1.ConditionAgentAlive)).Should(Equal("True/AsExpected"))
	c.Eventually(c.targetCondition("silent", v1alpha1.ConditionReady)).Should(Equal("True/AsExpected"))
	c.Expect(c.nodeCondition("silent-1", v1alpha1.ConditionReady)()).To(Equal("True/AsExpected"), "the agent's own condition is its own")
}

func TestAgentOfAVersionTooFarAway(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("skew-1", "skew", capableModules...)
	c.Eventually(c.nodeCondition("skew-1", v1alpha1.ConditionVersionSkew)).Should(Equal("Unknown/Pending"))
	report := func(version string) {
		c.report("skew-1", func(s *v1alpha1.NvmfNodeStatus) { s.AgentVersion = version })
	}
	report("1.1.9")
	c.Eventually(c.nodeCondition("skew-1", v1alpha1.ConditionVersionSkew)).Should(Equal("False/AsExpected"))
	report("1.4.0")
	c.Eventually(c.nodeCondition("skew-1", v1alpha1.ConditionVersionSkew)).Should(Equal("True/VersionSkew"))
	c.Eventually(c.events("NvmfNode", "skew-1")).Should(ContainElement(HavePrefix("VersionSkew - the agent has version 1.4.0 and the operator 1.2.0")))
	c.Expect(c.nodeCondition("skew-1", v1alpha1.ConditionAgentAlive)()).To(Equal("Unknown/AgentSilent"), "the other condition of the same controller stays")
	report("1.2.0")
	c.Eventually(c.nodeCondition("skew-1", v1alpha1.ConditionVersionSkew)).Should(Equal("False/AsExpected"))
}

func TestNvmfNodesOfNodesThatAreGone(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	exists := func(name string) func() bool {
		return func() bool {
			err := admin.Get(c.ctx, client.ObjectKey{Name: name}, &v1alpha1.NvmfNode{})
			c.Expect(client.IgnoreNotFound(err)).To(Succeed())
			return !apierrors.IsNotFound(err)
		}
	}
	c.node("gone-1", "gone", capableModules...)
	c.node("gone-2", "gone", capableModules...)
	c.node("gone-3", "gone", capableModules...)
	c.target("gone", "gone")
	for _, name := range []string{"gone-1", "gone-2", "gone-3"} {
		c.Eventually(c.claimant(name)).Should(Equal("gone"))
	}
	// Nobody will put back what went with the node. The operator writes its conditions meanwhile.
	tuned := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+v1alpha1.TuningFinalizer+`"]}}`))
	c.Expect(admin.Patch(c.ctx, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "gone-1"}}, tuned)).To(Succeed())
	volume := c.replica("gone-v", "gone", "gone-2")
	snapshot := &v1alpha1.NvmfSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "gone-s"},
		Spec:       v1alpha1.NvmfSnapshotSpec{UUID: "00000000-0000-4000-9000-000000000001", Volume: "gone-x", Replica: "gone-x-0", Node: "gone-3"},
	}
	c.create(snapshot)
	for _, name := range []string{"gone-1", "gone-2", "gone-3"} {
		c.Expect(admin.Delete(c.ctx, kubeNode(name))).To(Succeed())
	}

	c.Eventually(exists("gone-1")).Should(BeFalse())
	c.Consistently(func() bool { return exists("gone-2")() && exists("gone-3")() }).Should(BeTrue(), "a volume and a snapshot lie there")
	c.Expect(c.claimant("gone-2")()).To(Equal("gone"))

	c.remove(volume)
	c.Eventually(exists("gone-2")).Should(BeFalse())
	c.remove(snapshot)
	c.Eventually(exists("gone-3")).Should(BeFalse())
}
