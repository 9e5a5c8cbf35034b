// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestThePageIsUpToDate(t *testing.T) {
	want, err := reference("../..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../" + targetPage)
	if err != nil || string(got) != want {
		t.Errorf("%s is not what the CRD says: run make generate (%v)", targetPage, err)
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
