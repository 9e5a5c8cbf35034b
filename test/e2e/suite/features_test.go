// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// newLimits makes a VolumeAttributesClass. It is deleted after the test.
func newLimits(ctx context.Context, name string, parameters map[string]string) {
	GinkgoHelper()
	class := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: v1alpha1.DriverName, Parameters: parameters}
	Expect(cluster.Create(ctx, class)).To(Succeed())
	DeferCleanup(remove, class)
}

// limit asks for the limits of a VolumeAttributesClass for a claim that is bound, until csi-resizer takes them up.
//
// csi-resizer misses a change twice, and looks again after ten minutes (updatePVC and
// validateVACAndModifyVolumeWithTarget of its modifycontroller, v2.2.0). It leaves a claim alone whose PersistentVolume
// has not reached it: writing the claim helps. It sets a change whose class has not reached it to Pending: only another
// class helps, so the claim goes back first.
func limit(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string) {
	GinkgoHelper()
	choose := func(g Gomega, ctx context.Context, class *string) {
		before := claim.DeepCopy()
		claim.Spec.VolumeAttributesClassName = class
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "weft.storage/written", time.Now().String())
		g.Expect(cluster.Patch(ctx, claim, client.MergeFrom(before))).To(Succeed())
	}
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		now, change := claim.Status.CurrentVolumeAttributesClassName, claim.Status.ModifyVolumeStatus
		missed := change != nil && change.Status == corev1.PersistentVolumeClaimModifyVolumePending
		taken := change != nil && change.TargetVolumeAttributesClassName == class && !missed
		if taken || now != nil && *now == class {
			return
		}
		if missed {
			choose(g, ctx, now)
		}
		choose(g, ctx, &class)
		g.Expect(taken).To(BeTrue(), "claim %s: %s", claim.Name, eventsOf(ctx, claim))
	}).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
}

// limited waits until the target holds the volume to that many reads and writes a second.
func limited(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume *v1alpha1.NvmfVolume, iops int64) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		replica, err := cluster.ReplicaOf(ctx, volume)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(replica.Status.QoS).To(HaveValue(HaveField("IOPS", HaveValue(Equal(iops)))), "claim %s: %s", claim.Name, eventsOf(ctx, claim))
	}).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

var _ = Describe("A pod", func() {
	It("brings its volume along, mounted as its class says and writable for its group", full, func(ctx SpecContext) {
		class := "weft-noatime"
		newClass(ctx, class, map[string]string{"target": "fast"}, func(c *storagev1.StorageClass) { c.MountOptions = []string{"noatime"} })
		newClass(ctx, "weft-nobarrier", map[string]string{"target": "fast"}, func(c *storagev1.StorageClass) { c.MountOptions = []string{"nobarrier"} })
		newLimits(ctx, "weft-limited", map[string]string{"iops": "2000"})
		ns := newNamespace(ctx)
		dangerous := newClaim(ctx, ns, "dangerous", "weft-nobarrier")

		sample := newClaim(ctx, ns, "sample", class)
		user, group, zero := int64(1000), int64(2000), int64(0)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "pod"},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: &zero,
				NodeSelector:                  map[string]string{corev1.LabelHostname: clientNode},
				SecurityContext:               &corev1.PodSecurityContext{RunAsUser: &user, FSGroup: &group},
				Containers: []corev1.Container{{
					Name: "main", Image: ToolsImage, ImagePullPolicy: corev1.PullNever,
					Command:      []string{"sh", "-c", "while :; do sleep 3600; done"},
					VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: mountPath}},
				}},
				Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
					VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: sample.Spec},
				}}}},
			},
		}
		Expect(cluster.Create(ctx, pod)).To(Succeed())

		By("refusing a mount option that loses data")
		event(ctx, dangerous, "remove nobarrier")

		By("refusing limits that the kernel's target does not have")
		bound(ctx, sample)
		limit(ctx, sample, "weft-limited")
		event(ctx, sample, "does not support IOPS and bandwidth limits")

		running(ctx, pod)
		Expect(sh(ctx, pod, `grep ' %s ' /proc/mounts`, mountPath)).To(And(ContainSubstring("noatime"), ContainSubstring("errors=remount-ro")))
		Expect(sh(ctx, pod, `stat -c %%g %[1]s && echo hello > %[1]s/file && stat -c %%u:%%g %[1]s/file`, mountPath)).To(Equal("2000\n1000:2000"))

		By("taking it away with the pod")
		claim := &corev1.PersistentVolumeClaim{}
		Expect(cluster.Get(ctx, types.NamespacedName{Namespace: ns, Name: "pod-scratch"}, claim)).To(Succeed())
		volume := bound(ctx, claim)
		remove(ctx, pod)
		Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, volume) }).
			WithTimeout(podTime).WithPolling(time.Second).Should(BeTrue(), "volume %s is deleted", volume.Name)
	})
})
