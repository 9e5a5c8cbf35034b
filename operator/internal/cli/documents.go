// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/config/crd"
)

// document is one object of a file.
type document struct {
	// from says where it is, for errors: "target.yaml, document 2".
	from string
	*unstructured.Unstructured
}

// readDocuments reads all objects of a file, or of in when the name is "-". The items of a List count one by one.
func readDocuments(name string, in io.Reader) ([]document, error) {
	if name == "-" {
		name = "standard input"
	} else {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close() //nolint:errcheck // it was only read
		in = file
	}
	var all []document
	texts := utilyaml.NewYAMLReader(bufio.NewReader(in))
	for n := 1; ; n++ {
		text, err := texts.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		from := fmt.Sprintf("%s, document %d", name, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		if blank(text) {
			continue
		}
		o, err := crd.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		items, err := unfold(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		for _, item := range items {
			all = append(all, document{from, item})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s is empty", name)
	}
	return all, nil
}

// blank: nothing but comments, as before a first "---".
func blank(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line != "---" {
			return false
		}
	}
	return true
}

func unfold(o *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	if !strings.HasSuffix(o.GetKind(), "List") || !o.IsList() {
		return []*unstructured.Unstructured{o}, nil
	}
	list, err := o.ToList()
	if err != nil {
		return nil, err
	}
	items := make([]*unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		items[i] = &list.Items[i]
	}
	return items, nil
}

// admit makes an NvmfTarget of a document as the API server would, with its defaults. With old it is judged as a change
// of that.
func admit(ctx context.Context, doc document, old *v1alpha1.NvmfTarget) (*v1alpha1.NvmfTarget, error) {
	const kind = "NvmfTarget"
	rules, err := crd.For(kind)
	if err != nil {
		return nil, err
	}
	var before *unstructured.Unstructured
	if old != nil {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
		if err != nil {
			return nil, err
		}
		before = &unstructured.Unstructured{Object: content}
		before.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	}
	name := doc.GetName()
	if name == "" {
		return nil, fmt.Errorf("%s: the NvmfTarget has no metadata.name", doc.from)
	}
	admitted, err := rules.Admit(ctx, doc.Unstructured, before)
	if err != nil {
		return nil, fmt.Errorf("%s: NvmfTarget %s: %w", doc.from, name, err)
	}
	target := &v1alpha1.NvmfTarget{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(admitted.Object, target); err != nil {
		return nil, fmt.Errorf("%s: NvmfTarget %s: %w", doc.from, name, err)
	}
	return target, nil
}
