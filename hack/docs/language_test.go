// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLanguage(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		want       []string // path:line: phrase
	}{
		"a document":            {"a.md", "Fine.\n\nMade anew.\n", []string{`a.md:3: "anew": write again`}},
		"over two lines":        {"a.md", "the pool is let\ngo", nil},
		"code in a document":    {"a.md", "`anew`\n```sh\nanew\n```\nfor ever\n", []string{`a.md:5: "for ever": write indefinitely, or say what happens`}},
		"part of a longer word": {"a.md", "renewal, forevermore, anewt, toanew\n", nil},
		"a manifest":            {"values.yaml", "# -- The folder.\n", []string{`values.yaml:1: "folder": write directory`}},
		"a script":              {"a.sh", "# A folder.\n", []string{`a.sh:1: "folder": write directory`}},
		"a workflow":            {"a.yml", "# A folder.\n", []string{`a.yml:1: "folder": write directory`}},
		"a long sentence":       {"a.md", "Fine.\n\n" + strings.Repeat("`many` words ", 16) + "\n", []string{`a.md:3: "code words code words code words ..." has 32 words: write sentences of at most 30`}},
		"a string":              {"a.go", "package a\n\nvar a = \"made anew\"\n", []string{`a.go:3: "anew": write again`}},
		"one word is a name":    {"a.go", "package a\n\nvar a = \"anew\"\n", nil},
		"a comment":             {"a.go", "package a\n\n// made anew\nvar a = 1\n", nil},
		"a description":         {"a_types.go", "package a\n\n// A is made anew.\ntype A int\n", []string{`a_types.go:3: "anew": write again`}},
		"a test":                {"a_test.go", "package a\n\nvar a = \"made anew\"\n", nil},
		"a fake":                {"atest/a.go", "package a\n\nvar a = \"made anew\"\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.MkdirAll(filepath.Dir(c.file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(c.file, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := language([]string{"."})
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}
