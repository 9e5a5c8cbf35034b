// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const releasesDir = "../testdata/releases"

// An upgrade keeps what is in a cluster: today's API takes the objects of every past release, and gives back what they
// say. api/testdata/releases/README.md has the rules of the folder.
func TestObjectsOfReleases(t *testing.T) {
	current := currentVersion(t)
	folders, err := filepath.Glob(filepath.Join(releasesDir, "*", "nvmf*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	releases := map[string][]string{}
	for _, file := range folders {
		release := filepath.Base(filepath.Dir(file))
		releases[release] = append(releases[release], file)
	}
	if releases[current] == nil {
		t.Errorf("there is no folder for version %s; copy that of the last release, without its crds", current)
	}
	for release, files := range releases {
		t.Run(release, func(t *testing.T) {
			lacking := fieldsOf(t, release, current)
			for _, file := range files {
				for _, o := range readObjects(t, file) {
					written(o.Object, o.GetKind(), lacking)
					keep(t, o)
				}
			}
			for _, field := range slices.Sorted(maps.Keys(lacking)) {
				t.Errorf("no object of %s has the field %s", release, field)
			}
		})
	}
}

// keep creates the object, with its status, and compares what the API server then has.
func keep(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	want := o.DeepCopy()
	name := o.GetKind() + " " + o.GetName()
	if err := apiClient.Create(t.Context(), o); err != nil {
		t.Errorf("%s is rejected: %v", name, err)
		return
	}
	t.Cleanup(func() { _ = apiClient.Delete(t.Context(), o) })
	if status, ok := want.Object["status"]; ok {
		o.Object["status"] = status
		if err := apiClient.Status().Update(t.Context(), o); err != nil {
			t.Errorf("the status of %s is rejected: %v", name, err)
			return
		}
	}
	if err := apiClient.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"spec", "status"} {
		if diff := cmp.Diff(want.Object[part], within(o.Object[part], want.Object[part])); diff != "" {
			t.Errorf("%s of %s changed (-written +kept):\n%s", part, name, diff)
		}
	}
}

// within is what there is of the fields that were written: defaults may be added to them.
func within(have, wrote any) any {
	switch wrote := wrote.(type) {
	case map[string]any:
		has, ok := have.(map[string]any)
		if !ok {
			return have
		}
		out := map[string]any{}
		for key := range wrote {
			if value, ok := has[key]; ok {
				out[key] = within(value, wrote[key])
			}
		}
		return out
	case []any:
		has, ok := have.([]any)
		if !ok || len(has) != len(wrote) {
			return have
		}
		out := make([]any, len(has))
		for i := range has {
			out[i] = within(has[i], wrote[i])
		}
		return out
	default:
		return have
	}
}

// fieldsOf a release are those of the CRDs that are stored with it, or of today's if it is the one being made.
func fieldsOf(t *testing.T, release, current string) map[string]bool {
	t.Helper()
	dir := filepath.Join(releasesDir, release, "crds")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && release == current {
		dir = crdDir
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("release %s has no CRDs in %s (%v); a past release has those that it was released with", release, dir, err)
	}
	out := map[string]bool{}
	for _, file := range files {
		var crd apiextensionsv1.CustomResourceDefinition
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatal(err)
		}
		for _, version := range crd.Spec.Versions {
			for _, part := range []string{"spec", "status"} {
				if schema, ok := version.Schema.OpenAPIV3Schema.Properties[part]; ok {
					addFields(&schema, crd.Spec.Names.Kind+"."+part, out)
				}
			}
		}
	}
	return out
}

func addFields(schema *apiextensionsv1.JSONSchemaProps, path string, into map[string]bool) {
	switch {
	case schema.Properties != nil:
		for name, inner := range schema.Properties {
			addFields(&inner, path+"."+name, into)
		}
	case schema.Items != nil:
		addFields(schema.Items.Schema, path+"[]", into)
	default:
		into[path] = true
	}
}

// written takes the fields that an object has out of those that none has yet.
func written(value any, path string, lacking map[string]bool) {
	delete(lacking, path)
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			written(inner, path+"."+name, lacking)
		}
	case []any:
		for _, inner := range value {
			written(inner, path+"[]", lacking)
		}
	}
}

func readObjects(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, o)
	}
}

// currentVersion is the one that is being made: the chart's.
func currentVersion(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../charts/weft/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^version: (\S+)$`).FindSubmatch(data)
	if version == nil {
		t.Fatal("the chart has no version")
	}
	return string(version[1])
}
