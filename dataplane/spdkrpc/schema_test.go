// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// schema is SPDK's description of its calls (schema/schema.json in SPDK's tree).
type schema struct {
	Methods []schemaMethod `json:"methods"`
	Objects []schemaObject `json:"objects"`
	Arrays  []struct {
		Name     string `json:"name"`
		ItemType string `json:"item_type"`
		Class    string `json:"class"`
	} `json:"arrays"`
	Enums []struct {
		Name   string `json:"name"`
		Fields []struct {
			Name string `json:"name"`
		} `json:"fields"`
	} `json:"enums"`
}

type schemaMethod struct {
	Name       string        `json:"name"`
	Params     []schemaField `json:"params"`
	Private    bool          `json:"private"`
	Deprecated bool          `json:"deprecated"`
}

type schemaObject struct {
	Name   string        `json:"name"`
	Fields []schemaField `json:"fields"`
}

type schemaField struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Class      string `json:"class"`
	Required   bool   `json:"required"`
	Deprecated bool   `json:"deprecated"`
}

func readSchema(t *testing.T) schema {
	t.Helper()
	path := os.Getenv("WEFT_SPDK_SCHEMA")
	if path == "" {
		t.Skip("skipped because WEFT_SPDK_SCHEMA is not set: set it to SPDK's schema as JSON (26.05 or later) to compare every request with it")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if len(s.Methods) == 0 {
		t.Fatalf("%s names no methods: it is not SPDK's schema", path)
	}
	return s
}

// Every request that can be sent is one that SPDK describes: names, types,
// required parameters always sent, values of enums, nothing deprecated, or gone, but what is said to be for older
// releases (tags until and gone).
func TestRequestsFitTheSchema(t *testing.T) {
	s := readSchema(t)
	methods := map[string]schemaMethod{}
	for _, m := range s.Methods {
		methods[m.Name] = m
	}
	check := schemaCheck{schema: s, constants: parseSource(t).constants}
	for _, r := range requests {
		t.Run(r.method(), func(t *testing.T) {
			m, ok := methods[r.method()]
			if !ok || m.Private || m.Deprecated {
				t.Fatalf("SPDK has no such method, or not for us: %+v", m)
			}
			for _, problem := range check.object(reflect.TypeOf(r), m.Params) {
				t.Error(problem)
			}
		})
	}
}

// The check itself finds what it is for.
func TestSchemaCheckFindsMistakes(t *testing.T) {
	s := readSchema(t)
	check := schemaCheck{schema: s, constants: map[string][]string{"access": {"optimized", "change"}}}
	fields := []schemaField{
		{Name: "needed", Type: "string", Required: true},
		{Name: "old", Type: "uint32", Deprecated: true},
		{Name: "wide", Type: "uint64"},
		{Name: "state", Type: "enum", Class: "nvme_ana_state"},
		{Name: "deep", Type: "object", Class: "nvmf_namespace"},
		{Name: "list", Type: "array", Class: "dhchap_digests"},
	}
	type access string
	type deep struct {
		Bdev string `json:"bdev_name,omitzero"`
	}
	for name, c := range map[string]struct {
		request any
		want    string
	}{
		"missing": {struct{}{}, "needed: required, and no field sends it"},
		"required optional": {struct {
			A string `json:"needed,omitzero"`
		}{}, "needed: required, and left out when zero"},
		"optional always": {struct {
			A string `json:"needed"`
			B uint64 `json:"wide"`
		}{}, "wide: optional, and always sent"},
		"deprecated": {struct {
			A string `json:"needed"`
			B uint32 `json:"old,omitzero"`
		}{}, "old: deprecated"},
		"not deprecated": {struct {
			A string `json:"needed"`
			B uint32 `json:"wide,omitzero" until:"26.01"`
		}{}, "wide: for older releases, and not deprecated"},
		"narrow": {struct {
			A string `json:"needed"`
			B uint32 `json:"wide,omitzero"`
		}{}, "wide: uint32 for uint64"},
		"unknown": {struct {
			A string `json:"needed"`
			B uint32 `json:"typo,omitzero"`
		}{}, "typo: SPDK knows no such parameter"},
		"gone": {struct {
			A string `json:"needed"`
			B uint32 `json:"former,omitzero" gone:"26.05"`
		}{}, ""},
		"gone, and always sent": {struct {
			A string `json:"needed"`
			B uint32 `json:"former" gone:"26.05"`
		}{}, "former: gone, and always sent"},
		"not gone": {struct {
			A string `json:"needed"`
			B uint64 `json:"wide,omitzero" gone:"26.05"`
		}{}, "wide: not gone"},
		"untagged": {struct {
			A string `json:"needed"`
			B uint32
		}{}, "B: SPDK knows no such parameter"},
		"enum": {struct {
			A string `json:"needed"`
			B access `json:"state,omitzero"`
		}{}, "state: nvme_ana_state has no value change"},
		"free text": {struct {
			A string `json:"needed"`
			B string `json:"state,omitzero"`
		}{}, "state: string for enum"},
		"deep": {struct {
			A string `json:"needed"`
			B deep   `json:"deep,omitzero"`
		}{}, "deep: bdev_name: required, and left out when zero"},
		"list": {struct {
			A string `json:"needed"`
			B []int  `json:"list,omitzero"`
		}{}, "list: int for enum"},
	} {
		t.Run(name, func(t *testing.T) {
			got := check.object(reflect.TypeOf(c.request), fields)
			if c.want == "" && len(got) > 0 || c.want != "" && !slices.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// schemaCheck compares Go types with the schema.
type schemaCheck struct {
	schema schema
	// constants by the name of their type.
	constants map[string][]string
}

// object compares a struct with what SPDK takes for it, and gives what differs.
func (c schemaCheck) object(t reflect.Type, fields []schemaField) []string {
	var problems []string
	known := map[string]schemaField{}
	for _, f := range fields {
		known[f.Name] = f
	}
	sent := map[string]bool{}
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		sent[name] = true
		field, ok := known[name]
		if gone := f.Tag.Get("gone"); !ok || gone != "" {
			switch {
			case gone == "":
				problems = append(problems, name+": SPDK knows no such parameter")
			case ok:
				problems = append(problems, name+": not gone")
			case options != "omitzero":
				problems = append(problems, name+": gone, and always sent")
			}
			continue
		}
		optional := strings.Contains(options, "omit")
		switch {
		case field.Deprecated && f.Tag.Get("until") == "":
			problems = append(problems, name+": deprecated")
		case !field.Deprecated && f.Tag.Get("until") != "":
			problems = append(problems, name+": for older releases, and not deprecated")
		case field.Required && (optional || f.Type.Kind() == reflect.Pointer):
			problems = append(problems, name+": required, and left out when zero")
		case !field.Required && options != "omitzero":
			problems = append(problems, name+": optional, and always sent")
		}
		for _, p := range c.value(f.Type, field.Type, field.Class) {
			problems = append(problems, name+": "+p)
		}
	}
	for _, f := range fields {
		if f.Required && !sent[f.Name] {
			problems = append(problems, f.Name+": required, and no field sends it")
		}
	}
	return problems
}

var schemaKinds = map[string]reflect.Kind{
	"boolean": reflect.Bool, "string": reflect.String, "uuid": reflect.String,
	"int32": reflect.Int32, "uint8": reflect.Uint8, "uint16": reflect.Uint16, "uint32": reflect.Uint32, "uint64": reflect.Uint64,
	"object": reflect.Struct, "array": reflect.Slice, "enum": reflect.String,
}

// value compares the type of one value.
func (c schemaCheck) value(t reflect.Type, kind, class string) []string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != schemaKinds[kind] || kind == "enum" && t.Name() == "string" {
		return []string{fmt.Sprintf("%s for %s", t, kind)}
	}
	var problems []string
	switch kind {
	case "object":
		i := slices.IndexFunc(c.schema.Objects, func(o schemaObject) bool { return o.Name == class })
		if i < 0 {
			return []string{"the schema has no object " + class}
		}
		return c.object(t, c.schema.Objects[i].Fields)
	case "array":
		for _, a := range c.schema.Arrays {
			if a.Name == class {
				return c.value(t.Elem(), a.ItemType, a.Class)
			}
		}
		return []string{"the schema has no array " + class}
	case "enum":
		var allowed []string
		for _, e := range c.schema.Enums {
			if e.Name == class {
				for _, f := range e.Fields {
					allowed = append(allowed, f.Name)
				}
			}
		}
		values := c.constants[t.Name()]
		if len(values) == 0 {
			problems = append(problems, "no constants of type "+t.Name())
		}
		for _, v := range values {
			if !slices.Contains(allowed, v) {
				problems = append(problems, fmt.Sprintf("%s has no value %s", class, v))
			}
		}
	}
	return problems
}

// source is what the package's files say.
type source struct {
	// constants of string types, by the name of their type.
	constants map[string][]string
	// requests: the types that have a method().
	requests []string
}

func parseSource(t *testing.T) source {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	s := source{constants: map[string][]string{}}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "method" && d.Recv != nil {
					s.requests = append(s.requests, d.Recv.List[0].Type.(*ast.Ident).Name)
				}
			case *ast.GenDecl:
				s.addConstants(t, d)
			}
		}
	}
	return s
}

func (s source) addConstants(t *testing.T, d *ast.GenDecl) {
	t.Helper()
	if d.Tok != token.CONST {
		return
	}
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		typeName, ok := v.Type.(*ast.Ident)
		if !ok || len(v.Values) != 1 {
			continue
		}
		if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			s.constants[typeName.Name] = append(s.constants[typeName.Name], text)
		}
	}
}

// Methods lists every request there is, once, and each is named after its method, so that
// one finds the other without this package's help.
func TestEveryRequestIsListed(t *testing.T) {
	var listed []string
	methods := map[string]bool{}
	for _, r := range requests {
		name := reflect.TypeOf(r).Name()
		listed = append(listed, name)
		methods[r.method()] = true
		if want := typeName(r.method()); name != want {
			t.Errorf("%s is named %s, want %s", r.method(), name, want)
		}
	}
	if want := parseSource(t).requests; !slices.Equal(slices.Sorted(slices.Values(listed)), slices.Sorted(slices.Values(want))) {
		t.Errorf("listed are %v, there are %v", listed, want)
	}
	if len(methods) != len(requests) || !slices.Equal(slices.Sorted(maps.Keys(methods)), slices.Sorted(slices.Values(Methods()))) {
		t.Errorf("a method is listed twice, or not: %v", Methods())
	}
}

// typeName of the request for a method.
func typeName(method string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(method, "_") {
		if word == "rpc" {
			b.WriteString("RPC")
			continue
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// No request can let any host in.
func TestNoRequestAllowsAnyHost(t *testing.T) {
	for _, r := range requests {
		if strings.Contains(r.method(), "allow_any_host") {
			t.Errorf("%s is offered", r.method())
		}
		for _, f := range reflect.VisibleFields(reflect.TypeOf(r)) {
			if strings.Contains(f.Tag.Get("json"), "allow_any_host") {
				t.Errorf("%s has %s", r.method(), f.Name)
			}
		}
	}
}
