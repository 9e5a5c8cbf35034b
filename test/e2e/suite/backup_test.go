// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/test/e2e/internal/build"
)

// repository serves one of restic's over HTTP in a namespace, from the memory of a pod, as an object store would.
func repository(ctx context.Context, namespace string) (url string) {
	GinkgoHelper()
	const name, port = "store", 8080
	labels := map[string]string{"app": name}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "main", Image: build.ResticImage, ImagePullPolicy: corev1.PullNever,
				Command:        []string{"rclone", "serve", "restic", "--addr", ":8080", "/store"},
				VolumeMounts:   []corev1.VolumeMount{{Name: "store", MountPath: "/store"}},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, PeriodSeconds: 1},
			}},
			Volumes: []corev1.Volume{{Name: "store", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}},
		},
	}
	Expect(cluster.Create(ctx, pod)).To(Succeed())
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: port}}},
	}
	Expect(cluster.Create(ctx, service)).To(Succeed())
	_, err := cluster.PodReady(ctx, namespace, name)
	Expect(err).NotTo(HaveOccurred())
	// The lab has no DNS.
	return "rest:http://" + service.Spec.ClusterIP + ":8080/"
}

// ofTheBackup makes the samples fit the lab: its classes, its sizes, its image, and this repository.
func ofTheBackup(url string) func(*unstructured.Unstructured) {
	set := func(object *unstructured.Unstructured, value any, fields ...string) {
		Expect(unstructured.SetNestedField(object.Object, value, fields...)).To(Succeed())
	}
	return func(object *unstructured.Unstructured) {
		switch object.GetKind() {
		case "Secret":
			object.Object["stringData"] = map[string]any{"RESTIC_REPOSITORY": url, "RESTIC_PASSWORD": planted}
		case "PersistentVolumeClaim":
			set(object, "weft-fast", "spec", "storageClassName")
			set(object, claimSize, "spec", "resources", "requests", "storage")
		case "Job":
			setImage(object, build.ResticImage, "spec", "template", "spec", "containers")
		}
	}
}

// complete waits until a Job has done its work.
func complete(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	job := &batchv1.Job{}
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, job)).To(Succeed())
		if job.Status.Succeeded > 0 {
			return
		}
		why := fmt.Sprintf("Job %s: %+v %s", name, job.Status, eventsOf(ctx, job))
		if slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobFailed }) {
			StopTrying(why).Now()
		}
		g.Expect(job.Status.Succeeded).To(BeEquivalentTo(1), why)
	}).WithTimeout(2 * podTime).WithPolling(time.Second).Should(Succeed())
}

var _ = Describe("A backup by restic", func() {
	It("of a snapshot holds its moment, while a pod writes on, and is restored to a new volume", full, func(ctx SpecContext) {
		Expect(run.LoadRestic(ctx)).To(Succeed())
		newSnapshotClass(ctx)
		ns := newNamespace(ctx)
		edit := ofTheBackup(repository(ctx, ns))
		claim := newClaim(ctx, ns, "weft-demo", "weft-fast")
		pod := runPod(ctx, claim, "writer", clientNode)
		sum := fill(ctx, pod)
		newSnapshot(ctx, claim, "weft-demo")
		sh(ctx, pod, "rm %s/random && echo later >%s/later && sync", mountPath, mountPath)

		By("backing up")
		for _, sample := range []string{"repository.yaml", "backup.yaml"} {
			Expect(cluster.ApplyFile(ctx, "config/samples/backup/"+sample, ns, edit)).To(Succeed())
		}
		complete(ctx, ns, "weft-demo-backup")

		By("losing the volume and its snapshot")
		remove(ctx, pod)
		volume := bound(ctx, claim)
		for _, object := range []client.Object{snapshotObject("VolumeSnapshot", ns, "weft-demo"), claim} {
			remove(ctx, object)
		}
		Eventually(ctx, func(ctx context.Context) (bool, error) { return cluster.Gone(ctx, volume) }).
			WithTimeout(podTime).WithPolling(time.Second).Should(BeTrue())

		By("restoring the backup")
		Expect(cluster.ApplyFile(ctx, "config/samples/backup/restore.yaml", ns, edit)).To(Succeed())
		complete(ctx, ns, "weft-demo-from-backup")
		restored := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "weft-demo-from-backup"}}
		reader := runPod(ctx, restored, "reader", clientNode)
		Expect(checksum(ctx, reader)).To(Equal(sum))
		Expect(sh(ctx, reader, "ls %s", mountPath)).NotTo(ContainSubstring("later"))
	}, SpecTimeout(10*time.Minute))
})
