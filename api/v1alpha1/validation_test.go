// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// A validation is an object given to the API server, and what it says.
type validation struct {
	name string
	// base and edit make the object that is created.
	base, edit string
	// update, when set, is an edit of the stored object; it is then what is judged.
	update string
	// status, when set, is an edit of the stored object's status; it is then what is judged.
	status string
	// field and want: where and what the API server complains about; without want the object is accepted.
	field, want string
}

// TestValidation gives each case to the API server, and then looks whether every rule,
// enum and bound of the CRDs was broken by one of them.
func TestValidation(t *testing.T) {
	var broken []constraint
	for _, table := range [][]validation{targetRules, targetBounds(), selectorBounds(), tuningRules(), targetUpdates, nodeRules(), planRules(), volumeRules(), replicaRules(), snapshotRules(), mirrorRules(), descriptionRules()} {
		for _, v := range table {
			t.Run(v.base+"/"+v.name, func(t *testing.T) {
				kind, found := v.judge(t)
				for _, c := range found {
					broken = append(broken, brokenBy(kind, c))
				}
				v.check(t, found)
			})
		}
	}
	for _, c := range constraints(t) {
		if !slices.ContainsFunc(broken, c.is) {
			t.Errorf("no case breaks %s %s: %s", c.kind, c.path, c.what)
		}
	}
}

// judge asks the API server, and leaves nothing behind.
func (v validation) judge(t *testing.T) (kind string, found []metav1.StatusCause) {
	t.Helper()
	o := object(t, v.base, v.edit)
	if v.update == "" && v.status == "" {
		given := o.DeepCopy()
		err := apiClient.Create(t.Context(), o, client.DryRunAll)
		sameOffline(t, given, nil, o, err)
		return o.GetKind(), causes(t, err)
	}
	create(t, o)
	if v.status != "" {
		return o.GetKind(), causes(t, apiClient.Status().Update(t.Context(), patched(t, o, v.status), client.DryRunAll))
	}
	changed := patched(t, o, v.update)
	given := changed.DeepCopy()
	err := apiClient.Update(t.Context(), changed, client.DryRunAll)
	sameOffline(t, given, o, changed, err)
	return o.GetKind(), causes(t, err)
}

func (v validation) check(t *testing.T, found []metav1.StatusCause) {
	t.Helper()
	if v.want == "" {
		if len(found) > 0 {
			t.Errorf("rejected, want accepted:\n%s", describe(found))
		}
		return
	}
	if !slices.ContainsFunc(found, func(c metav1.StatusCause) bool {
		return c.Field == v.field && strings.Contains(c.Message, v.want)
	}) {
		t.Errorf("want %s: %s\ngot %s", v.field, v.want, describe(found))
	}
}

// A constraint is one thing that a CRD demands of a field: a keyword of the
// schema, or a rule's message.
type constraint struct{ kind, path, what string }

// is reports whether a complaint is about this constraint. A rule's message
// stands last in it, after the kind of error and the value.
func (c constraint) is(complaint constraint) bool {
	return c.kind == complaint.kind && c.path == complaint.path &&
		(c.what == complaint.what || strings.HasSuffix(complaint.what, ": "+c.what))
}

var (
	index    = regexp.MustCompile(`\[[^\]]*\]`)
	keywords = []struct {
		what    string
		message *regexp.Regexp
	}{
		{"enum", regexp.MustCompile(`^Unsupported value`)},
		{"minimum", regexp.MustCompile(`should be greater than or equal to`)},
		{"maximum", regexp.MustCompile(`should be less than or equal to`)},
		{"pattern", regexp.MustCompile(`should match '`)},
		{"minLength", regexp.MustCompile(`should be at least \d+ chars long`)},
		{"maxLength", regexp.MustCompile(`^Too long`)},
		{"minItems", regexp.MustCompile(`should have at least \d+ items`)},
		{"maxItems", regexp.MustCompile(`^Too many`)},
		{"duplicate", regexp.MustCompile(`^Duplicate value`)},
		{"required", regexp.MustCompile(`^Required value`)},
	}
)

// brokenBy names what a complaint is about: a keyword, or a rule by its whole message.
func brokenBy(kind string, c metav1.StatusCause) constraint {
	path := index.ReplaceAllString(c.Field, "[]")
	if path == "<nil>" {
		path = ""
	}
	for _, k := range keywords {
		if k.message.MatchString(c.Message) {
			if k.what == "duplicate" {
				path = strings.TrimSuffix(path, "[]")
			}
			return constraint{kind, path, k.what}
		}
	}
	return constraint{kind, path, c.Message}
}

// constraints lists what the generated CRDs demand: of a spec everything, of
// the rest the rules.
func constraints(t *testing.T) []constraint {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(crdDir, "*.yaml"))
	if err != nil || len(files) != 6 {
		t.Fatalf("got %v, %v; want the six CRDs", files, err)
	}
	var all []constraint
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, version := range crd.Spec.Versions {
			walk(*version.Schema.OpenAPIV3Schema, "", func(path, what string) {
				all = append(all, constraint{crd.Spec.Names.Kind, path, what})
			})
		}
	}
	if len(all) < 150 {
		t.Fatalf("found only %d constraints; the walk is broken", len(all))
	}
	return all
}

func walk(s apiextensionsv1.JSONSchemaProps, path string, visit func(path, what string)) {
	if path == "spec.nodeSelector" || path == "metadata" {
		return // Kubernetes' own types
	}
	for _, rule := range s.XValidations {
		visit(strings.TrimPrefix(path+rule.FieldPath, "."), rule.Message)
	}
	if strings.HasPrefix(path, "spec") {
		for what, has := range map[string]bool{
			"enum":      len(s.Enum) > 0,
			"minimum":   s.Minimum != nil,
			"maximum":   s.Maximum != nil,
			"pattern":   s.Pattern != "",
			"minLength": s.MinLength != nil,
			"maxLength": s.MaxLength != nil,
			"minItems":  s.MinItems != nil,
			"maxItems":  s.MaxItems != nil,
			"duplicate": s.XListType != nil && *s.XListType != "atomic",
		} {
			if has {
				visit(path, what)
			}
		}
	}
	join := func(name string) string { return strings.TrimPrefix(path+"."+name, ".") }
	if path == "" || strings.HasPrefix(path, "spec") {
		for _, name := range s.Required {
			visit(join(name), "required")
		}
	}
	for name, property := range s.Properties {
		walk(property, join(name), visit)
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(*s.Items.Schema, path+"[]", visit)
	}
}

// A field has values that are taken and values that are not, each with the complaint.
type field struct {
	base string
	// path is the field's; edit has a %s for its value.
	path, edit string
	good       []string
	bad        map[string]string
}

// cases makes a case of each value.
func (f field) cases() []validation {
	var all []validation
	name := func(value string) string { return fmt.Sprintf("%s=%.40s", f.path, value) }
	for _, value := range f.good {
		all = append(all, validation{name: name(value), base: f.base, edit: fmt.Sprintf(f.edit, value)})
	}
	for value, want := range f.bad {
		all = append(all, validation{name: name(value), base: f.base, edit: fmt.Sprintf(f.edit, value), field: f.path, want: want})
	}
	slices.SortFunc(all, func(a, b validation) int { return strings.Compare(a.name, b.name) })
	return all
}

// bounds of a number.
func bounds(base, path, edit string, least, most int) field {
	s := func(n int) string { return fmt.Sprint(n) }
	return field{base: base, path: path, edit: edit, good: []string{s(least), s(most)}, bad: map[string]string{
		s(least - 1): fmt.Sprintf("should be greater than or equal to %d", least),
		s(most + 1):  fmt.Sprintf("should be less than or equal to %d", most),
	}}
}

// least value of a number that has no greatest.
func least(base, path, edit string, n int) field {
	return field{base: base, path: path, edit: edit, good: []string{fmt.Sprint(n)}, bad: map[string]string{
		fmt.Sprint(n - 1): fmt.Sprintf("should be greater than or equal to %d", n),
	}}
}

// longest text, of characters that the field takes.
func longest(base, path, edit string, n int) field {
	return field{base: base, path: path, edit: edit, good: []string{long(n)}, bad: map[string]string{long(n + 1): fmt.Sprintf("may not be more than %d", n)}}
}

// enum of words.
func enum(base, path, edit string, words ...string) field {
	var quoted []string
	for _, w := range words {
		quoted = append(quoted, fmt.Sprintf("%q", w))
	}
	return field{base: base, path: path, edit: edit, good: words, bad: map[string]string{"Nonsense": "supported values: " + strings.Join(quoted, ", ")}}
}

// many repeats an item, numbered, for a list that is too long.
func many(n int, format string) string {
	var s []string
	for i := range n {
		s = append(s, fmt.Sprintf(format, i))
	}
	return "[" + strings.Join(s, ", ") + "]"
}

func long(n int) string { return strings.Repeat("a", n) }

func fields(all ...field) []validation {
	var v []validation
	for _, f := range all {
		v = append(v, f.cases()...)
	}
	return v
}
