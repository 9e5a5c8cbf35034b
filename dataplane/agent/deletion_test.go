// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

// accident is a node with volume 1, detached, volume 2, attached and in use, and snapshot 3 of volume 1. Their objects
// go, and none of it was meant.
type accident struct {
	*lab
	r    *Reconciler
	host *enginetest.Host
	at   int64
	// attachments so far: none is used again.
	attachments int
}

func newAccident(t *testing.T, s *server) *accident {
	t.Helper()
	a := &accident{lab: newLabOn(t, s)}
	a.r = a.agent()
	a.create(1)
	a.create(2)
	a.reconcile(a.r)
	a.attach(1)
	a.write1("first")
	a.createSnapshot(3, a.name(1))
	a.detach(1)
	a.attach(2)
	a.stillWrites()
	return a
}

// attach a volume as the CSI controller does, and connect.
func (a *accident) attach(n int) {
	a.t.Helper()
	a.attachments++
	attachment := uuid(1000 + a.attachments)
	a.change(n, func(v *v1alpha1.NvmfReplica) {
		v.Spec.Used, v.Spec.SubsystemNQN = true, v1alpha1.SubsystemNQN(v.Name, attachment)
		withHosts(v1alpha1.HostNQN(attachment))(v)
	})
	a.reconcile(a.r)
	host, err := a.target.Connect(a.t.Context(), tcp, a.volume(n).CurrentSubsystem(), v1alpha1.HostNQN(attachment))
	a.Expect(err).NotTo(HaveOccurred())
	a.host = host
}

func (a *accident) detach(n int) {
	a.t.Helper()
	a.host.Disconnect()
	a.change(n, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil })
	a.reconcile(a.r)
}

func (a *accident) write1(data string) {
	a.t.Helper()
	_, err := a.host.WriteAt(id(1), []byte(data), 0)
	a.Expect(err).NotTo(HaveOccurred())
}

// stillWrites says that volume 2 is in use as if nothing had happened.
func (a *accident) stillWrites() {
	a.t.Helper()
	a.Expect(a.host.Disconnected()).To(BeFalse())
	_, err := a.host.WriteAt(id(2), []byte("more"), a.at)
	a.Expect(err).NotTo(HaveOccurred())
	a.at += 4
}

// reconcileTwice: what goes is listed first.
func (a *accident) reconcileTwice() {
	a.t.Helper()
	a.reconcile(a.r)
	a.reconcile(a.r)
}

func (a *accident) gone(n int, obj client.Object) {
	a.t.Helper()
	err := a.admin.Get(a.t.Context(), client.ObjectKey{Name: a.name(n)}, obj)
	a.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "object %d: %v", n, err)
}

// lists the orphans of the node's status, by number, with their names, and the size that takes a volume back.
func (a *accident) lists(want ...int) {
	a.t.Helper()
	got := map[string]string{}
	for _, o := range a.nvmfNode().Status.Orphans {
		got[o.UUID] = o.Name
		a.Expect(o.Size.String()).To(Equal("10Gi"))
	}
	listed := map[string]string{}
	for _, n := range want {
		listed[uuid(n)] = a.name(n)
	}
	a.Expect(got).To(Equal(listed))
}

// holdsAll that there was.
func (a *accident) holdsAll() {
	a.t.Helper()
	a.Expect(a.state().Volumes).To(ConsistOf(HaveField("ID", id(1)), HaveField("ID", id(2))))
	a.Expect(a.state().Snapshots).To(ConsistOf(HaveField("ID", id(3))))
}

// takeBack as docs/tasks/recover-a-deleted-volume.md says, and read what was written before.
func (a *accident) takeBack() {
	a.t.Helper()
	for _, n := range []int{1, 2} {
		a.create(n, func(v *v1alpha1.NvmfReplica) { v.Spec.Used = true })
	}
	snap := testSnapshot(3, a.name(1), func(s *v1alpha1.NvmfSnapshot) { s.Spec.Taken = true })
	snap.Name, snap.Spec.Node, snap.Generation, snap.Finalizers = a.name(3), a.node, 0, []string{v1alpha1.EngineFinalizer}
	a.Expect(a.admin.Create(a.t.Context(), snap)).To(Succeed())
	a.reconcile(a.r)
	a.lists()
	a.Expect(a.state().Snapshots).To(ConsistOf(HaveField("ID", id(3))), "it is the one that was there")
	for _, v := range a.state().Volumes {
		a.Expect(v.SizeBytes).To(Equal(int64(10*gib+v1alpha1.OverheadBytes)), "it is neither grown nor cut")
	}
	for n, want := range map[int]string{1: "first", 2: "more"} {
		a.Expect(a.says(n)).To(HaveKeyWithValue("Ready", "True/AsExpected"))
		a.Expect(a.volume(n).Status.Written).To(BeTrue())
		a.attach(n)
		a.Expect(a.volume(n).Status.Hosts).To(Equal([]v1alpha1.AdmittedHost{{NQN: a.volume(n).Spec.Hosts[0].NQN, Node: a.volume(n).Spec.Hosts[0].Node, Blank: false}}), "nobody formats it")
		read := make([]byte, len(want))
		_, err := a.host.ReadAt(id(n), read, 0)
		a.Expect(err).NotTo(HaveOccurred())
		a.Expect(string(read)).To(Equal(want))
		a.detach(n)
	}
}

// deleteUnmarked is what kubectl does.
func (a *accident) deleteUnmarked(objects ...client.Object) {
	a.t.Helper()
	for _, o := range objects {
		a.Expect(a.admin.Delete(a.t.Context(), o)).To(Succeed())
	}
}

func (a *accident) objects() []client.Object {
	var objects []client.Object
	for _, n := range []int{1, 2} {
		objects = append(objects, &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: a.name(n)}})
	}
	return append(objects, &v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: a.name(3)}})
}

// afterDeletion of objects that the agent's finalizer holds: what is detached goes, what is attached is served until it
// is detached, all data stays.
func (a *accident) afterDeletion() {
	a.t.Helper()
	a.reconcileTwice()
	a.gone(1, &v1alpha1.NvmfReplica{})
	a.gone(3, &v1alpha1.NvmfSnapshot{})
	a.lists(1, 3)
	a.Expect(a.says(2)).To(HaveKeyWithValue("Ready", "False/DeletionNotMarked"))
	a.Expect(a.events).To(ContainElement(HavePrefix("Warning DeletionNotMarked ")))
	a.stillWrites()
	a.r = a.agent() // a new agent knows it, too
	a.reconcile(a.r)
	a.stillWrites()

	a.change(2, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil })
	a.reconcileTwice()
	a.Expect(a.host.Disconnected()).To(BeTrue())
	a.gone(2, &v1alpha1.NvmfReplica{})
	a.lists(1, 2, 3)
	a.Expect(a.state().Exports).To(BeEmpty())
	a.holdsAll()
}

func TestDataOutlivesItsObject(t *testing.T) {
	t.Run("kubectl delete", func(t *testing.T) {
		a := newAccident(t, apiServer(t))
		a.deleteUnmarked(a.objects()...)
		a.afterDeletion()
		a.takeBack()
	})
	t.Run("pruned", func(t *testing.T) {
		a := newAccident(t, apiServer(t))
		// A pruning tool deletes what bears its label and is not in its source any more.
		for _, o := range a.objects() {
			a.Expect(a.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
			o.SetLabels(map[string]string{"pruned": a.node})
			a.Expect(a.admin.Update(t.Context(), o)).To(Succeed())
		}
		for _, kind := range []client.Object{&v1alpha1.NvmfReplica{}, &v1alpha1.NvmfSnapshot{}} {
			a.Expect(a.admin.DeleteAllOf(t.Context(), kind, client.MatchingLabels{"pruned": a.node}, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		}
		a.afterDeletion()
		a.takeBack()
	})
	t.Run("by force", testDeletedByForce)
	t.Run("with the CRDs", testDeletedWithTheCRDs)
}

// Without their finalizers the objects are gone at once: no agent sees them go.
func testDeletedByForce(t *testing.T) {
	a := newAccident(t, apiServer(t))
	for _, o := range a.objects() {
		a.Expect(a.admin.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		a.deleteUnmarked(o)
	}
	for n, kind := range map[int]client.Object{1: &v1alpha1.NvmfReplica{}, 2: &v1alpha1.NvmfReplica{}, 3: &v1alpha1.NvmfSnapshot{}} {
		a.gone(n, kind)
	}
	a.r = a.agent() // not even one that knew them
	a.reconcileTwice()
	names := map[string]string{}
	for _, o := range a.nvmfNode().Status.Orphans {
		names[o.UUID] = o.Name
	}
	a.Expect(names).To(Equal(map[string]string{uuid(1): a.name(1), uuid(2): a.name(2), uuid(3): ""}), "a snapshot has no subsystem to tell its name")
	a.holdsAll()
	a.stillWrites()
	a.Expect(a.state().Exports).To(ConsistOf(HaveField("NQN", HavePrefix(v1alpha1.SubsystemNQN(a.name(2), "")))))
	a.takeBack()
}

// While a CRD goes, the API server deletes its objects, and serves them until the last is gone.
func testDeletedWithTheCRDs(t *testing.T) {
	s, err := startServer() // the other tests need theirs
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(s.Environment.Stop()).To(Succeed()) })
	g.Expect(apiextensionsv1.AddToScheme(s.Admin.Scheme())).To(Succeed())
	a := newAccident(t, s)

	volumes := a.deleteCRD("nvmfreplicas.weft.storage", a.objects()[:2])
	a.reconcileTwice()
	a.gone(1, &v1alpha1.NvmfReplica{})
	a.lists(1)
	a.stillWrites()
	a.change(2, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil })
	a.reconcileTwice()
	a.install(volumes)
	a.reconcile(a.r)
	a.lists(1, 2)
	a.holdsAll()

	snapshots := a.deleteCRD("nvmfsnapshots.weft.storage", a.objects()[2:])
	a.reconcileTwice()
	a.install(snapshots)
	a.reconcile(a.r)
	a.lists(1, 2, 3)
	a.holdsAll()
	a.takeBack()
}

// deleteCRD and wait until the API server deletes its objects.
func (a *accident) deleteCRD(name string, objects []client.Object) client.Object {
	a.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}
	a.deleteUnmarked(crd)
	a.Eventually(func(g Gomega) {
		for _, o := range objects {
			g.Expect(a.admin.Get(a.t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
			g.Expect(o.GetDeletionTimestamp()).NotTo(BeNil())
		}
	}).WithTimeout(patience).WithPolling(interval).Should(Succeed())
	return crd
}

// install the CRD again when it is gone.
func (a *accident) install(crd client.Object) {
	a.t.Helper()
	a.Eventually(func() bool {
		return apierrors.IsNotFound(a.admin.Get(a.t.Context(), client.ObjectKeyFromObject(crd), crd))
	}).WithTimeout(patience).WithPolling(interval).Should(BeTrue())
	_, err := envtest.InstallCRDs(a.server.Config, envtest.CRDInstallOptions{Paths: []string{filepath.Join("..", "..", "config", "crd")}})
	a.Expect(err).NotTo(HaveOccurred())
}
