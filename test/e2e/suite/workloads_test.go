// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	mountPath  = "/data"
	devicePath = "/dev/volume"
)

// podTime is how long a pod may take to run with its volume attached: image,
// sandbox and kubelet are slow on emulated machines.
const podTime = 4 * time.Minute

// newNamespace makes a namespace for one test. It is deleted after the test, and so is what is in it.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	Expect(cluster.Create(ctx, ns)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		Expect(client.IgnoreNotFound(cluster.Delete(ctx, ns))).To(Succeed())
		Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, ns) }).
			WithTimeout(podTime).WithPolling(time.Second).Should(BeTrue(), "namespace %s is deleted", ns.Name)
	})
	return ns.Name
}

type claimOption func(*corev1.PersistentVolumeClaim)

func asBlock(c *corev1.PersistentVolumeClaim) {
	mode := corev1.PersistentVolumeBlock
	c.Spec.VolumeMode = &mode
}

func withAccess(mode corev1.PersistentVolumeAccessMode) claimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	}
}

// A claim of claimSize leaves room for 29 others on the lab's drive of 4 GiB; a
// filesystem of class weft-fast-xfs or weft-fast-rdma needs xfsSize, XFS's least being 300 MiB.
const (
	claimSize = "128Mi"
	xfsSize   = "320Mi"
)

func withSize(size string) claimOption {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	}
}

// newClaim makes a claim of claimSize.
func newClaim(ctx context.Context, namespace, name, class string, options ...claimOption) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(claimSize)},
			},
		},
	}
	for _, o := range options {
		o(claim)
	}
	Expect(cluster.Create(ctx, claim)).To(Succeed())
	return claim
}

// newPod makes a pod on node that has the claim and waits.
func newPod(ctx context.Context, claim *corev1.PersistentVolumeClaim, name, node string) *corev1.Pod {
	GinkgoHelper()
	return newPodOf(ctx, name, node, claim)
}

// newPodOf is newPod with several claims: the first is at mountPath or devicePath, the others at pathOf.
func newPodOf(ctx context.Context, name, node string, claims ...*corev1.PersistentVolumeClaim) *corev1.Pod {
	GinkgoHelper()
	zero := int64(0)
	container := corev1.Container{
		Name: "main", Image: ToolsImage, ImagePullPolicy: corev1.PullNever,
		Command: []string{"sh", "-c", "while :; do sleep 3600; done"},
	}
	var volumes []corev1.Volume
	for i, claim := range claims {
		name := fmt.Sprintf("volume%d", i)
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
		if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock {
			container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: name, DevicePath: pathOf(devicePath, i)})
		} else {
			container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: pathOf(mountPath, i)})
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: claims[0].Namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &zero,
			RestartPolicy:                 corev1.RestartPolicyNever,
			Containers:                    []corev1.Container{container},
			Volumes:                       volumes,
		},
	}
	// A node named in the spec would go past the scheduler, and so past the binding of the claim.
	if node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	Expect(cluster.Create(ctx, pod)).To(Succeed())
	return pod
}

// pathOf a pod's claim with this number: path for the first, path with the number for the others.
func pathOf(path string, number int) string {
	if number == 0 {
		return path
	}
	return fmt.Sprintf("%s%d", path, number)
}

// running waits until the pod runs.
func running(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	GinkgoHelper()
	return runningWithin(ctx, pod, podTime)
}

func runningWithin(ctx context.Context, pod *corev1.Pod, within time.Duration) *corev1.Pod {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		if pod.Status.Phase != corev1.PodRunning {
			g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning), "pod %s: %s", pod.Name, eventsOf(ctx, pod))
		}
	}).WithTimeout(within).WithPolling(500 * time.Millisecond).Should(Succeed())
	return pod
}

// runPod makes a pod and waits until it runs.
func runPod(ctx context.Context, claim *corev1.PersistentVolumeClaim, name, node string) *corev1.Pod {
	GinkgoHelper()
	return running(ctx, newPod(ctx, claim, name, node))
}

// sh runs a shell script in a pod.
func sh(ctx context.Context, pod *corev1.Pod, script string, args ...any) string {
	GinkgoHelper()
	out, err := cluster.Exec(ctx, pod.Namespace, pod.Name, "sh", "-c", fmt.Sprintf(script, args...))
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(out)
}

// remove deletes an object and waits until it is gone.
func remove(ctx context.Context, object client.Object) {
	GinkgoHelper()
	Expect(client.IgnoreNotFound(cluster.Delete(ctx, object))).To(Succeed())
	Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, object) }).
		WithTimeout(podTime).WithPolling(500*time.Millisecond).Should(BeTrue(), "%s is deleted", object.GetName())
}

// bound waits until the claim is bound and returns its NvmfVolume.
func bound(ctx context.Context, claim *corev1.PersistentVolumeClaim) *v1alpha1.NvmfVolume {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		if claim.Status.Phase != corev1.ClaimBound {
			g.Expect(claim.Status.Phase).To(Equal(corev1.ClaimBound), "claim %s: %s", claim.Name, eventsOf(ctx, claim))
		}
	}).WithTimeout(podTime).WithPolling(500 * time.Millisecond).Should(Succeed())
	volume, err := cluster.VolumeOf(ctx, claim.Namespace, claim.Name)
	Expect(err).NotTo(HaveOccurred())
	return volume
}

// replicaOf reads the one replica of a volume, as it is now.
func replicaOf(ctx context.Context, volume *v1alpha1.NvmfVolume) *v1alpha1.NvmfReplica {
	GinkgoHelper()
	replica, err := cluster.ReplicaOf(ctx, volume)
	Expect(err).NotTo(HaveOccurred())
	return replica
}

// detached waits until no VolumeAttachment of the volume is left.
func detached(ctx context.Context, volume *v1alpha1.NvmfVolume) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		var list storagev1.VolumeAttachmentList
		g.Expect(cluster.List(ctx, &list)).To(Succeed())
		for _, a := range list.Items {
			if a.Spec.Attacher == v1alpha1.DriverName && a.Spec.Source.PersistentVolumeName != nil {
				g.Expect(*a.Spec.Source.PersistentVolumeName).NotTo(Equal(volume.Name), "attached to %s", a.Spec.NodeName)
			}
		}
	}).WithTimeout(podTime).WithPolling(500 * time.Millisecond).Should(Succeed())
}

// eventsOf tells an object's Events, for messages of failed expectations.
func eventsOf(ctx context.Context, object client.Object) string {
	var list corev1.EventList
	if err := cluster.List(ctx, &list, client.InNamespace(object.GetNamespace()),
		client.MatchingFields{"involvedObject.name": object.GetName()}); err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&b, "\n  %s %s (%d): %s", e.Type, e.Reason, e.Count, e.Message)
	}
	return b.String()
}

// event waits for an Event of the object whose message contains text.
func event(ctx context.Context, object client.Object, text string) {
	GinkgoHelper()
	eventWithin(ctx, object, text, 2*time.Minute)
}

func eventWithin(ctx context.Context, object client.Object, text string, within time.Duration) {
	GinkgoHelper()
	Eventually(ctx, func(ctx context.Context) string { return eventsOf(ctx, object) }).
		WithTimeout(within).WithPolling(time.Second).Should(ContainSubstring(text))
}

// newTarget makes an NvmfTarget and waits for nothing. It is deleted after the test.
func newTarget(ctx context.Context, target *v1alpha1.NvmfTarget) {
	GinkgoHelper()
	Expect(cluster.Create(ctx, target)).To(Succeed())
	DeferCleanup(remove, target)
}

// newClass makes a StorageClass. It is deleted after the test.
func newClass(ctx context.Context, name string, parameters map[string]string, options ...func(*storagev1.StorageClass)) {
	GinkgoHelper()
	expandable := true
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: name},
		Provisioner: v1alpha1.DriverName, Parameters: parameters, AllowVolumeExpansion: &expandable,
	}
	for _, o := range options {
		o(class)
	}
	Expect(cluster.Create(ctx, class)).To(Succeed())
	DeferCleanup(remove, class)
}
