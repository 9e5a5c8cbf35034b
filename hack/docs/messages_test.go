// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	codeSpan = regexp.MustCompile("`[^`]+`")
	message  = regexp.MustCompile(`"([^"]+)"`)
)

// literals are the texts in the code that users run, one after the other.
func literals(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, folder := range []string{"api", "csi-driver", "dataplane", "internal", "operator"} {
		err := filepath.WalkDir(filepath.Join("../..", folder), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil {
						all.WriteString(text + "\n")
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// Between double quotes the pages on faults have what weft says, with "..." for what differs from case to case.
func TestTroubleshootingQuotesMessagesThatExist(t *testing.T) {
	said, conditions, quotes := literals(t), constants(t, "Condition"), 0
	for _, page := range glob(t, "../../docs/troubleshooting/*.md") {
		prose := codeSpan.ReplaceAllString(fenced.ReplaceAllString(read(t, page), ""), "")
		for _, m := range message.FindAllStringSubmatch(strings.Join(strings.Fields(prose), " "), -1) {
			quotes++
			for piece := range strings.SplitSeq(m[1], "...") {
				words := strings.Fields(piece)
				for i, word := range words {
					if slices.Contains(conditions, word) {
						words[i] = "%s"
					}
				}
				if !strings.Contains(said, strings.Join(words, " ")) {
					t.Errorf("%s quotes %q, but the code does not say %q", page, m[1], strings.TrimSpace(piece))
				}
			}
		}
	}
	if quotes == 0 {
		t.Error("no page quotes a message")
	}
}
