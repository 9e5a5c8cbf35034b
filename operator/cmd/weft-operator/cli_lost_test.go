// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/cli"
)

// kubectl weft recover --lost makes objects that the API server accepts: of an encrypted volume with two replicas, one
// of which is not found, and of a snapshot.
func TestRecoverLostByHand(t *testing.T) {
	c := newCluster(t)
	const volumeUUID, replicaUUID, snapshotUUID = "00000000-0000-4000-8000-0000000000c0", "00000000-0000-4000-8000-0000000000c1", "00000000-0000-4000-8000-0000000000c2"
	c.target("lost", "lost")
	c.readyNode("lost-1", "lost", "1Gi")
	c.readyNode("lost-2", "lost", "1Gi")
	size := resource.MustParse("1Gi")
	secret := &v1alpha1.DescribedSecret{Namespace: "default", Name: "key"}
	c.report("lost-1", func(s *v1alpha1.NvmfNodeStatus) {
		s.OrphanCount = 2
		s.Orphans = []v1alpha1.Orphan{
			{UUID: volumeUUID, Kind: v1alpha1.OrphanReplica, Name: "lost-v-0", Device: "eui.lost-1", Size: size, Description: &v1alpha1.OrphanDescription{
				Volume: "lost-v", VolumeUUID: volumeUUID, VolumeUID: "1", VolumeGeneration: 7, Target: "lost", Size: &size, Used: true,
				Connection: &v1alpha1.Connection{Transports: []v1alpha1.TransportType{v1alpha1.TransportTCP}, IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1},
				VolumeDescription: v1alpha1.VolumeDescription{
					Replicas: 2, Mirrored: true, Encryption: v1alpha1.EncryptionLUKS2, SourceSnapshot: "gone",
					Members: []v1alpha1.VolumeMember{{Name: "lost-v-0", UUID: volumeUUID, Node: "lost-1"}, {Name: "lost-v-1", UUID: replicaUUID, Node: "lost-2"}},
					PersistentVolume: &v1alpha1.PersistentVolumeDescription{
						Name: "lost-pv", ClaimNamespace: "default", ClaimName: "lost-claim", StorageClass: "gold", ReclaimPolicy: "Delete", AccessModes: []string{"ReadWriteOnce"},
						VolumeMode: "Filesystem", FSType: "xfs", MountOptions: []string{"noatime"}, StageSecret: secret, PublishSecret: secret,
					},
				},
			}},
			{UUID: snapshotUUID, Kind: v1alpha1.OrphanSnapshot, Name: "lost-snap", Replica: "lost-v-0", Device: "eui.lost-1", Size: size,
				Description: &v1alpha1.OrphanDescription{Volume: "lost-v", VolumeDescription: v1alpha1.VolumeDescription{Encryption: v1alpha1.EncryptionLUKS2}}},
		}
	})
	volume := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "lost-v"}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "lost-pv"}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lost-claim"}}
	snapshot := &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "lost-snap"}}
	all := []client.Object{claim, pv, snapshot, volume}
	t.Cleanup(func() {
		for _, o := range all {
			c.remove(o)
		}
	})
	run := func(code int, says string, args ...string) {
		t.Helper()
		out, got := c.kubectlWeft(nil, append([]string{"recover", "--lost"}, args...)...)
		c.Expect(got).To(Equal(code), out)
		c.Expect(out).To(ContainSubstring(says))
	}
	run(0, "replica lost-v-1 was not found on node lost-2")
	run(0, "NvmfVolume lost-v created (dry run)", "lost-claim", "-n", "default", "--claims", "--dry-run")
	for _, o := range all {
		c.Expect(client.IgnoreNotFound(admin.Get(c.ctx, client.ObjectKeyFromObject(o), o))).To(Succeed())
		c.Expect(o.GetUID()).To(BeEmpty())
	}
	run(cli.CodeError, "no lost volume is another", "another")
	run(0, "PersistentVolumeClaim default/lost-claim created", "lost-claim", "-n", "default", "--claims")
	for _, o := range all {
		c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
	}
	c.Expect(volume.Spec).To(And(HaveField("Used", true), HaveField("Mirrored", true), HaveField("Recovery.AcceptLossUntil", BeNil()), HaveField("Members", HaveLen(2)), HaveField("Attachments", BeEmpty())))
	c.Expect(volume.Spec.DeletionMark).To(BeEmpty())
	c.Expect(pv.Spec.CSI).To(And(HaveField("VolumeHandle", "lost-v"), HaveField("VolumeAttributes", HaveKeyWithValue("uuid", volumeUUID)), HaveField("NodeStageSecretRef.Name", "key")))
	c.Expect(pv.Spec.Capacity.Storage().Value()).To(Equal(size.Value() - v1alpha1.LUKSHeaderBytes))
	c.Expect(claim.Spec.VolumeName).To(Equal("lost-pv"))
	c.Expect(snapshot.Spec).To(And(HaveField("Taken", true), HaveField("Node", "lost-1")))
	out, _ := c.kubectlWeft(nil, "status")
	c.Expect(out).To(ContainSubstring("whose record of replicas is being recovered"))
}
