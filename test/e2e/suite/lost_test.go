// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// controllersOfCSI are so many from now on; it returns how many they were.
func controllersOfCSI(ctx context.Context, n int32) (were int32) {
	GinkgoHelper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "weft-csi-controller"}}
	Expect(cluster.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
	before := client.MergeFrom(d.DeepCopy())
	were, d.Spec.Replicas = *d.Spec.Replicas, &n
	Expect(cluster.Patch(ctx, d, before)).To(Succeed())
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		g.Expect(d.Status.Replicas).To(Equal(n))
		g.Expect(d.Status.ReadyReplicas).To(Equal(n))
	}).WithTimeout(podTime).WithPolling(time.Second).Should(Succeed())
	return were
}

// wiped are all objects of these kinds in a namespace, or in the cluster: gone at once, as with etcd, so that nobody
// sees them go.
func wiped(ctx context.Context, namespace string, lists ...client.ObjectList) {
	GinkgoHelper()
	for _, list := range lists {
		Expect(cluster.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
		for _, object := range objectsIn(list) {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
			Expect(cluster.Patch(ctx, object, patch)).To(Succeed())
			Expect(client.IgnoreNotFound(cluster.Delete(ctx, object, client.GracePeriodSeconds(0)))).To(Succeed())
			Eventually(ctx, func(ctx context.Context) (bool, error) {
				// A controller of Kubernetes can put its finalizer back in between.
				err := client.IgnoreNotFound(cluster.Patch(ctx, object, patch))
				gone, getErr := cluster.Gone(ctx, object)
				if err == nil {
					err = getErr
				}
				return gone, err
			}).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeTrue())
		}
	}
}

// objectsIn a list of those that are wiped here.
func objectsIn(list client.ObjectList) []client.Object {
	var all []client.Object
	switch list := list.(type) {
	case *corev1.PersistentVolumeList:
		for i := range list.Items {
			if csi := list.Items[i].Spec.CSI; csi != nil && csi.Driver == v1alpha1.DriverName {
				all = append(all, &list.Items[i])
			}
		}
	case *corev1.PersistentVolumeClaimList:
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
	case *unstructured.UnstructuredList:
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
	}
	return all
}

// listOf a kind.
func listOf(group, version, kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(group + "/" + version)
	list.SetKind(kind + "List")
	return list
}

// described waits until these nodes list that many orphans, all of them with a description.
func described(ctx context.Context, counts map[string]int) {
	GinkgoHelper()
	for node, n := range counts {
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			var is v1alpha1.NvmfNode
			g.Expect(cluster.Get(ctx, client.ObjectKey{Name: node}, &is)).To(Succeed())
			g.Expect(is.Status.Orphans).To(HaveLen(n))
			for _, orphan := range is.Status.Orphans {
				g.Expect(orphan.Description).NotTo(BeNil(), orphan.UUID)
			}
		}).WithTimeout(podTime).WithPolling(time.Second).Should(Succeed())
	}
}

// noLongerRetained is a PersistentVolume that was recovered: its volume goes with its claim again.
func noLongerRetained(ctx context.Context, name string) {
	GinkgoHelper()
	var volume corev1.PersistentVolume
	Expect(cluster.Get(ctx, client.ObjectKey{Name: name}, &volume)).To(Succeed())
	Expect(volume.Spec.PersistentVolumeReclaimPolicy).To(Equal(corev1.PersistentVolumeReclaimRetain), name)
	before := client.MergeFrom(volume.DeepCopy())
	volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	Expect(cluster.Patch(ctx, &volume, before)).To(Succeed())
}

// snapshotOf the only NvmfSnapshot, which was recovered.
func snapshotOf(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	var snapshots v1alpha1.NvmfSnapshotList
	Expect(cluster.List(ctx, &snapshots)).To(Succeed())
	Expect(snapshots.Items).To(HaveLen(1))
	content := snapshotObject("VolumeSnapshotContent", "", "recovered")
	content.Object["spec"] = map[string]any{
		"driver": v1alpha1.DriverName, "deletionPolicy": "Delete", "source": map[string]any{"snapshotHandle": snapshots.Items[0].Name},
		"volumeSnapshotRef": map[string]any{"namespace": namespace, "name": name}, "volumeSnapshotClassName": "weft",
	}
	Expect(cluster.Create(ctx, content)).To(Succeed())
	again := snapshotObject("VolumeSnapshot", namespace, name)
	again.Object["spec"] = map[string]any{"source": map[string]any{"volumeSnapshotContentName": content.GetName()}, "volumeSnapshotClassName": "weft"}
	Expect(cluster.Create(ctx, again)).To(Succeed())
}

var _ = Describe("Claims whose objects are wiped from etcd", func() {
	DescribeTable("are all back, with a mirror and a snapshot, and hold what was written", func(ctx SpecContext, engine v1alpha1.Engine) {
		var options []func(*v1alpha1.NvmfTarget)
		if engine == v1alpha1.EngineSPDK {
			options = append(options, onSPDK(ctx))
		}
		newSnapshotClass(ctx)
		forgetPools(ctx)
		r := onTwo(ctx, "lost", options...)
		ns := r.claim.Namespace
		newClass(ctx, "weft-lost-xfs", map[string]string{"target": "lost", "csi.storage.k8s.io/fstype": "xfs"})
		plain := newClaim(ctx, ns, "plain", "weft-lost-xfs", withSize(xfsSize))
		writer := running(ctx, newPodOf(ctx, "writer", clientNode, r.claim, plain))
		r.whole(ctx)
		mirrored := fill(ctx, writer)
		sh(ctx, writer, "echo kept >%s/data && sync", pathOf(mountPath, 1))
		snapshot := newSnapshot(ctx, plain, "moment")
		sh(ctx, writer, "echo later >%s/data && sync", pathOf(mountPath, 1))
		node := replicaOf(ctx, bound(ctx, plain)).Spec.Node
		handle := replicaOf(ctx, bound(ctx, plain)).Name
		remove(ctx, writer)
		detached(ctx, r.volume)
		detached(ctx, bound(ctx, plain))

		By("wiping the objects")
		withoutPolicy(ctx)
		were := controllersOfCSI(ctx, 0)
		DeferCleanup(func(ctx context.Context) { controllersOfCSI(ctx, were) })
		wiped(ctx, ns, listOf(snapshotGroup, "v1", "VolumeSnapshot"))
		contents := listOf(snapshotGroup, "v1", "VolumeSnapshotContent")
		// PersistentVolumes first: one whose claim is gone would be reclaimed.
		wiped(ctx, "", contents, &corev1.PersistentVolumeList{})
		wiped(ctx, ns, &corev1.PersistentVolumeClaimList{})
		for _, kind := range []string{"NvmfVolume", "NvmfReplica", "NvmfMirror", "NvmfSnapshot"} {
			wiped(ctx, "", listOf(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, kind))
		}
		counts := map[string]int{storageNode: 1, clientNode: 1}
		counts[node] += 2
		described(ctx, counts)
		controllersOfCSI(ctx, were)

		By("recovering them")
		weft := kubectlWeft(ctx)
		out, err := weft(ctx, "recover", "--lost")
		AddReportEntry("kubectl weft recover --lost", out)
		Expect(err).NotTo(HaveOccurred(), out)
		for _, claim := range []string{ns + "/claim", ns + "/plain"} {
			Expect(out).To(ContainSubstring(claim))
		}
		all := []string{"recover", "--lost", "--all", "--claims"}
		if engine == v1alpha1.EngineSPDK {
			// storageNode has changed its engine, so nobody opens the pool that the kernel's target has on its drive.
			out, err = weft(ctx, all...)
			Expect(err).To(HaveOccurred(), out)
			Expect(out).To(And(ContainSubstring("nothing was recovered"), ContainSubstring("has a pool that is not open")))
			all = append(all, "--incomplete")
		}
		out, err = weft(ctx, all...)
		AddReportEntry("kubectl weft "+strings.Join(all, " "), out)
		Expect(err).NotTo(HaveOccurred(), out)
		var volumes corev1.PersistentVolumeList
		Expect(cluster.List(ctx, &volumes)).To(Succeed())
		for i := range volumes.Items {
			noLongerRetained(ctx, volumes.Items[i].Name)
		}
		declareRestored(ctx)
		becomes(ctx, handle, v1alpha1.ReasonAsExpected)
		described(ctx, map[string]int{storageNode: 0, clientNode: 0})

		By("reading what was written, on the other node")
		r.volume = bound(ctx, r.claim)
		reader := running(ctx, newPodOf(ctx, "reader", storageNode, r.claim, plain))
		Expect(checksum(ctx, reader)).To(Equal(mirrored))
		Expect(sh(ctx, reader, "cat %s/data", pathOf(mountPath, 1))).To(ContainSubstring("later"))
		r.whole(ctx)
		legsBecomeEqual(ctx, storageNode)

		By("restoring the snapshot")
		snapshotOf(ctx, ns, snapshot.GetName())
		restored := newClaim(ctx, ns, "restored", "weft-lost-xfs", fromSnapshot(snapshot.GetName()), withSize(xfsSize))
		Expect(sh(ctx, runPod(ctx, restored, "restored", clientNode), "cat %s/data", mountPath)).To(ContainSubstring("kept"))
	},
		Entry("with the kernel's target", full, SpecTimeout(30*time.Minute), v1alpha1.EngineNvmet),
		Entry("with SPDK", full, SpecTimeout(30*time.Minute), v1alpha1.EngineSPDK),
	)
})
