// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// cordon a Kubernetes Node, or not, as drains do before they evict.
func cordon(ctx context.Context, node string, yes bool) {
	GinkgoHelper()
	n := &corev1.Node{}
	Expect(cluster.Get(ctx, client.ObjectKey{Name: node}, n)).To(Succeed())
	before := client.MergeFrom(n.DeepCopy())
	n.Spec.Unschedulable = yes
	Expect(cluster.Patch(ctx, n, before)).To(Succeed())
}

// allowEviction from a node whose volumes would wait for it; no reason: no more.
func allowEviction(ctx context.Context, node, reason string) {
	GinkgoHelper()
	n := &v1alpha1.NvmfNode{}
	Expect(cluster.Get(ctx, client.ObjectKey{Name: node}, n)).To(Succeed())
	before := client.MergeFrom(n.DeepCopy())
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[v1alpha1.AllowEvictionAnnotation] = reason
	if reason == "" {
		delete(n.Annotations, v1alpha1.AllowEvictionAnnotation)
	}
	Expect(cluster.Patch(ctx, n, before)).To(Succeed())
}

// guardOf waits until the guard pod of a node is ready, and is another one than that given.
func guardOf(ctx context.Context, node string, not types.UID) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{}
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: "weft-guard-" + node}, pod)).To(Succeed())
		g.Expect(pod.UID).NotTo(Equal(not))
		g.Expect(pod.Spec.NodeName).To(Equal(node))
		g.Expect(podReady(pod)).To(BeTrue())
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	return pod
}

// evict asks for the eviction of a pod, as drains do.
func evict(pod *corev1.Pod) func(context.Context) error {
	return func(ctx context.Context) error {
		return cluster.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{})
	}
}

// refuses checks that the eviction of a pod is refused because of its node's budget, and not because Kubernetes has not
// looked at that yet.
func refuses(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) string {
		err := evict(pod)(ctx)
		if cause, ok := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause); ok {
			return cause.Message
		}
		return fmt.Sprint(err)
	}).WithTimeout(30 * time.Second).WithPolling(time.Second).Should(ContainSubstring("needs 2 healthy pods and has 1 currently"))
}

var _ = Describe("A drain of a storage node", func() {
	It("waits for the other replica, takes one of two nodes at a time, and goes on where a person allows it", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "drained")
		volume, acks := r.volume, r.acks
		first, second := guardOf(ctx, storageNode, ""), guardOf(ctx, clientNode, "")
		refuses(ctx, first)

		By("draining the first node, and powering it off")
		DeferCleanup(func(ctx context.Context) {
			for _, node := range nodes {
				cordon(ctx, node, false)
			}
		})
		cordon(ctx, storageNode, true)
		Eventually(ctx, evict(first)).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
		Eventually(ctx, func(ctx context.Context) bool {
			return apierrors.IsNotFound(cluster.Get(ctx, client.ObjectKeyFromObject(first), &corev1.Pod{}))
		}).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeTrue())
		cordon(ctx, clientNode, true)
		says(ctx, clientNode, v1alpha1.ConditionEvictable, metav1.ConditionFalse, v1alpha1.ReasonOnlyReplica, "node "+storageNode+", which has the other replica, is being drained")
		refuses(ctx, second)
		ended := weftContainers(ctx, storageNode)
		Expect(machines.PowerOff(storageNode)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(machines.PowerOn(storageNode)).To(Succeed()) })
		acks.goOnNow(ctx)
		says(ctx, clientNode, v1alpha1.ConditionEvictable, metav1.ConditionFalse, v1alpha1.ReasonOnlyInSyncReplica, "no other replica is in sync")

		By("powering it on: the drain of the second node goes on by itself")
		Expect(machines.PowerOn(storageNode)).To(Succeed())
		nodesReady(ctx)
		cordon(ctx, storageNode, false)
		weftReady(ctx, ended)
		guardOf(ctx, storageNode, first.UID)
		Eventually(ctx, evict(second)).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Succeed())
		Expect(inSync(ctx, volume)).To(HaveLen(2))
		cordon(ctx, clientNode, false)
		guardOf(ctx, clientNode, second.UID)
		acks.nothingLost(ctx, r.pod)

		By("draining a node that stores a volume with one replica")
		newClass(ctx, "weft-drained-single", map[string]string{"target": "drained"})
		single := bound(ctx, newClaim(ctx, r.claim.Namespace, "single", "weft-drained-single"))
		node := single.Spec.Members[0].Node
		guarding := guardOf(ctx, node, "")
		cordon(ctx, node, true)
		says(ctx, node, v1alpha1.ConditionEvictable, metav1.ConditionFalse, v1alpha1.ReasonOnlyReplica, single.Name+" (its only replica)")
		refuses(ctx, guarding)
		allowEviction(ctx, node, "test")
		DeferCleanup(allowEviction, node, "")
		Eventually(ctx, evict(guarding)).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
		acks.goOnNow(ctx)
	}, SpecTimeout(30*time.Minute))
})
