// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Schema of one kind. Safe for concurrent use.
type Schema struct {
	kind       string
	structural *structural.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator
}

// For loads the schema of a kind, such as NvmfTarget, from the CRD that this program was built with.
func For(kind string) (*Schema, error) {
	files, err := Files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list the built-in CRDs: %w", err)
	}
	for _, f := range files {
		text, err := Files.ReadFile(f.Name())
		if err != nil {
			return nil, fmt.Errorf("read the built-in CRD %s: %w", f.Name(), err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &definition); err != nil {
			return nil, fmt.Errorf("built-in CRD %s: %w", f.Name(), err)
		}
		if definition.Spec.Names.Kind == kind {
			return load(kind, definition)
		}
	}
	return nil, fmt.Errorf("there is no built-in CRD of kind %s", kind)
}

func load(kind string, definition apiextensionsv1.CustomResourceDefinition) (*Schema, error) {
	for _, version := range definition.Spec.Versions {
		if version.Name != v1alpha1.GroupVersion.Version {
			continue
		}
		var props apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &props, nil); err != nil {
			return nil, fmt.Errorf("schema of %s: %w", kind, err)
		}
		whole, err := structural.NewStructural(&props)
		if err != nil {
			return nil, fmt.Errorf("schema of %s: %w", kind, err)
		}
		validator, _, err := validation.NewSchemaValidator(&props)
		if err != nil {
			return nil, fmt.Errorf("schema of %s: %w", kind, err)
		}
		return &Schema{
			kind: kind, structural: whole, validator: validator,
			rules: cel.NewValidator(whole, true, celconfig.PerCallLimit),
		}, nil
	}
	return nil, fmt.Errorf("the built-in CRD of kind %s has no version %s", kind, v1alpha1.GroupVersion.Version)
}

// An UnknownFieldError names the fields of an object that its kind does not have.
type UnknownFieldError struct{ Fields []string }

func (e *UnknownFieldError) Error() string {
	quoted := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		quoted[i] = fmt.Sprintf("unknown field %q", f)
	}
	return strings.Join(quoted, ", ")
}

// Parse reads one object from YAML or JSON. A key that is given twice is an error.
func Parse(text []byte) (*unstructured.Unstructured, error) {
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	var content map[string]any
	if err := json.Unmarshal(data, &content); err != nil {
		return nil, errors.New("not an object: it must start with apiVersion and kind")
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// Admit does what the API server does with an object that is created, or, with old, updated: it
// fills in defaults, refuses unknown fields (an UnknownFieldError) and what
// schema or rules forbid (field errors, see Errors), and returns the object as it would be stored. Its arguments stay
// as they are. Status is no user's to set, and is dropped.
func (s *Schema) Admit(ctx context.Context, object, old *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if gvk := object.GroupVersionKind(); gvk != v1alpha1.GroupVersion.WithKind(s.kind) {
		return nil, fmt.Errorf("it is %s %s; want %s %s", object.GetAPIVersion(), object.GetKind(), v1alpha1.GroupVersion, s.kind)
	}
	o := object.DeepCopy()
	defaulting.PruneNonNullableNullsWithoutDefaults(o.Object, s.structural)
	defaulting.Default(o.Object, s.structural)
	unknown := pruning.PruneWithOptions(o.Object, s.structural, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	if _, _, fields, err := objectmeta.GetObjectMetaWithOptions(o.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true}); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	} else if unknown = append(unknown, fields...); len(unknown) > 0 {
		return nil, &UnknownFieldError{Fields: unknown}
	}
	delete(o.Object, "status")
	errs := s.validate(ctx, o, old)
	return o, errs.ToAggregate()
}

// validate an object that has its defaults. Rules are judged last, and only when what they look at has the right shape.
func (s *Schema) validate(ctx context.Context, o, old *unstructured.Unstructured) field.ErrorList {
	metadata := field.NewPath("metadata")
	var (
		errs    field.ErrorList
		options []cel.Option
		before  any
	)
	if old == nil {
		errs = append(errs, metavalidation.ValidateObjectMetaAccessor(o, false, metavalidation.NameIsDNSSubdomain, metadata)...)
		errs = append(errs, validation.ValidateCustomResource(nil, o.Object, s.validator)...)
	} else {
		if status, ok := old.Object["status"]; ok {
			o.Object["status"] = status
		}
		o.SetResourceVersion(old.GetResourceVersion())
		keepWritten(o, old)
		correlated := common.NewCorrelatedObject(o.Object, old.Object, &model.Structural{Structural: s.structural})
		errs = append(errs, metavalidation.ValidateObjectMetaAccessorUpdate(o, old, metadata)...)
		errs = append(errs, validation.ValidateCustomResourceUpdate(nil, o.Object, old.Object, s.validator, validation.WithRatcheting(correlated))...)
		options, before = []cel.Option{cel.WithRatcheting(correlated)}, old.Object
	}
	errs = append(errs, objectmeta.Validate(nil, o.Object, s.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, o.Object)...)
	for _, e := range errs {
		switch e.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return errs
		}
	}
	broken, _ := s.rules.Validate(ctx, nil, s.structural, o.Object, before, celconfig.RuntimeCELCostBudget, options...)
	return append(errs, broken...)
}

// keepWritten keeps what the API server wrote into the metadata: a file that a user applies does not have it.
func keepWritten(o, old *unstructured.Unstructured) {
	o.SetUID(old.GetUID())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetGeneration(old.GetGeneration())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	if o.GetFinalizers() == nil {
		o.SetFinalizers(old.GetFinalizers())
	}
}

// Causes lists what an error of Admit complains about, as the API server lists it.
func Causes(err error) []metav1.StatusCause {
	var causes []metav1.StatusCause
	for _, e := range flatten(err) {
		var at *field.Error
		if errors.As(e, &at) {
			causes = append(causes, metav1.StatusCause{Type: metav1.CauseType(at.Type), Field: at.Field, Message: at.ErrorBody()})
		}
	}
	return causes
}

func flatten(err error) []error {
	if several, ok := err.(interface{ Errors() []error }); ok {
		return several.Errors()
	}
	return []error{err}
}
