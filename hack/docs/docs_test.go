// SPDX-License-Identifier: Apache-2.0

// Package docs_test holds the documents to the code and to each other.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
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

func TestReferenceExplainsEveryConditionAndReason(t *testing.T) {
	for prefix, page := range map[string]string{"Condition": "../../docs/reference/conditions.md", "Reason": "../../docs/reference/reasons.md"} {
		text := read(t, page) + read(t, "../../docs/reference/events.md")
		for _, value := range constants(t, prefix) {
			if !strings.Contains(text, "| `"+value+"` |") {
				t.Errorf("%s has no row for %s", page, value)
			}
		}
	}
}

// The page and weft's components agree on the polarity of conditions. Kubernetes' own conditions of a Node are True
// when something is wrong, and so are those that weft adds.
func TestReferenceNamesConditionsThatAreQuietWhenFalse(t *testing.T) {
	_, paragraph, _ := strings.Cut(read(t, "../../docs/reference/conditions.md"), "For most conditions, True is the healthy state.")
	paragraph, _, _ = strings.Cut(paragraph, "\n\n")
	var named, want []string
	for _, m := range code.FindAllStringSubmatch(paragraph, -1) {
		named = append(named, m[1])
	}
	for _, condition := range constants(t, "Condition") {
		switch quiet := v1alpha1.QuietStatus(condition); {
		case quiet == metav1.ConditionFalse:
			want = append(want, condition)
		case strings.HasPrefix(condition, "Weft"):
			t.Errorf("%s of a Node is quiet when %s", condition, quiet)
		}
	}
	if slices.Sort(want); !slices.Equal(named, want) {
		t.Errorf("docs/reference/conditions.md says that False is the quiet state of %q, not %q", named, want)
	}
}

// Every condition of an NvmfNode is a series of the operator's metrics.
func TestMetricsCountConditions(t *testing.T) {
	_, rows, _ := strings.Cut(read(t, "../../docs/reference/conditions.md"), "\n| NvmfNode |")
	rows, _, _ = strings.Cut(rows, "\n| Nvmf")
	want := fmt.Sprintf("Conditions are %d series or fewer for each node.", len(strings.Split(rows, "\n")))
	if !strings.Contains(read(t, "../../docs/reference/metrics.md"), want) {
		t.Errorf("docs/reference/metrics.md does not say: %s", want)
	}
}

var code = regexp.MustCompile("`([A-Z][A-Za-z]+)`")

func TestTroubleshootingNamesReasonsThatExist(t *testing.T) {
	known := constants(t, "Reason")
	named := 0
	for line := range strings.Lines(read(t, "../../docs/troubleshooting/target-not-ready.md")) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[1], -1) {
			named++
			if !slices.Contains(known, m[1]) {
				t.Errorf("target-not-ready.md explains %s, which is no reason of conditions.go", m[1])
			}
		}
	}
	if named == 0 {
		t.Error("target-not-ready.md names no reason")
	}
}

// pages are the documents for users.
func pages(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(glob(t, "../../docs/*.md", "../../docs/*/*.md"), func(page string) bool {
		return strings.HasPrefix(page, "../../docs/design/") // for contributors
	})
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

// The index has a line for every page.
func TestIndexListsEveryPage(t *testing.T) {
	const index = "../../docs/README.md"
	var listed []string
	for _, m := range link.FindAllStringSubmatch(read(t, index), -1) {
		listed = append(listed, filepath.Join(filepath.Dir(index), m[1]))
	}
	for _, page := range pages(t) {
		if page != index && !slices.Contains(listed, page) {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}

// Whoever follows a task finds the same sections in the same order on every page, and one page is one task.
func TestTasksHaveTheSameSections(t *testing.T) {
	want := []string{"When to use this", "Before you begin", "Steps", "Check the result", "If it does not work"}
	for _, page := range glob(t, "../../docs/tasks/*.md") {
		var sections []string
		for _, title := range headings(read(t, page)) {
			if slices.Contains(want, title) {
				sections = append(sections, title)
			}
		}
		if !slices.Equal(sections, want) {
			t.Errorf("%s has the sections %q, not %q", page, sections, want)
		}
	}
}

// A page is one task, one symptom or one subject, which is read in one sitting. Pages on design may be longer, as may
// what is made from the chart and the list of changes.
func TestPagesAreShort(t *testing.T) {
	const mostOfATask, most = 1600, 2500 // words, tables included
	tasks := glob(t, "../../docs/tasks/*.md", "../../docs/troubleshooting/*.md")
	longer := append(glob(t, "../../docs/design/*.md"), "../../charts/weft/README.md", "../../CHANGELOG.md")
	for _, page := range documents(t) {
		bound := most
		if slices.Contains(tasks, page) {
			bound = mostOfATask
		}
		if words := len(strings.Fields(read(t, page))); words > bound && !slices.Contains(longer, page) {
			t.Errorf("%s has %d words, more than %d: make a page of each task or subject", page, words, bound)
		}
	}
}

// A node that is taken off its target keeps its agent: only that deletes the volumes there.
func TestNobodyTiesAgentsToATarget(t *testing.T) {
	for _, document := range append(pages(t), "../../README.md", "../../Makefile", "../../charts/weft/values.yaml") {
		if strings.Contains(read(t, document), `agent.nodeSelector.weft\.storage/target`) {
			t.Errorf("%s selects the nodes of agents by the label of a target", document)
		}
	}
	cluster, err := os.ReadFile("../kind/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"file", "spdk-file"} {
		if !strings.Contains(string(cluster), "    weft.storage/target: "+target+"\n    weft.storage/agent: \"true\"\n") {
			t.Errorf("the worker of cluster.yaml that serves %s lacks the label by which make kind-up gives it an agent", target)
		}
	}
}

var (
	makeTarget = regexp.MustCompile("(?:`|(?m:^ *|&& ))make ([a-z][a-z0-9-]*)(?:[^a-z0-9/-]|$)")
	inCode     = regexp.MustCompile("`([^`\n ]+)`|[ '](\\./[a-z][a-z0-9/_-]+)")
)

// What a document for those who change weft tells to run, and where it says that things are, exists.
// What is said to be defended is shown by a test of that name.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	named := regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(read(t, "../../docs/concepts/security.md"), -1)
	if len(named) == 0 {
		t.Fatal("docs/concepts/security.md names no test")
	}
	known := map[string]bool{}
	for _, dir := range []string{"api", "csi-driver", "dataplane", "internal", "operator", "test"} {
		err := filepath.WalkDir("../../"+dir, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			for _, m := range regexp.MustCompile(`(?m)^func (Test[A-Za-z]+)\(`).FindAllStringSubmatch(string(content), -1) {
				known[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range named {
		if !known[m[1]] {
			t.Errorf("docs/concepts/security.md names %s, which does not exist", m[1])
		}
	}
}

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
	for _, document := range append(documents, "../../README.md", "../../CONTRIBUTING.md", "../../test/README.md") {
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

var (
	action = regexp.MustCompile(`(?m)^\s*(?:- )?uses: *(.*)$`)
	pinned = regexp.MustCompile(`^[^@ ]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
)

// TestWorkflowsNameCommitsOfActions, because a tag can be moved to another commit, and the workflows hold secrets.
func TestWorkflowsNameCommitsOfActions(t *testing.T) {
	for _, workflow := range glob(t, "../../.github/workflows/*.yml") {
		for _, m := range action.FindAllStringSubmatch(read(t, workflow), -1) {
			if !pinned.MatchString(m[1]) {
				t.Errorf("%s uses %s; write NAME@COMMIT # vX.Y.Z", workflow, m[1])
			}
		}
	}
}
