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

// kubectl weft delete marks what nobody needs, and deletes it; its finalizer is others' to take off.
func TestDeleteByHand(t *testing.T) {
	c := newCluster(t)
	const uuid, session = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-00000000000a"
	hosts := []v1alpha1.VolumeHost{{NQN: v1alpha1.HostNQN(session), Node: "cli-2", NodeUID: "2"}}
	volume := &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: "cli-outlived", Finalizers: []string{v1alpha1.ReplicasFinalizer}}, Spec: v1alpha1.NvmfVolumeSpec{
		UUID: uuid, Target: "cli", Size: resource.MustParse("1Gi"), Session: session, Attachments: hosts,
		Members: []v1alpha1.VolumeMember{{Name: "cli-outlived-0", UUID: uuid, Node: "cli-1"}, {Name: "cli-outlived-1", UUID: session, Node: "cli-3"}},
	}}
	// The other member has no replica.
	replica := &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: "cli-outlived-0"}, Spec: v1alpha1.NvmfReplicaSpec{
		Volume: v1alpha1.ReplicaOf{Name: volume.Name, UUID: uuid}, UUID: uuid, Target: "cli", Node: "cli-1", Size: resource.MustParse("1Gi"),
		Hosts: hosts, SubsystemNQN: v1alpha1.SubsystemNQN("cli-outlived-0", session),
	}}
	snapshot := &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "cli-outlived", Finalizers: []string{v1alpha1.EngineFinalizer}}, Spec: v1alpha1.NvmfSnapshotSpec{
		UUID: "00000000-0000-4000-8000-000000000002", Volume: volume.Name, Replica: replica.Name, Node: "cli-1",
	}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "cli-pv"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: volume.Name}},
	}}
	for _, o := range []client.Object{volume, replica, snapshot, pv} {
		c.Expect(admin.Create(c.ctx, o)).To(Succeed())
	}
	refused := func(says string, args ...string) {
		t.Helper()
		out, code := c.kubectlWeft(nil, append([]string{"delete"}, args...)...)
		c.Expect(code).To(Equal(cli.CodeError), out)
		c.Expect(out).To(ContainSubstring(says))
		c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(volume), volume)).To(Succeed())
		c.Expect(volume.DeletionTimestamp).To(BeNil())
		c.Expect(volume.Marked()).To(BeFalse())
	}
	refused("specify volume NAME or snapshot NAME", "target", "cli")
	refused("not found", "volume", "cli-nobody")
	refused("it is attached", "volume", volume.Name)
	volume.Spec.Attachments = nil
	c.Expect(admin.Update(c.ctx, volume)).To(Succeed())
	refused("it is attached", "volume", volume.Name) // its replica lists the host
	replica.Status.Hosts = []v1alpha1.AdmittedHost{{NQN: hosts[0].NQN}}
	c.Expect(admin.Status().Update(c.ctx, replica.DeepCopy())).To(Succeed())
	c.Expect(admin.Patch(c.ctx, replica.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"hosts":null}}`)))).To(Succeed())
	refused("it is attached", "volume", volume.Name) // the host may still connect
	c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(replica), replica)).To(Succeed())
	replica.Status.Hosts = nil
	c.Expect(admin.Status().Update(c.ctx, replica)).To(Succeed())
	refused("PersistentVolume cli-pv refers to it", "volume", volume.Name)
	c.Expect(admin.Patch(c.ctx, pv, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	c.Expect(admin.Delete(c.ctx, pv)).To(Succeed())

	for kind, o := range map[string]interface {
		client.Object
		Marked() bool
	}{"volume": volume, "snapshot": snapshot} {
		for range 2 { // again, as long as its finalizer is there
			out, code := c.kubectlWeft(nil, "delete", kind, o.GetName())
			c.Expect(code).To(BeZero(), out)
			c.Expect(out).To(ContainSubstring("deleting " + kind))
		}
		c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
		c.Expect(o.GetDeletionTimestamp()).NotTo(BeNil())
		c.Expect(o.Marked()).To(BeTrue())
		c.Expect(admin.Patch(c.ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	}
}
