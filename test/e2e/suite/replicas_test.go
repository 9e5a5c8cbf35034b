// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
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
		target := tryOut("two", v1alpha1.TransportTCP)
		onAllNodes(ctx, target)
		for _, node := range nodes {
			servedBy(ctx, node)
		}
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
