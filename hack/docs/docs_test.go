// SPDX-License-Identifier: Apache-2.0

// Package docs_test holds the documents to the code and to each other.
package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// constants of api/v1alpha1/conditions.go whose names start with prefix.
func constants(t *testing.T, prefix string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1alpha1/conditions.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, prefix) {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, value)
		return true
	})
	if len(values) == 0 {
		t.Fatalf("conditions.go has no constants %s*", prefix)
	}
	return values
}

func TestConceptsExplainsEveryConditionAndReason(t *testing.T) {
	text, err := os.ReadFile("../../docs/concepts.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"Condition", "Reason"} {
		for _, value := range constants(t, prefix) {
			if !strings.Contains(string(text), "| `"+value+"` |") {
				t.Errorf("concepts.md has no row for %s", value)
			}
		}
	}
}

var code = regexp.MustCompile("`([A-Z][A-Za-z]+)`")

func TestTroubleshootingNamesReasonsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "## A target is not Ready\n")
	table, _, _ = strings.Cut(table, "\n## ")
	if !found {
		t.Fatal("troubleshooting.md has no section on targets")
	}
	known := constants(t, "Reason")
	named := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[1], -1) {
			named++
			if !slices.Contains(known, m[1]) {
				t.Errorf("troubleshooting.md explains %s, which is no reason of conditions.go", m[1])
			}
		}
	}
	if named == 0 {
		t.Error("troubleshooting.md names no reason")
	}
}

// pages are the documents for users.
func pages(t *testing.T) []string {
	t.Helper()
	return glob(t, "../../docs/*.md")
}

func glob(t *testing.T, patterns ...string) []string {
	t.Helper()
	var all []string
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(paths) == 0 {
			t.Fatalf("no file is called %s", pattern)
		}
		all = append(all, paths...)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	// link of Markdown, or of an HTML picture: a path, a heading, or both.
	link    = regexp.MustCompile(`(?:\]\(|src(?:set)?=")([^)#:"]*)(?:#([^)"]*))?[)"]`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	unslug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// headings of a document, without those of the code that it shows.
func headings(text string) []string {
	var titles []string
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		titles = append(titles, m[1])
	}
	return titles
}

// anchors are the headings' names in links, as GitHub makes them.
func anchors(text string) []string {
	var names []string
	for _, title := range headings(text) {
		names = append(names, strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(title), ""), " ", "-"))
	}
	return names
}

func TestLinksLeadSomewhere(t *testing.T) {
	documents := append(pages(t), glob(t, "../../docs/design/*.md")...)
	for _, document := range append(documents, "../../README.md", "../../CONTRIBUTING.md", "../../test/e2e/README.md", "../../charts/weft/README.md") {
		for _, m := range link.FindAllStringSubmatch(read(t, document), -1) {
			path := document
			if m[1] != "" {
				path = filepath.Join(filepath.Dir(document), m[1])
			}
			switch _, err := os.Stat(path); {
			case err != nil:
				t.Errorf("%s: %s leads nowhere", document, m[1])
			case m[2] != "" && !slices.Contains(anchors(read(t, path)), m[2]):
				t.Errorf("%s: %s has no heading %s", document, path, m[2])
			}
		}
	}
}

// A node that is taken off its target keeps its agent: only that deletes the volumes there.
func TestNobodyTiesAgentsToATarget(t *testing.T) {
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range append(documents, "../../README.md", "../../Makefile", "../../charts/weft/values.yaml") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), `agent.nodeSelector.weft\.storage/target`) {
			t.Errorf("%s selects the nodes of agents by the label of a target", document)
		}
	}
	cluster, err := os.ReadFile("../../test/e2e/kind.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(cluster), "    weft.storage/target: fast\n    weft.storage/agent: \"true\"\n") {
		t.Error("the worker of kind.yaml that serves has not the label by which make kind-up gives it an agent")
	}
}

// metrics that the code gives, with their labels.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, path := range []string{"../../dataplane/agent/metrics.go", "../../operator/internal/controller/nvmftarget/metrics.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			var name string
			labels := []string{}
			for _, arg := range call.Args {
				list, isList := arg.(*ast.CompositeLit)
				ast.Inspect(arg, func(n ast.Node) bool {
					lit, ok := n.(*ast.BasicLit)
					if !ok || lit.Kind != token.STRING {
						return true
					}
					switch value, err := strconv.Unquote(lit.Value); {
					case err != nil:
						t.Fatal(err)
					case strings.HasPrefix(value, "weft_"):
						name = value
					case isList && isArray(list):
						labels = append(labels, value)
					}
					return true
				})
			}
			if name != "" {
				found[name] = labels
			}
			return name == ""
		})
	}
	if len(found) == 0 {
		t.Fatal("the code has no metrics")
	}
	return found
}

func isArray(list *ast.CompositeLit) bool {
	_, is := list.Type.(*ast.ArrayType)
	return is
}

var metricRow = regexp.MustCompile("(?m)^\\| `(weft_[a-z_]+)` \\|([^|]*)\\|")

func TestOperationsHasEveryMetric(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string][]string{}
	for _, m := range metricRow.FindAllStringSubmatch(string(text), -1) {
		told[m[1]] = []string{}
		for label := range strings.SplitSeq(m[2], ",") {
			if label = strings.Trim(label, " `"); label != "" {
				told[m[1]] = append(told[m[1]], label)
			}
		}
	}
	given := metrics(t)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if labels, ok := told[name]; !ok || !slices.Equal(labels, given[name]) {
			t.Errorf("operations.md has the labels %q of %s, the code %q", labels, name, given[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		if _, ok := given[name]; !ok {
			t.Errorf("operations.md has a row for %s, which the code does not give", name)
		}
	}
}

var (
	makeTarget = regexp.MustCompile("(?:`|(?m:^ *|&& ))make ([a-z][a-z0-9-]*)(?:[^a-z0-9/-]|$)")
	inCode     = regexp.MustCompile("`([^`\n ]+)`|[ '](\\./[a-z][a-z0-9/_-]+)")
)

// What a document for those who change weft tells to run, and where it says that things are, exists.
func TestContributingNamesWhatThereIs(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob("../../docs/design/*.md")
	if err != nil {
		t.Fatal(err)
	}
	folders := []string{"api", "charts", "config", "csi-driver", "dataplane", "docs", "hack", "internal", "operator", "test", "tools"}
	for _, document := range append(documents, "../../README.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range makeTarget.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: the Makefile has no %s", document, m[1])
			}
		}
		for _, m := range inCode.FindAllStringSubmatch(string(text), -1) {
			path := strings.TrimPrefix(m[1]+m[2], "./")
			if first, _, _ := strings.Cut(path, "/"); !slices.Contains(folders, first) || strings.HasSuffix(path, "...") {
				continue
			}
			if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
				t.Errorf("%s: there is no %s", document, path)
			}
		}
	}
}
