// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/config/crd"
)

var schemas = map[string]*crd.Schema{}

func schemaOf(t *testing.T, kind string) *crd.Schema {
	t.Helper()
	if schemas[kind] == nil {
		s, err := crd.For(kind)
		if err != nil {
			t.Fatal(err)
		}
		schemas[kind] = s
	}
	return schemas[kind]
}

// sameOffline compares what package crd makes of an object with what the API server made of it: answered is its
// answer.
func sameOffline(t *testing.T, given, old, answered *unstructured.Unstructured, err error) {
	t.Helper()
	if given.GetName() == "" {
		given.SetName("test-offline") // the API server makes one, too
	}
	given, old = parsed(t, given), parsed(t, old)
	admitted, offline := schemaOf(t, given.GetKind()).Admit(t.Context(), given, old)
	if diff := cmp.Diff(complaints(causes(t, err)), complaints(crd.Causes(offline))); diff != "" {
		t.Errorf("the API server complains of other things (-) than package crd (+):\n%s", diff)
	}
	if err != nil || offline != nil {
		return
	}
	if diff := cmp.Diff(parsed(t, answered).Object["spec"], admitted.Object["spec"]); diff != "" {
		t.Errorf("the API server stores another spec (-) than package crd gives (+):\n%s", diff)
	}
}

// parsed has the types of numbers that the API server has.
func parsed(t *testing.T, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	if o == nil {
		return nil
	}
	text, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	p, err := crd.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var ofNames = regexp.MustCompile(`"test-[a-z0-9]+"`)

// complaints in one order, without the API server's remark that it stopped at the first kind of them.
func complaints(found []metav1.StatusCause) []string {
	var s []string
	for _, c := range found {
		if !strings.Contains(c.Message, "some validation rules were not checked") {
			s = append(s, c.Field+": "+ofNames.ReplaceAllString(c.Message, `"test-"`))
		}
	}
	slices.Sort(s)
	return s
}

func TestUnknownFieldsOffline(t *testing.T) {
	for name, edit := range map[string]string{
		"at the top":     `specs: {}`,
		"in the spec":    `spec: {enginge: SPDK}`,
		"in a list":      `spec: {transports: [{type: TCP, prot: 4420}]}`,
		"in metadata":    `metadata: {label: {a: b}}`,
		"in a new field": `spec: {cores: {count: 4, dynamic: {peroid: 1s}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			o := parsed(t, object(t, targetSPDK, edit))
			o.SetName("unknown")
			_, err := schemaOf(t, o.GetKind()).Admit(t.Context(), o, nil)
			var unknown *crd.UnknownFieldError
			if !errors.As(err, &unknown) {
				t.Fatalf("got %v, want an UnknownFieldError", err)
			}
			err = apiClient.Create(t.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
			if err == nil || !strings.Contains(err.Error(), unknown.Error()) {
				t.Errorf("the API server says %v, package crd %v", err, unknown)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"a key twice":   {"kind: A\nkind: B", `key "kind" already set`},
		"no object":     {"[1, 2]", "must start with apiVersion and kind"},
		"text":          {"hello", "must start with apiVersion and kind"},
		"no YAML":       {"a: [", "did not find expected node content"},
		"another kind":  {"apiVersion: v1\nkind: Pod", "it is v1 Pod; want weft.storage/v1alpha1 NvmfTarget"},
		"no kind given": {"spec: {}", "want weft.storage/v1alpha1 NvmfTarget"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := crd.Parse([]byte(c.text))
			if err == nil {
				_, err = schemaOf(t, target).Admit(t.Context(), o, nil)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
