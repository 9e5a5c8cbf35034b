// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/controller/guard"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// disruption is the controller of Kubernetes that counts what a budget allows.
const disruption = "disruption-controller"

// Drains evict what is on a cordoned node. The API server and the controller of budgets are Kubernetes' own.
func TestDrainsAreRefusedWhileTheOnlyInSyncReplicaIsThere(t *testing.T) {
	c := newCluster(t)
	server.Controllers(t, disruption)
	startOperator(t, withGuards)
	c.storageNode("guard-1")
	c.storageNode("guard-2")
	c.Eventually(c.evictable("guard-1")).Should(Equal("True/NotNeeded: the node stores no replica"))
	c.stored("guard-v", "guard-1", "guard-2")
	one, two := c.guard("guard-1"), c.guard("guard-2")
	c.Eventually(c.evictable("guard-1")).Should(HavePrefix("True/AsExpected: each volume has an in-sync replica on another node"))

	// Only drains are let through, and they cordon the node first.
	c.closed("guard-1", 1)
	c.closed("guard-2", 1)
	c.Expect(c.evict(one)()).To(refused())

	c.recorded("guard-v", 1, v1alpha1.MemberOut)
	c.Eventually(c.evictable("guard-1")).Should(And(HavePrefix("False/OnlyReplica: 1 volume would wait for the node"), ContainSubstring("kubectl weft drain guard-1"), HaveSuffix("guard-v (no other replica is in sync)")))
	c.cordon("guard-1", true)
	c.Eventually(c.events("NvmfNode", "guard-1")).Should(ContainElement(HavePrefix("EvictionRefused - 1 volume would wait")))
	c.Expect(c.evict(one)()).To(refused())

	// A drain that waits goes on by itself when the other replica is in sync.
	c.recorded("guard-v", 1, v1alpha1.MemberFilling, v1alpha1.MemberInSync)
	c.Eventually(c.evict(one)).Should(Equal("Evicted"))
	c.ends(one)
	c.Consistently(c.guards("guard-1")).Should(Equal([2]bool{false, true}), "a guard must not return to a node that is being drained")

	// One of the two nodes at a time, although the record still has both replicas in sync.
	c.cordon("guard-2", true)
	c.Eventually(c.evictable("guard-2")).Should(And(HavePrefix("False/OnlyReplica"), ContainSubstring("node guard-1, which has the other replica, is being drained or was not uncordoned")))
	c.closed("guard-2", 1)
	c.Expect(c.evict(two)()).To(refused())

	c.cordon("guard-1", false)
	next := c.guard("guard-1")
	c.Expect(next.UID).NotTo(Equal(one.UID))
	c.Eventually(c.evict(two)).Should(Equal("Evicted"))
	c.closed("guard-1", 1)
	c.Expect(c.evict(next)()).To(refused())
}

// Both nodes are cordoned at once: one of them is opened, never both.
func TestOfTwoDrainsAtOnceOneGoesFirst(t *testing.T) {
	c := newCluster(t)
	startOperator(t, withGuards)
	c.storageNode("turn-1")
	c.storageNode("turn-2")
	c.stored("turn-v", "turn-1", "turn-2")
	c.Eventually(c.guards("turn-1")).Should(Equal([2]bool{true, true}))
	c.Eventually(c.guards("turn-2")).Should(Equal([2]bool{true, true}))
	open := func() (nodes []string) {
		for _, node := range []string{"turn-1", "turn-2"} {
			budget := &policyv1.PodDisruptionBudget{}
			if c.exists(budget, manifest.GuardName(node))() && manifest.BudgetOpen(budget) {
				nodes = append(nodes, node)
			}
		}
		return nodes
	}
	c.cordon("turn-1", true)
	c.cordon("turn-2", true)
	c.Eventually(open).Should(HaveLen(1))
	c.Consistently(open).Should(HaveLen(1))
	first := open()[0]
	c.cordon(first, false)
	c.Eventually(open).Should(And(HaveLen(1), Not(ContainElement(first))))
}

func TestAVolumeWithOneReplicaHoldsItsNodeUnlessAPersonAllowsIt(t *testing.T) {
	c := newCluster(t)
	server.Controllers(t, disruption)
	_, stop := startOperator(t, withGuards)
	c.storageNode("single-1")
	c.stored("single-v", "single-1")
	pod := c.guard("single-1")
	c.cordon("single-1", true)
	c.Eventually(c.evictable("single-1")).Should(HaveSuffix("single-v (its only replica)"))
	c.closed("single-1", 1)
	c.Expect(c.evict(pod)()).To(refused())

	c.allowEviction("single-1", "kernel update")
	c.Eventually(c.evict(pod)).Should(Equal("Evicted"))
	c.ends(pod)
	c.Expect(c.evictable("single-1")()).To(HavePrefix("True/EvictionAllowed: annotation weft.storage/allow-eviction allows evictions (kernel update), and 1 volume would wait"))
	c.Eventually(c.events("NvmfNode", "single-1")).Should(ContainElement(HavePrefix("EvictionAllowed - annotation")))

	c.allowEviction("single-1", "")
	pod = c.guard("single-1")
	c.closed("single-1", 1)
	c.Expect(c.evict(pod)()).To(refused())
	stop()

	// The same with an operator that lets such volumes wait.
	_, _ = startOperator(t, func(o *settings) { o.GuardImage, o.GuardSingleReplica = guardImage, string(guard.SingleReplicaAllow) })
	c.Eventually(c.evictable("single-1")).Should(HavePrefix("True/AsExpected: 1 volume with one replica would wait for the node, which is allowed"))
	c.Eventually(c.evict(pod)).Should(Equal("Evicted"))
	c.ends(pod)

	// More replicas are wanted: until they are there, the one that is there is needed.
	volume := &v1alpha1.NvmfVolume{}
	c.Expect(admin.Get(c.ctx, client.ObjectKey{Name: "single-v"}, volume)).To(Succeed())
	volume.Spec.Replicas = 2
	c.Expect(admin.Update(c.ctx, volume)).To(Succeed())
	c.Eventually(c.evictable("single-1")).Should(HavePrefix("False/OnlyReplica"))
	c.Expect(c.guard("single-1").UID).NotTo(Equal(pod.UID))
}

func TestAnOperatorWithAnUnknownChoiceDoesNotStart(t *testing.T) {
	_, err := newManager(t.Context(), operatorConfig, settings{
		Namespace: namespace, MetricsBindAddress: off, HealthProbeBindAddress: off, WebhookBindAddress: off, AllowSeveral: true,
		TargetImage: targetImage, GuardSingleReplica: "Never",
	})
	NewWithT(t).Expect(err).To(MatchError(`--guard-single-replica is "Never"; must be Block or Allow`))
}

// A target pod is evicted with its node's guard, or not at all. Of a pod that two budgets select, the API server
// evicts nothing.
func TestABudgetOfTheNodeReplacesThatOfTheTarget(t *testing.T) {
	c := newCluster(t)
	server.Controllers(t, disruption)
	_, stop := startOperator(t, nil)
	c.spdkTarget("kept", nil)
	budget := c.exists(&policyv1.PodDisruptionBudget{}, manifest.BudgetName("kept"))
	c.Eventually(budget).Should(BeTrue())
	c.spdkNode("kept-1", "kept")
	pod := c.runs("kept-1")
	c.stored("kept-v", "kept-1")
	c.Eventually(c.evictable("kept-1")).Should(HavePrefix("False/OnlyReplica"), "the condition is there without guards")
	c.Consistently(c.guards("kept-1")).Should(Equal([2]bool{false, false}))
	stop()

	_, stop = startOperator(t, withGuards)
	c.Eventually(budget).Should(BeFalse())
	guarding := c.guard("kept-1")
	c.closed("kept-1", 2)
	c.Expect(c.evict(pod)()).To(refused())
	c.cordon("kept-1", true)
	c.allowEviction("kept-1", "new drives")
	c.Eventually(c.evict(pod)).Should(Equal("Evicted"))
	c.ends(pod)
	c.pod("kept-1", pod.UID)
	c.Eventually(c.evict(guarding)).Should(Equal("Evicted"))
	c.ends(guarding)
	c.allowEviction("kept-1", "")
	c.Eventually(c.guards("kept-1")).Should(Equal([2]bool{true, true}))
	stop()

	// Switched off, nothing of it is left.
	startOperator(t, nil)
	c.Eventually(c.guards("kept-1")).Should(Equal([2]bool{false, false}))
	c.Eventually(budget).Should(BeTrue())
}

func TestAGuardPodIsReplacedUnlessItsNodeIsDrained(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, withGuards)
	c.storageNode("image-1")
	c.stored("image-v", "image-1")
	pod := c.guard("image-1")
	c.Expect(pod.Spec.Containers[0].Image).To(Equal(guardImage))
	c.phase(pod, corev1.PodFailed)
	c.ends(pod)
	failed := pod.UID
	pod = c.guard("image-1")
	c.Expect(pod.UID).NotTo(Equal(failed))

	// A drain that has begun does not see a new pod.
	c.cordon("image-1", true)
	stop()
	startOperator(t, func(o *settings) { o.GuardImage = nextImage })
	c.stored("image-w", "image-1")
	c.Eventually(c.evictable("image-1")).Should(HavePrefix("False/OnlyReplica: 2 volumes would wait"), "the next operator does not work yet")
	now := &corev1.Pod{}
	c.Consistently(c.exists(now, pod.Name)).Should(BeTrue())
	c.Expect(now.UID).To(Equal(pod.UID))
	c.cordon("image-1", false)
	c.ends(pod)
	c.Expect(c.guard("image-1").Spec.Containers[0].Image).To(Equal(nextImage))
}

func TestAGuardGoesWithTheLastReplicaOrTheKubernetesNode(t *testing.T) {
	c := newCluster(t)
	startOperator(t, withGuards)
	for _, name := range []string{"leave-1", "leave-2"} {
		c.storageNode(name)
	}
	moved := c.stored("leave-v", "leave-1")[0]
	c.stored("leave-w", "leave-2")
	c.guard("leave-1")
	c.guard("leave-2")
	both := [2]bool{true, true}
	c.Eventually(c.guards("leave-1")).Should(Equal(both))
	c.Eventually(c.guards("leave-2")).Should(Equal(both))

	// What kubectl weft drain says of a node, and the guard, agree: also when the last replica has gone.
	out, _ := c.kubectlWeft(nil, "drain", "leave-1")
	c.Expect(out).NotTo(ContainSubstring("can be switched off"))
	c.remove(moved)
	volume := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "leave-v"}}
	c.remove(volume)
	c.Eventually(c.guards("leave-1")).Should(Equal([2]bool{false, false}))
	c.Expect(c.evictable("leave-1")()).To(HavePrefix("True/NotNeeded"))
	out, code := c.kubectlWeft(nil, "drain", "leave-1")
	c.Expect(out).To(ContainSubstring("node leave-1 serves no replica and can be switched off"))
	c.Expect(code).To(BeZero())

	// A pod for a node that is gone would stay Pending. The NvmfNode stays, because data is there.
	c.Expect(admin.Delete(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "leave-2"}})).To(Succeed())
	c.Eventually(c.guards("leave-2")).Should(Equal([2]bool{false, false}))
	c.Expect(c.evictable("leave-2")()).To(Equal("True/NotNeeded: the Kubernetes Node does not exist, so that nothing can be evicted from it"))
	c.kubeNode("leave-2", "leave-2")
	c.Eventually(c.evictable("leave-2")).Should(HavePrefix("False/OnlyReplica"))
}

// What docs/tasks/drain-a-storage-node.md shows of kubectl drain, and that it ends by itself when it may.
func TestKubectlDrainWaitsForTheOtherReplica(t *testing.T) {
	c := newCluster(t)
	server.Controllers(t, disruption)
	startOperator(t, withGuards)
	c.storageNode("drain-1")
	c.storageNode("drain-2")
	c.stored("drain-v", "drain-1", "drain-2")
	c.recorded("drain-v", 1, v1alpha1.MemberOut)
	pod := c.guard("drain-1")
	c.closed("drain-1", 1)

	out, err := c.kubectl("drain", "drain-1", "--ignore-daemonsets", "--timeout=3s").CombinedOutput()
	c.Expect(err).To(HaveOccurred(), string(out))
	c.Expect(string(out)).To(ContainSubstring(`error when evicting pods/"weft-guard-drain-1" -n "weft-system" (will retry after 5s): Cannot evict pod as it would violate the pod's disruption budget.`))
	describe := func() (string, error) {
		out, err := c.kubectl("-n", namespace, "describe", "pdb", "weft-guard-drain-1").CombinedOutput()
		return string(out), err
	}
	c.Eventually(describe).Should(And(ContainSubstring("EvictionRefused"), ContainSubstring("kubectl weft drain drain-1")))

	c.recorded("drain-v", 1, v1alpha1.MemberFilling, v1alpha1.MemberInSync)
	var told bytes.Buffer
	drain := c.kubectl("drain", "drain-1", "--ignore-daemonsets", "--timeout=1m")
	drain.Stdout, drain.Stderr = &told, &told
	c.Expect(drain.Start()).To(Succeed())
	c.ends(pod)
	err = drain.Wait()
	c.Expect(err).NotTo(HaveOccurred(), told.String())
	c.Expect(told.String()).To(ContainSubstring("node/drain-1 drained"))
}
