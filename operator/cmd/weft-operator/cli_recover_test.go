// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/cli"
)

// kubectl weft recover writes what the API server accepts, and only that.
func TestRecoverByHand(t *testing.T) {
	c := newCluster(t)
	const session = "00000000-0000-4000-8000-00000000000c"
	c.target("recovers", "recovers")
	c.readyNode("recovers-1", "recovers", "1Gi")
	volume := c.volume("recovers-v", "recovers", "recovers-1")
	c.claimOf(volume.Name)
	replica := c.replica("recovers-v", "recovers", "recovers-1")
	run := func(code int, says string, args ...string) {
		t.Helper()
		out, got := c.kubectlWeft(nil, append([]string{"recover"}, args...)...)
		c.Expect(got).To(Equal(code), out)
		c.Expect(out).To(ContainSubstring(says))
	}
	wish := func() *v1alpha1.VolumeRecovery {
		c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(volume), volume)).To(Succeed())
		return volume.Spec.Recovery
	}
	run(cli.CodeError, "there is nothing to recover", "recovers-v")
	volume.Spec.Mirrored = true
	c.Expect(admin.Update(c.ctx, volume)).To(Succeed())
	run(0, "the record of its replicas (NvmfMirror recovers-v) does not exist", "recovers-v", "--dry-run")
	c.create(&v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: volume.Name}, Spec: v1alpha1.NvmfMirrorSpec{
		Epoch: 3, Members: []v1alpha1.MirrorMember{{Replica: replica.Name, ReplicaUID: string(replica.UID), State: v1alpha1.MemberInSync}},
	}})
	run(0, "record of epoch 3, held by nobody", "nv/recovers-v", "--dry-run", "--current", "recovers-1", "--accept-loss")
	c.Expect(wish()).To(BeNil())
	run(0, "recovery of the record is requested", "recovers-v", "--current", "recovers-1", "--accept-loss")
	c.Expect(wish()).To(HaveField("Current", replica.Name))
	c.Expect(wish().AcceptLossUntil).NotTo(BeNil())
	run(0, "recovery of the record is requested", "recovers-v")
	c.Expect(wish()).To(And(HaveField("Current", ""), HaveField("AcceptLossUntil", BeNil()), HaveField("Attachments", v1alpha1.RecoveryWaits)))
	out, _ := c.kubectlWeft(nil, "status")
	c.Expect(out).To(ContainSubstring("whose record of replicas is being recovered"))

	volume.Spec.Recovery = nil
	volume.Spec.Session = session
	volume.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(session), Node: "worker", NodeUID: "1"}}
	c.Expect(admin.Update(c.ctx, volume)).To(Succeed())
	run(cli.CodeUnwell, "attached to node worker; nothing was requested", "recovers-v")
	run(0, "skipped, because it is attached to node worker", "--all")
	c.Expect(wish()).To(BeNil())
	run(0, "what still uses the volume on node worker is killed", "recovers-v", "--detach")
	c.Expect(wish()).To(HaveField("Attachments", v1alpha1.RecoveryEnds))
}
