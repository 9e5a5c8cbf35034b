// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// pvOf a source, for nobody's claim.
func pvOf(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: "x", PersistentVolumeSource: source,
	}}
}

func csiSource(driver string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "pvc-1"}}
}

func attachmentBy(name, driver string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: "a", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("x")},
	}}
}

var snapshotContents = schema.GroupVersionKind{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshotContent"}

// snapshotContentKind has of the real one what the policy looks at.
func snapshotContentKind() *apiextensionsv1.CustomResourceDefinition {
	crd := foreign()
	crd.Name = "volumesnapshotcontents." + snapshotContents.Group
	crd.Annotations = map[string]string{"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"}
	crd.Spec.Group = snapshotContents.Group
	crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
		Plural: "volumesnapshotcontents", Singular: "volumesnapshotcontent", Kind: snapshotContents.Kind, ListKind: snapshotContents.Kind + "List",
	}
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.XPreserveUnknownFields = new(true)
	return crd
}

func snapshotContent(name, driver string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"driver": driver}}}
	u.SetGroupVersionKind(snapshotContents)
	u.SetName(name)
	return u
}

// testTheControllerWritesItsDriversObjects: the sidecars' roles name kinds, not drivers. A PersistentVolume of another
// type would give whoever has a claim the node's files, or another driver's volume.
func testTheControllerWritesItsDriversObjects(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	c := withToken(ctx, t, config, admin, "weft-csi-controller", nil)
	grant(ctx, t, admin, "weft-csi-controller", rbacv1.PolicyRule{
		APIGroups: []string{snapshotContents.Group}, Resources: []string{"volumesnapshotcontents"}, Verbs: []string{"patch"},
	})
	const own, others = v1alpha1.DriverName, "csi.example.org"
	hostPath := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claimed"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new("x"),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	for _, o := range []client.Object{
		snapshotContentKind(), claim, pvOf("own", csiSource(own)), pvOf("others", csiSource(others)), pvOf("local", hostPath), attachmentBy("own", own), attachmentBy("others", others),
	} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	g := NewWithT(t)
	for name, driver := range map[string]string{"own": own, "others": others} {
		g.Eventually(func() error { return admin.Create(ctx, snapshotContent(name, driver)) }).WithTimeout(30 * time.Second).Should(Succeed())
	}
	create := func(o client.Object) func() error { return func() error { return c.Create(ctx, o, client.DryRunAll) } }
	patch := func(o client.Object, content string) func() error {
		return func() error { return c.Patch(ctx, o, merge("%s", content), client.DryRunAll) }
	}
	const volumes, attachments, snapshots, claims = "may write only PersistentVolumes of the driver", "may write only VolumeAttachments of the driver",
		"may write only VolumeSnapshotContents of the driver", "may change only annotations and finalizers of claims"
	const finalizer, grown = `{"metadata":{"finalizers":["example.org/x"]}}`, `{"spec":{"capacity":{"storage":"2Gi"}}}`
	// A policy acts a moment after it is created.
	g.Eventually(create(pvOf("root", hostPath))).WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring(volumes)))
	g.Eventually(patch(snapshotContent("others", others), finalizer)).WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring(snapshots)))
	try(t, []attempt{
		{"its volume", "", create(pvOf("new", csiSource(own)))},
		{"a node's files", volumes, create(pvOf("new", hostPath))},
		{"a node's device", volumes, create(pvOf("new", corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "192.0.2.1", Path: "/"}}))},
		{"another driver's volume", volumes, create(pvOf("new", csiSource(others)))},
		{"its volume, grown", "", patch(pvOf("own", csiSource(own)), grown)},
		{"its volume, held", "", patch(pvOf("own", csiSource(own)), finalizer)},
		{"another driver's volume, grown", volumes, patch(pvOf("others", csiSource(others)), grown)},
		{"another driver's volume, for a claim", volumes, patch(pvOf("others", csiSource(others)), `{"spec":{"claimRef":{"namespace":"default","name":"claimed"}}}`)},
		{"its volume, deleted", "", func() error { return c.Delete(ctx, pvOf("own", csiSource(own)), client.DryRunAll) }},
		{"a node's files, deleted", volumes, func() error { return c.Delete(ctx, pvOf("local", hostPath), client.DryRunAll) }},
		{"another driver's volume, deleted", volumes, func() error { return c.Delete(ctx, pvOf("others", csiSource(others)), client.DryRunAll) }},
		{"its attachment, held", "", patch(attachmentBy("own", own), finalizer)},
		{"another driver's attachment, held", attachments, patch(attachmentBy("others", others), finalizer)},
		{"its attachment, made", "", func() error {
			return c.Status().Patch(ctx, attachmentBy("own", own), merge(`{"status":{"attached":true}}`), client.DryRunAll)
		}},
		{"another driver's attachment, made", attachments, func() error {
			return c.Status().Patch(ctx, attachmentBy("others", others), merge(`{"status":{"attached":true}}`), client.DryRunAll)
		}},
		{"a node for a claim, again", "", func() error {
			changed := claim.DeepCopy()
			changed.Annotations, changed.Finalizers = map[string]string{"volume.kubernetes.io/selected-node": "a"}, append(changed.Finalizers, "example.org/x")
			return c.Update(ctx, changed, client.DryRunAll)
		}},
		{"a volume for a claim", claims, func() error {
			changed := claim.DeepCopy()
			changed.Spec.VolumeName = "others"
			return c.Update(ctx, changed, client.DryRunAll)
		}},
		{"its snapshot, held", "", patch(snapshotContent("own", own), finalizer)},
		{"another driver's snapshot, held", snapshots, patch(snapshotContent("others", others), finalizer)},
		{"another driver's snapshot, as its own", snapshots, patch(snapshotContent("others", others), `{"spec":{"driver":"csi.weft.storage"}}`)},
		{"a target", "cannot patch resource", patch(&v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: "fast"}}, `{"spec":{}}`)},
		{"a node's key", "cannot patch resource", func() error {
			return c.Status().Patch(ctx, nodeNamed("a"), merge(`{"status":{"publicKey":%q}}`, aPublicKey))
		}},
		{"a pod", "cannot create resource", create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x"}})},
		{"a Secret", "cannot get resource", func() error { return c.Get(ctx, webhookSecret, &corev1.Secret{}) }},
	})
}
