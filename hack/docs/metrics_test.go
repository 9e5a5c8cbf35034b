// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// metricSections of docs/reference/metrics.md, by the folder of the code that defines their metrics.
var metricSections = map[string]string{
	"operator":                   "Operator",
	"dataplane/agent":            "Agents",
	"csi-driver/node":            "Node plugin",
	"csi-driver/controller":      "CSI controller",
	"csi-driver/internal/server": "CSI calls",
}

// metric as code defines it, or as the page has it.
type metric struct {
	section, name, kind string
	labels              []string
}

// TestReferenceListsEveryMetric holds docs/reference/metrics.md to the code. Who adds a metric adds a row to the
// section of its component, and nothing else. The test reads the source: names are literals, and labels are literals,
// variables of the package that are, or slices.Concat of these.
func TestReferenceListsEveryMetric(t *testing.T) {
	listed := listedMetrics(t)
	for _, defined := range definedMetrics(t) {
		for _, complaint := range conventions(defined) {
			t.Errorf("%s: %s", defined.name, complaint)
		}
		row, ok := listed[defined.name]
		if !ok {
			t.Errorf("docs/reference/metrics.md has no row for %s", defined.name)
			continue
		}
		delete(listed, defined.name)
		if row.section != defined.section {
			t.Errorf("docs/reference/metrics.md has %s under %q, but it is of %q", defined.name, row.section, defined.section)
		}
		if !slices.Equal(sorted(row.labels), sorted(defined.labels)) {
			t.Errorf("docs/reference/metrics.md gives %s the labels %q, but it has %q", defined.name, row.labels, defined.labels)
		}
	}
	for name := range listed {
		t.Errorf("docs/reference/metrics.md lists %s, which no component has", name)
	}
}

func sorted(labels []string) []string { return slices.Sorted(slices.Values(labels)) }

// conventions of Prometheus that a metric breaks.
func conventions(m metric) []string {
	var broken []string
	if !regexp.MustCompile(`^weft_[a-z0-9_]+$`).MatchString(m.name) {
		broken = append(broken, "must begin with weft_, and have small letters only")
	}
	counts, total := strings.HasPrefix(m.kind, "Counter"), strings.HasSuffix(m.name, "_total")
	if m.kind != "" && counts != total {
		broken = append(broken, "names of counters, and no others, end in _total")
	}
	if strings.HasPrefix(m.kind, "Histogram") && !strings.HasSuffix(m.name, "_seconds") && !strings.HasSuffix(m.name, "_bytes") {
		broken = append(broken, "the name of a histogram ends in its unit")
	}
	if regexp.MustCompile(`_(ms|milliseconds|us|kb|mb|gb|mib|gib|percent)(_|$)`).MatchString(m.name) {
		broken = append(broken, "units are seconds, bytes and ratios")
	}
	return broken
}

var (
	metricRow    = regexp.MustCompile("^\\| `(weft_[a-z0-9_]+)` \\|([^|]*)\\|")
	commonLabels = regexp.MustCompile(`(?i)the labels? of all of them (?:is|are) (.*)\.$`)
	labelName    = regexp.MustCompile("`([a-z_]+)`")
)

// listedMetrics of the page, by their names. A sentence that ends with "the labels of all of them are ..." is about the
// rows up to the next heading.
func listedMetrics(t *testing.T) map[string]metric {
	t.Helper()
	all := map[string]metric{}
	var section string
	var common []string
	for line := range strings.Lines(read(t, "../../docs/reference/metrics.md")) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			common = nil
		}
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
		}
		if m := commonLabels.FindStringSubmatch(line); m != nil {
			common = names(m[1])
		}
		if m := metricRow.FindStringSubmatch(line); m != nil {
			if _, twice := all[m[1]]; twice {
				t.Errorf("docs/reference/metrics.md has two rows for %s", m[1])
			}
			all[m[1]] = metric{section: section, name: m[1], labels: slices.Concat(common, names(m[2]))}
		}
	}
	return all
}

func names(text string) []string {
	var all []string
	for _, m := range labelName.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// definedMetrics in the code of all components.
func definedMetrics(t *testing.T) []metric {
	t.Helper()
	var all []metric
	for _, folder := range slices.Sorted(maps.Keys(metricSections)) {
		before := len(all)
		for _, files := range packages(t, filepath.Join("../..", folder)) {
			for _, m := range metricsOf(t, files) {
				m.section = metricSections[folder]
				all = append(all, m)
			}
		}
		if len(all) == before {
			t.Errorf("%s defines no metrics", folder)
		}
	}
	return all
}

// packages of Go below a folder: their files without tests, by their folders.
func packages(t *testing.T, folder string) map[string][]*ast.File {
	t.Helper()
	all := map[string][]*ast.File{}
	err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		all[filepath.Dir(path)] = append(all[filepath.Dir(path)], file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// metricsOf a package: calls of prometheus.NewDesc, and of prometheus.NewGaugeVec and its like.
func metricsOf(t *testing.T, files []*ast.File) []metric {
	t.Helper()
	var all []metric
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !selects(call.Fun, "prometheus") || len(call.Args) == 0 {
				return true
			}
			constructor := call.Fun.(*ast.SelectorExpr).Sel.Name
			m, labels := metric{}, 1
			switch options, isOptions := call.Args[0].(*ast.CompositeLit); {
			case constructor == "NewDesc":
				m.name, labels = text(t, call.Args[0]), 2
			case isOptions && selects(options.Type, "prometheus"):
				m.name, m.kind = nameIn(t, options), strings.TrimPrefix(constructor, "New")
			default:
				return true
			}
			if len(call.Args) > labels && (constructor == "NewDesc" || strings.HasSuffix(constructor, "Vec")) {
				var err error
				if m.labels, err = labelList(files, call.Args[labels]); err != nil {
					t.Errorf("%s: %v", m.name, err)
				}
			}
			all = append(all, m)
			return true
		})
	}
	return all
}

// selects tells whether an expression is a name of a package.
func selects(e ast.Expr, pkg string) bool {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	of, ok := selector.X.(*ast.Ident)
	return ok && of.Name == pkg
}

// nameIn the options of a metric.
func nameIn(t *testing.T, options *ast.CompositeLit) string {
	t.Helper()
	for _, e := range options.Elts {
		if field, ok := e.(*ast.KeyValueExpr); ok && field.Key.(*ast.Ident).Name == "Name" {
			return text(t, field.Value)
		}
	}
	t.Error("a metric has no name")
	return ""
}

func text(t *testing.T, e ast.Expr) string {
	t.Helper()
	literal, ok := e.(*ast.BasicLit)
	if !ok {
		t.Error("the name of a metric is not written where it is defined")
		return ""
	}
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// labelList is a list of strings in the files of a package.
func labelList(files []*ast.File, e ast.Expr) ([]string, error) {
	switch e := e.(type) {
	case *ast.Ident:
		if e.Name == "nil" {
			return nil, nil
		}
		if value := variable(files, e.Name); value != nil {
			return labelList(files, value)
		}
	case *ast.CompositeLit:
		var all []string
		for _, element := range e.Elts {
			literal, ok := element.(*ast.BasicLit)
			if !ok {
				return nil, fmt.Errorf("the label %v is not a literal", element)
			}
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				return nil, err
			}
			all = append(all, value)
		}
		return all, nil
	case *ast.CallExpr:
		if !selects(e.Fun, "slices") || e.Fun.(*ast.SelectorExpr).Sel.Name != "Concat" {
			break
		}
		var all []string
		for _, argument := range e.Args {
			some, err := labelList(files, argument)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
	return nil, fmt.Errorf("this test cannot read the labels: they must be literals, variables of the package that are, or slices.Concat of these")
}

// variable of a package; nil for none.
func variable(files []*ast.File, name string) ast.Expr {
	for _, file := range files {
		for _, declaration := range file.Decls {
			group, ok := declaration.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range group.Specs {
				values, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				if i := slices.IndexFunc(values.Names, func(n *ast.Ident) bool { return n.Name == name }); i >= 0 && i < len(values.Values) {
					return values.Values[i]
				}
			}
		}
	}
	return nil
}
