// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"os"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// sample is the first object of one of the repository's samples.
func sample(t *testing.T, path string) *unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile("../../../config/samples/" + path)
	if err != nil {
		t.Fatal(err)
	}
	var object unstructured.Unstructured
	if err := yaml.Unmarshal(data, &object.Object); err != nil {
		t.Fatal(err)
	}
	return &object
}

// The lab serves over RDMA too, which the sample has in a comment, and from one drive.
func TestTargetOfTheLab(t *testing.T) {
	object := sample(t, "target-drives.yaml")
	ofTheLab("serial-0")(object)
	var types []string
	transports, _, err := unstructured.NestedSlice(object.Object, "spec", "transports")
	if err != nil {
		t.Fatal(err)
	}
	for _, transport := range transports {
		types = append(types, transport.(map[string]any)["type"].(string))
	}
	if !slices.Equal(types, []string{"TCP", "RDMA"}) {
		t.Errorf("it serves over %q", types)
	}
	drives, _, err := unstructured.NestedStringSlice(object.Object, "spec", "devices", "selector", "byID")
	if !slices.Equal(drives, []string{"nvme-*_serial-0"}) || err != nil {
		t.Errorf("it takes the drives %q (%v)", drives, err)
	}
}
