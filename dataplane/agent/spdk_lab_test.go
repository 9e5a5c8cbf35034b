// SPDX-License-Identifier: Apache-2.0

//go:build lab

package agent

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// TestDataOutlivesItsObjectOnARealTarget: objects are deleted that nobody marked, of a volume that is attached and of
// one that is not. What is attached is served until it is detached, and both are taken back with their data. The target
// is a real SPDK, and the host this machine's kernel.
func TestDataOutlivesItsObjectOnARealTarget(t *testing.T) {
	n := newRealSPDK(t)
	g, ctx := NewWithT(t), t.Context()
	node := testNode()
	node.Spec.Plan = n.plan
	e := n.engine()
	attachment := 0
	volume := func(n int, change ...func(*v1alpha1.NvmfReplica)) *v1alpha1.NvmfReplica {
		v := testVolume(n, append(change, ofSize("64Mi"))...)
		held(v)
		return v
	}
	c, run := onKernel(t, e, testInventory(), node, volume(1), volume(2))
	t.Cleanup(enginetest.DisconnectKernel)
	change := func(n int, do func(*v1alpha1.NvmfReplica)) *v1alpha1.NvmfReplica {
		t.Helper()
		v := &v1alpha1.NvmfReplica{}
		g.Expect(c.Get(ctx, client.ObjectKey{Name: testVolume(n).Name}, v)).To(Succeed())
		do(v)
		g.Expect(c.Update(ctx, v)).To(Succeed())
		run()
		return v
	}
	attach := func(n int) (enginetest.Connection, enginetest.Namespace) {
		t.Helper()
		attachment++
		v := change(n, func(v *v1alpha1.NvmfReplica) {
			v.Spec.Used, v.Spec.SubsystemNQN = true, v1alpha1.SubsystemNQN(v.Name, uuid(attachment))
			withHosts(v1alpha1.HostNQN(uuid(attachment)))(v)
		})
		connection, err := enginetest.ConnectKernel(node.Spec.Plan.Portals[0].Portal, v.CurrentSubsystem(), v.Spec.Hosts[0].NQN)
		g.Expect(err).NotTo(HaveOccurred())
		ns, err := connection.Namespace(ctx, id(n))
		g.Expect(err).NotTo(HaveOccurred())
		return connection, ns
	}
	detach := func(n int) { change(n, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil }) }
	data := bytes.Repeat([]byte("kept"), enginetest.BlockBytes/4)
	write := func(ns enginetest.Namespace, block int64) {
		t.Helper()
		_, err := ns.WriteAt(data, block*enginetest.BlockBytes)
		g.Expect(err).NotTo(HaveOccurred())
	}

	run()
	connection, ns := attach(1)
	write(ns, 0)
	connection.Disconnect()
	detach(1)
	connection, ns = attach(2)
	write(ns, 0)

	for _, n := range []int{1, 2} {
		g.Expect(c.Delete(ctx, testVolume(n))).To(Succeed())
	}
	run() // what goes is listed first
	run()
	gone := func(n int) {
		t.Helper()
		err := c.Get(ctx, client.ObjectKey{Name: testVolume(n).Name}, &v1alpha1.NvmfReplica{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "volume %d: %v", n, err)
	}
	orphans := func() []string {
		t.Helper()
		g.Expect(c.Get(ctx, client.ObjectKey{Name: nodeName}, node)).To(Succeed())
		var uuids []string
		for _, o := range node.Status.Orphans {
			uuids = append(uuids, o.UUID)
		}
		return uuids
	}
	gone(1)
	g.Expect(orphans()).To(ConsistOf(uuid(1)))
	write(ns, 1)
	detach(2)
	run()
	gone(2)
	g.Expect(orphans()).To(ConsistOf(uuid(1), uuid(2)))
	connection.Disconnect()
	state, err := e.Gather(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(state.Exports).To(BeEmpty())
	g.Expect(state.Volumes).To(ConsistOf(HaveField("ID", id(1)), HaveField("ID", id(2))))

	for n, blocks := range map[int]int64{1: 1, 2: 2} {
		again := volume(n, func(v *v1alpha1.NvmfReplica) { v.Spec.Used, v.UID = true, types.UID(uuid(2000+n)) })
		g.Expect(c.Create(ctx, again)).To(Succeed())
		run()
		connection, ns := attach(n)
		for block := range blocks {
			got := make([]byte, len(data))
			_, err := ns.ReadAt(got, block*enginetest.BlockBytes)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(bytes.Equal(got, data)).To(BeTrue(), "block %d of volume %d", block, n)
		}
		connection.Disconnect()
		detach(n)
	}
	g.Expect(orphans()).To(BeEmpty())
}
