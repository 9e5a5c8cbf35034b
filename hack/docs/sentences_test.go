// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestSentences(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string // line and words of each sentence
	}{
		"a paragraph":          {"One two.\nThree four\nfive. Six?\n", []string{"1:2", "1:3", "1:1"}},
		"a name in lower case": {"One ends. weft begins.\n", []string{"1:2", "1:2"}},
		"a version":            {"Linux 6.10 and 1.5 GiB.\n", []string{"1:5"}},
		"a colon":              {"Lists: one, two. Note: This is new. Run: `a b`.\n", []string{"1:3", "1:1", "1:3", "1:1", "1:1"}},
		"in bold":              {"**Bold.** Plain **words: Two.**\n", []string{"1:1", "1:2", "1:1"}},
		"an abbreviation":      {"Drives, e.g. NVMe, i.e. fast ones.\n", []string{"1:6"}},
		"items":                {"Head\n\n- one two\n  three\n1. four\n", []string{"1:1", "3:3", "5:1"}},
		"cells":                {"| `a\\|b` c | two words<br>one |\n| --- | --- |\n", []string{"1:2", "1:2", "1:1"}},
		"links and code":       {"A [link text](a/b.md#c) and `code of many words`.\n", []string{"1:5"}},
		"headings and fences":  {"# One two\n```\none two.\n```\nend\n<!-- no\ntext -->\n", []string{"5:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range sentences(c.text) {
				if words := len(wordsOf(s.text)); words > 0 {
					got = append(got, fmt.Sprintf("%d:%d", s.line, words))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLongSentences(t *testing.T) {
	words := func(n int) string { return strings.Repeat("word ", n) }
	if hits := longSentences("a.md", words(mostWords)+".\n"); len(hits) > 0 {
		t.Errorf("a sentence of %d words is rejected: %q", mostWords, hits)
	}
	text := "Short.\n\n" + words(mostWords+1) + ".\n"
	want := `a.md:3: "word word word word word word ..." has 31 words: write sentences of at most 30`
	if hits := longSentences("a.md", text); !slices.Equal(hits, []string{want}) {
		t.Errorf("got %q, want %q", hits, want)
	}
}

func TestDocumentsHaveNoLongSentence(t *testing.T) {
	for _, document := range documents(t) {
		for _, hit := range longSentences(document, read(t, document)) {
			t.Error(hit)
		}
	}
}
