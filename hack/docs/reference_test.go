// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestReferenceIsUpToDate(t *testing.T) {
	want, err := reference("../..")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range want {
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Errorf("%s is not what the CRD says: run make generate (%v)", path, err)
		}
		if words := len(strings.Fields(text)); words > 2500 {
			t.Errorf("%s has %d words: give some of its fields a page of their own", path, words)
		}
	}
	written, err := filepath.Glob("../../" + referencePages + "nvmftarget*.md")
	if err != nil || len(written) != len(want) {
		t.Errorf("there are %q, and %d pages are written (%v)", written, len(want), err)
	}
}

// Every field of the spec has its table in one of the pages.
func TestReferenceHasEveryField(t *testing.T) {
	spec, err := schema("../..")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := reference("../..")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(slices.Collect(maps.Values(pages)), "\n")
	for name := range spec.Properties {
		field := spec.Properties[name]
		if object(&field) != nil && strings.Count(all, "\n## `"+name+"`\n") != 1 {
			t.Errorf("the pages have %d tables of spec.%s", strings.Count(all, "\n## `"+name+"`\n"), name)
		}
	}
}

// kubectl explain prints descriptions, and no bounds.
func TestDescriptionsTellBoundsAndDefaults(t *testing.T) {
	spec, err := schema("../..")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	var check func(path string, of *apiextensionsv1.JSONSchemaProps)
	check = func(path string, of *apiextensionsv1.JSONSchemaProps) {
		for name, field := range of.Properties {
			at := path + "." + name
			var told []string
			if field.Minimum != nil && field.Maximum != nil {
				told = append(told, fmt.Sprintf("%.0f", *field.Minimum), fmt.Sprintf("%.0f", *field.Maximum))
			}
			if field.MaxItems != nil && field.MinItems != nil {
				told = append(told, fmt.Sprint(*field.MinItems), fmt.Sprint(*field.MaxItems))
			}
			if field.Default != nil && string(field.Default.Raw) != "{}" {
				told = append(told, strings.Trim(string(field.Default.Raw), `"`))
			}
			tried += len(told)
			for _, word := range told {
				if !strings.Contains(field.Description, word) {
					t.Errorf("the description of %s does not say %s: %q", at, word, field.Description)
				}
			}
			if inner := object(&field); inner != nil {
				check(at, inner)
			}
		}
	}
	check("spec", spec)
	if tried < 100 {
		t.Errorf("only %d bounds and defaults were found", tried)
	}
}
