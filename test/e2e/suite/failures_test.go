// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var _ = Describe("Ten creations", func() {
	DescribeTable("all end up bound, none twice, when a part of weft is killed in the middle", full,
		func(ctx context.Context, component string) {
			nothingLeft(ctx) // volumes of the test before, whose deletion goes on behind it
			ns := newNamespace(ctx)
			var claims []*corev1.PersistentVolumeClaim
			for i := range 10 {
				claims = append(claims, newClaim(ctx, ns, fmt.Sprintf("claim-%d", i), "weft-fast"))
				if i == 4 {
					kill(ctx, component)
				}
			}
			uuids := map[string]bool{}
			for _, claim := range claims {
				uuids[bound(ctx, claim).Spec.UUID] = true
			}
			Expect(uuids).To(HaveLen(10))
			var volumes v1alpha1.NvmfVolumeList
			Expect(cluster.List(ctx, &volumes)).To(Succeed())
			Expect(volumes.Items).To(HaveLen(10))
			var replicas v1alpha1.NvmfReplicaList
			Expect(cluster.List(ctx, &replicas)).To(Succeed())
			Expect(replicas.Items).To(HaveLen(10))
			Expect(poolFiles(ctx, storageNode)).To(HaveLen(10))
			for _, claim := range claims {
				Expect(cluster.Delete(ctx, claim)).To(Succeed())
			}
			nothingLeft(ctx)
		},
		Entry("the agent", "agent"),
		Entry("the operator", "operator"),
		Entry("the CSI controller", "csi-controller"),
	)
})

// componentLabel says which part of weft a pod, a Deployment or a DaemonSet is.
const componentLabel = "app.kubernetes.io/component"

// kill deletes, without grace, every pod of a component.
func kill(ctx context.Context, component string) {
	GinkgoHelper()
	Expect(componentPods(ctx, component)).NotTo(BeEmpty())
	Expect(cluster.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(Namespace),
		client.MatchingLabels{componentLabel: component}, client.GracePeriodSeconds(0))).To(Succeed())
}

func componentPods(ctx context.Context, component string) []corev1.Pod {
	GinkgoHelper()
	var pods corev1.PodList
	Expect(cluster.List(ctx, &pods, client.InNamespace(Namespace),
		client.MatchingLabels{componentLabel: component})).To(Succeed())
	return pods.Items
}

var _ = Describe("A pod that writes", func() {
	It("stalls while the storage node is powered off, then goes on, and nothing acknowledged is lost", func(ctx SpecContext) {
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		acks := startWriter(ctx, pod)
		acks.goOn(ctx, 10, time.Minute)

		ended := weftContainers(ctx, storageNode)
		Expect(machines.PowerOff(storageNode)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(machines.PowerOn(storageNode)).To(Succeed()) })
		stalled := acks.stall(ctx, 10*time.Second)

		Expect(machines.PowerOn(storageNode)).To(Succeed())
		// An emulated node whose cache is cold takes minutes to boot and to start its pods.
		acks.goOn(ctx, stalled, 8*time.Minute)
		acks.nothingLost(ctx, pod)
		nodesReady(ctx)
		weftReady(ctx, ended)
	}, SpecTimeout(15*time.Minute))

	It("finds what was acknowledged but never flushed after the storage node has lost its power", full, func(ctx SpecContext) {
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-fast", asBlock)
		pod := runPod(ctx, claim, "writer", clientNode)
		sh(ctx, pod, `head -c 1048576 /dev/urandom > /tmp/written`)
		ended := weftContainers(ctx, storageNode)
		DeferCleanup(func(ctx context.Context) { Expect(machines.PowerOn(storageNode)).To(Succeed()) })
		sh(ctx, pod, `dd if=/tmp/written of=%s bs=64K oflag=direct status=none`, devicePath)
		Expect(machines.PowerOff(storageNode)).To(Succeed())

		Expect(machines.PowerOn(storageNode)).To(Succeed())
		sh(ctx, pod, `sync %[1]s && dd if=%[1]s bs=64K count=16 iflag=direct status=none | cmp - /tmp/written`, devicePath)
		nodesReady(ctx)
		weftReady(ctx, ended)
	}, SpecTimeout(15*time.Minute))

	It("does not notice that the agent, the operator and the CSI driver are restarted", full, func(ctx SpecContext) {
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		acks := startWriter(ctx, pod)
		acks.goOn(ctx, 10, time.Minute)
		volume := bound(ctx, claim)
		before := on(ctx, clientNode, `dmesg | grep -c -i -E 'nvme.*(reconnect|timeout|reset|I/O error)' || true`)
		for _, component := range []string{"agent", "operator", "csi-controller", "csi-node"} {
			kill(ctx, component)
		}
		weftReady(ctx, nil)
		acks.goOn(ctx, acks.count(), time.Minute)
		Expect(on(ctx, clientNode, `dmesg | grep -c -i -E 'nvme.*(reconnect|timeout|reset|I/O error)' || true`)).To(Equal(before))
		Expect(controllersOf(ctx, clientNode, volume)).To(HaveLen(1))
		acks.nothingLost(ctx, pod)
	})
})

// nodesReady waits until every node of the cluster has been heard from since now, and is Ready: what the API says of a
// node that was away for less than 40 seconds is what it was before.
func nodesReady(ctx context.Context) {
	GinkgoHelper()
	heard := func(node string) (string, error) {
		var lease coordinationv1.Lease
		err := cluster.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: node}, &lease)
		return lease.ResourceVersion, err
	}
	before := map[string]string{}
	for _, node := range nodes {
		at, err := heard(node)
		Expect(err).NotTo(HaveOccurred())
		before[node] = at
	}
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		for _, name := range nodes {
			g.Expect(heard(name)).NotTo(Equal(before[name]), "node %s", name)
			var node corev1.Node
			g.Expect(cluster.Get(ctx, client.ObjectKey{Name: name}, &node)).To(Succeed())
			g.Expect(node.Status.Conditions).To(ContainElement(And(
				HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue))), "node %s", name)
		}
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

// weftContainers are the containers of weft's pods on a node, as the API has them.
func weftContainers(ctx context.Context, node string) map[string]bool {
	GinkgoHelper()
	ids := map[string]bool{}
	var pods corev1.PodList
	Expect(cluster.List(ctx, &pods, client.InNamespace(Namespace))).To(Succeed())
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			if pod.Spec.NodeName == node {
				ids[c.ContainerID] = true
			}
		}
	}
	return ids
}

// weftReady waits until weft has all the pods that it should have, and each of them is ready, with none of the
// containers in ended.
func weftReady(ctx context.Context, ended map[string]bool) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		var deployments appsv1.DeploymentList
		var sets appsv1.DaemonSetList
		g.Expect(cluster.List(ctx, &deployments, client.InNamespace(Namespace))).To(Succeed())
		g.Expect(cluster.List(ctx, &sets, client.InNamespace(Namespace))).To(Succeed())
		want := map[string]int{}
		for _, d := range deployments.Items {
			want[d.Labels[componentLabel]] = int(*d.Spec.Replicas)
		}
		for _, d := range sets.Items {
			want[d.Labels[componentLabel]] = int(d.Status.DesiredNumberScheduled)
		}
		g.Expect(want).To(HaveLen(4))
		for component, count := range want {
			pods := componentPods(ctx, component)
			g.Expect(pods).To(HaveLen(count), "pods of %s", component)
			for _, p := range pods {
				g.Expect(p.Status.Conditions).To(ContainElement(And(
					HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))), "pod %s", p.Name)
				for _, c := range p.Status.ContainerStatuses {
					g.Expect(ended).NotTo(HaveKey(c.ContainerID), "pod %s", p.Name)
				}
			}
		}
	}).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Succeed())
}
