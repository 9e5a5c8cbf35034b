// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// files reads the YAML files of a folder.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s has no YAML files (%v): run `make generate`", dir, err)
	}
	content := map[string]string{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content[filepath.Base(path)] = string(b)
	}
	return content
}

func TestTheChartsFilesAreThoseOfConfig(t *testing.T) {
	for _, pair := range [][2]string{{"../../config/crd", chart + "/files/crds"}, {"../../config/rbac", chart + "/files/rbac"}} {
		if diff := cmp.Diff(files(t, pair[0]), files(t, pair[1])); diff != "" {
			t.Errorf("%s and %s differ; run `make generate`:\n%s", pair[0], pair[1], diff)
		}
	}
}

func TestCRDsAreRenderedWholeAndKept(t *testing.T) {
	want := map[string]apiextensionsv1.CustomResourceDefinitionSpec{}
	for name, content := range files(t, "../../config/crd") {
		objects, err := decode([]byte(content))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, crd := range of[*apiextensionsv1.CustomResourceDefinition](objects) {
			want[crd.Name] = crd.Spec
		}
	}
	got := map[string]apiextensionsv1.CustomResourceDefinitionSpec{}
	for _, crd := range of[*apiextensionsv1.CustomResourceDefinition](render(t)) {
		got[crd.Name] = crd.Spec
		if crd.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s would be removed with the release, and every volume's object with it", crd.Name)
		}
		if !unpruned(crd) {
			t.Errorf("%s would be pruned, and every volume's object with it: %v", crd.Name, crd.Annotations)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := len(of[*apiextensionsv1.CustomResourceDefinition](render(t, "--set", "crds.install=false"))); n != 0 {
		t.Errorf("crds.install=false leaves %d CRDs", n)
	}
}

// unpruned says that Argo CD and Flux leave an object alone that is not in their source any more.
func unpruned(o metav1.Object) bool {
	return o.GetAnnotations()["argocd.argoproj.io/sync-options"] == "Prune=false,Delete=false" && o.GetAnnotations()["kustomize.toolkit.fluxcd.io/prune"] == "disabled"
}

func TestTheCSIDriverObjectSaysWhatTheDriverDoes(t *testing.T) {
	drivers := of[*storagev1.CSIDriver](render(t))
	if len(drivers) != 1 || drivers[0].Name != v1alpha1.DriverName {
		t.Fatalf("want one CSIDriver %s, got %v", v1alpha1.DriverName, drivers)
	}
	yes, no, file := true, false, storagev1.FileFSGroupPolicy
	want := storagev1.CSIDriverSpec{
		AttachRequired: &yes, PodInfoOnMount: &no, RequiresRepublish: &no, StorageCapacity: &yes, SELinuxMount: &no,
		FSGroupPolicy: &file, VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}
	if diff := cmp.Diff(want, drivers[0].Spec); diff != "" {
		t.Error(diff)
	}
}

func TestTheKustomizeBaseIsTheDefaultRendering(t *testing.T) {
	base, err := os.ReadFile("../../config/default/weft.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(base)
	if err != nil {
		t.Fatal(err)
	}
	if crds := of[*apiextensionsv1.CustomResourceDefinition](objects); len(crds) != 6 || slices.ContainsFunc(crds, func(crd *apiextensionsv1.CustomResourceDefinition) bool { return !unpruned(crd) }) {
		t.Errorf("of %d CRDs, some would be pruned", len(crds))
	}
	if diff := cmp.Diff(withoutHelm(t, render(t)), withoutHelm(t, objects)); diff != "" {
		t.Errorf("run `make generate`:\n%s", diff)
	}
}

// withoutHelm takes off what only Helm reads.
func withoutHelm(t *testing.T, objects []runtime.Object) []runtime.Object {
	t.Helper()
	clean := func(o metaObject) {
		labels, annotations := o.GetLabels(), o.GetAnnotations()
		delete(labels, "app.kubernetes.io/managed-by")
		delete(labels, "helm.sh/chart")
		delete(annotations, "helm.sh/resource-policy")
		o.SetLabels(labels)
		o.SetAnnotations(annotations)
	}
	for _, o := range objects {
		accessor, err := meta.Accessor(o)
		if err != nil {
			t.Fatal(err)
		}
		clean(accessor)
	}
	for _, w := range workloads(objects) {
		clean(&w.template)
	}
	return objects
}

type metaObject interface {
	GetLabels() map[string]string
	SetLabels(map[string]string)
	GetAnnotations() map[string]string
	SetAnnotations(map[string]string)
}
