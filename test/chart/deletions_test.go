// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func crdNamed(name string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// foreign is a CRD that is not weft's.
func foreign() *apiextensionsv1.CustomResourceDefinition {
	crd := crdNamed("widgets.example.org")
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "example.org", Scope: apiextensionsv1.ClusterScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
		}}},
	}
	return crd
}

// testDeletionsAreMeant has an administrator, who has every right, delete what was not meant.
func testDeletionsAreMeant(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client) {
	const node = "deletions"
	named := map[string]string{"node": node}
	volume, replica, snapshot := volumeOn(node), replicaOn(node), snapshotOn(node)
	volume.Labels, replica.Labels, snapshot.Labels = named, named, named
	mirror := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: volume.Name}, Spec: v1alpha1.NvmfMirrorSpec{
		Epoch: 1, Members: []v1alpha1.MirrorMember{{Replica: replica.Name, ReplicaUID: "u", State: v1alpha1.MemberInSync}},
	}}
	full, empty := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "stores-volumes"}}, &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "stores-nothing"}}
	for _, o := range []client.Object{volume, replica, snapshot, mirror, full, empty, foreign()} {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	stores := func(volumes, orphans int) func() error {
		return func() error {
			if err := admin.Status().Patch(ctx, full, merge(`{"status":{"volumes":{"used":%d},"orphanCount":%d}}`, volumes, orphans)); err != nil {
				return err
			}
			return admin.Delete(ctx, full, client.DryRunAll)
		}
	}
	if err := stores(1, 0)(); err != nil && !apierrors.IsInvalid(err) {
		t.Fatal(err)
	}
	g := NewWithT(t)
	// A policy acts a moment after it is created.
	for _, o := range []client.Object{volume, full, crdNamed("nvmfvolumes.weft.storage")} {
		g.Eventually(func() error { return admin.Delete(ctx, o, client.DryRunAll) }).WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring("nothing was deleted")))
	}
	mark := func(o client.Object, uid string) func() error {
		return func() error {
			if err := admin.Patch(ctx, o, merge(`{"spec":{"deletionMark":%q}}`, uid)); err != nil {
				return err
			}
			return admin.Delete(ctx, o, client.DryRunAll)
		}
	}
	byForce := func(o client.Object) func() error {
		return func() error {
			if err := admin.Patch(ctx, o, merge(`{"metadata":{"finalizers":null}}`)); err != nil {
				return err
			}
			return admin.Delete(ctx, o)
		}
	}
	prune := client.DeleteAllOfOptions{ListOptions: client.ListOptions{}}
	client.MatchingLabels(named).ApplyToList(&prune.ListOptions)
	controller := withToken(ctx, t, config, admin, "weft-csi-controller", nil)
	operator := withToken(ctx, t, config, admin, "weft-operator", nil)
	const binding = "kubectl delete validatingadmissionpolicybinding weft-crds"
	try(t, []attempt{
		{"kubectl delete nvmfvolume", "kubectl weft delete volume " + volume.Name, func() error { return admin.Delete(ctx, volume) }},
		{"kubectl delete nvmfreplica", "kubectl weft delete volume " + volume.Name + " ", func() error { return admin.Delete(ctx, replica) }},
		{"kubectl delete nvmfsnapshot", "kubectl weft delete snapshot " + snapshot.Name, func() error { return admin.Delete(ctx, snapshot) }},
		{"pruned volumes", "kubectl weft delete volume " + volume.Name, func() error { return admin.DeleteAllOf(ctx, &v1alpha1.NvmfVolume{}, &prune) }},
		{"pruned replicas", "kubectl weft delete volume " + volume.Name + " ", func() error { return admin.DeleteAllOf(ctx, &v1alpha1.NvmfReplica{}, &prune) }},
		{"pruned snapshots", "kubectl weft delete snapshot " + snapshot.Name, func() error { return admin.DeleteAllOf(ctx, &v1alpha1.NvmfSnapshot{}, &prune) }},
		{"a volume by force", "nothing was deleted", byForce(volume)},
		{"a replica by force", "nothing was deleted", byForce(replica)},
		{"a snapshot by force", "nothing was deleted", byForce(snapshot)},
		{"a volume with another's mark", "nothing was deleted", mark(volume, string(snapshot.UID))},
		{"a replica with its volume's mark", "nothing was deleted", mark(replica, string(volume.UID))},
		{"a snapshot with another's mark", "nothing was deleted", mark(snapshot, string(volume.UID))},
		{"a volume by the CSI controller, unmarked", "nothing was deleted", func() error { return controller.Delete(ctx, volume) }},
		{"a snapshot by the CSI controller, unmarked", "nothing was deleted", func() error { return controller.Delete(ctx, snapshot) }},
		// Its volume was deleted unmarked where the policy was not in force.
		{"a replica by the CSI controller, unmarked", "", func() error { return controller.Delete(ctx, replica, client.DryRunAll) }},
		{"a mirror", "records which replicas", func() error { return admin.Delete(ctx, mirror) }},
		{"a mirror by the CSI controller", "", func() error { return controller.Delete(ctx, mirror, client.DryRunAll) }},
		{"a replica by another part of weft", "cannot delete resource", func() error { return operator.Delete(ctx, replica, client.DryRunAll) }},
		{"a volume with its own mark", "", mark(volume, string(volume.UID))},
		{"a replica with its own mark", "", mark(replica, string(replica.UID))},
		{"a snapshot with its own mark", "", mark(snapshot, string(snapshot.UID))},
		{"by the CSI controller", "", func() error {
			for _, o := range []client.Object{volume, replica, snapshot} {
				if err := controller.Patch(ctx, o, merge(`{"spec":{"deletionMark":%q}}`, o.GetUID())); err != nil {
					return err
				}
				if err := controller.Delete(ctx, o); err != nil {
					return err
				}
			}
			return nil
		}},
		{"a node with a volume", "kubectl weft drain stores-volumes", stores(1, 0)},
		{"a node with an orphan", "1 orphans", stores(0, 1)},
		{"a node whose volumes are gone", "", stores(0, 0)},
		{"a node of which nothing is known", "", func() error { return admin.Delete(ctx, empty, client.DryRunAll) }},
		{"CRD of volumes", binding, func() error { return admin.Delete(ctx, crdNamed("nvmfvolumes.weft.storage")) }},
		{"CRD of replicas", binding, func() error { return admin.Delete(ctx, crdNamed("nvmfreplicas.weft.storage")) }},
		{"CRD of snapshots", binding, func() error { return admin.Delete(ctx, crdNamed("nvmfsnapshots.weft.storage")) }},
		{"CRD of nodes", binding, func() error { return admin.Delete(ctx, crdNamed("nvmfnodes.weft.storage")) }},
		{"CRD of targets", binding, func() error { return admin.Delete(ctx, crdNamed("nvmftargets.weft.storage")) }},
		{"every CRD", binding, func() error { return admin.DeleteAllOf(ctx, crdNamed("")) }},
		{"another's CRD", "", func() error { return client.IgnoreNotFound(admin.Delete(ctx, foreign())) }},
	})
	// As the message says.
	if err := admin.Delete(ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "weft-crds"}}); err != nil {
		t.Fatal(err)
	}
	g.Eventually(func() error { return admin.Delete(ctx, crdNamed("nvmfreplicas.weft.storage"), client.DryRunAll) }).WithTimeout(30 * time.Second).Should(Succeed())
}
