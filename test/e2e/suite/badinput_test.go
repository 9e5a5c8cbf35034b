// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var _ = Describe("Bad input", func() {
	It("in a StorageClass or a claim is an Event of the claim that says what to write instead", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		says := map[*corev1.PersistentVolumeClaim]string{}
		class := func(name string, parameters map[string]string, want string) {
			newClass(ctx, name, parameters)
			says[newClaim(ctx, ns, name, name)] = want
		}
		class("no-target", nil, "target is required; set it to the name of an NvmfTarget")
		class("unknown-target", map[string]string{"target": "fsat"}, `NvmfTarget "fsat" not found; existing targets: fast`)
		class("unknown-parameter", map[string]string{"target": "fast", "ioQueue": "4"}, `"ioQueue" is unknown; you may mean ioQueues; supported parameters: target, transport, ioQueues,`)
		class("number-out-of-bounds", map[string]string{"target": "fast", "ioQueues": "0"}, `ioQueues: "0" is not a whole number from 1 to`)
		class("wrong-transport", map[string]string{"target": "fast", "transport": "FC"}, `"FC" is not a transport; use TCP, RDMA`)
		class("unknown-filesystem", map[string]string{"target": "fast", "csi.storage.k8s.io/fstype": "ntfs"}, `filesystem "ntfs" is not supported; use ext4 or xfs`)
		claim := func(name string, option claimOption, want string) {
			says[newClaim(ctx, ns, name, "weft-fast", option)] = want
		}
		claim("shared-filesystem", withAccess(corev1.ReadWriteMany), "MULTI_NODE_MULTI_WRITER (ReadWriteMany) is supported only with volumeMode: Block")
		claim("read-only-without-data", withAccess(corev1.ReadOnlyMany), "set dataSource of the claim to a snapshot or another claim")
		claim("larger-than-any-drive", withSize("1Ti"), "1Ti")
		for claim, want := range says {
			By(claim.Name)
			event(ctx, claim, want)
		}
	})

	It("refuses a claim of size zero", func(ctx SpecContext) {
		class := "weft-fast"
		err := cluster.Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: newNamespace(ctx), Name: "claim"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class,
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("0")},
				},
			},
		})
		Expect(err).To(MatchError(ContainSubstring("must be greater than zero")))
	})

	It("says that a drive holds a filesystem, and leaves it alone", func(ctx SpecContext) {
		drive := on(ctx, clientNode, `ls -d /dev/disk/by-id/nvme-*%s-1 | head -n 1`, clientNode)
		on(ctx, clientNode, `mkfs.ext4 -q -L precious %s`, drive)
		DeferCleanup(func(ctx context.Context) { on(ctx, clientNode, `blkdiscard -f %s`, drive) })
		target := tryOut("foreign", v1alpha1.TransportTCP)
		target.Spec.Devices = v1alpha1.Devices{Paths: []string{drive}}
		newTarget(ctx, target) // before a node matches: else it is refused at once
		label(ctx, clientNode, target.Name)
		// The operator says so if the agent has already seen it, else the agent does when it is to use the drive.
		event(ctx, target, "ext4 filesystem")
		Expect(on(ctx, clientNode, `blkid -p -s LABEL -o value %s`, drive)).To(Equal("precious"))
	})

	It("says that a node without RDMA cannot serve over RDMA", func(ctx SpecContext) {
		on(ctx, clientNode, `rdma link delete rxe0`)
		DeferCleanup(func(ctx context.Context) {
			on(ctx, clientNode, `rdma link show rxe0 >/dev/null 2>&1 || rdma link add rxe0 type rxe netdev eth0`)
		})
		target := tryOut("no-rdma", v1alpha1.TransportRDMA)
		newTarget(ctx, target) // before a node matches: else it is refused at once
		label(ctx, clientNode, target.Name)
		notCapable(ctx, target, v1alpha1.ReasonNoRDMADevice, "RDMA")
	}, SpecTimeout(5*time.Minute))

	It("refuses a target that says two things at once", func(ctx SpecContext) {
		target := tryOut("both", v1alpha1.TransportTCP)
		target.Spec.Devices.Paths = []string{"/dev/disk/by-id/nvme-x"}
		Expect(cluster.Create(ctx, target)).To(MatchError(ContainSubstring("set exactly one of selector, paths, classes and file")))
	})

	It("refuses an SPDK target with more cores than the node has", func(ctx SpecContext) {
		target := spdkTarget("cores")
		*target.Spec.Cores.Count = 200
		newTarget(ctx, target) // before a node matches: else it is refused at once
		label(ctx, clientNode, target.Name)
		notCapable(ctx, target, v1alpha1.ReasonNotEnoughCPUs, "200")
	})
})

var _ = Describe("A target", func() {
	It("serves from a file, and waits with its deletion for its volumes", full, func(ctx SpecContext) {
		target := tryOut("tryout", v1alpha1.TransportTCP)
		label(ctx, clientNode, target.Name)
		newTarget(ctx, target)
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(target), target)).To(Succeed())
			g.Expect(target.Status.Nodes).To(Equal(v1alpha1.NodeCounts{Matching: 1, Capable: 1, Ready: 1}))
		}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())

		newClass(ctx, "tryout", map[string]string{"target": target.Name})
		claim := newClaim(ctx, newNamespace(ctx), "claim", "tryout")
		pod := runPod(ctx, claim, "pod", storageNode)
		sum := fill(ctx, pod)
		volume := bound(ctx, claim)
		Expect(replicaOf(ctx, volume).Spec.Node).To(Equal(clientNode))

		Expect(cluster.Delete(ctx, target)).To(Succeed())
		event(ctx, target, volume.Name)
		Expect(checksum(ctx, pod)).To(Equal(sum))

		remove(ctx, pod)
		remove(ctx, claim)
		Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, target) }).
			WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeTrue())
		on(ctx, clientNode, `rm -f %s`, target.Spec.Devices.File.Path)
	}, SpecTimeout(15*time.Minute))
})

// tryOut is a small target in a file; a test changes what it is about.
func tryOut(name string, transport v1alpha1.TransportType) *v1alpha1.NvmfTarget {
	return &v1alpha1.NvmfTarget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NvmfTargetSpec{
			Engine:       v1alpha1.EngineNvmet,
			NodeSelector: metav1.LabelSelector{MatchLabels: map[string]string{"weft.storage/target": name}},
			Transports:   []v1alpha1.Transport{{Type: transport, Port: 4430}},
			Devices: v1alpha1.Devices{File: &v1alpha1.DeviceFile{
				Path: fmt.Sprintf("/var/lib/weft/%s.img", name), Size: resource.MustParse("2Gi"),
			}},
		},
	}
}

// label gives a node to a target until the test ends.
func label(ctx context.Context, node, target string) {
	GinkgoHelper()
	Expect(cluster.LabelNode(ctx, node, "weft.storage/target", target)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		Expect(cluster.LabelNode(ctx, node, "weft.storage/target", "")).To(Succeed())
	})
}

// notCapable waits until the target's status says that its node is not capable, and why.
func notCapable(ctx context.Context, target *v1alpha1.NvmfTarget, reason, text string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(target), target)).To(Succeed())
		g.Expect(target.Status.NotCapable).To(ContainElement(And(
			HaveField("Reason", reason), HaveField("Message", ContainSubstring(text)))))
	}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
}
