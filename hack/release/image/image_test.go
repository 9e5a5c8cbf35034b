// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Docker makes the same images from the Dockerfile.
func TestSpecsAreTheDockerfiles(t *testing.T) {
	data, err := os.ReadFile("../../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages := regexp.MustCompile(`(?m)^FROM \S+ AS (\S+)$`).FindAllStringSubmatchIndex(string(data), -1)
	stage := map[string]string{}
	for i, at := range stages {
		end := len(data)
		if i+1 < len(stages) {
			end = stages[i+1][0]
		}
		stage[string(data[at[2]:at[3]])] = string(data[at[0]:end])
	}
	// Both stages of the target's image are one here.
	stage["weft-target"] = stage["weft-target-base"] + stage["weft-target"]
	for _, spec := range []Spec{Weft(), Target()} {
		text, ok := stage[spec.Name]
		if !ok {
			t.Errorf("the Dockerfile has no stage %s", spec.Name)
			continue
		}
		labels := map[string]string{}
		for _, label := range regexp.MustCompile(`(org\.opencontainers\.image\.\w+)="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			labels[label[1]] = label[2]
		}
		if want := spec.Labels("${VERSION}", "${REVISION}"); fmt.Sprint(labels) != fmt.Sprint(want) {
			t.Errorf("%s: labels of the Dockerfile %v\nof a release %v", spec.Name, labels, want)
		}
		user := regexp.MustCompile(`(?m)^USER (\S+)$`).FindStringSubmatch(text)
		if user == nil || user[1] != spec.User {
			t.Errorf("%s: user %v, want %s", spec.Name, user, spec.User)
		}
		copied := regexp.MustCompile(`(?m)^COPY (.*) /usr/local/bin/$`).FindStringSubmatch(text)
		if copied == nil {
			t.Errorf("%s: nothing is copied", spec.Name)
			continue
		}
		programs := strings.Fields(strings.ReplaceAll(copied[1], "bin/${TARGETARCH}/", ""))
		if !slices.Equal(programs, spec.Programs) {
			t.Errorf("%s: programs %v, want %v", spec.Name, programs, spec.Programs)
		}
		for name, want := range map[string][]string{"ENTRYPOINT": spec.Entrypoint, "CMD": spec.Cmd} {
			var words []string
			if line := regexp.MustCompile(`(?m)^` + name + ` (\[.*\])$`).FindStringSubmatch(text); line != nil {
				if err := json.Unmarshal([]byte(line[1]), &words); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(words, want) {
				t.Errorf("%s: %s %v, want %v", spec.Name, name, words, want)
			}
		}
	}
}

func TestBaseForAnotherArchitectureIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/arm64.tar", make([]byte, 1024), 0o644); err != nil {
		t.Fatal(err)
	}
	on, err := Base(t.Context(), dir, "arm64")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/weft-launch", []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = Target().Build(on, Options{Arch: "amd64", Programs: dir})
	if err == nil || !strings.Contains(err.Error(), `the base of weft-target is for "arm64"; give one for amd64`) {
		t.Errorf("error %v", err)
	}
}
