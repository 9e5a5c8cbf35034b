// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

// Results are what became of the specs that were chosen.
type Results struct {
	Passed, Failed []types.SpecReport
	// LeftOut are those that the suite left out itself, because the driver's file does not offer what they need.
	LeftOut []types.SpecReport
}

// read adds those of a report that Ginkgo wrote.
func (r *Results) read(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var reports []types.Report
	if err := json.Unmarshal(data, &reports); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			r.add(spec)
		}
	}
	return nil
}

func (r *Results) add(spec types.SpecReport) {
	switch {
	case spec.State.Is(types.SpecStateFailureStates):
		r.Failed = append(r.Failed, spec)
	case spec.LeafNodeType != types.NodeTypeIt:
		// Parts of the suite itself count only when they fail.
	case spec.State.Is(types.SpecStatePassed):
		r.Passed = append(r.Passed, spec)
	case spec.State.Is(types.SpecStateSkipped) && spec.Failure.Message != "":
		r.LeftOut = append(r.LeftOut, spec)
	}
}

// reasons counts the specs that were left out by what the suite said of them.
func (r *Results) reasons() map[string]int {
	counts := map[string]int{}
	for _, spec := range r.LeftOut {
		counts[strings.TrimSpace(spec.Failure.Message)]++
	}
	return counts
}

// tell writes every chosen spec to the file list, and the counts and failures to w, where each spec is told as go test
// tells of a subtest, for weft-lab parts to count.
func (r *Results) tell(w io.Writer, list string) error {
	var all, said strings.Builder
	for _, group := range []struct {
		what, outcome string
		specs         []types.SpecReport
	}{{"passed", "PASS", r.Passed}, {"FAILED", "FAIL", r.Failed}, {"left out", "SKIP", r.LeftOut}} {
		for _, spec := range group.specs {
			_, _ = fmt.Fprintf(&all, "%s %.0fs %s\n", group.what, spec.RunTime.Seconds(), name(spec))
			_, _ = fmt.Fprintf(&said, "    --- %s: TestStorage/%s (%.2fs)\n", group.outcome, name(spec), spec.RunTime.Seconds())
		}
	}
	if err := os.WriteFile(list, []byte(all.String()), 0o644); err != nil {
		return err
	}
	for _, spec := range r.Failed {
		_, _ = fmt.Fprintf(&said, "FAILED %s\n  %s\n", name(spec), spec.Failure.Message)
	}
	reasons := r.reasons()
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		_, _ = fmt.Fprintf(&said, "left out %3d: %s\n", reasons[reason], reason)
	}
	_, _ = fmt.Fprintf(&said, "%d passed, %d failed, %d left out; all of them are in %s\n", len(r.Passed), len(r.Failed), len(r.LeftOut), list)
	_, err := io.WriteString(w, said.String())
	return err
}

// name of a spec without what all of them begin with.
func name(spec types.SpecReport) string {
	_, text, found := strings.Cut(spec.FullText(), "[Driver: csi.weft.storage] ")
	if !found {
		return spec.FullText()
	}
	return text
}
