// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/test/e2e/internal/build"
)

const (
	bucket    = "weft"
	accessKey = "weft"
	// secretKey is one of those that nothing may log.
	secretKey = "object-store-planted-passphrase"
	// backedUp is the StorageClass with one replica, and with "-two" or "-encrypted" behind it, the others.
	backedUp = "weft-backed-up"
)

// objectStore serves a bucket over S3 from the disk of a pod, which is not weft's.
func objectStore(ctx context.Context, namespace string) (url string) {
	GinkgoHelper()
	const name, port = "store", 7070
	keys := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		StringData: map[string]string{"ROOT_ACCESS_KEY_ID": accessKey, "ROOT_SECRET_ACCESS_KEY": secretKey},
	}
	Expect(cluster.Create(ctx, keys)).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "main", Image: build.S3Image, ImagePullPolicy: corev1.PullNever,
				Command:        []string{"sh", "-c", "mkdir -p /store/" + bucket + " && exec versitygw --quiet --port :7070 posix /store"},
				EnvFrom:        []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}},
				VolumeMounts:   []corev1.VolumeMount{{Name: "store", MountPath: "/store"}},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, PeriodSeconds: 1},
			}},
			Volumes: []corev1.Volume{{Name: "store", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	Expect(cluster.Create(ctx, pod)).To(Succeed())
	pod, err := cluster.PodReady(ctx, namespace, name)
	Expect(err).NotTo(HaveOccurred())
	// The lab has no DNS, and the command line, which is not in a pod, reads logs from here too.
	return "http://" + pod.Status.PodIP + ":7070"
}

// velero is its command line, for one that the test has installed.
type velero struct{ program, home string }

// try runs a command, and returns all that it printed.
func (v *velero) try(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, v.program, append(args, "--kubeconfig="+machines.Kubeconfig())...)
	command.Env = append(os.Environ(), "HOME="+v.home)
	out, err := command.CombinedOutput()
	return string(out), err
}

func (v *velero) run(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := v.try(ctx, args...)
	Expect(err).NotTo(HaveOccurred(), out)
	return out
}

// installVelero as the page says, with a bucket outside weft. It is gone when the test ends.
func installVelero(ctx context.Context) *velero {
	GinkgoHelper()
	built, err := run.LoadVelero(ctx)
	Expect(err).NotTo(HaveOccurred())
	url := objectStore(ctx, newNamespace(ctx))
	v := &velero{program: built.Program, home: GinkgoT().TempDir()}
	credentials := filepath.Join(v.home, "credentials")
	Expect(os.WriteFile(credentials, []byte("[default]\naws_access_key_id="+accessKey+"\naws_secret_access_key="+secretKey+"\n"), 0o600)).To(Succeed())
	DeferCleanup(v.uninstall)
	Expect(cluster.ApplyFile(ctx, "config/samples/backup/velero.yaml", "", func(object *unstructured.Unstructured) {
		if object.GetKind() == "Secret" {
			object.Object["stringData"] = map[string]any{"repository-password": secretKey}
		}
		if text, found, _ := unstructured.NestedString(object.Object, "data", "node-agent.json"); found {
			text = strings.ReplaceAll(text, "weft-fast", backedUp)
			Expect(unstructured.SetNestedField(object.Object, text, "data", "node-agent.json")).To(Succeed())
		}
	})).To(Succeed())
	v.run(ctx, "install", "--provider", "aws", "--plugins", built.Plugin, "--bucket", bucket, "--secret-file", credentials,
		"--backup-location-config", "region=us-east-1,s3ForcePathStyle=true,s3Url="+url,
		"--features=EnableCSI", "--use-volume-snapshots=false", "--use-node-agent", "--privileged-node-agent", "--node-agent-configmap", "node-agent",
		// The lab's nodes have two emulated CPUs.
		"--velero-pod-cpu-request", "0", "--velero-pod-cpu-limit", "0", "--wait")
	Eventually(ctx, func(ctx context.Context) (string, error) { return v.try(ctx, "backup-location", "get", "default") }).
		WithTimeout(podTime).WithPolling(time.Second).Should(ContainSubstring("Available"))
	return v
}

// do makes a backup or a restore, and waits until it is complete.
func (v *velero) do(ctx context.Context, kind, name string, args ...string) {
	GinkgoHelper()
	started := time.Now()
	out := v.run(ctx, append([]string{kind, "create", name, "--wait"}, args...)...)
	describe, _ := v.try(ctx, kind, "describe", name, "--details")
	AddReportEntry(kind+" "+name+" took "+time.Since(started).Round(time.Second).String(), describe, ReportEntryVisibilityAlways)
	if phase := veleroPhase(ctx, kind, name); phase != "Completed" {
		logs, _ := v.try(ctx, kind, "logs", name)
		Fail(phase + "\n" + out + describe + logs)
	}
}

// veleroPhase of a backup or a restore.
func veleroPhase(ctx context.Context, kind, name string) string {
	GinkgoHelper()
	kinds := map[string]string{"backup": "Backup", "restore": "Restore"}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "velero.io", Version: "v1", Kind: kinds[kind]})
	Expect(cluster.Get(ctx, client.ObjectKey{Namespace: "velero", Name: name}, object)).To(Succeed())
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	return phase
}

// uninstall Velero, after the backups that a test which failed has left: their snapshots would stay.
func (v *velero) uninstall(ctx context.Context) {
	GinkgoHelper()
	if _, err := v.try(ctx, "backup", "delete", "--all", "--confirm"); err == nil {
		Eventually(ctx, func(ctx context.Context) (string, error) { return v.try(ctx, "backup", "get") }).
			WithTimeout(podTime).WithPolling(time.Second).ShouldNot(ContainSubstring("default"))
	}
	v.run(ctx, "uninstall", "--force")
}

// forget deletes a backup, with what it has in the cluster and in the object store, and waits.
func (v *velero) forget(ctx context.Context, backup string) {
	GinkgoHelper()
	v.run(ctx, "backup", "delete", backup, "--confirm")
	Eventually(ctx, func(ctx context.Context) (string, error) { return v.try(ctx, "backup", "get") }).
		WithTimeout(podTime).WithPolling(time.Second).ShouldNot(ContainSubstring(backup))
	// Those that restores have made are left. They have no data.
	Expect(cluster.DeleteAllOf(ctx, snapshotObject("VolumeSnapshotContent", "", ""), client.MatchingLabels{"velero.io/backup-name": backup})).To(Succeed())
}

// ofTheApplication are its claims: a filesystem with two replicas, and an encrypted raw block device.
var ofTheApplication = []string{"files", "disk"}

// application is a pod with data in each of the claims, and sums are their checksums.
type application struct {
	pod  *corev1.Pod
	sums []string
}

// read the checksums of what a pod has in the claims.
func (a *application) read(ctx context.Context, pod *corev1.Pod) []string {
	GinkgoHelper()
	return lines(sh(ctx, pod, `sha256sum <%s/random; head -c 8M %s | sha256sum`, mountPath, pathOf(devicePath, 1)))
}

func newApplication(ctx context.Context, namespace string) *application {
	GinkgoHelper()
	target := everywhere(ctx, "backed-up")
	newClass(ctx, backedUp, map[string]string{"target": target.Name})
	newClass(ctx, backedUp+"-two", map[string]string{"target": target.Name, "replicas": "2"})
	key := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: newNamespace(ctx), Name: "key"}, StringData: map[string]string{"passphrase": firstPassphrase},
	}
	Expect(cluster.Create(ctx, key)).To(Succeed())
	newClass(ctx, backedUp+"-encrypted", map[string]string{
		"target": target.Name, "encrypted": "true",
		"csi.storage.k8s.io/node-stage-secret-name": key.Name, "csi.storage.k8s.io/node-stage-secret-namespace": key.Namespace,
		"csi.storage.k8s.io/node-publish-secret-name": key.Name, "csi.storage.k8s.io/node-publish-secret-namespace": key.Namespace,
	})
	a := &application{pod: running(ctx, newPodOf(ctx, "application", clientNode,
		newClaim(ctx, namespace, ofTheApplication[0], backedUp+"-two"),
		newClaim(ctx, namespace, ofTheApplication[1], backedUp+"-encrypted", asBlock, withSize("32Mi"))))}
	for _, file := range []string{mountPath + "/random", pathOf(devicePath, 1)} {
		sh(ctx, a.pod, `head -c 8M /dev/urandom | dd of=%s bs=1M iflag=fullblock conv=fsync,notrunc 2>/dev/null`, file)
	}
	a.sums = a.read(ctx, a.pod)
	return a
}

// change all that the application has.
func (a *application) change(ctx context.Context) {
	GinkgoHelper()
	sh(ctx, a.pod, `echo later >%s/random; echo later | dd of=%s conv=fsync,notrunc 2>/dev/null; sync`, mountPath, pathOf(devicePath, 1))
	Expect(a.read(ctx, a.pod)).NotTo(ContainElement(BeElementOf(a.sums)))
}

// lost is the namespace with everything in it, its volumes too.
func (a *application) lost(ctx context.Context) {
	GinkgoHelper()
	remove(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.pod.Namespace}})
	nothingLeft(ctx)
}

// runsIn a namespace, restored, with the data that it had, on volumes that know their claims.
func (a *application) runsIn(ctx context.Context, namespace string) {
	GinkgoHelper()
	pod := running(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.pod.Name}})
	Expect(a.read(ctx, pod)).To(Equal(a.sums))
	for i, members := range []int{2, 1} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ofTheApplication[i]}}
		volume := bound(ctx, claim)
		Expect(volume.Spec.Members).To(HaveLen(members))
		Eventually(ctx, func(g Gomega, ctx context.Context) {
			g.Expect(cluster.Get(ctx, client.ObjectKeyFromObject(volume), volume)).To(Succeed())
			g.Expect(volume.Annotations).To(And(HaveKeyWithValue(v1alpha1.PVCNameKey, claim.Name), HaveKeyWithValue(v1alpha1.PVCNamespaceKey, namespace)))
		}).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
	a.pod = pod
}

// mover watches the volumes that Velero's data mover makes, until what it returns is called. That has how many replicas
// each of them had.
func mover(ctx context.Context) func() []int {
	GinkgoHelper()
	changes, err := cluster.Watch(ctx, &v1alpha1.NvmfVolumeList{})
	Expect(err).NotTo(HaveOccurred())
	replicas := make(chan []int)
	go func() {
		members := map[string]int{}
		for change := range changes.ResultChan() {
			if volume, ok := change.Object.(*v1alpha1.NvmfVolume); ok && volume.Annotations[v1alpha1.PVCNamespaceKey] == "velero" {
				members[volume.Name] = max(members[volume.Name], len(volume.Spec.Members))
			}
		}
		replicas <- slices.Collect(maps.Values(members))
	}()
	return func() []int {
		changes.Stop()
		return <-replicas
	}
}

// snapshots of weft that there are.
func snapshots(ctx context.Context) []v1alpha1.NvmfSnapshot {
	GinkgoHelper()
	var list v1alpha1.NvmfSnapshotList
	Expect(cluster.List(ctx, &list)).To(Succeed())
	return list.Items
}

// noSnapshots waits until none is left, neither of weft nor of the snapshot API.
func noSnapshots(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(snapshots(ctx)).To(BeEmpty())
		for _, kind := range []string{"VolumeSnapshotList", "VolumeSnapshotContentList"} {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(schema.GroupVersionKind{Group: snapshotGroup, Version: "v1", Kind: kind})
			g.Expect(cluster.List(ctx, list)).To(Succeed())
			g.Expect(list.Items).To(BeEmpty())
		}
	}).WithTimeout(podTime).WithPolling(time.Second).Should(Succeed())
}

var _ = Describe("A backup by Velero", func() {
	It("brings a namespace back: from snapshots, and from an object store once volumes and snapshots are gone, into another namespace too", full, func(ctx SpecContext) {
		Expect(cluster.ApplyFile(ctx, "config/samples/snapshots/volumesnapshotclass.yaml", "", func(class *unstructured.Unstructured) {
			class.SetLabels(map[string]string{"velero.io/csi-volumesnapshot-class": "true"})
		})).To(Succeed())
		v := installVelero(ctx)
		ns := newNamespace(ctx)
		a := newApplication(ctx, ns)

		By("backing up by snapshots")
		v.do(ctx, "backup", "snapshots", "--include-namespaces", ns)
		Expect(snapshots(ctx)).To(HaveLen(len(ofTheApplication)))
		a.change(ctx)
		a.lost(ctx)
		Expect(snapshots(ctx)).To(HaveLen(len(ofTheApplication)))

		By("restoring from snapshots")
		v.do(ctx, "restore", "from-snapshots", "--from-backup", "snapshots")
		a.runsIn(ctx, ns)

		By("backing up to the object store")
		replicas := mover(ctx)
		v.do(ctx, "backup", "moved", "--include-namespaces", ns, "--snapshot-move-data")
		Expect(replicas()).To(Equal([]int{1, 1}), "replicas of the volumes that the data mover reads")
		a.change(ctx)

		By("losing the volumes, and all snapshots")
		a.lost(ctx)
		v.forget(ctx, "snapshots")
		noSnapshots(ctx)

		By("restoring from the object store")
		v.do(ctx, "restore", "from-store", "--from-backup", "moved")
		a.runsIn(ctx, ns)

		By("restoring to another namespace")
		other := ns + "-other"
		DeferCleanup(remove, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}})
		v.do(ctx, "restore", "to-another", "--from-backup", "moved", "--namespace-mappings", ns+":"+other)
		a.runsIn(ctx, other)

		By("deleting all of it")
		for _, name := range []string{ns, other} {
			remove(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		v.forget(ctx, "moved")
		nothingLeft(ctx)
		noSnapshots(ctx)
	}, SpecTimeout(60*time.Minute))
})
