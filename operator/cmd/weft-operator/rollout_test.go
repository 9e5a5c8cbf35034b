// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// change an NvmfTarget's spec.
func (c *cluster) change(target string, change func(*v1alpha1.NvmfTargetSpec)) {
	c.t.Helper()
	c.Eventually(func() error {
		t := c.nvmfTarget(target)
		change(&t.Spec)
		return admin.Update(c.ctx, t)
	}).Should(Succeed())
}

// kernelFleet makes nodes that serve a target of the kernel's, over a NIC that can be tuned. Their agents are alive.
func (c *cluster) kernelFleet(target string, nodes ...string) {
	c.t.Helper()
	c.target(target, target)
	for _, node := range nodes {
		c.lease(node, time.Now(), 3600)
		c.node(node, target, capableModules...)
		c.report(node, func(s *v1alpha1.NvmfNodeStatus) {
			s.Inventory.NICs = []v1alpha1.NIC{{Name: "eth0", SpeedMbps: 25000, MTU: 1500, Up: true, Addresses: []string{"192.0.2.1/24"}}}
		})
	}
	for _, node := range nodes {
		c.Eventually(c.claimant(node)).Should(Equal(target))
		c.serve(node)
		c.Eventually(c.nodeCondition(node, v1alpha1.ConditionUpdated)).Should(Equal("True/AsExpected"))
	}
}

// planned returns the value that a node's plan has for a setting.
func (c *cluster) planned(node, setting string) string {
	for _, s := range c.nvmfNode(node).Spec.Plan.Tuning {
		if s.Setting == setting {
			return s.Value
		}
	}
	return ""
}

// tuned plays the agent that has written the plan's settings, a minute ago.
func (c *cluster) tuned(node string, status metav1.ConditionStatus, reason string) {
	c.t.Helper()
	c.serve(node)
	c.report(node, func(s *v1alpha1.NvmfNodeStatus) {
		s.Conditions = append(without(s.Conditions, v1alpha1.ConditionTuned), metav1.Condition{
			Type: v1alpha1.ConditionTuned, Status: status, Reason: reason, ObservedGeneration: s.ObservedGeneration,
			LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute)),
		})
	})
}

// rolled returns a function that tells how far a target's rollout is.
func (c *cluster) rolled(target string) func() v1alpha1.RolloutStatus {
	return func() v1alpha1.RolloutStatus { return c.nvmfTarget(target).Status.Rollout }
}

// with lists those of the nodes whose plan has the setting.
func (c *cluster) with(setting, value string, nodes ...string) func() []string {
	return func() []string {
		return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return c.planned(n, setting) != value })
	}
}

// Settings of NICs used to be written to all nodes within a minute, and most drivers reset the link for them.
func TestTuningThatResetsLinksGoesByTurns(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	nodes := []string{"links-1", "links-2", "links-3"}
	c.kernelFleet("links", nodes...)
	const rings, somaxconn = "eth0/rings.rx", "net.core.somaxconn"

	// Paused: what disturbs nobody is there at once, the rest nowhere.
	c.change("links", func(s *v1alpha1.NvmfTargetSpec) {
		s.UpdateStrategy = &v1alpha1.UpdateStrategy{Paused: true}
		s.Tuning = &v1alpha1.Tuning{
			Rings:   &v1alpha1.NICRings{RX: new(int32(4096))},
			Sysctls: &v1alpha1.TuningSysctls{Somaxconn: new(int32(4096))},
		}
	})
	c.Eventually(c.with(somaxconn, "4096", nodes...)).Should(Equal(nodes))
	for _, node := range nodes {
		c.tuned(node, metav1.ConditionTrue, v1alpha1.ReasonAsExpected)
	}
	c.Eventually(c.nodeCondition("links-2", v1alpha1.ConditionUpdated)).Should(Equal("False/RolloutPaused"))
	c.Eventually(c.targetCondition("links", v1alpha1.ConditionProgressing)).Should(Equal("True/RolloutPaused"))
	c.Consistently(c.with(rings, "4096", nodes...)).Should(BeEmpty())

	// One at a time, also when the operator is restarted in the midst of a turn.
	c.change("links", func(s *v1alpha1.NvmfTargetSpec) { s.UpdateStrategy = nil })
	c.Eventually(c.with(rings, "4096", nodes...)).Should(Equal([]string{"links-1"}))
	c.Consistently(c.with(rings, "4096", nodes...)).Should(HaveLen(1), "its agent has not written it")
	c.Eventually(c.rolled("links")).Should(Equal(v1alpha1.RolloutStatus{Outdated: 3, Updating: []string{"links-1"}}))
	stop()
	before := c.reconciles("nvmftarget")
	startOperator(t, nil)
	c.Eventually(func() int { return c.reconciles("nvmftarget") }).Should(BeNumerically(">", before))
	c.Consistently(c.with(rings, "4096", nodes...)).Should(Equal([]string{"links-1"}))
	c.report("links-1", func(s *v1alpha1.NvmfNodeStatus) { s.Inventory.NICs[0].Up = false })
	c.tuned("links-1", metav1.ConditionTrue, v1alpha1.ReasonAsExpected)
	c.Eventually(c.message("links-1", v1alpha1.ConditionUpdated)).Should(ContainSubstring("the link of eth0 is down"))
	c.Consistently(c.with(rings, "4096", nodes...)).Should(HaveLen(1))
	c.Eventually(c.targetMessage("links", v1alpha1.ConditionProgressing)).Should(And(HavePrefix("True/Updating: 0 of 3 nodes updated; in turn: links-1"), ContainSubstring("the link of eth0 is down")))

	c.report("links-1", func(s *v1alpha1.NvmfNodeStatus) { s.Inventory.NICs[0].Up = true })
	c.Eventually(c.with(rings, "4096", nodes...)).Should(Equal([]string{"links-1", "links-2"}))
	c.tuned("links-2", metav1.ConditionFalse, v1alpha1.ReasonSettingRefused)
	c.Eventually(c.with(rings, "4096", nodes...)).Should(Equal(nodes), "a refusal keeps nobody from serving")
	c.tuned("links-3", metav1.ConditionTrue, v1alpha1.ReasonAsExpected)
	c.Eventually(c.rolled("links")).Should(Equal(v1alpha1.RolloutStatus{Updated: 3}))
	c.Eventually(c.events("NvmfNode", "links-1")).Should(ContainElement(HavePrefix("Updating - the node was changed, and its turn ends when it serves again")))

	// What is put back resets links as well; two at a time this time.
	c.change("links", func(s *v1alpha1.NvmfTargetSpec) {
		s.Tuning.Rings = nil
		s.UpdateStrategy = &v1alpha1.UpdateStrategy{RollingUpdate: &v1alpha1.RollingUpdate{MaxUnavailable: new(intstr.FromString("50%"))}}
	})
	c.Eventually(c.with(rings, "", nodes...)).Should(HaveLen(2))
	c.Consistently(c.with(rings, "", nodes...)).Should(HaveLen(2))
}

// A leader that has lost its lease may still be at work beside the next one.
func TestTwoOperatorsGiveOneTurn(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	startOperator(t, nil)
	nodes := []string{"two-1", "two-2", "two-3", "two-4"}
	c.kernelFleet("two", nodes...)
	const rings = "eth0/rings.rx"
	for i, node := range nodes {
		value := []string{"512", "1024", "2048", "4096"}[i]
		c.change("two", func(s *v1alpha1.NvmfTargetSpec) {
			s.Tuning = &v1alpha1.Tuning{Rings: &v1alpha1.NICRings{RX: new(int32(512 << i))}}
		})
		// Whoever has the turn follows the newest spec at once; nobody else follows any.
		c.Eventually(c.with(rings, value, nodes...)).Should(HaveLen(1), "%s, before %s", value, node)
		c.Consistently(func() int { return len(nodes) - len(c.with(rings, "", nodes...)()) }).Should(Equal(1))
	}
}

// A machine that is gone must not hold up the fleet, and gets its change when it is back.
func TestANodeThatIsDownForWeeksHoldsUpNobody(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	nodes := []string{"weeks-1", "weeks-2"}
	c.kernelFleet("weeks", nodes...)
	lease := func(at time.Time) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"renewTime":"`+at.UTC().Format("2006-01-02T15:04:05.000000Z07:00")+`"}}`))
		l := c.leaseOf("weeks-1")
		c.Expect(admin.Patch(c.ctx, l, patch)).To(Succeed())
	}
	lease(time.Now().Add(-24 * time.Hour))
	c.Eventually(c.nodeCondition("weeks-1", v1alpha1.ConditionAgentAlive)).Should(Equal("False/AgentSilent"))
	const rings = "eth0/rings.rx"
	c.change("weeks", func(s *v1alpha1.NvmfTargetSpec) {
		s.Tuning = &v1alpha1.Tuning{Rings: &v1alpha1.NICRings{RX: new(int32(4096))}}
	})
	c.Eventually(c.message("weeks-2", v1alpha1.ConditionUpdated)).Should(And(HavePrefix("False/WaitingForTurn"), ContainSubstring("see the status of NvmfTarget weeks")))
	c.Eventually(c.targetMessage("weeks", v1alpha1.ConditionProgressing)).Should(ContainSubstring("not serving: weeks-1 (its agent is silent)"))
	c.Consistently(c.with(rings, "4096", nodes...)).Should(BeEmpty(), "it has been down for a moment only")

	c.report("weeks-1", func(s *v1alpha1.NvmfNodeStatus) {
		meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAgentAlive).LastTransitionTime = metav1.NewTime(time.Now().Add(-21 * 24 * time.Hour))
	})
	c.Eventually(c.with(rings, "4096", nodes...)).Should(Equal([]string{"weeks-2"}))

	// It comes back while the other has its turn, and waits for its own.
	lease(time.Now())
	c.Eventually(c.nodeCondition("weeks-1", v1alpha1.ConditionAgentAlive)).Should(Equal("True/AsExpected"))
	c.Consistently(c.with(rings, "4096", nodes...)).Should(Equal([]string{"weeks-2"}))
	c.tuned("weeks-2", metav1.ConditionTrue, v1alpha1.ReasonAsExpected)
	c.Eventually(c.with(rings, "4096", nodes...)).Should(Equal(nodes))
}

// A plan that needs a restart is given with the restart: a target that crashes meanwhile comes back as it was.
func TestAPlanThatNeedsARestartIsGivenInTurn(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	c.spdkTarget("planned", &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate, Paused: true})
	nodes := []string{"planned-1", "planned-2"}
	old := map[string]*corev1.Pod{}
	for _, node := range nodes {
		c.kubeNode(node, "planned")
		c.lease(node, time.Now(), 3600)
		c.create(&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: node}})
		c.report(node, func(s *v1alpha1.NvmfNodeStatus) { s.Inventory = spdkInventory() })
		c.removesPod(node)
		c.Eventually(c.claimant(node)).Should(Equal("planned"))
		old[node] = c.runs(node)
		c.serve(node)
		c.Eventually(c.nodeCondition(node, v1alpha1.ConditionUpdated)).Should(Equal("True/AsExpected"))
	}
	mask := c.nvmfNode("planned-1").Spec.Plan.SPDK.CoreMask
	given := func() []string {
		return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return c.nvmfNode(n).Spec.Plan.SPDK.CoreMask == mask })
	}
	replaced := func() []string {
		return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return c.podUID(n)() == old[n].UID })
	}
	c.change("planned", func(s *v1alpha1.NvmfTargetSpec) { s.Cores.Count = new(int32(1)) })
	c.Eventually(c.nodeCondition("planned-1", v1alpha1.ConditionUpdated)).Should(Equal("False/RolloutPaused"))
	c.Consistently(given).Should(BeEmpty())

	c.change("planned", func(s *v1alpha1.NvmfTargetSpec) { s.UpdateStrategy.Paused = false })
	c.Eventually(given).Should(Equal([]string{"planned-1"}))
	c.Eventually(replaced).Should(Equal([]string{"planned-1"}))
	stop()
	c.ends(old["planned-1"])
	startOperator(t, nil)
	c.pod("planned-1", old["planned-1"].UID)
	c.Consistently(given).Should(Equal([]string{"planned-1"}), "its new pod does not serve yet")
	c.runs("planned-1")
	c.serve("planned-1")
	c.Eventually(given).Should(Equal(nodes))
	c.Eventually(replaced).Should(Equal(nodes))
	c.ends(old["planned-2"])
	c.pod("planned-2", old["planned-2"].UID)
	c.runs("planned-2")
	c.serve("planned-2")
	c.Eventually(c.rolled("planned")).Should(Equal(v1alpha1.RolloutStatus{Updated: 2}))
}

// gonePool plays the agent of a node with two drives, of which one is gone.
func (c *cluster) gonePool(node, well, gone string) {
	c.t.Helper()
	c.report(node, func(s *v1alpha1.NvmfNodeStatus) {
		s.Pools = []v1alpha1.PoolStatus{{Device: well, Ready: true}, {Device: gone, Reason: v1alpha1.ReasonDeviceMissing, Message: "the drive is gone"}}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionPoolReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDeviceMissing, Message: "the drive is gone",
			ObservedGeneration: s.ObservedGeneration,
		})
	})
}

// outOfReach plays the agent of a new replica whose drive cannot be read, or never will be.
func (c *cluster) outOfReach(volume, node, drive, reason string) {
	c.t.Helper()
	replica := c.replica(volume, "dead", node)
	replica.Status.Device, replica.Status.ObservedGeneration = drive, replica.Generation
	for kind, status := range map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: metav1.ConditionFalse, v1alpha1.ConditionDegraded: metav1.ConditionTrue} {
		meta.SetStatusCondition(&replica.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason})
	}
	c.Expect(admin.Status().Update(c.ctx, replica)).To(Succeed())
}

// A drive that is dead will not be well when its node's turn comes, nor will one that was given up: both nodes get the
// next image, and their turns end while it is as dead as before.
func TestADeadDriveKeepsNoNodeFromAnUpdate(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	c.spdkTarget("dead", &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate})
	nodes := []string{"dead-1", "dead-2"}
	old := map[string]*corev1.Pod{}
	for _, node := range nodes {
		c.spdkNode(node, "dead")
		c.claim(node, func(spec *v1alpha1.NvmfNodeSpec) {
			spec.Plan.File = nil
			spec.Plan.Drives = []v1alpha1.PlannedDrive{{ID: "eui.well", PCIAddress: "0000:01:00.0"}, {ID: "eui.gone", PCIAddress: "0000:02:00.0"}}
		})
		old[node] = c.runs(node)
		c.serve(node)
		c.gonePool(node, "eui.well", "eui.gone")
		c.Eventually(c.podCondition(node)).Should(Equal("True/AsExpected"))
	}
	// One is dead, and has a volume still; the other was given up, and its volume is lost.
	c.outOfReach("dead-unknown", "dead-1", "eui.gone", v1alpha1.ReasonPoolFailed)
	c.outOfReach("dead-lost", "dead-2", "eui.gone", v1alpha1.ReasonVolumeLost)
	out, code := c.kubectlWeft(nil, "drop", "dead-2", "eui.gone")
	c.Expect(code).To(BeZero(), out)
	c.claim("dead-2", func(spec *v1alpha1.NvmfNodeSpec) { spec.Plan.Drives = spec.Plan.Drives[:1] })
	c.serve("dead-2")
	c.report("dead-2", func(s *v1alpha1.NvmfNodeStatus) {
		s.Pools = s.Pools[:1]
		s.DroppedDrives = []v1alpha1.DroppedDriveStatus{{ID: "eui.gone", Dropped: true}}
	})
	// What is being made is waited for.
	c.replica("dead-making", "dead", "dead-1")
	c.settled("dead-making-0", metav1.ConditionFalse)

	stop()
	startOperator(t, func(o *settings) { o.TargetImage = nextImage })
	for _, node := range nodes {
		c.pulls(node, nextImage, pulled)
	}
	replaced := func(node string) func() bool { return func() bool { return c.podUID(node)() != old[node].UID } }
	served := func(node string) {
		c.Eventually(replaced(node)).Should(BeTrue())
		c.ends(old[node])
		c.pod(node, old[node].UID)
		c.runs(node)
		c.serve(node)
	}
	served("dead-2")
	c.Eventually(c.message("dead-1", v1alpha1.ConditionUpdated)).Should(ContainSubstring("; waiting: 1 of the node's replicas and snapshots not ready, such as replica dead-making-0"))
	c.Consistently(replaced("dead-1")).Should(BeFalse())
	c.settled("dead-making-0", metav1.ConditionTrue)
	served("dead-1")
	c.gonePool("dead-1", "eui.well", "eui.gone") // as it was
	c.Eventually(c.rolled("dead")).Should(Equal(v1alpha1.RolloutStatus{Updated: 2}))
	for _, node := range nodes {
		c.Eventually(c.nodeCondition(node, v1alpha1.ConditionUpdated)).Should(Equal("True/AsExpected"))
		c.Expect(c.pod(node).Spec.Containers[0].Image).To(Equal(nextImage))
	}
}

// An upgrade of weft that leaves the target image as it is restarts no target.
func TestAnotherOperatorWithTheSameImageRestartsNothing(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	c.spdkTarget("same", &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate})
	c.spdkNode("same-1", "same")
	pod := c.runs("same-1")
	c.serve("same-1")
	c.Eventually(c.podCondition("same-1")).Should(Equal("True/AsExpected"))
	c.Eventually(c.nodeCondition("same-1", v1alpha1.ConditionUpdated)).Should(Equal("True/AsExpected"))
	stop()
	before := c.reconciles("targetpod")
	startOperator(t, func(o *settings) { o.TargetImagePullPolicy = string(corev1.PullAlways) })
	c.Eventually(func() int { return c.reconciles("targetpod") }).Should(BeNumerically(">", before))
	c.Consistently(func() string {
		return string(c.podUID("same-1")()) + " " + c.podCondition("same-1")() + " " + c.nodeCondition("same-1", v1alpha1.ConditionUpdated)()
	}).Should(Equal(string(pod.UID) + " True/AsExpected True/AsExpected"))
	c.Expect(c.pod("same-1").Annotations[manifest.StartupAnnotation]).To(Equal(pod.Annotations[manifest.StartupAnnotation]))
}
