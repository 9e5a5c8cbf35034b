// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestTheDocumentDescribesEveryParameter(t *testing.T) {
	text, err := os.ReadFile("../../../docs/storageclass.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.Contains(cells[1], "`") {
			continue
		}
		key, example := strings.Trim(cells[1], " `"), strings.Trim(cells[4], " `\"")
		rows[key] = true
		in := map[string]string{Target: "fast"}
		in[key] = example
		if _, err := Parse(in); err != nil {
			t.Errorf("the example of %s: %v", key, err)
		}
	}
	for _, s := range setters {
		if !rows[s.key] {
			t.Errorf("%s has no row", s.key)
		}
	}
}

func TestTheDocumentsExampleIsValid(t *testing.T) {
	text, err := os.ReadFile("../../../docs/storageclass.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	var class struct {
		Parameters map[string]string `json:"parameters"`
	}
	if err := yaml.UnmarshalStrict([]byte(example), &struct {
		APIVersion, Kind, Provisioner, ReclaimPolicy, VolumeBindingMode string
		Metadata                                                        map[string]string
		Parameters                                                      *map[string]string
		MountOptions                                                    []string
		AllowVolumeExpansion                                            bool
	}{Parameters: &class.Parameters}); err != nil {
		t.Fatal(err)
	}
	if len(class.Parameters) != len(setters) {
		t.Errorf("the example has %d of %d parameters", len(class.Parameters), len(setters))
	}
	if _, err := Parse(class.Parameters); err != nil {
		t.Error(err)
	}
}
