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
		g.Expect(cluster.Update(ctx, volume)).To(Succeed()) // the CSI controller writes, too
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

// kept waits until the replica's node lists these of its orphans.
func kept(ctx context.Context, replica *v1alpha1.NvmfReplica, orphans types.GomegaMatcher) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) ([]v1alpha1.Orphan, error) {
		var node v1alpha1.NvmfNode
		err := cluster.Get(ctx, client.ObjectKey{Name: replica.Spec.Node}, &node)
		return node.Status.Orphans, err
	}).WithTimeout(podTime).WithPolling(time.Second).Should(orphans)
}

// becomes waits until the replica of that name is Ready, or is not, for a reason.
func becomes(ctx context.Context, name, reason string) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) (string, error) {
		var replica v1alpha1.NvmfReplica
		err := cluster.Get(ctx, client.ObjectKey{Name: name}, &replica)
		if ready := meta.FindStatusCondition(replica.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			return ready.Reason, err
		}
		return "", err
	}).WithTimeout(podTime).WithPolling(time.Second).Should(Equal(reason))
}

var _ = Describe("A volume whose objects are deleted by mistake", func() {
	It("is served on, keeps its data, and is taken back", full, func(ctx SpecContext) {
		claim := newClaim(ctx, newNamespace(ctx), "mistake", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		sum := fill(ctx, pod)
		volume := bound(ctx, claim)
		replica := replicaOf(ctx, volume)

		By("refusing that, and the deletion of the CRDs")
		for _, object := range []client.Object{volume.DeepCopy(), replica.DeepCopy()} {
			Expect(cluster.Delete(ctx, object)).To(MatchError(ContainSubstring("kubectl weft delete volume " + volume.Name)))
		}
		for _, name := range []string{"nvmfvolumes.weft.storage", "nvmfreplicas.weft.storage"} {
			crd := &unstructured.Unstructured{}
			crd.SetAPIVersion("apiextensions.k8s.io/v1")
			crd.SetKind("CustomResourceDefinition")
			crd.SetName(name)
			Expect(cluster.Delete(ctx, crd)).To(MatchError(ContainSubstring("docs/install.md")))
		}

		By("deleting them where the policy is not in force, under a pod that writes")
		withoutPolicy(ctx)
		for _, object := range []client.Object{volume.DeepCopy(), replica.DeepCopy()} {
			Eventually(ctx, func(ctx context.Context) error { return cluster.Delete(ctx, object) }).
				WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
		}
		becomes(ctx, replica.Name, v1alpha1.ReasonNotMarked)
		sh(ctx, pod, "echo later >%s/later && sync", mountPath)
		Expect(checksum(ctx, pod)).To(Equal(sum))

		By("keeping the data when the pod has ended")
		remove(ctx, pod)
		detached(ctx, volume)
		for _, object := range []client.Object{replica.DeepCopy(), volume.DeepCopy()} {
			Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, object) }).
				WithTimeout(podTime).WithPolling(time.Second).Should(BeTrue())
		}
		kept(ctx, replica, ContainElement(And(HaveField("Name", replica.Name), HaveField("UUID", replica.Spec.UUID))))

		By("taking it back")
		again := &v1alpha1.NvmfVolume{
			ObjectMeta: metav1.ObjectMeta{Name: volume.Name, Finalizers: []string{v1alpha1.ReplicasFinalizer}},
			Spec: v1alpha1.NvmfVolumeSpec{
				UUID: volume.Spec.UUID, Target: volume.Spec.Target, Size: volume.Spec.Size, Connection: volume.Spec.Connection, Used: true,
				Members: []v1alpha1.VolumeMember{{Name: replica.Name, UUID: replica.Spec.UUID, Node: replica.Spec.Node}},
			},
		}
		Expect(cluster.Create(ctx, again)).To(Succeed())
		becomes(ctx, replica.Name, v1alpha1.ReasonAsExpected)
		kept(ctx, replica, Not(ContainElement(HaveField("UUID", replica.Spec.UUID))))
		pod = runPod(ctx, claim, "reader", storageNode)
		Expect(checksum(ctx, pod)).To(Equal(sum))
		Expect(sh(ctx, pod, "cat %s/later", mountPath)).To(ContainSubstring("later"))

		By("deleting its data with its claim")
		remove(ctx, pod)
		remove(ctx, claim)
		Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, again) }).
			WithTimeout(podTime).WithPolling(time.Second).Should(BeTrue())
		kept(ctx, replica, Not(ContainElement(HaveField("UUID", replica.Spec.UUID))))
	})
})
