// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const snapshotGroup = "snapshot.storage.k8s.io"

func snapshotObject(kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: snapshotGroup, Version: "v1", Kind: kind})
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// newSnapshotClass is that of the samples.
func newSnapshotClass(ctx context.Context) {
	GinkgoHelper()
	Expect(cluster.ApplyFile(ctx, "config/samples/snapshots/volumesnapshotclass.yaml", "", nil)).To(Succeed())
}

// newSnapshot takes a snapshot of a claim and waits until it can be used.
func newSnapshot(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) *unstructured.Unstructured {
	GinkgoHelper()
	snapshot := snapshotObject("VolumeSnapshot", claim.Namespace, name)
	Expect(unstructured.SetNestedField(snapshot.Object, "weft", "spec", "volumeSnapshotClassName")).To(Succeed())
	Expect(unstructured.SetNestedField(snapshot.Object, claim.Name, "spec", "source", "persistentVolumeClaimName")).To(Succeed())
	Expect(cluster.Create(ctx, snapshot)).To(Succeed())
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(snapshot), snapshot)).To(Succeed())
		ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse")
		g.Expect(ready).To(BeTrue(), "snapshot %s: %v %s", name, snapshot.Object["status"], eventsOf(ctx, snapshot))
	}).WithTimeout(podTime).WithPolling(500 * time.Millisecond).Should(Succeed())
	return snapshot
}

func fromSnapshot(name string) claimOption {
	group := snapshotGroup
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
	}
}

func fromClaim(name string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name}
	}
}

// One pod writes all sources and one reads all copies: a pod's start is what takes time here.
var _ = Describe("Copies", func() {
	It("of ext4 and xfs hold the data of their moment, are as large as asked for, and outlive their sources", full, func(ctx SpecContext) {
		newSnapshotClass(ctx)
		ns := newNamespace(ctx)
		ext4 := newClaim(ctx, ns, "ext4", "weft-fast")
		xfs := newClaim(ctx, ns, "xfs", "weft-fast-xfs", withSize(xfsSize))
		writer := running(ctx, newPodOf(ctx, "writer", clientNode, ext4, xfs))
		write := func(what string) {
			GinkgoHelper()
			sh(ctx, writer, `for d in %s %s; do echo %s >$d/data; sync $d/data; done`, mountPath, pathOf(mountPath, 1), what)
		}
		write("before")
		snapshots := []client.Object{newSnapshot(ctx, ext4, "ext4"), newSnapshot(ctx, xfs, "xfs")}
		write("after")

		restored := newClaim(ctx, ns, "ext4-restored", "weft-fast", fromSnapshot("ext4"), withSize("256Mi"))
		xfsRestored := newClaim(ctx, ns, "xfs-restored", "weft-fast-xfs", fromSnapshot("xfs"), withSize("512Mi"))
		cloned := newClaim(ctx, ns, "ext4-cloned", "weft-fast", fromClaim("ext4"))
		xfsCloned := newClaim(ctx, ns, "xfs-cloned", "weft-fast-xfs", fromClaim("xfs"), withSize(xfsSize))
		for _, copied := range []*corev1.PersistentVolumeClaim{restored, xfsRestored, cloned, xfsCloned} {
			Expect(replicaOf(ctx, bound(ctx, copied)).Spec.Node).To(Equal(storageNode))
		}

		By("deleting the sources before the copies are used")
		remove(ctx, writer)
		for _, object := range append(snapshots, ext4, xfs) {
			remove(ctx, object)
		}
		Eventually(ctx, func(ctx context.Context) ([]v1alpha1.NvmfSnapshot, error) {
			var left v1alpha1.NvmfSnapshotList
			err := cluster.List(ctx, &left)
			return left.Items, err
		}).WithTimeout(podTime).WithPolling(time.Second).Should(BeEmpty())

		By("reading the copies, all on one node at a time")
		reader := running(ctx, newPodOf(ctx, "reader", clientNode, restored, xfsRestored, cloned, xfsCloned))
		paths := make([]string, 4)
		for i := range paths {
			paths[i] = pathOf(mountPath, i)
		}
		read := sh(ctx, reader, `for d in %s; do echo $(cat $d/data) $(($(stat -f -c '%%b * %%S' $d) >> 20)); done`, strings.Join(paths, " "))
		words := strings.Fields(read)
		Expect(words).To(HaveLen(8))
		Expect([]string{words[0], words[2], words[4], words[6]}).To(Equal([]string{"before", "before", "after", "after"}))
		for i, least := range []int{200, 400, 90, 220} {
			Expect(number(words[2*i+1])).To(BeNumerically(">", least), "MiB of %s", paths[i])
		}
	}, SpecTimeout(10*time.Minute))
})
