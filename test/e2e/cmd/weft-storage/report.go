// SPDX-License-Identifier: Apache-2.0

package main

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

// results are what became of the specs that were chosen.
type results struct {
	passed, failed []types.SpecReport
	// leftOut are those that the suite left out itself, because the driver's file does not offer what they need.
	leftOut []types.SpecReport
}

func readReport(path string) (results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return results{}, err
	}
	var reports []types.Report
	if err := json.Unmarshal(data, &reports); err != nil {
		return results{}, fmt.Errorf("%s: %w", path, err)
	}
	var r results
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			r.add(spec)
		}
	}
	return r, nil
}

func (r *results) add(spec types.SpecReport) {
	switch {
	case spec.State.Is(types.SpecStateFailureStates):
		r.failed = append(r.failed, spec)
	case spec.LeafNodeType != types.NodeTypeIt:
		// Parts of the suite itself count only when they fail.
	case spec.State.Is(types.SpecStatePassed):
		r.passed = append(r.passed, spec)
	case spec.State.Is(types.SpecStateSkipped) && spec.Failure.Message != "":
		r.leftOut = append(r.leftOut, spec)
	}
}

// reasons counts the specs that were left out by what the suite said of them.
func (r *results) reasons() map[string]int {
	counts := map[string]int{}
	for _, spec := range r.leftOut {
		counts[strings.TrimSpace(spec.Failure.Message)]++
	}
	return counts
}

// tell writes every chosen spec to the file list, and the counts and failures to w.
func (r *results) tell(w io.Writer, list string) error {
	var all strings.Builder
	for _, group := range []struct {
		what  string
		specs []types.SpecReport
	}{{"passed", r.passed}, {"FAILED", r.failed}, {"left out", r.leftOut}} {
		for _, spec := range group.specs {
			_, _ = fmt.Fprintf(&all, "%s %.0fs %s\n", group.what, spec.RunTime.Seconds(), name(spec))
		}
	}
	if err := os.WriteFile(list, []byte(all.String()), 0o644); err != nil {
		return err
	}
	var said strings.Builder
	for _, spec := range r.failed {
		_, _ = fmt.Fprintf(&said, "FAILED %s\n  %s\n", name(spec), spec.Failure.Message)
	}
	reasons := r.reasons()
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		_, _ = fmt.Fprintf(&said, "left out %3d: %s\n", reasons[reason], reason)
	}
	_, _ = fmt.Fprintf(&said, "%d passed, %d failed, %d left out; all of them are in %s\n", len(r.passed), len(r.failed), len(r.leftOut), list)
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
