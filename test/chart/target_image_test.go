// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "record what the target image is made from, instead of comparing with the record")

// targetVersion is the target image's, as the chart's values give it.
func targetVersion(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Target struct {
			Image struct {
				Tag string `json:"tag"`
			} `json:"image"`
		} `json:"target"`
	}
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	return values.Target.Image.Tag
}

// targetInputs is a hash of what the target image is made from in this repository: the launcher and its stage of the
// Dockerfile, without comments. Packages that the launcher shares with the agent are left out: they change far more
// often than what the launcher does with them.
func targetInputs(t *testing.T) string {
	t.Helper()
	sum := sha256.New()
	const dir = "../../dataplane/cmd/weft-launch"
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("%s has no sources (%v)", dir, err)
	}
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		content, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(sum, "%s %d\n%s", filepath.Base(source), len(content), content)
	}
	for _, line := range targetStage(t) {
		_, _ = fmt.Fprintln(sum, line)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// targetStage is the stage of the Dockerfile that makes the target image, with the image that it starts from.
func targetStage(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	var stage []string
	inside := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "FROM ") {
			inside = strings.HasSuffix(line, " AS weft-target")
		}
		if (inside || strings.HasPrefix(line, "ARG TARGET_BASE=")) && line != "" && !strings.HasPrefix(line, "#") {
			stage = append(stage, line)
		}
	}
	if !slices.ContainsFunc(stage, func(l string) bool { return strings.Contains(l, "weft-launch") }) {
		t.Fatalf("the Dockerfile has no stage weft-target: %q", stage)
	}
	return stage
}

// A release of the chart that leaves the target image as it is must not restart targets; one that changes it must not
// give another content the same name.
func TestTheTargetImageHasAVersionOfItsOwn(t *testing.T) {
	const record = "testdata/target-image.yaml"
	type recorded struct {
		Version string `json:"version"`
		Inputs  string `json:"inputs"`
	}
	is := recorded{Version: targetVersion(t), Inputs: targetInputs(t)}
	if !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(is.Version) {
		t.Errorf("target.image.tag is %q; give a version such as 0.1.0", is.Version)
	}
	if *update {
		data := fmt.Sprintf("# SPDX-License-Identifier: Apache-2.0\n# What the target image of this version is made from; see docs/tasks/change-the-target-image.md.\nversion: %s\ninputs: %s\n", is.Version, is.Inputs)
		if err := os.WriteFile(record, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	var was recorded
	if err := yaml.UnmarshalStrict(data, &was); err != nil {
		t.Fatal(err)
	}
	const how = "go test ./test/chart -run TestTheTargetImageHasAVersionOfItsOwn -update"
	switch {
	case was == is:
	case was.Version == is.Version:
		t.Errorf("what the target image is made from has changed: if %s was released, raise target.image.tag in charts/weft/values.yaml; then run %s", is.Version, how)
	case was.Inputs == is.Inputs:
		t.Errorf("target.image.tag went from %s to %s, and the image is made from the same: every target would restart for nothing; "+
			"leave it, or, if its base has changed, run %s", was.Version, is.Version, how)
	default:
		t.Errorf("the target image's version and what it is made from have changed; record them: %s", how)
	}
}

// Every release of the chart used to outdate every target pod.
func TestAnotherChartVersionKeepsTheTargetImage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weft")
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.ReplaceAll(string(data), appVersion(t), "9.8.7")
	if err := os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	images := func(of string) (own, target string) {
		t.Helper()
		stdout, stderr, err := helm(t, "template", "weft", of, "--namespace", namespace, "--kube-version", "1.32.0")
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr)
		}
		objects, err := decode([]byte(stdout))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(workloads(objects), func(w workload) bool { return w.name == "weft-operator" })
		operator := workloads(objects)[i].template.Spec.Containers[0]
		for _, arg := range operator.Args {
			if image, ok := strings.CutPrefix(arg, "--target-image="); ok {
				target = image
			}
		}
		return operator.Image, target
	}
	own, target := images(chart)
	newOwn, newTarget := images(dir)
	if newOwn == own || !strings.HasSuffix(newOwn, ":9.8.7") {
		t.Fatalf("the newer chart's own image is %s: this test shows nothing", newOwn)
	}
	if target == "" || newTarget != target {
		t.Errorf("another chart version goes from target image %q to %q", target, newTarget)
	}
}
