// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// schemaVariable names SPDK's description of its calls, schema/schema.json of its source.
const schemaVariable = "WEFT_SPDK_SCHEMA"

type schema struct {
	Methods []struct {
		Name   string
		Params []struct {
			Name     string
			Type     string
			Required bool
		}
	}
}

func loadSchema(t *testing.T) schema {
	t.Helper()
	path := os.Getenv(schemaVariable)
	if path == "" {
		t.Skipf("%s is not set: set it to the path of SPDK's schema of its calls", schemaVariable)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestMethodsAreSPDKs: the fake has no call that SPDK has not.
func TestMethodsAreSPDKs(t *testing.T) {
	s := loadSchema(t)
	known := map[string]bool{}
	for _, m := range s.Methods {
		known[m.Name] = true
	}
	for _, m := range methods {
		if !known[m.name] {
			t.Errorf("SPDK has no %s", m.name)
		}
	}
}

// relaxed are the methods that pass over parameters they do not know; the last few look at none.
var relaxed = []string{
	"nvmf_create_transport", "nvmf_subsystem_add_listener", "nvmf_subsystem_add_ns", "nvmf_subsystem_add_host",
	"keyring_file_add_key", "framework_set_scheduler",
	"keyring_get_keys", "vmd_enable", "framework_wait_init", "iobuf_get_stats",
}

// TestParametersAreSPDKs: the fake knows each parameter of the schema, and refuses others where SPDK does. The values
// are of the right type and mean nothing: what matters is only which parameters are called unknown.
func TestParametersAreSPDKs(t *testing.T) {
	values := map[string]string{
		"string": `"x"`, "boolean": "true", "object": "{}", "array": "[]", "enum": `"x"`,
		"uuid": `"aaaaaaaa-1111-4222-8333-444444444444"`,
	}
	const extra = "no_such_parameter"
	for _, m := range loadSchema(t).Methods {
		if byName[m.Name].run == nil {
			continue
		}
		given := map[string]json.RawMessage{extra: json.RawMessage("1")}
		for _, p := range m.Params {
			value, ok := values[p.Type]
			if !ok {
				value = "1"
			}
			given[p.Name] = json.RawMessage(value)
		}
		got := unknownTo(t, m.Name, given)
		var want []unknownFieldError
		if len(m.Params) > 0 && !slices.Contains(relaxed, m.Name) {
			want = []unknownFieldError{extra}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: unknown are %q, want %q", m.Name, got, want)
		}
	}
}

// unknownTo calls a method and tells which parameters it calls unknown.
func unknownTo(t *testing.T, name string, given map[string]json.RawMessage) []unknownFieldError {
	t.Helper()
	a, err := newApp(Options{Socket: "unused"})
	if err != nil {
		t.Fatal(err)
	}
	if byName[name].when == runtime {
		a.initialize()
	}
	params, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	r := &request{app: a, conn: newConn(nil, func() {}), id: json.RawMessage("1"), method: name, params: params}
	byName[name].run(a, r)
	a.drain()
	var unknown []unknownFieldError
	var collect func(error)
	collect = func(err error) {
		if f, ok := err.(unknownFieldError); ok { //nolint:errorlint // the tree is walked here
			unknown = append(unknown, f)
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range joined.Unwrap() {
				collect(e)
			}
		}
	}
	collect(r.misfit)
	return unknown
}
