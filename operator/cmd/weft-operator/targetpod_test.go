// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

func TestATargetPodIsMadeOnce(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	c.spdkTarget("pod", nil)
	c.spdkNode("pod-1", "pod")
	pod := c.pod("pod-1")
	c.Expect(pod.Status.QOSClass).To(Equal(corev1.PodQOSGuaranteed), "as the API server reckons it")
	c.Expect(pod.Spec.Containers[0].Image).To(Equal(targetImage))
	c.Expect(pod.Spec.Containers[0].Resources.Limits).To(HaveKey(corev1.ResourceName("hugepages-2Mi")))
	c.Expect(metav1.IsControlledBy(pod, c.nvmfNode("pod-1"))).To(BeTrue())
	c.Eventually(c.podCondition("pod-1")).Should(Equal("False/PodPending"))

	c.bind("pod-1")
	c.kubelet("pod-1", func(s *corev1.PodStatus) {
		s.Phase = corev1.PodRunning
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: manifest.TargetContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	})
	c.Eventually(c.podCondition("pod-1")).Should(Equal("False/PodNotReady"))
	c.runs("pod-1")
	c.Eventually(c.podCondition("pod-1")).Should(Equal("True/AsExpected"))
	c.Eventually(c.nodeCondition("pod-1", v1alpha1.ConditionAgentAlive)).Should(Equal("True/AsExpected"), "one condition does not take the other away")
	c.Eventually(c.events("NvmfNode", "pod-1")).Should(ContainElement(HavePrefix("AsExpected - the target pod is ready")))

	// What the agent changes while the target runs is no reason to look at the pod.
	versions := func() []string {
		return []string{c.nvmfNode("pod-1").ResourceVersion, c.pod("pod-1").ResourceVersion, string(c.pod("pod-1").UID)}
	}
	c.plan("pod-1", func(p *v1alpha1.SPDKPlan) { p.Scheduler.LoadLimit = 30 })
	c.Eventually(c.judged("pod-1",
		v1alpha1.ConditionTargetPodReady, v1alpha1.ConditionTargetImageReady, v1alpha1.ConditionUpdated, v1alpha1.ConditionEvictable)).Should(BeTrue())
	c.Expect(c.podCondition("pod-1")()).To(Equal("True/AsExpected"))

	// Nothing is written when nothing changed, by this operator or the next.
	want, before := versions(), c.reconciles("targetpod")
	for i := range 3 {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, i))
		c.Expect(admin.Patch(c.ctx, c.nvmfTarget("pod"), patch)).To(Succeed())
		c.Expect(admin.Patch(c.ctx, c.pod("pod-1"), patch)).To(Succeed())
	}
	want[1] = c.pod("pod-1").ResourceVersion
	c.Eventually(func() int { return c.reconciles("targetpod") }).Should(BeNumerically(">", before))
	c.Consistently(versions).Should(Equal(want))
	stop()
	before = c.reconciles("targetpod")
	startOperator(t, nil)
	c.Eventually(func() int { return c.reconciles("targetpod") }).Should(BeNumerically(">", before))
	c.Consistently(versions).Should(Equal(want))
}

func TestNvmetHasNoTargetPod(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.node("nopod-1", "nopod", capableModules...)
	c.target("nopod", "nopod")
	c.Eventually(c.claimant("nopod-1")).Should(Equal("nopod"))
	c.Eventually(c.podMessage("nopod-1")).Should(Equal("True/NotNeeded: engine Nvmet has no target pod"))
	c.Consistently(func() *corev1.Pod { return c.findPod("nopod-1") }).Should(BeNil())
}

func TestWhyATargetPodDoesNotServeIsSaidInTheNode(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.spdkTarget("why", nil)
	c.spdkNode("why-1", "why")
	c.kubelet("why-1", func(s *corev1.PodStatus) {
		s.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 Insufficient hugepages-2Mi.",
		}}
	})
	c.Eventually(c.podMessage("why-1")).Should(Equal("False/PodPending: the target pod is not scheduled: 0/1 nodes are available: 1 Insufficient hugepages-2Mi."))

	c.bind("why-1")
	ended := func(message string) func(*corev1.PodStatus) {
		return func(s *corev1.PodStatus) {
			s.Phase, s.Conditions = corev1.PodRunning, nil
			s.ContainerStatuses = []corev1.ContainerStatus{{
				Name:                 manifest.TargetContainer,
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", Message: message}},
			}}
		}
	}
	c.kubelet("why-1", ended(`{"reason":"HugepagesMissing","message":"NUMA node 0 has 12 free pages of 2 MiB, and 256 are needed; set vm.nr_hugepages"}`))
	c.Eventually(c.podMessage("why-1")).Should(Equal("False/HugepagesMissing: NUMA node 0 has 12 free pages of 2 MiB, and 256 are needed; set vm.nr_hugepages"))
	c.Eventually(c.events("NvmfNode", "why-1")).Should(ContainElement(HavePrefix("HugepagesMissing - NUMA node 0 has 12")))
	c.kubelet("why-1", ended("EAL: cannot\x1b[0m open\n/dev/x"))
	c.Eventually(c.podMessage("why-1")).Should(Equal("False/PodFailed: EAL: cannot [0m open /dev/x"))
	c.kubelet("why-1", ended(""))
	c.Eventually(c.podMessage("why-1")).Should(ContainSubstring("False/PodFailed: the target exited with code 3 (Error)"))
	c.runs("why-1")
	c.Eventually(c.podCondition("why-1")).Should(Equal("True/AsExpected"))
}

// From an NvmfTarget to its pod and back, with plans of the operator's own.
func TestATargetTellsWhatItsPodsLack(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.spdkTarget("lack", nil)
	for _, node := range []string{"lack-1", "lack-2"} {
		c.kubeNode(node, "lack")
		c.create(&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: node}})
		c.report(node, func(s *v1alpha1.NvmfNodeStatus) { s.Inventory = spdkInventory() })
		c.removesPod(node)
	}
	for _, node := range []string{"lack-1", "lack-2"} {
		c.Eventually(c.claimant(node)).Should(Equal("lack"))
		c.runs(node)
		c.serve(node)
	}
	c.Eventually(c.targetCondition("lack", v1alpha1.ConditionReady)).Should(Equal("True/AsExpected"))
	cpus := c.findPod("lack-1").Spec.Containers[0].Resources.Limits[corev1.ResourceCPU]
	c.Expect(cpus.String()).To(Equal("2"))

	// The agent sees that the engine does not answer; the pod knows why.
	c.report("lack-2", func(s *v1alpha1.NvmfNodeStatus) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonEngineNotAnswering, Message: "connection refused",
		})
	})
	c.Eventually(c.targetMessage("lack", v1alpha1.ConditionReady)).Should(ContainSubstring("lack-2 (EngineNotAnswering: connection refused)"))
	c.kubelet("lack-2", func(s *corev1.PodStatus) {
		s.Conditions = nil
		s.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Message: `{"reason":"HugepagesMissing","message":"12 of 256 pages are free"}`,
		}}
	})
	c.Eventually(c.targetMessage("lack", v1alpha1.ConditionReady)).Should(Equal("False/NodesNotReady: 1 of 2 capable nodes not ready: lack-2 (HugepagesMissing: 12 of 256 pages are free)"))
	c.Eventually(c.targetCondition("lack", v1alpha1.ConditionDegraded)).Should(Equal("True/NodesNotReady"))
	c.runs("lack-2")
	c.serve("lack-2")
	c.Eventually(c.targetCondition("lack", v1alpha1.ConditionReady)).Should(Equal("True/AsExpected"))

	// Another plan: the pods serve on, and are outdated.
	uids := []types.UID{c.podUID("lack-1")(), c.podUID("lack-2")()}
	c.Eventually(func() error {
		target := c.nvmfTarget("lack")
		target.Spec.Cores.Count = new(int32(1))
		return admin.Update(c.ctx, target)
	}).Should(Succeed())
	c.Eventually(c.podCondition("lack-1")).Should(Equal("True/PodOutdated"))
	c.serve("lack-1")
	c.Eventually(c.podCondition("lack-2")).Should(Equal("True/PodOutdated"))
	c.serve("lack-2")
	c.Eventually(c.targetMessage("lack", v1alpha1.ConditionProgressing)).Should(
		Equal("True/PodOutdated: 2 of 2 target pods with an outdated plan or image: lack-1, lack-2; delete the pods when a short I/O pause is acceptable (updateStrategy OnDelete)"))
	c.Eventually(c.targetCondition("lack", v1alpha1.ConditionReady)).Should(Equal("True/AsExpected"))
	c.Expect([]types.UID{c.podUID("lack-1")(), c.podUID("lack-2")()}).To(Equal(uids))
}

// What the kubelet cannot give is not planned, as soon as it says so.
func TestAPlanKeepsWithinWhatTheKubeletHas(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.spdkTarget("alloc", nil)
	c.kubeNode("alloc-1", "alloc")
	allocatable := func(cpus string) {
		node := kubeNode("alloc-1")
		c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
		node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), "hugepages-2Mi": resource.MustParse("8Gi")}
		node.Status.Allocatable = node.Status.Capacity.DeepCopy()
		node.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(cpus)
		c.Expect(admin.Status().Update(c.ctx, node)).To(Succeed())
	}
	allocatable("1900m")
	c.create(&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "alloc-1"}})
	c.report("alloc-1", func(s *v1alpha1.NvmfNodeStatus) { s.Inventory = spdkInventory() })
	c.removesPod("alloc-1")
	c.Eventually(func() []v1alpha1.NotCapableNode { return c.nvmfTarget("alloc").Status.NotCapable }).Should(
		ConsistOf(HaveField("Reason", v1alpha1.ReasonNotEnoughCPUs)))
	c.Expect(c.findPod("alloc-1")).To(BeNil())
	allocatable("2")
	c.pod("alloc-1")
}

func TestABudgetLetsDrainsTakeOnePodAtATime(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.spdkTarget("budget", nil)
	budget := &policyv1.PodDisruptionBudget{}
	available := func() string {
		err := admin.Get(c.ctx, client.ObjectKey{Namespace: namespace, Name: manifest.BudgetName("budget")}, budget)
		if apierrors.IsNotFound(err) {
			return "none"
		}
		c.Expect(err).NotTo(HaveOccurred())
		return budget.Spec.MinAvailable.String()
	}
	c.Eventually(available).Should(Equal("0"))
	c.Expect(metav1.IsControlledBy(budget, c.nvmfTarget("budget"))).To(BeTrue())
	for i, want := range []string{"0", "1", "2"} {
		node := fmt.Sprintf("budget-%d", i)
		c.spdkNode(node, "budget")
		c.Eventually(available).Should(Equal(want))
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		c.Expect(err).NotTo(HaveOccurred())
		c.Expect(selector.Matches(labels.Set(c.pod(node).Labels))).To(BeTrue())
	}
	c.Expect(admin.Delete(c.ctx, budget)).To(Succeed())
	c.Eventually(available).Should(Equal("2"))
	c.target("nobudget", "nobudget")
	c.Eventually(c.targetCondition("nobudget", v1alpha1.ConditionReady)).Should(Equal("False/NoNodeMatches"))
	err := admin.Get(c.ctx, client.ObjectKey{Namespace: namespace, Name: manifest.BudgetName("nobudget")}, budget)
	c.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
}

func TestOnDeleteLeavesAnOutdatedPodToTheUser(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.spdkTarget("ondelete", nil)
	c.spdkNode("ondelete-1", "ondelete")
	pod := c.runs("ondelete-1")
	c.Eventually(c.podCondition("ondelete-1")).Should(Equal("True/AsExpected"))

	c.plan("ondelete-1", func(p *v1alpha1.SPDKPlan) { p.LargeBuffers = 512 })
	c.Eventually(c.podMessage("ondelete-1")).Should(And(HavePrefix("True/PodOutdated"), ContainSubstring("delete pod weft-target-ondelete-1 when a short I/O pause of its volumes is acceptable")))
	c.Consistently(c.podUID("ondelete-1")).Should(Equal(pod.UID))

	c.Expect(admin.Delete(c.ctx, pod)).To(Succeed())
	c.Eventually(c.podMessage("ondelete-1")).Should(HavePrefix("False/PodNotReady: the target pod is terminating"))
	c.ends(pod)
	next := c.pod("ondelete-1", pod.UID)
	c.Expect(next.Annotations[manifest.StartupAnnotation]).NotTo(Equal(pod.Annotations[manifest.StartupAnnotation]))
	c.runs("ondelete-1")
	c.Eventually(c.podCondition("ondelete-1")).Should(Equal("True/AsExpected"))
}

// A pod that cannot start with its plan would keep the one that it could start with from being tried.
func TestAnOutdatedPodThatNeverServedIsReplaced(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.spdkTarget("stuck", nil)
	c.spdkNode("stuck-1", "stuck")
	pod := c.pod("stuck-1")
	c.plan("stuck-1", func(p *v1alpha1.SPDKPlan) { p.MemoryBytes = 256 << 20 })
	next := c.pod("stuck-1", pod.UID)
	pages := next.Spec.Containers[0].Resources.Limits["hugepages-2Mi"]
	c.Expect(pages.String()).To(Equal("256Mi"))
}

func TestRollingUpdateTakesOneNodeAtATime(t *testing.T) {
	c := newCluster(t)
	_, stop := startOperator(t, nil)
	c.spdkTarget("roll", &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate})
	nodes := []string{"roll-1", "roll-2", "roll-3"}
	old := map[string]*corev1.Pod{}
	for _, node := range nodes {
		c.spdkNode(node, "roll")
		old[node] = c.runs(node)
		c.serve(node)
		c.Eventually(c.podCondition(node)).Should(Equal("True/AsExpected"))
	}
	c.replica("roll-v", "roll", "roll-1")
	c.settled("roll-v-0", metav1.ConditionFalse)
	stop()
	startOperator(t, func(o *settings) { o.TargetImage = nextImage })
	for _, node := range nodes {
		c.pulls(node, nextImage, pulled)
	}

	// The node with a volume in the midst of something has to wait; of the others one goes.
	ending := func() []string {
		var gone []string
		for _, node := range nodes {
			if c.podUID(node)() != old[node].UID {
				gone = append(gone, node)
			}
		}
		return gone
	}
	c.Eventually(ending).Should(HaveLen(1))
	first := ending()[0]
	c.Expect(first).NotTo(Equal("roll-1"))
	c.Consistently(ending).Should(Equal([]string{first}), "its pod is not even gone")
	c.ends(old[first])
	c.Expect(c.pod(first, old[first].UID).Spec.Containers[0].Image).To(Equal("registry.example/weft-target:v2"))
	c.Consistently(ending).Should(Equal([]string{first}), "its new pod is not ready")

	// Ready, but its agent does not say so any more.
	c.report(first, func(s *v1alpha1.NvmfNodeStatus) { s.Conditions = without(s.Conditions, v1alpha1.ConditionReady) })
	c.runs(first)
	c.Eventually(c.podCondition(first)).Should(Equal("True/AsExpected"))
	c.Consistently(ending).Should(Equal([]string{first}), "its target is not filled")
	c.Eventually(c.podMessage("roll-1")).Should(And(HavePrefix("True/PodOutdated"), ContainSubstring("it is replaced when it is the node's turn")))
	c.Eventually(c.message("roll-1", v1alpha1.ConditionUpdated)).Should(And(HavePrefix("False/WaitingForTurn"),
		ContainSubstring("waiting: maxUnavailable 1 is reached by other nodes that are being changed or do not serve; see the status of NvmfTarget roll")))
	c.Eventually(c.targetMessage("roll", v1alpha1.ConditionProgressing)).Should(And(HavePrefix("True/Updating: 0 of 3 nodes updated; in turn: "+first),
		ContainSubstring("its agent has not reported condition Ready"), ContainSubstring("waiting: roll-1")))
	c.serve(first)

	c.Eventually(ending).Should(HaveLen(2))
	c.Expect(ending()).NotTo(ContainElement("roll-1"))
	for _, node := range ending() {
		c.ends(old[node])
		c.pod(node, old[node].UID)
		c.runs(node)
	}
	c.Eventually(c.message("roll-1", v1alpha1.ConditionUpdated)).Should(ContainSubstring("; waiting: 1 of the node's replicas and snapshots not ready, such as replica roll-v-0"))
	c.Consistently(c.podUID("roll-1")).Should(Equal(old["roll-1"].UID))
	c.settled("roll-v-0", metav1.ConditionTrue)
	c.ends(old["roll-1"])
	c.pod("roll-1", old["roll-1"].UID)
	c.Eventually(c.events("NvmfNode", "roll-1")).Should(ContainElement("PodOutdated weft-target-roll-1 deleted target pod weft-target-roll-1"))
}

func without(conditions []metav1.Condition, kind string) []metav1.Condition {
	var rest []metav1.Condition
	for _, cond := range conditions {
		if cond.Type != kind {
			rest = append(rest, cond)
		}
	}
	return rest
}

func TestAPodThatIsNotNeededAnyMoreGoes(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	target := c.spdkTarget("letgo", nil)
	c.spdkNode("letgo-1", "letgo")
	pod := c.runs("letgo-1")
	volume := c.replica("letgo-v", "letgo", "letgo-1")
	c.Expect(admin.Delete(c.ctx, target)).To(Succeed())
	c.Consistently(c.podUID("letgo-1")).Should(Equal(pod.UID), "a volume is served by it")
	c.remove(volume)
	c.ends(pod)
	c.Eventually(c.podMessage("letgo-1")).Should(Equal("True/NotNeeded: no target claims the node"))
	c.Consistently(func() *corev1.Pod { return c.findPod("letgo-1") }).Should(BeNil())
}

func TestAPodThatFailedIsReplaced(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	c.spdkTarget("failed", nil)
	c.spdkNode("failed-1", "failed")
	pod := c.runs("failed-1")
	c.kubelet("failed-1", func(s *corev1.PodStatus) {
		s.Phase, s.Reason, s.Message, s.Conditions = corev1.PodFailed, "Evicted", "The node was low on resource: memory.", nil
	})
	c.ends(pod)
	next := c.pod("failed-1", pod.UID)
	c.Eventually(c.events("NvmfNode", "failed-1")).Should(ContainElements(
		HavePrefix("PodFailed - the target pod failed (Evicted): The node was low on resource: memory."),
		HavePrefix("PodFailed weft-target-failed-1 deleted target pod")))

	c.Expect(admin.Delete(c.ctx, next)).To(Succeed())
	c.ends(next)
	c.pod("failed-1", pod.UID, next.UID)
}

func TestAPodOfSomebodyElseIsLeftAlone(t *testing.T) {
	c := newCluster(t)
	startOperator(t, nil)
	foreign := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.TargetPodPrefix + "foreign-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}},
	}
	c.create(foreign)
	c.spdkTarget("foreign", nil)
	c.spdkNode("foreign-1", "foreign")
	c.Eventually(c.podMessage("foreign-1")).Should(Equal("False/PodPending: pod weft-target-foreign-1 does not belong to weft; delete it so that the operator can create the target pod"))
	c.Expect(c.podUID("foreign-1")()).To(Equal(foreign.UID))
	c.Expect(c.findPod("foreign-1").Labels).To(BeEmpty())
}
