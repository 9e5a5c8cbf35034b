// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	word = regexp.MustCompile("[A-Za-z0-9`][A-Za-z0-9_`./-]*")
	// structured lines may resemble each other: rows of tables, items of lists, headings.
	structured = regexp.MustCompile(`^\s*(?:[|#*-]|\d+\.)`)
)

// repeated lines of prose: lines close to each other that share much of their wording, as when two versions of a
// paragraph were merged and both stayed. Each is "first, second: text of the second".
func repeated(text string) []string {
	const (
		near   = 3  // lines from one to the other
		fewest = 10 // words of a line that is compared
		share  = 0.4
	)
	text = fenced.ReplaceAllStringFunc(text, func(code string) string { return strings.Repeat("\n", strings.Count(code, "\n")) })
	lines := strings.Split(text, "\n")
	triples := make([]map[string]bool, len(lines))
	for i, line := range lines {
		words := word.FindAllString(strings.ToLower(line), -1)
		if structured.MatchString(line) || len(words) < fewest {
			continue
		}
		triples[i] = map[string]bool{}
		for at := range len(words) - 2 {
			triples[i][strings.Join(words[at:at+3], " ")] = true
		}
	}
	var found []string
	for i := range lines {
		for j := i + 1; j < len(lines) && j <= i+near; j++ {
			same := 0
			for triple := range triples[i] {
				if triples[j][triple] {
					same++
				}
			}
			if same > 0 && float64(same) >= share*float64(max(len(triples[i]), len(triples[j]))) {
				found = append(found, fmt.Sprintf("%d, %d: %s", i+1, j+1, lines[j]))
			}
		}
	}
	return found
}

func TestParagraphsStandThereOnce(t *testing.T) {
	for _, document := range documents(t) {
		for _, r := range repeated(read(t, document)) {
			t.Errorf("%s: lines %s: much of this stands there twice; is one a remainder of a merge?", document, r)
		}
	}
}

func TestRepeated(t *testing.T) {
	const (
		first  = "volumes and drain storage nodes, to recover the record of a volume's replicas, and to delete what has no claim. `plan` changes nothing."
		second = "volumes and drain storage nodes, and to delete what has no claim. `plan`, `status`, `volume` and `check` change nothing."
		other  = "The directory must be in your `PATH`, because kubectl finds the plugin there. To install it elsewhere, set `PREFIX`."
	)
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"two versions of a line":   {first + "\n" + second, []string{"1, 2: " + second}},
		"a line between them":      {first + "\n" + other + "\n" + second, []string{"1, 3: " + second}},
		"different lines":          {first + "\n" + other, nil},
		"far from each other":      {first + "\n" + other + "\n\n\n" + second, nil},
		"rows of a table":          {"| " + first + " |\n| " + second + " |", nil},
		"code":                     {"```\n" + first + "\n" + second + "\n```", nil},
		"short lines with one end": {"It waits. This is not a problem either.\nIt retires. This is not a problem either.", nil},
	} {
		if got := repeated(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
