// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

var applied = regexp.MustCompile(`(?m)^ *kubectl apply -f (\S+)`)

// The commands of the notes are pasted as they stand, all at once.
func TestTheNotesApplyOneTargetOfAName(t *testing.T) {
	notes, err := os.ReadFile(chart + "/templates/NOTES.txt")
	if err != nil {
		t.Fatal(err)
	}
	from := map[string]string{}
	for _, m := range applied.FindAllStringSubmatch(string(notes), -1) {
		content, err := os.ReadFile("../../" + m[1])
		if err != nil {
			t.Errorf("the notes name a file that is not there: %v", err)
			continue
		}
		for _, target := range of[*v1alpha1.NvmfTarget](must(decode(content))) {
			if first, twice := from[target.Name]; twice {
				t.Errorf("%s and %s are both NvmfTarget %s: the second is refused", first, m[1], target.Name)
			}
			from[target.Name] = m[1]
		}
	}
	if len(from) == 0 {
		t.Error("the notes apply no NvmfTarget")
	}
}
