// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

const driver = "External Storage [Driver: csi.weft.storage]"

func spec(name string, state types.SpecState, message string) types.SpecReport {
	return types.SpecReport{
		ContainerHierarchyTexts: []string{driver, "[Testpattern: Dynamic PV (default fs)]"}, LeafNodeText: name, LeafNodeType: types.NodeTypeIt,
		State: state, Failure: types.Failure{Message: message}, RunTime: 2 * time.Second,
	}
}

func TestReportTellsChosenSpecsApart(t *testing.T) {
	setup := types.SpecReport{LeafNodeType: types.NodeTypeBeforeSuite, State: types.SpecStatePassed}
	broken := types.SpecReport{LeafNodeType: types.NodeTypeAfterSuite, State: types.SpecStateFailed, Failure: types.Failure{Message: "left a volume"}}
	data, err := json.Marshal([]types.Report{{SpecReports: types.SpecReports{
		setup,
		spec("stores data", types.SpecStatePassed, ""),
		spec("grows", types.SpecStateFailed, "it did not"),
		spec("hangs", types.SpecStateTimedout, "too late"),
		spec("was not chosen", types.SpecStateSkipped, ""),
		spec("has groups", types.SpecStateSkipped, "no groups"),
		spec("has groups of snapshots", types.SpecStateSkipped, "no groups"),
		broken,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, list := filepath.Join(dir, "report.json"), filepath.Join(dir, "specs.txt")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var r Results
	if err := r.read(file); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	if err := r.tell(&said, list); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 passed, 3 failed, 2 left out", "left out   2: no groups", "it did not", "too late", "left a volume",
		"    --- PASS: TestStorage/[Testpattern: Dynamic PV (default fs)] stores data (2.00s)\n"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is not in:\n%s", want, said.String())
		}
	}
	all, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(all), "passed 2s [Testpattern: Dynamic PV (default fs)] stores data\n") || strings.Contains(string(all), "was not chosen") {
		t.Errorf("the list is:\n%s", all)
	}
}

func TestSharedFilesystemAloneIsAlwaysSkipped(t *testing.T) {
	skip := regexp.MustCompile(alwaysSkipped)
	const name = "multiVolume [Slow] should concurrently access the single volume from pods on different node"
	for pattern, want := range map[string]bool{"(filesystem volmode)": true, "(ext4)": true, "(xfs)] [Slow": true, "(block volmode)": false} {
		full := driver + " [Testpattern: Dynamic PV " + pattern + "] " + name
		if skip.MatchString(full) != want {
			t.Errorf("%s: skipped %t", full, !want)
		}
	}
}
