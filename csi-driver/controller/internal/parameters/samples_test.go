// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// The driver accepts the parameters of every sample, which the API server does not check.
func TestSamplesAreAccepted(t *testing.T) {
	tried := map[string]int{}
	for _, pattern := range []string{"*.yaml", "*/*.yaml"} {
		files, err := filepath.Glob("../../../../config/samples/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, class := range classes(t, file) {
				tried[class.Kind]++
				if err := accept(class); err != nil {
					t.Errorf("%s: %s %s: %v", file, class.Kind, class.Name, err)
				}
			}
		}
	}
	for _, kind := range []string{"StorageClass", "VolumeAttributesClass"} {
		if tried[kind] == 0 {
			t.Errorf("config/samples holds no %s", kind)
		}
	}
}

// accept the parameters of a StorageClass or VolumeAttributesClass, which name and hold them alike.
func accept(class storagev1.StorageClass) error {
	if class.Kind == "VolumeAttributesClass" {
		_, err := ParseMutable(class.Parameters)
		return err
	}
	_, err := Parse(OfClass(class.Parameters))
	return err
}

// classes in a file.
func classes(t *testing.T, file string) []storagev1.StorageClass {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []storagev1.StorageClass
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var class storagev1.StorageClass
		switch err := decoder.Decode(&class); {
		case errors.Is(err, io.EOF):
			return found
		case err != nil:
			t.Fatalf("%s: %v", file, err)
		case class.Kind == "StorageClass" || class.Kind == "VolumeAttributesClass":
			found = append(found, class)
		}
	}
}
