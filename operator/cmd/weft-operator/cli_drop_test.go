// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/cli"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// kubectl weft drop names a drive that cannot be read, and none that can.
func TestDropByHand(t *testing.T) {
	c := newCluster(t)
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "cli-drop"}}
	c.create(node)
	node.Status.Pools = []v1alpha1.PoolStatus{{Device: "eui.well", Ready: true}, {Device: "eui.dead", Reason: v1alpha1.ReasonDeviceMissing, Message: "it is gone"}}
	c.Expect(admin.Status().Update(c.ctx, node)).To(Succeed())
	run := func(code int, says string, args ...string) {
		t.Helper()
		out, got := c.kubectlWeft(nil, append([]string{"drop", node.Name}, args...)...)
		c.Expect(got).To(Equal(code), out)
		c.Expect(out).To(ContainSubstring(says))
		c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
	}
	run(cli.CodeError, "its pool can still be read", "eui.well")
	run(cli.CodeError, "drives in the pool: eui.dead, eui.well", "eui.deda")
	run(cli.CodeError, "not in spec.droppedDrives", "--undo", "eui.dead")
	c.Expect(node.Spec.DroppedDrives).To(BeEmpty())

	for range 2 {
		run(0, "it has no replicas", "eui.dead")
		c.Expect(node.Spec.DroppedDrives).To(ConsistOf(v1alpha1.DroppedDrive{ID: "eui.dead"}))
	}
	replica := c.replica("drop-v", "cli", node.Name)
	replica.Status.Device = "eui.dead"
	c.Expect(admin.Status().Update(c.ctx, replica)).To(Succeed())
	run(0, "lost replicas: drop-v-0 of volume drop-v", "eui.dead")
	// The operator's own fields are applied without it.
	node.Spec.DroppedDrives = nil
	spec := v1alpha1.NvmfNodeSpec{Leaving: true}
	c.Expect(admin.Apply(c.ctx, manifest.ForNodeSpec(node, spec), client.FieldOwner(v1alpha1.OperatorFieldManager), client.ForceOwnership)).To(Succeed())
	c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
	c.Expect(node.Spec.Leaving).To(BeTrue())
	c.Expect(node.Spec.DroppedDrives).To(HaveLen(1))
	run(0, "is no longer dropped", "--undo", "eui.dead")
	c.Expect(node.Spec.DroppedDrives).To(BeEmpty())
}
