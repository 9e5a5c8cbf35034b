// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// erase a volume by hand, with its data.
func erase(ctx context.Context, volume *v1alpha1.NvmfVolume) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(volume), volume)).To(Succeed())
		volume.Mark()
		g.Expect(cluster.Update(ctx, volume)).To(Succeed()) // its agent writes, too
	}).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
	remove(ctx, volume)
}

// withoutPolicy of deletions until the spec ends.
func withoutPolicy(ctx context.Context) {
	GinkgoHelper()
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "weft-deletions"}}
	Expect(cluster.Get(ctx, client.ObjectKeyFromObject(binding), binding)).To(Succeed())
	Expect(cluster.Delete(ctx, binding)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		binding.UID, binding.ResourceVersion = "", ""
		Expect(cluster.Create(ctx, binding)).To(Succeed())
	})
}

// kept waits until the volume's node lists these of its orphans.
func kept(ctx context.Context, volume *v1alpha1.NvmfVolume, orphans types.GomegaMatcher) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) ([]v1alpha1.Orphan, error) {
		var node v1alpha1.NvmfNode
		err := cluster.Get(ctx, client.ObjectKey{Name: volume.Spec.Node}, &node)
		return node.Status.Orphans, err
	}).WithTimeout(podTime).WithPolling(time.Second).Should(orphans)
}

// becomes waits until the volume is Ready, or is not, for a reason.
func becomes(ctx context.Context, name, reason string) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) (string, error) {
		var volume v1alpha1.NvmfVolume
		err := cluster.Get(ctx, client.ObjectKey{Name: name}, &volume)
		if ready := meta.FindStatusCondition(volume.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			return ready.Reason, err
		}
		return "", err
	}).WithTimeout(podTime).WithPolling(time.Second).Should(Equal(reason))
}

var _ = Describe("A volume whose object is deleted by mistake", func() {
	It("is served on, keeps its data, and is taken back", full, func(ctx SpecContext) {
		claim := newClaim(ctx, newNamespace(ctx), "mistake", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		sum := fill(ctx, pod)
		volume := bound(ctx, claim)

		By("refusing that, and the deletion of the CRD")
		Expect(cluster.Delete(ctx, volume.DeepCopy())).To(MatchError(ContainSubstring("kubectl weft delete volume " + volume.Name)))
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		crd.SetName("nvmfvolumes.weft.storage")
		Expect(cluster.Delete(ctx, crd)).To(MatchError(ContainSubstring("docs/install.md")))

		By("deleting it where the policy is not in force, under a pod that writes")
		withoutPolicy(ctx)
		Eventually(ctx, func(ctx context.Context) error { return cluster.Delete(ctx, volume.DeepCopy()) }).
			WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
		becomes(ctx, volume.Name, v1alpha1.ReasonNotMarked)
		sh(ctx, pod, "echo later >%s/later && sync", mountPath)
		Expect(checksum(ctx, pod)).To(Equal(sum))

		By("keeping the data when the pod has ended")
		remove(ctx, pod)
		detached(ctx, volume)
		Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, volume) }).
			WithTimeout(podTime).WithPolling(time.Second).Should(BeTrue())
		kept(ctx, volume, ContainElement(And(HaveField("Name", volume.Name), HaveField("UUID", volume.Spec.UUID))))

		By("taking it back")
		again := &v1alpha1.NvmfVolume{
			ObjectMeta: metav1.ObjectMeta{Name: volume.Name, Finalizers: []string{v1alpha1.VolumeFinalizer}},
			Spec: v1alpha1.NvmfVolumeSpec{
				UUID: volume.Spec.UUID, Target: volume.Spec.Target, Node: volume.Spec.Node, Size: volume.Spec.Size, Connection: volume.Spec.Connection, Used: true,
			},
		}
		Expect(cluster.Create(ctx, again)).To(Succeed())
		becomes(ctx, volume.Name, v1alpha1.ReasonAsExpected)
		kept(ctx, volume, Not(ContainElement(HaveField("UUID", volume.Spec.UUID))))
		pod = runPod(ctx, claim, "reader", storageNode)
		Expect(checksum(ctx, pod)).To(Equal(sum))
		Expect(sh(ctx, pod, "cat %s/later", mountPath)).To(ContainSubstring("later"))

		By("deleting its data with its claim")
		remove(ctx, pod)
		remove(ctx, claim)
		Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, again) }).
			WithTimeout(podTime).WithPolling(time.Second).Should(BeTrue())
		kept(ctx, volume, Not(ContainElement(HaveField("UUID", volume.Spec.UUID))))
	})
})
