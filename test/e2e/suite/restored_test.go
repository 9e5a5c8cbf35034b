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

	It("brings back what the backup has, and what it does not know", full, func(ctx SpecContext) {
		newSnapshotClass(ctx)
		forgetPools(ctx)
		r := onTwo(ctx, "old")
		ns := r.claim.Namespace
		newClass(ctx, "weft-old-xfs", map[string]string{"target": "old", "csi.storage.k8s.io/fstype": "xfs"})
		plain := newClaim(ctx, ns, "plain", "weft-old-xfs", withSize(xfsSize))
		deleted := newClaim(ctx, ns, "deleted", "weft-old-xfs", withSize(xfsSize))
		first := running(ctx, newPodOf(ctx, "first", clientNode, r.claim, plain, deleted))
		r.whole(ctx)
		for number := range 3 {
			fillAt(ctx, first, pathOf(mountPath, number))
		}
		inVain := replicaOf(ctx, bound(ctx, deleted))
		volumes := []*v1alpha1.NvmfVolume{r.volume, bound(ctx, plain), bound(ctx, deleted)}
		ended := func(pod *corev1.Pod) {
			remove(ctx, pod)
			for _, volume := range volumes {
				detached(ctx, volume)
			}
		}
		ended(first)
		backup := filepath.Join(GinkgoT().TempDir(), "backup")
		Expect(machines.BackUp(ctx, backup)).To(Succeed())

		By("deleting a volume, making another one, taking a snapshot, and losing a replica")
		remove(ctx, deleted)
		Expect(cluster.WaitGone(ctx, inVain)).To(Succeed())
		later := newClaim(ctx, ns, "later", "weft-old-xfs", withSize(xfsSize))
		volumes[2] = bound(ctx, later)
		second := running(ctx, newPodOf(ctx, "second", clientNode, r.claim, plain, later))
		kept := fillAt(ctx, second, pathOf(mountPath, 1))
		snapshot := newSnapshot(ctx, plain, "moment")
		plainSum, laterSum := fillAt(ctx, second, pathOf(mountPath, 1)), fillAt(ctx, second, pathOf(mountPath, 2))
		ended(second)
		holders := map[string]int{storageNode: 0, clientNode: 0}
		holders[replicaOf(ctx, volumes[1]).Spec.Node]++ // the snapshot
		holders[replicaOf(ctx, volumes[2]).Spec.Node]++
		third := runPod(ctx, r.claim, "third", clientNode)
		cut(storageNode)
		r.loses(ctx, storageNode)
		mirrored := fill(ctx, third)
		ended(third)

		By("restoring the API")
		restore(ctx, backup)
		Expect(machines.RestoreNetwork(storageNode)).To(Succeed())
		nodesReady(ctx)
		weftReady(ctx, nil)
		declareRestored(ctx)
		recoverRecord(ctx, r, clientNode)
		becomes(ctx, inVain.Name, v1alpha1.ReasonVolumeLost)

		By("recovering what the backup does not know")
		described(ctx, holders)
		weft := kubectlWeft(ctx)
		out, err := weft(ctx, "recover", "--lost", "--all", "--claims")
		AddReportEntry("kubectl weft recover --lost --all --claims", out)
		Expect(err).NotTo(HaveOccurred(), out)
		noLongerRetained(ctx, volumes[2].Name)
		described(ctx, map[string]int{storageNode: 0, clientNode: 0})

		By("reading everything, on the node of the replica that was lost")
		reader := running(ctx, newPodOf(ctx, "reader", storageNode, r.claim, plain, later))
		Expect(checksum(ctx, reader)).To(Equal(mirrored))
		Expect(checksumAt(ctx, reader, pathOf(mountPath, 1))).To(Equal(plainSum))
		Expect(checksumAt(ctx, reader, pathOf(mountPath, 2))).To(Equal(laterSum))
		r.whole(ctx)
		legsBecomeEqual(ctx, storageNode)
		snapshotOf(ctx, ns, snapshot.GetName())
		restored := newClaim(ctx, ns, "restored", "weft-old-xfs", fromSnapshot(snapshot.GetName()), withSize(xfsSize))
		Expect(checksum(ctx, runPod(ctx, restored, "restored", clientNode))).To(Equal(kept))
	}, SpecTimeout(40*time.Minute))
})
