// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/harness"
)

var _ = Describe("Ten creations", func() {
	DescribeTable("all end up bound, none twice, when a part of weft is killed in the middle",
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

// kill deletes, without grace, every pod of a component.
func kill(ctx context.Context, component string) {
	GinkgoHelper()
	Expect(componentPods(ctx, component)).NotTo(BeEmpty())
	Expect(cluster.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(harness.Namespace),
		client.MatchingLabels{"app.kubernetes.io/component": component}, client.GracePeriodSeconds(0))).To(Succeed())
}

func componentPods(ctx context.Context, component string) []corev1.Pod {
	GinkgoHelper()
	var pods corev1.PodList
	Expect(cluster.List(ctx, &pods, client.InNamespace(harness.Namespace),
		client.MatchingLabels{"app.kubernetes.io/component": component})).To(Succeed())
	return pods.Items
}

// writer is a script that appends numbers to a file, each made durable before
// it is acknowledged in another file that is not on the volume.
const writer = `i=0; : > /tmp/acknowledged
while :; do i=$((i+1)); echo $i >> %[1]s/log && sync %[1]s/log && echo $i > /tmp/acknowledged.new && mv /tmp/acknowledged.new /tmp/acknowledged; done`

// startWriter starts it in the background of a pod.
func startWriter(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	sh(ctx, pod, `(`+writer+`) > /dev/null 2>&1 &`, mountPath)
}

func acknowledged(ctx context.Context, pod *corev1.Pod) int {
	GinkgoHelper()
	n, err := strconv.Atoi("0" + sh(ctx, pod, `cat /tmp/acknowledged 2>/dev/null || true`))
	Expect(err).NotTo(HaveOccurred())
	return n
}

// writesGoOn waits until the writer acknowledged more than n.
func writesGoOn(ctx context.Context, pod *corev1.Pod, n int, within time.Duration) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) int { return acknowledged(ctx, pod) }).
		WithTimeout(within).WithPolling(time.Second).Should(BeNumerically(">", n))
}

// nothingLost checks that every acknowledged number is in the file, in order.
func nothingLost(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	n := acknowledged(ctx, pod)
	Expect(sh(ctx, pod, `head -n %d %s/log | awk '$1 != NR {print "line " NR " holds " $1; exit}'`, n, mountPath)).To(BeEmpty())
	Expect(strconv.Atoi(sh(ctx, pod, `wc -l < %s/log`, mountPath))).To(BeNumerically(">=", n))
}

var _ = Describe("A pod that writes", func() {
	It("stalls while the storage node is powered off, then goes on, and nothing acknowledged is lost", func(ctx SpecContext) {
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		startWriter(ctx, pod)
		writesGoOn(ctx, pod, 10, time.Minute)

		Expect(machines.PowerOff(storageNode)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(machines.PowerOn(storageNode)).To(Succeed()) })
		stalled := stall(ctx, pod)

		Expect(machines.PowerOn(storageNode)).To(Succeed())
		writesGoOn(ctx, pod, stalled, 5*time.Minute)
		nothingLost(ctx, pod)
		nodesReady(ctx)
	}, SpecTimeout(15*time.Minute))

	It("does not notice that the agent, the operator and the CSI driver are restarted", func(ctx SpecContext) {
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		startWriter(ctx, pod)
		writesGoOn(ctx, pod, 10, time.Minute)
		volume := bound(ctx, claim)
		before := on(ctx, clientNode, `dmesg | grep -c -i -E 'nvme.*(reconnect|timeout|reset|I/O error)' || true`)
		for _, component := range []string{"agent", "operator", "csi-controller", "csi-node"} {
			kill(ctx, component)
		}
		weftReady(ctx)
		writesGoOn(ctx, pod, acknowledged(ctx, pod), time.Minute)
		Expect(on(ctx, clientNode, `dmesg | grep -c -i -E 'nvme.*(reconnect|timeout|reset|I/O error)' || true`)).To(Equal(before))
		Expect(controllersOf(ctx, clientNode, volume)).To(HaveLen(1))
		nothingLost(ctx, pod)
	})
})

// stall waits until the writer makes no progress any more and returns how far it came.
func stall(ctx context.Context, pod *corev1.Pod) int {
	GinkgoHelper()
	last, since := acknowledged(ctx, pod), time.Now()
	Eventually(ctx, func(ctx context.Context) time.Duration {
		if n := acknowledged(ctx, pod); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since)
	}).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeNumerically(">", 10*time.Second))
	return last
}

// nodesReady waits until every node of the cluster is Ready.
func nodesReady(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		var list corev1.NodeList
		g.Expect(cluster.List(ctx, &list)).To(Succeed())
		for _, n := range list.Items {
			g.Expect(n.Status.Conditions).To(ContainElement(And(
				HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionTrue))), "node %s", n.Name)
		}
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

// weftReady waits until every pod of weft is ready.
func weftReady(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		var pods corev1.PodList
		g.Expect(cluster.List(ctx, &pods, client.InNamespace(harness.Namespace))).To(Succeed())
		components := map[string]bool{}
		for _, p := range pods.Items {
			components[p.Labels["app.kubernetes.io/component"]] = true
			g.Expect(p.Status.Conditions).To(ContainElement(And(
				HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))), "pod %s", p.Name)
		}
		g.Expect(components).To(HaveLen(4), "components %s", strings.Join(keys(components), ", "))
	}).WithTimeout(5 * time.Minute).WithPolling(2 * time.Second).Should(Succeed())
}

func keys(m map[string]bool) []string {
	var ks []string
	for k := range m {
		ks = append(ks, k)
	}
	return ks
}
