// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestTheDocumentDescribesEveryParameter(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/storageclass.md")
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
		in := map[string]string{Target: "fast", Zones: "zone-a"} // a zoneLabel needs zones
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

func TestTheDocumentsExamplesAreValid(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/storageclass.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```yaml\n")[1:]
	most := 0
	for i, block := range blocks {
		example, _, _ := strings.Cut(block, "```")
		var parameters map[string]string
		if err := yaml.UnmarshalStrict([]byte(example), &struct {
			APIVersion, Kind, Provisioner, ReclaimPolicy, VolumeBindingMode string
			Metadata                                                        map[string]string
			Parameters                                                      *map[string]string
			MountOptions                                                    []string
			AllowVolumeExpansion                                            bool
		}{Parameters: &parameters}); err != nil {
			t.Fatal(err)
		}
		parameters = OfClass(parameters)
		if _, err := Parse(parameters); err != nil {
			t.Errorf("example %d: %v", i+1, err)
		}
		most = max(most, len(parameters))
	}
	if most != len(setters) {
		t.Errorf("the fullest example has %d of %d parameters", most, len(setters))
	}
}
