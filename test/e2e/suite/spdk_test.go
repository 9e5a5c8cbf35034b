// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// realTarget is a real nvmf_tgt for the target pods. Without one they run the fake, which answers SPDK's RPCs and
// serves no I/O: then everything up to a pod's first byte is tested.
var realTarget = os.Getenv("WEFT_SPDK_TARGET")

// spdkTarget is a target in a file that sleeps when it has nothing to do, in ordinary memory: an emulated node has few
// CPUs and no hugepages.
func spdkTarget(name string) *v1alpha1.NvmfTarget {
	target := tryOut(name, v1alpha1.TransportTCP)
	count := int32(1)
	target.Spec.Engine = v1alpha1.EngineSPDK
	target.Spec.Cores = &v1alpha1.Cores{Count: &count, Mode: v1alpha1.CoresInterrupt}
	target.Spec.Memory = &v1alpha1.Memory{Hugepages: v1alpha1.HugepagesDisabled}
	target.Spec.Attachments = v1alpha1.Attachments{Expected: 4, IOQueues: 2}
	return target
}

// onSPDK makes a target one of a real SPDK. Without one, the test is skipped.
func onSPDK(ctx context.Context) func(*v1alpha1.NvmfTarget) {
	GinkgoHelper()
	if realTarget == "" {
		Skip("WEFT_SPDK_TARGET is not set, and the fake target does no I/O")
	}
	Expect(run.LoadTarget(ctx, realTarget)).To(Succeed())
	return func(target *v1alpha1.NvmfTarget) { *target = *spdkTarget(target.Name) }
}

// servedBy waits until the NvmfNode serves the target with the engine's pod ready, and returns it.
func servedBy(ctx context.Context, node string) *v1alpha1.NvmfNode {
	GinkgoHelper()
	served := &v1alpha1.NvmfNode{}
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKey{Name: node}, served)).To(Succeed())
		for _, condition := range []string{v1alpha1.ConditionTargetPodReady, v1alpha1.ConditionPoolReady, v1alpha1.ConditionPortalsReady, v1alpha1.ConditionReady} {
			have := meta.FindStatusCondition(served.Status.Conditions, condition)
			g.Expect(have).NotTo(BeNil(), condition)
			g.Expect(string(have.Status)).To(Equal("True"), "%s is %s: %s", condition, have.Reason, have.Message)
		}
	}).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Succeed())
	return served
}

// onClientNode makes a target in a file that has clientNode alone, until the test ends, and waits until it serves.
func onClientNode(ctx context.Context, target *v1alpha1.NvmfTarget) *v1alpha1.NvmfNode {
	GinkgoHelper()
	label(ctx, clientNode, target.Name)
	newTarget(ctx, target)
	DeferCleanup(func(ctx context.Context) { on(ctx, clientNode, `rm -f %s`, target.Spec.Devices.File.Path) })
	return servedBy(ctx, clientNode)
}

func targetPod(ctx context.Context, node string) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{}
	Expect(cluster.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: v1alpha1.TargetPodPrefix + node}, pod)).To(Succeed())
	return pod
}

// targetSubsystems asks a node's SPDK target what it serves. It answers only while the other end stays open.
const targetSubsystems = `(echo '{"jsonrpc":"2.0","id":1,"method":"nvmf_get_subsystems"}'; sleep 1) |
	socat - UNIX-CONNECT:/run/weft/spdk.sock`

// killTarget ends the node's nvmf_tgt without warning, and waits until another runs in the same pod.
func killTarget(ctx context.Context, node string) {
	GinkgoHelper()
	before := targetPod(ctx, node)
	on(ctx, node, `pkill -9 -f '[n]vmf_tgt.*--wait-for-rpc'`)
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		now := targetPod(ctx, node)
		g.Expect(now.UID).To(Equal(before.UID))
		g.Expect(now.Status.ContainerStatuses).To(HaveLen(1))
		g.Expect(now.Status.ContainerStatuses[0].RestartCount).To(BeNumerically(">", before.Status.ContainerStatuses[0].RestartCount))
		g.Expect(now.Status.ContainerStatuses[0].Ready).To(BeTrue())
	}).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

var _ = Describe("An SPDK target", func() {
	It("is started, filled, and filled again after a crash", func(ctx SpecContext) {
		if realTarget == "" {
			GinkgoWriter.Println("WEFT_SPDK_TARGET is not set: the target is the fake, and no I/O is done")
		}
		Expect(run.LoadTarget(ctx, realTarget)).To(Succeed())
		target := spdkTarget("spdk")
		served := onClientNode(ctx, target)
		Expect(served.Status.Engine.Type).To(Equal(v1alpha1.EngineSPDK))
		Expect(targetPod(ctx, clientNode).Status.QOSClass).To(Equal(corev1.PodQOSGuaranteed))

		newClass(ctx, target.Name, map[string]string{"target": target.Name})
		claim := newClaim(ctx, newNamespace(ctx), "claim", target.Name)
		volume := bound(ctx, claim)
		replica := replicaOf(ctx, volume)
		Expect(replica.Spec.Node).To(Equal(clientNode))
		Expect(replica.Status.NQN).NotTo(BeEmpty())

		By("limiting the volume, in the target's steps")
		newLimits(ctx, "weft-2000", map[string]string{"iops": "2000"})
		newLimits(ctx, "weft-2500", map[string]string{"iops": "2500"})
		limit(ctx, claim, "weft-2000")
		limited(ctx, claim, volume, 2000)
		limit(ctx, claim, "weft-2500")
		event(ctx, claim, "use 2000 or 3000")

		if realTarget == "" {
			killTarget(ctx, clientNode)
			// The target itself is asked: for a moment the API still says what was so before the crash.
			Eventually(ctx, tryOn).WithArguments(clientNode, targetSubsystems).WithTimeout(2 * time.Minute).WithPolling(time.Second).
				Should(ContainSubstring(replica.Status.NQN))
			servedBy(ctx, clientNode)
			Eventually(ctx, func(g Gomega, ctx context.Context) {
				g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(replica), replica)).To(Succeed())
				g.Expect(meta.IsStatusConditionTrue(replica.Status.Conditions, v1alpha1.ConditionExported)).To(BeTrue())
			}).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
		} else {
			pod := runPod(ctx, claim, "writer", storageNode)
			sum := fill(ctx, pod)
			acks := startWriter(ctx, pod)
			acks.goOn(ctx, 10, time.Minute)
			killTarget(ctx, clientNode)
			acks.goOn(ctx, acks.count(), 3*time.Minute)
			acks.nothingLost(ctx, pod)
			Expect(checksum(ctx, pod)).To(Equal(sum))
			remove(ctx, pod)
		}
		remove(ctx, claim)
		remove(ctx, target)
		Eventually(ctx, func(ctx context.Context) (bool, error) {
			pod := &corev1.Pod{}
			pod.Namespace, pod.Name = Namespace, v1alpha1.TargetPodPrefix+clientNode
			return cluster.Gone(ctx, pod)
		}).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeTrue())
	}, SpecTimeout(20*time.Minute))
})

// legDifferences are the regions of 64 KiB in which the two legs of a node's only mirror differ, as the kernel reads
// them from their targets: the region, how many bytes of it differ, and the first of them.
func legDifferences(ctx context.Context, node string) []string {
	GinkgoHelper()
	return lines(on(ctx, node, `cat >/tmp/legs.sh <<'EOF'
		set -e
		size=$(cat /sys/block/md*/md/component_size)
		leg() {
			dd if=/dev/$(basename $(readlink $1/block)) bs=1M iflag=direct,skip_bytes,count_bytes status=none \
				skip=$(($(cat $1/offset) * 512)) count=$((size * 1024))
		}
		set -- /sys/block/md*/md/dev-*
		test $# = 2
		cmp -l <(leg $1) <(leg $2) | awk '
			{ region = int(($1 - 1) / 65536); if (!count[region]++) first[region] = "byte " ($1 - 1) ": " $2 " and " $3 }
			END { for (region in count) print region " differs in " count[region] ", the first at " first[region] }' | sort -n
EOF
		bash /tmp/legs.sh`))
}

// legsBecomeEqual waits until the two legs of a node's only mirror have the same data.
func legsBecomeEqual(ctx context.Context, node string) {
	GinkgoHelper()
	Eventually(ctx, legDifferences).WithArguments(node).WithTimeout(3 * time.Minute).WithPolling(2 * time.Second).Should(BeEmpty())
}

var _ = Describe("A volume with two replicas on SPDK", func() {
	It("goes on when the process of a target is killed, and the replica gets no more than what was written meanwhile", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "spdk-two", onSPDK(ctx))
		before, copied := record(ctx, r.volume), copies(ctx, clientNode)
		n := r.acks.count()

		By("killing the target")
		killTarget(ctx, storageNode)
		r.acks.goOnNow(ctx)
		pause, _ := r.acks.pause("after a target was killed", n)
		Expect(pause).To(BeNumerically("<=", pauseBound+slow))
		servedBy(ctx, storageNode)
		r.whole(ctx)
		if after := record(ctx, r.volume); after.Epoch == before.Epoch {
			Expect(copies(ctx, clientNode)).To(Equal(copied), "the target came back within the grace")
		} else {
			event(ctx, r.claim, byBitmap)
		}
		r.acks.nothingLost(ctx, r.pod)

		By("comparing the replicas")
		remove(ctx, r.pod)
		r.pod = runPod(ctx, r.claim, "reader", clientNode)
		r.acks.nothingLost(ctx, r.pod)
		legsBecomeEqual(ctx, clientNode)
	}, SpecTimeout(25*time.Minute))
})
