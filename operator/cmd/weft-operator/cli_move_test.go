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

// readyNode of a target, with one drive, of which so much is promised.
func (c *cluster) readyNode(name, target, promised string) {
	c.t.Helper()
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NvmfNodeSpec{Target: target, Plan: &v1alpha1.Plan{
		Engine: v1alpha1.EngineNvmet, Portals: []v1alpha1.PlannedPortal{{
			Portal: v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 4420}, MaxIOQueues: 8, QueueDepth: 128,
		}},
		Drives: []v1alpha1.PlannedDrive{{ID: "eui." + name}},
	}}}
	c.create(node)
	node.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAsExpected, LastTransitionTime: metav1.Now()}}
	node.Status.Pools = []v1alpha1.PoolStatus{{Device: "eui." + name, Ready: true, Total: new(resource.MustParse("10Gi")), Promised: new(resource.MustParse(promised))}}
	c.Expect(admin.Status().Update(c.ctx, node)).To(Succeed())
}

// claimOf a volume, bound.
func (c *cluster) claimOf(volume string) {
	c.t.Helper()
	storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}, Spec: corev1.PersistentVolumeSpec{
		Capacity: storage, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: volume},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: volume}},
	}}
	c.create(pv)
	pv.Status.Phase = corev1.VolumeBound
	c.Expect(admin.Status().Update(c.ctx, pv)).To(Succeed())
	c.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: volume}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, VolumeName: volume, Resources: corev1.VolumeResourceRequirements{Requests: storage},
	}})
}

// kubectl weft move, drain, retire and rebalance write what the API server accepts, and only that.
func TestMovesByHand(t *testing.T) {
	c := newCluster(t)
	const session = "00000000-0000-4000-8000-00000000000b"
	c.target("moves", "moves")
	c.readyNode("moves-1", "moves", "9Gi")
	c.readyNode("moves-2", "moves", "1Gi")
	volume := c.volume("moves-v", "moves", "moves-1")
	c.claimOf(volume.Name)
	volume.Spec.Session = session
	volume.Spec.Attachments = []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(session), Node: "worker", NodeUID: "1"}}
	c.Expect(admin.Update(c.ctx, volume)).To(Succeed())
	replica := c.replica("moves-v", "moves", "moves-1")
	replica.Status.Device = "eui.moves-1"
	c.Expect(admin.Status().Update(c.ctx, replica)).To(Succeed())
	run := func(code int, says string, args ...string) {
		t.Helper()
		out, got := c.kubectlWeft(nil, args...)
		c.Expect(got).To(Equal(code), out)
		c.Expect(out).To(ContainSubstring(says))
	}
	move := func() *v1alpha1.VolumeMove {
		c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(volume), volume)).To(Succeed())
		return volume.Spec.Move
	}

	run(cli.CodeError, "PersistentVolumeClaim moves-v not found in namespace other", "move", "moves-v", "-n", "other")
	run(0, "moving replica moves-v-0 (1.0Gi) from node moves-1 to node moves-2 (dry run)", "move", "moves-v", "--to", "moves-2", "--dry-run")
	c.Expect(move()).To(BeNil())
	run(0, "volume default/moves-v: moving replica moves-v-0", "move", "moves-v", "--to", "moves-2")
	c.Expect(move()).To(Equal(&v1alpha1.VolumeMove{Replica: "moves-v-0", Node: "moves-2"}))
	out, _ := c.kubectlWeft(nil, "status")
	c.Expect(out).To(MatchRegexp(`nv/moves-v +moves-1 +moves-2 +Requested`))
	run(0, "move cancelled; replica moves-v-0 stays on node moves-1", "move", "nv/moves-v", "--cancel")
	c.Expect(move()).To(BeNil())

	run(0, "moves-1   yes             90 %        80 %", "rebalance", "moves", "--dry-run")
	c.Expect(move()).To(BeNil())
	run(0, "moving replica moves-v-0 (1.0Gi) from node moves-1 to node moves-2", "rebalance", "moves")
	c.Expect(move()).To(Equal(&v1alpha1.VolumeMove{Replica: "moves-v-0", Node: "moves-2"}))
	run(0, "move cancelled", "move", "moves-v", "-n", "default", "--cancel")

	run(cli.CodeUnwell, "drive eui.moves-1 of node moves-1 stores 1 replica and 0 snapshots: 1 moving", "retire", "moves-1", "eui.moves-1")
	c.Expect(move()).To(Equal(&v1alpha1.VolumeMove{Replica: "moves-v-0"}))
	run(cli.CodeUnwell, "node moves-1 cordoned", "drain", "moves-1")
	c.Expect(c.nvmfNode("moves-1").Spec.Unschedulable).To(BeTrue())
	run(cli.CodeError, "another move is running, from node moves-1", "move", "moves-v", "--to", "moves-2")
}
