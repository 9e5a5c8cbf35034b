// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var _ = Describe("A rollout of the target image", func() {
	It("waits until the image is there, while it is paused, and for one node after the other, and a pod's I/O goes on", full, func(ctx SpecContext) {
		Expect(run.LoadTarget(ctx, realTarget)).To(Succeed())
		target := spdkTarget("rollout")
		target.Spec.UpdateStrategy = &v1alpha1.UpdateStrategy{Type: v1alpha1.UpdateRollingUpdate}
		onAllNodes(ctx, target)
		before := map[string]*corev1.Pod{}
		for _, node := range nodes {
			servedBy(ctx, node)
			before[node] = targetPod(ctx, node)
		}
		image := before[clientNode].Spec.Containers[0].Image
		tag := image[strings.LastIndex(image, ":")+1:]
		io := startIO(ctx, target)

		By("an image that cannot be pulled")
		Expect(run.Install(ctx, "target.image.tag="+tag+"-missing")).To(Succeed())
		for _, node := range nodes {
			says(ctx, node, v1alpha1.ConditionTargetImageReady, metav1.ConditionFalse, v1alpha1.ReasonImagePullFailed, image+"-missing")
			says(ctx, node, v1alpha1.ConditionUpdated, metav1.ConditionFalse, v1alpha1.ReasonWaitingForTurn, v1alpha1.ConditionTargetImageReady)
		}
		io.goesOn(ctx)
		isAsBefore(ctx, before)

		By("a good image, while the rollout is paused")
		pause(ctx, target, true)
		Expect(machines.TagImage(ctx, image, image+"-next")).To(Succeed())
		DeferCleanup(func(ctx context.Context) {
			for _, node := range nodes {
				on(ctx, node, `ctr -n k8s.io images rm %s-next`, image)
			}
		})
		Expect(run.Install(ctx, "target.image.tag="+tag+"-next")).To(Succeed())
		for _, node := range nodes {
			says(ctx, node, v1alpha1.ConditionTargetImageReady, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, image+"-next")
			says(ctx, node, v1alpha1.ConditionUpdated, metav1.ConditionFalse, v1alpha1.ReasonRolloutPaused, "")
		}
		io.goesOn(ctx)
		isAsBefore(ctx, before)

		By("the end of the pause")
		pause(ctx, target, false)
		var rolled []*corev1.Pod
		for _, node := range nodes {
			says(ctx, node, v1alpha1.ConditionUpdated, metav1.ConditionTrue, v1alpha1.ReasonAsExpected, "")
			servedBy(ctx, node)
			pod := targetPod(ctx, node)
			Expect(pod.UID).NotTo(Equal(before[node].UID))
			Expect(pod.Spec.Containers[0].Image).To(Equal(image + "-next"))
			rolled = append(rolled, pod)
		}
		slices.SortFunc(rolled, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
		for i, pod := range rolled[1:] {
			Expect(pod.CreationTimestamp.Time).NotTo(BeTemporally("<", readySince(rolled[i])), "one node after the other")
		}
		io.goesOn(ctx)
		io.end(ctx)
	}, SpecTimeout(30*time.Minute))
})

// everywhere is a target of tryOut that all nodes serve, until the test ends.
func everywhere(ctx context.Context, name string, options ...func(*v1alpha1.NvmfTarget)) *v1alpha1.NvmfTarget {
	GinkgoHelper()
	target := tryOut(name, v1alpha1.TransportTCP)
	for _, o := range options {
		o(target)
	}
	onAllNodes(ctx, target)
	for _, node := range nodes {
		servedBy(ctx, node)
	}
	return target
}

// onAllNodes makes a target that has every node, the samples' target's too, until the test ends.
func onAllNodes(ctx context.Context, target *v1alpha1.NvmfTarget) {
	GinkgoHelper()
	nothingLeft(ctx) // a node stays with its target while it has volumes
	DeferCleanup(func(ctx context.Context) {
		for _, node := range nodes {
			on(ctx, node, `rm -f %s`, target.Spec.Devices.File.Path)
		}
		Expect(run.Install(ctx)).To(Succeed())
		Expect(cluster.LabelNode(ctx, storageNode, TargetLabel, Target)).To(Succeed())
		Expect(cluster.TargetReady(ctx, Target)).To(Succeed())
	})
	for _, node := range nodes {
		label(ctx, node, target.Name)
	}
	newTarget(ctx, target)
	for _, node := range nodes {
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			var nvmf v1alpha1.NvmfNode
			g.Expect(cluster.Get(ctx, client.ObjectKey{Name: node}, &nvmf)).To(Succeed())
			g.Expect(nvmf.Spec.Target).To(Equal(target.Name))
			g.Expect(nvmf.Status.Engine).To(HaveValue(HaveField("Type", target.Spec.Engine)))
		}).WithTimeout(8 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
}

// says waits until a condition of the NvmfNode is so, with text in its message.
func says(ctx context.Context, node, condition string, status metav1.ConditionStatus, reason, text string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		var nvmf v1alpha1.NvmfNode
		g.Expect(cluster.Get(ctx, client.ObjectKey{Name: node}, &nvmf)).To(Succeed())
		g.Expect(meta.FindStatusCondition(nvmf.Status.Conditions, condition)).To(HaveValue(And(
			HaveField("Status", status), HaveField("Reason", reason), HaveField("Message", ContainSubstring(text)))))
	}).WithTimeout(8 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

// isAsBefore: every node has the target pod that it had, which was not restarted and is ready.
func isAsBefore(ctx context.Context, before map[string]*corev1.Pod) {
	GinkgoHelper()
	for node, was := range before {
		pod := targetPod(ctx, node)
		Expect(pod.UID).To(Equal(was.UID), "target pod of %s", node)
		Expect(pod.Status.ContainerStatuses[0].ContainerID).To(Equal(was.Status.ContainerStatuses[0].ContainerID))
		readySince(pod)
	}
}

// readySince fails unless the pod is ready.
func readySince(pod *corev1.Pod) time.Time {
	GinkgoHelper()
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	Expect(at).To(BeNumerically(">=", 0), "pod %s is ready: %v", pod.Name, pod.Status.Conditions)
	return pod.Status.Conditions[at].LastTransitionTime.Time
}

// pause the rollout of a target, or end the pause.
func pause(ctx context.Context, target *v1alpha1.NvmfTarget, paused bool) {
	GinkgoHelper()
	Expect(cluster.Get(ctx, client.ObjectKeyFromObject(target), target)).To(Succeed())
	before := target.DeepCopy()
	target.Spec.UpdateStrategy.Paused = paused
	Expect(cluster.Patch(ctx, target, client.MergeFrom(before))).To(Succeed())
}

// ioOn is a volume of a target. A pod writes to it, unless the targets are the fake, which serves no I/O.
type ioOn struct {
	claim   *corev1.PersistentVolumeClaim
	volume  *v1alpha1.NvmfVolume
	replica *v1alpha1.NvmfReplica // as it was before a pod used the volume
	pod     *corev1.Pod
	acks    *acknowledgements
	sum     string
}

func startIO(ctx context.Context, target *v1alpha1.NvmfTarget) *ioOn {
	GinkgoHelper()
	newClass(ctx, target.Name, map[string]string{"target": target.Name})
	io := &ioOn{claim: newClaim(ctx, newNamespace(ctx), "claim", target.Name)}
	io.volume = bound(ctx, io.claim)
	io.replica = replicaOf(ctx, io.volume)
	if realTarget == "" {
		GinkgoWriter.Println("WEFT_SPDK_TARGET is not set: the targets are the fake, and no I/O is done")
		return io
	}
	elsewhere := storageNode
	if io.replica.Spec.Node == storageNode {
		elsewhere = clientNode
	}
	io.pod = runPod(ctx, io.claim, "writer", elsewhere)
	io.sum = fill(ctx, io.pod)
	io.acks = startWriter(ctx, io.pod)
	return io
}

// goesOn waits until more was written, or the fake exports the volume.
func (io *ioOn) goesOn(ctx context.Context) {
	GinkgoHelper()
	if io.pod != nil {
		io.acks.goOn(ctx, io.acks.count(), 3*time.Minute)
		return
	}
	Eventually(ctx, tryOn).WithArguments(io.replica.Spec.Node, targetSubsystems).WithTimeout(2 * time.Minute).WithPolling(time.Second).
		Should(ContainSubstring(io.replica.Status.NQN))
}

// end it, after a look at what was written.
func (io *ioOn) end(ctx context.Context) {
	GinkgoHelper()
	if io.pod != nil {
		io.acks.nothingLost(ctx, io.pod)
		Expect(checksum(ctx, io.pod)).To(Equal(io.sum))
		remove(ctx, io.pod)
	}
	remove(ctx, io.claim)
	Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, io.volume) }).
		WithTimeout(podTime).WithPolling(time.Second).Should(BeTrue(), "volume %s is deleted", io.volume.Name)
}
