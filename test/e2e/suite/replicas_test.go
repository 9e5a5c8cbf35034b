// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// inSync are the replicas of a volume that its mirror's record lists as in sync.
func inSync(ctx context.Context, volume *v1alpha1.NvmfVolume) []string {
	GinkgoHelper()
	var m v1alpha1.NvmfMirror
	Expect(cluster.Get(ctx, client.ObjectKeyFromObject(volume), &m)).To(Succeed())
	return mirror.InSync(m.Spec)
}

// replicaData is the checksum of a replica's data, behind its header, as the pool of its node stores it.
func replicaData(ctx context.Context, member v1alpha1.VolumeMember) string {
	GinkgoHelper()
	return on(ctx, member.Node, `echo 3 > /proc/sys/vm/drop_caches; tail -c +%d %s | sha256sum | cut -d" " -f1`, v1alpha1.HeaderBytes+1, replicaFile(ctx, member))
}

var _ = Describe("A volume with two replicas", func() {
	It("goes on without a node that serves one, takes it back, and has both equal in the end", full, func(ctx SpecContext) {
		target := everywhere(ctx, "two")
		newClass(ctx, "weft-two", map[string]string{"target": target.Name, "replicas": "2"})
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-two")
		pod := runPod(ctx, claim, "writer", clientNode)
		volume := bound(ctx, claim)
		Expect(volume.Spec.Members).To(HaveLen(2))
		Expect(inSync(ctx, volume)).To(HaveLen(2))
		startWriter(ctx, pod)
		writesGoOn(ctx, pod, 10, time.Minute)

		By("powering off the node of one replica")
		ended := weftContainers(ctx, storageNode)
		Expect(machines.PowerOff(storageNode)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(machines.PowerOn(storageNode)).To(Succeed()) })
		off := acknowledged(ctx, pod)
		writesGoOn(ctx, pod, off+10, 2*time.Minute)
		Expect(inSync(ctx, volume)).To(HaveLen(1))

		By("powering it on")
		Expect(machines.PowerOn(storageNode)).To(Succeed())
		nodesReady(ctx)
		weftReady(ctx, ended)
		Eventually(ctx, func(ctx context.Context) []string { return inSync(ctx, volume) }).
			WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(HaveLen(2))
		nothingLost(ctx, pod)

		By("comparing the replicas")
		remove(ctx, pod)
		detached(ctx, volume)
		Expect(replicaData(ctx, volume.Spec.Members[0])).To(Equal(replicaData(ctx, volume.Spec.Members[1])))
		pod = runPod(ctx, claim, "reader", storageNode)
		Expect(sh(ctx, pod, `awk '$1 != NR {print "line " NR " holds " $1; exit}' %s/log`, mountPath)).To(BeEmpty())
	}, SpecTimeout(25*time.Minute))
})

// move the only replica of a volume to a node, and wait until it is there, and only there.
func move(ctx context.Context, volume *v1alpha1.NvmfVolume, node string) {
	GinkgoHelper()
	key := client.ObjectKeyFromObject(volume)
	former := volume.Spec.Members[0]
	Eventually(ctx, func(ctx context.Context) error {
		if err := cluster.Get(ctx, key, volume); err != nil {
			return err
		}
		volume.Spec.Move = &v1alpha1.VolumeMove{Replica: former.Name, Node: node}
		return cluster.Update(ctx, volume)
	}).Should(Succeed())
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, key, volume)).To(Succeed())
		g.Expect(volume.Spec.Move).To(BeNil())
		g.Expect(volume.Spec.Members).To(HaveLen(1))
	}).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Succeed())
	Expect(volume.Spec.Members[0].Node).To(Equal(node))
	Eventually(ctx, func(ctx context.Context) bool {
		return apierrors.IsNotFound(cluster.Get(ctx, client.ObjectKey{Name: former.Name}, &v1alpha1.NvmfReplica{}))
	}).WithTimeout(2*time.Minute).WithPolling(time.Second).Should(BeTrue(), "the former replica is deleted")
}

var _ = Describe("A volume with one replica", func() {
	It("moves to another node and back while a pod writes to it, and when no pod uses it", full, func(ctx SpecContext) {
		target := everywhere(ctx, "moving")
		newClass(ctx, "weft-moving", map[string]string{"target": target.Name})
		claim := newClaim(ctx, newNamespace(ctx), "claim", "weft-moving")
		pod := runPod(ctx, claim, "writer", clientNode)
		volume := bound(ctx, claim)
		there, back := nodes[0], volume.Spec.Members[0].Node
		if there == back {
			there = nodes[1]
		}
		startWriter(ctx, pod)
		writesGoOn(ctx, pod, 10, time.Minute)
		for _, node := range []string{there, back, there} {
			By("moving it to " + node)
			move(ctx, volume, node)
			Expect(inSync(ctx, volume)).To(Equal([]string{volume.Spec.Members[0].Name}))
			writesGoOn(ctx, pod, acknowledged(ctx, pod)+10, time.Minute)
		}
		nothingLost(ctx, pod)

		By("moving it while no pod uses it")
		remove(ctx, pod)
		detached(ctx, volume)
		move(ctx, volume, back)

		By("reading it on the other node")
		pod = runPod(ctx, claim, "reader", storageNode)
		Expect(sh(ctx, pod, `awk '$1 != NR {print "line " NR " holds " $1; exit}' %s/log`, mountPath)).To(BeEmpty())
	}, SpecTimeout(20*time.Minute))
})
