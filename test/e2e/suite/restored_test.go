// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"encoding/base64"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/internal/header"
)

// restore the API's objects from a backup, and restart weft's pods, as docs/tasks/back-up-and-restore.md says.
func restore(ctx context.Context, backup string) {
	GinkgoHelper()
	Expect(machines.RestoreBackup(ctx, backup)).To(Succeed())
	Expect(cluster.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(Namespace), client.GracePeriodSeconds(0))).To(Succeed())
}

// declareRestored says, for each node that suspects a restore, that the objects are right.
func declareRestored(ctx context.Context) {
	GinkgoHelper()
	for _, name := range nodes {
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			node := &v1alpha1.NvmfNode{}
			g.Expect(cluster.Get(ctx, client.ObjectKey{Name: name}, node)).To(Succeed())
			if id := node.Status.SuspectedRestore; id != "" {
				before := client.MergeFrom(node.DeepCopy())
				metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.RestoredAnnotation, id)
				g.Expect(cluster.Patch(ctx, node, before)).To(Succeed())
			}
			g.Expect(node.Status.SuspectedRestore).To(BeEmpty())
		}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
}

// headerOn is the mirror's part of a replica's header, as the pool of its node stores it.
func headerOn(ctx context.Context, member v1alpha1.VolumeMember) mirror.Header {
	GinkgoHelper()
	data, err := base64.StdEncoding.DecodeString(on(ctx, member.Node, `head -c %d %s | base64 -w 0`, header.Bytes, replicaFile(ctx, member)))
	Expect(err).NotTo(HaveOccurred())
	whole, err := header.Parse(data)
	Expect(err).NotTo(HaveOccurred())
	part, err := mirror.ParseHeader(whole.Mirror)
	Expect(err).NotTo(HaveOccurred())
	return part
}

// recoverRecord of a volume, as a person does who has restored the API. Only the replica on this node is current then;
// the other one may be filled at once.
func recoverRecord(ctx context.Context, r *replicated, current string, flags ...string) {
	GinkgoHelper()
	bounded, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	out, err := kubectlWeft(bounded)(bounded, append([]string{"recover", "nv/" + r.volume.Name, "--wait"}, flags...)...)
	AddReportEntry("kubectl weft recover", out)
	Expect(err).NotTo(HaveOccurred(), out)
	Expect(out).To(ContainSubstring("the record is recovered"))
	event(ctx, r.claim, "RecordRecovered")
	event(ctx, r.claim, "current: the replica on node "+current+". All others are filled")
}

var _ = Describe("A restore of the API from a backup, made before a replica was lost", func() {
	It("lets no running pod have the lost replica back, until a person has recovered the record", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "mounted")
		backup := filepath.Join(GinkgoT().TempDir(), "backup")
		Expect(machines.BackUp(ctx, backup)).To(Succeed())

		By("losing a replica")
		cut(storageNode)
		r.loses(ctx, storageNode)
		r.acks.goOnNow(ctx)
		lost := headerOn(ctx, r.on(storageNode))

		By("restoring the API, which has both in sync")
		restore(ctx, backup)
		Expect(inSync(ctx, r.volume)).To(HaveLen(2))
		Expect(machines.RestoreNetwork(storageNode)).To(Succeed())
		nodesReady(ctx)
		weftReady(ctx, nil)
		declareRestored(ctx)
		event(ctx, r.pod, "MirrorWaits")
		r.acks.goOnNow(ctx)
		Consistently(ctx, legStates).WithArguments(clientNode, r.on(storageNode)).WithTimeout(30 * time.Second).WithPolling(time.Second).Should(BeEmpty())
		Expect(headerOn(ctx, r.on(storageNode))).To(Equal(lost))

		By("ending the pod, and recovering the record")
		r.acks.nothingLost(ctx, r.pod)
		remove(ctx, r.pod)
		recoverRecord(ctx, r, clientNode, "--detach")
		detached(ctx, r.volume)
		r.pod = runPod(ctx, r.claim, "after", clientNode)
		r.whole(ctx)
		r.same(ctx)
	}, SpecTimeout(30*time.Minute))

	It("lets no pod start with the lost replica, until a person has recovered the record", full, func(ctx SpecContext) {
		r := writtenOnTwo(ctx, "unused")
		remove(ctx, r.pod)
		detached(ctx, r.volume)
		backup := filepath.Join(GinkgoT().TempDir(), "backup")
		Expect(machines.BackUp(ctx, backup)).To(Succeed())

		By("losing a replica under another pod")
		second := runPod(ctx, r.claim, "second", clientNode)
		acks := startWriter(ctx, second)
		acks.goOn(ctx, 10, time.Minute)
		cut(storageNode)
		r.loses(ctx, storageNode)
		acks.goOnNow(ctx)
		acks.nothingLost(ctx, second)
		remove(ctx, second)
		detached(ctx, r.volume)

		By("restoring the API, which has both in sync")
		restore(ctx, backup)
		Expect(inSync(ctx, r.volume)).To(HaveLen(2))
		Expect(machines.RestoreNetwork(storageNode)).To(Succeed())
		nodesReady(ctx)
		weftReady(ctx, nil)
		third := newPod(ctx, r.claim, "third", storageNode)
		eventWithin(ctx, third, "restored to an earlier state", time.Minute)

		By("declaring the restore")
		declareRestored(ctx)
		eventWithin(ctx, third, "the header of ", podTime)
		event(ctx, third, "kubectl weft recover nv/"+r.volume.Name)
		Expect(third.Status.Phase).To(Equal(corev1.PodPending))

		By("recovering the record")
		remove(ctx, third)
		detached(ctx, r.volume)
		recoverRecord(ctx, r, clientNode)
		r.pod = runPod(ctx, r.claim, "after", storageNode)
		acks.nothingLost(ctx, r.pod)
		r.whole(ctx)
		r.same(ctx)
	}, SpecTimeout(30*time.Minute))
})
