// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// phrases that are not used in what a user reads, each with what to write instead.
var phrases = []struct{ pattern, instead string }{
	{`anew`, "again"},
	{`for ?ever`, "indefinitely, or say what happens"},
	{`in one go`, "at once, or at the same time"},
	{`all the same`, "anyway, or leave it out"},
	{`(?:comes|come|came) to (?:the |about )?(?:\d|on|nothing|more)`, "is, or adds up to"},
	{`what .{1,30} comes? to`, "name it: the plan, the size"},
	{`what became of`, "the state of, or the result of"},
	{`(?:is|are|be|was) let go`, "is released, or is removed"},
	{`lets? go of`, "releases"},
	{`as SPDK has it`, "SPDK's default"},
	{`is none of`, "is not one of"},
	{`is no (?:size|mask|path|socket|NVMe|target)`, "is not a ..."},
	{`so many`, "name the number"},
	{`cannot be (?:told|said|had)`, "is unknown, or is not available"},
	{`without a word`, "silently"},
	{`knobs?`, "parameters"},
	{`put(?:s)? (?:it )?right`, "corrects, or restores"},
	{`(?:would|could|can|to) mend`, "fix"},
	{`reckon(?:ed|s)?`, "calculate"},
	{`asks? .{1,20} for it\b`, "sets"},
	{`(?:exists?|there) already, otherwise`, "already exists, but differs"},
	{`goes on by itself`, "continues automatically"},
	{`by turns`, "round robin"},
	{`is under way|are under way`, "is in progress"},
	{`take(?:s|n)? .{1,20} for granted`, "assumes"},
	{`wants? (?:root|a|an|the|this|that|two|one)\b`, "requires, or needs"},
	{`folders?`, "directory"},
	{`(?:Do|Does) the .{1,40} not .{1,20}\?`, "a heading that names the problem"},
	{`an? .{1,20} of (?:one's|its|their) own name`, "its own name"},
	{`in the kernel's stead`, "instead of the kernel"},
	{`tells? (?:whether|of|that|how|which)`, "reports, or shows"},
	{`seldom`, "rarely"},
	{`shall`, "should, or must"},
	{`gives? .{1,20} back`, "returns, or releases"},
	{`is none\b`, "there is none, or is not one"},
	{`of the past`, "old, or earlier"},
	{`data are\b`, "data is"},
	{`zeroes`, "zeros"},
	{`by documentation`, "from the documentation"},
	{`has its words`, "quotes the error"},
	{`as \S+(?: \S+)? has it`, "as ... requires, or says"},
	{`who is .{1,30} goes on`, "whoever is ... continues"},
	{`so that it may`, "so it can"},
}

// language is what breaks the rules of style in texts for users, as path:line: text, with sentences of documents that
// are too long; roots are files and folders.
func language(roots []string) ([]string, error) {
	var hits []string
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			texts, err := texts(path)
			for _, t := range texts {
				if filepath.Ext(path) == ".md" {
					hits = append(hits, longSentences(path, t.text)...)
					t.text = withoutCode(t.text)
				}
				hits = append(hits, t.broken(path)...)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return hits, nil
}

// passage of a file for users, and the line where it starts.
type passage struct {
	line int
	text string
}

var compiled = func() []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, p := range phrases {
		all = append(all, regexp.MustCompile(`(?i)\b(?:`+p.pattern+`)`))
	}
	return all
}()

func (p passage) broken(path string) []string {
	var hits []string
	for i, rule := range compiled {
		for _, at := range rule.FindAllStringIndex(p.text, -1) {
			if end := at[1]; end < len(p.text) && isLetter(p.text[end]) && isLetter(p.text[end-1]) {
				continue // part of a longer word
			}
			line := p.line + strings.Count(p.text[:at[0]], "\n")
			hits = append(hits, fmt.Sprintf("%s:%d: %q: write %s", path, line, p.text[at[0]:at[1]], phrases[i].instead))
		}
	}
	return hits
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// texts of a file: a document, manifest, chart file or script as it is, the strings of a Go file, and its comments
// where they become descriptions of fields. No other file has any.
func texts(path string) ([]passage, error) {
	switch ext := filepath.Ext(path); {
	case strings.HasSuffix(path, "_test.go") || strings.Contains(filepath.Base(path), "zz_generated") || fake.MatchString(filepath.ToSlash(path)):
		return nil, nil
	case ext == ".go":
		return stringsOf(path)
	case slices.Contains([]string{".md", ".txt", ".yaml", ".yml", ".json", ".tpl", ".sh"}, ext):
		content, err := os.ReadFile(path)
		return []passage{{1, string(content)}}, err
	}
	return nil, nil
}

// fake packages stand in for the real ones in tests; users see nothing of them.
var fake = regexp.MustCompile(`(?:^|/)(?:[a-z]+test|conformance|testdata)/`)

var code3 = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")

// withoutCode keeps the lines.
func withoutCode(text string) string {
	return code3.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
}

func stringsOf(path string) ([]passage, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var found []passage
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING || !strings.Contains(literal.Value, " ") {
			return true
		}
		if text, err := strconv.Unquote(literal.Value); err == nil {
			found = append(found, passage{set.Position(literal.Pos()).Line, text})
		}
		return true
	})
	if strings.HasSuffix(path, "_types.go") {
		for _, group := range file.Comments {
			found = append(found, passage{set.Position(group.Pos()).Line, group.Text()})
		}
	}
	return found, nil
}
