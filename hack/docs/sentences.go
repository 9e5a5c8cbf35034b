// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
)

// mostWords is how many words a sentence of a document may have. Code counts as one word, a link as its text.
const mostWords = 30

// longSentences are the findings of a document with sentences of more than mostWords.
func longSentences(path, text string) []string {
	var hits []string
	for _, s := range sentences(text) {
		if words := wordsOf(s.text); len(words) > mostWords {
			hits = append(hits, fmt.Sprintf("%s:%d: %q has %d words: write sentences of at most %d",
				path, s.line, strings.Join(words[:6], " ")+" ...", len(words), mostWords))
		}
	}
	return hits
}

var (
	fenced    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	hidden    = regexp.MustCompile(`(?s)<!--.*?-->`)
	linked    = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	spanned   = regexp.MustCompile("`[^`]*`")
	item      = regexp.MustCompile(`^(?:[-*+]|\d+\.)\s+`)
	counted   = regexp.MustCompile(`[\p{L}\p{N}_'./%-]*[\p{L}\p{N}_][\p{L}\p{N}_'./%-]*`)
	shortened = regexp.MustCompile(`\b(?:e\.g|i\.e|vs|etc)\.$`)
	// boundary ends a sentence: a full stop with what follows it, or a colon before a capital letter, code or a link.
	boundary = regexp.MustCompile("[.!?][\"')*]*\\s+|:\\**\\s+(?:[\"'(*\\[]*[A-Z]|`)")
)

// sentences of a document: those of its paragraphs, of the items of its lists, and of the cells of its tables. The line
// of a sentence is the one where its paragraph, item or row begins.
func sentences(text string) []passage {
	keepLines := func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) }
	text = hidden.ReplaceAllStringFunc(fenced.ReplaceAllStringFunc(text, keepLines), keepLines)
	var found []passage
	var block passage
	end := func() {
		found = append(found, block.sentences()...)
		block = passage{}
	}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch start := item.FindString(line); {
		case line == "" || line[0] == '#' || line[0] == '<':
			end()
		case line[0] == '|':
			end()
			for cell := range strings.SplitSeq(strings.Trim(strings.ReplaceAll(line, `\|`, "/"), "|"), "|") {
				for part := range strings.SplitSeq(cell, "<br>") {
					found = append(found, passage{i + 1, part}.sentences()...)
				}
			}
		case start != "":
			end()
			block = passage{i + 1, strings.TrimPrefix(line, start)}
		case block.text == "":
			block = passage{i + 1, line}
		default:
			block.text += " " + line
		}
	}
	end()
	return found
}

// sentences of a paragraph, item or cell.
func (p passage) sentences() []passage {
	text := spanned.ReplaceAllString(linked.ReplaceAllString(p.text, "$1"), "`code`")
	var found []passage
	start := 0
	for _, at := range boundary.FindAllStringIndex(text, -1) {
		if shortened.MatchString(text[:at[0]+1]) {
			continue
		}
		found = append(found, passage{p.line, text[start : at[0]+1]})
		start = at[0] + 1
	}
	return append(found, passage{p.line, text[start:]})
}

func wordsOf(sentence string) []string { return counted.FindAllString(sentence, -1) }
