// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lastWrite overwrites one block of a file, past the page cache, and leaves what became of it in /tmp/last-write: the
// block waits in the kernel's initiator, to be sent when it reconnects.
const lastWrite = `rm -f /tmp/last-write*; head -c 4096 /dev/zero | tr '\0' o > /tmp/last-write.data
(dd if=/tmp/last-write.data of=%s bs=4096 count=1 oflag=direct conv=notrunc 2> /tmp/last-write.said
 echo "status $?" >> /tmp/last-write.said; mv /tmp/last-write.said /tmp/last-write) > /dev/null 2>&1 < /dev/null &`

// Scripts that write and read one block of a file, past the page cache: what is read is told as the letters in it, each
// once.
const (
	writeBlock = `head -c 4096 /dev/zero | tr '\0' %[2]s > /tmp/block && dd if=/tmp/block of=%[1]s bs=4096 count=1 oflag=direct conv=notrunc 2>/dev/null && sync %[1]s`
	readBlock  = `dd if=%s bs=4096 count=1 iflag=direct 2>/dev/null | tr -s a-z`
)

var _ = Describe("A node that is cut off while a pod there writes", func() {
	It("loses its volume to the pod's successor, and writes nothing any more when it comes back", func(ctx SpecContext) {
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-fast")
		pod := runPod(ctx, claim, "first", clientNode)
		volume := bound(ctx, claim)
		file := mountPath + "/block"
		sh(ctx, pod, writeBlock, file, "a")
		onNode := on(ctx, clientNode, `grep -o '/[^ ]*/pods/%s/volumes/[^ ]*/mount' /proc/mounts`, pod.UID) + "/block"

		By("cut the node off, with a write on its way")
		DeferCleanup(func(ctx context.Context) {
			Expect(machines.RestoreNetwork(clientNode)).To(Succeed())
			outOfService(ctx, clientNode, false)
			nodesReady(ctx)
			weftReady(ctx, nil)
		})
		Expect(machines.CutNetwork(clientNode)).To(Succeed())
		on(ctx, clientNode, lastWrite, onNode)

		By("say that the node is out of service, and delete its pod by force")
		outOfService(ctx, clientNode, true)
		// The taint evicts the pod as well, and its grace period is 0.
		Expect(client.IgnoreNotFound(cluster.Delete(ctx, pod, client.GracePeriodSeconds(0)))).To(Succeed())
		// First other leaders of the controller take over, while the pods of the lost node start on this one.
		pod = runningWithin(ctx, newPod(ctx, claim, "second", storageNode), 2*podTime)
		Expect(sh(ctx, pod, readBlock, file)).To(Equal("a"))
		sh(ctx, pod, writeBlock, file, "n")
		Expect(on(ctx, clientNode, `cat /tmp/last-write 2>/dev/null || echo waits`)).To(Equal("waits"))

		By("heal the network")
		Expect(machines.RestoreNetwork(clientNode)).To(Succeed())
		Eventually(ctx, func(ctx context.Context) (string, error) {
			return tryOn(ctx, clientNode, `cat /tmp/last-write 2>/dev/null || true`)
		}).
			WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(And(ContainSubstring("Input/output error"), ContainSubstring("status 1")))
		Expect(sh(ctx, pod, readBlock, file)).To(Equal("n"))
		Expect(on(ctx, storageNode, `grep -c -a oooooooo %s || true`, volumeFile(ctx, volume))).To(Equal("0"))
		Eventually(ctx, func(ctx context.Context) []string { return controllersOf(ctx, clientNode, volume) }).
			WithTimeout(podTime).WithPolling(time.Second).Should(BeEmpty())

		By("give the volume back to the node that was cut off")
		outOfService(ctx, clientNode, false)
		takesPods(ctx, pod.Namespace, clientNode)
		remove(ctx, pod)
		pod = runPod(ctx, claim, "third", clientNode)
		Expect(sh(ctx, pod, readBlock, file)).To(Equal("n"))
		sh(ctx, pod, writeBlock, file, "z")
		Expect(sh(ctx, pod, readBlock, file)).To(Equal("z"))
	}, SpecTimeout(20*time.Minute))
})

// outOfService puts on a node the taint by which an administrator says that it is certainly down, or takes it off.
func outOfService(ctx context.Context, name string, down bool) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) error {
		var node corev1.Node
		if err := cluster.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err
		}
		before := node.DeepCopy()
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
		if down {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
				Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute,
			})
		}
		// The taints are one list, of which others write their parts.
		return cluster.Patch(ctx, &node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
}

// takesPods waits until the kubelet of a node runs a pod. After its network was cut, a kubelet may see the taints that
// its node had before, until its watch of the API server ends, and it rejects the pods that the scheduler gives it.
func takesPods(ctx context.Context, namespace, node string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		zero := int64(0)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "probe-"},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: &zero, RestartPolicy: corev1.RestartPolicyNever,
				NodeSelector: map[string]string{corev1.LabelHostname: node},
				Containers:   []corev1.Container{{Name: "main", Image: ToolsImage, ImagePullPolicy: corev1.PullNever, Command: []string{"true"}}},
			},
		}
		g.Expect(cluster.Create(ctx, pod)).To(Succeed())
		g.Eventually(ctx, func(ctx context.Context) (corev1.PodPhase, error) {
			err := cluster.Get(ctx, client.ObjectKeyFromObject(pod), pod)
			return pod.Status.Phase, err
		}).WithTimeout(podTime).WithPolling(time.Second).Should(BeElementOf(corev1.PodSucceeded, corev1.PodFailed))
		g.Expect(pod.Status.Phase).To(Equal(corev1.PodSucceeded), "%s", pod.Status.Message)
	}).WithTimeout(podTime).WithPolling(2 * time.Second).Should(Succeed())
}
