// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const (
	definition = "config/crd/weft.storage_nvmftargets.yaml"
	generated  = "<!-- Written by make generate from config/crd. Do not edit. -->\n"
	// referencePages is the folder of the pages; targetPage has the spec itself, and what no other page has.
	referencePages = "docs/reference/"
	targetPage     = "nvmftarget.md"
)

// topics are the pages beside targetPage: fields of the spec that people look up together.
var topics = []struct {
	page, title, intro string
	fields             []string
}{
	{"nvmftarget-performance.md", "Cores, memory, buffers and transports of an NvmfTarget",
		"These fields set what a target gets from its node, and how it talks to hosts. Leave them out unless a plan or a measurement gives you\n" +
			"a reason: weft computes what is missing. [How weft sizes a target](../tuning.md) explains each choice. All other fields are in\n" +
			"[Fields of an NvmfTarget](nvmftarget.md).\n",
		[]string{"attachments", "buffers", "cores", "memory", "sockets", "transports"}},
	{"nvmftarget-tuning.md", "Tuning fields of an NvmfTarget",
		"These fields set the kernel and the NICs of a target's nodes. [Tune a node](../node-tuning.md) explains how to use them. All other fields\n" +
			"are in [Fields of an NvmfTarget](nvmftarget.md).\n",
		[]string{"tuning"}},
}

const head = generated + `# Fields of an NvmfTarget

This page lists the fields of ` + "`spec`" + `. The API server rejects everything else, with the messages shown here.

To see what the numbers mean for a node, run ` + "`kubectl weft plan`" + ` ([Size a target](../sizing.md)). Samples are in
[config/samples](../../config/samples). What an NvmfTarget reports is in [Conditions](conditions.md).
`

// schema of the spec.
func schema(root string) (*apiextensionsv1.JSONSchemaProps, error) {
	text, err := os.ReadFile(filepath.Join(root, definition))
	if err != nil {
		return nil, err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		return nil, fmt.Errorf("%s: %w", definition, err)
	}
	for _, v := range crd.Spec.Versions {
		if spec, ok := v.Schema.OpenAPIV3Schema.Properties["spec"]; ok {
			return &spec, nil
		}
	}
	return nil, errors.New(definition + " has no spec")
}

// reference is the content of each page of an NvmfTarget's fields, by its path from the root, from the CRD.
func reference(root string) (map[string]string, error) {
	spec, err := schema(root)
	if err != nil {
		return nil, err
	}
	pages := map[string]*strings.Builder{targetPage: {}}
	pages[targetPage].WriteString(head)
	pageOf := map[string]string{}
	for _, t := range topics {
		pages[t.page] = &strings.Builder{}
		fmt.Fprintf(pages[t.page], "%s# %s\n\n%s", generated, t.title, t.intro)
		for _, f := range t.fields {
			if _, ok := spec.Properties[f]; !ok {
				return nil, fmt.Errorf("%s is to have the field %s, which the spec has not", t.page, f)
			}
			pageOf[f] = t.page
		}
	}
	top := section{title: "spec"}
	top.rules(spec)
	var parts []section
	for _, name := range slices.Sorted(maps.Keys(spec.Properties)) {
		field := spec.Properties[name]
		link := ""
		if inner := object(&field); inner != nil {
			part := section{title: name}
			part.walk("", inner)
			parts = append(parts, part)
			link = pageOf[name] + "#" + strings.ToLower(name)
		}
		top.row(name, &field, slices.Contains(spec.Required, name), link)
	}
	top.write(pages[targetPage])
	for _, part := range parts {
		part.write(pages[cmp.Or(pageOf[part.title], targetPage)])
	}
	files := map[string]string{}
	for page, text := range pages {
		files[filepath.Join(root, referencePages, page)] = text.String()
	}
	return files, nil
}

// object that a field is, or is a list of; nil when it has no fields to list. A label selector is Kubernetes' own.
func object(field *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	if field.Type == "array" {
		field = field.Items.Schema
	}
	if _, ok := field.Properties["matchLabels"]; ok || len(field.Properties) == 0 {
		return nil
	}
	return field
}

// section of the page: a table, and the rules that hold between its fields.
type section struct {
	title    string
	lines    []string
	messages []string
}

func (s *section) rules(of *apiextensionsv1.JSONSchemaProps) {
	for _, rule := range of.XValidations {
		s.messages = append(s.messages, rule.Message)
	}
}

// walk the fields of an object, and of the objects in it.
func (s *section) walk(prefix string, of *apiextensionsv1.JSONSchemaProps) {
	s.rules(of)
	for _, name := range slices.Sorted(maps.Keys(of.Properties)) {
		field := of.Properties[name]
		inner := object(&field)
		s.row(prefix+name, &field, slices.Contains(of.Required, name), "")
		if inner != nil {
			s.walk(prefix+name+".", inner)
		}
	}
}

func (s *section) row(name string, field *apiextensionsv1.JSONSchemaProps, required bool, link string) {
	shown := "`" + name + "`"
	if link != "" {
		shown = "[" + shown + "](" + link + ")"
	}
	cells := []string{shown, typeOf(field), defaultOf(field, required), allowed(field), strings.Join(strings.Fields(field.Description), " ")}
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	s.lines = append(s.lines, "| "+strings.Join(cells, " | ")+" |")
}

func (s *section) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## `%s`\n\n| Field | Type | Default | Allowed | Description |\n| --- | --- | --- | --- | --- |\n%s\n", s.title, strings.Join(s.lines, "\n"))
	if len(s.messages) > 0 {
		fmt.Fprintf(b, "\nThe API server rejects a target that breaks one of these rules, with this message:\n\n- %s\n", strings.Join(s.messages, "\n- "))
	}
}

func typeOf(field *apiextensionsv1.JSONSchemaProps) string {
	says := func(word string) bool {
		return slices.ContainsFunc(field.XValidations, func(r apiextensionsv1.ValidationRule) bool { return strings.Contains(r.Rule, word) })
	}
	switch _, selector := field.Properties["matchLabels"]; {
	case selector:
		return "label selector"
	case field.XIntOrString && field.Pattern == "": // a quantity has one
		return "number or percentage"
	case field.XIntOrString:
		return "quantity"
	case says("duration(self)"):
		return "duration"
	case field.Type == "array":
		return "list of " + cmp.Or(field.Items.Schema.Type, "values") + "s"
	}
	return field.Type
}

func defaultOf(field *apiextensionsv1.JSONSchemaProps, required bool) string {
	switch {
	case required:
		return "required"
	case field.Default == nil || string(field.Default.Raw) == "{}":
		return ""
	}
	return "`" + strings.Trim(string(field.Default.Raw), `"`) + "`"
}

// allowed values, as far as a schema lists them.
func allowed(field *apiextensionsv1.JSONSchemaProps) string {
	var words []string
	var values []string
	for _, v := range field.Enum {
		values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
	}
	if len(values) > 0 {
		words = append(words, strings.Join(values, ", "))
	}
	if field.Minimum != nil && field.Maximum != nil {
		words = append(words, fmt.Sprintf("%.0f to %.0f", *field.Minimum, *field.Maximum))
	}
	if field.MinItems != nil && field.MaxItems != nil {
		words = append(words, fmt.Sprintf("%d to %d items", *field.MinItems, *field.MaxItems))
	}
	of := field
	if field.Type == "array" {
		of = field.Items.Schema
	}
	if of.MaxLength != nil {
		words = append(words, fmt.Sprintf("at most %d characters", *of.MaxLength))
	}
	if of.Pattern != "" && !field.XIntOrString {
		words = append(words, "`"+of.Pattern+"`")
	}
	if object(field) == nil { // those of an object are listed below its table
		for _, rule := range field.XValidations {
			words = append(words, rule.Message)
		}
	}
	return strings.Join(words, "<br>")
}
