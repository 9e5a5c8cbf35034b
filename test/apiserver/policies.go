// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// images of weft, as policies quote them.
var images = regexp.MustCompile(`'ghcr\.io/weft-storage/[^']*'`)

// Policies installs the admission policies that the chart has for a part of weft, such as weft-operator, for the user
// of that name: what a policy refuses fails a test, not a cluster. Every image that they name is replaced by the CEL
// expression image. They are in force a moment later.
func (s *Server) Policies(ctx context.Context, part, image string) error {
	config, err := configFolder()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(config, "default", "weft.yaml"))
	if err != nil {
		return fmt.Errorf("read the rendered chart (make generate writes it): %w", err)
	}
	// A client certificate makes a user of the name, not a service account.
	text := strings.ReplaceAll(images.ReplaceAllLiteralString(string(data), image), "system:serviceaccount:"+Namespace+":"+part, part)
	installed := 0
	for docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := docs.Decode(&o.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("decode the rendered chart: %w", err)
		}
		if !strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy") || !strings.HasPrefix(o.GetName(), part+"-") {
			continue
		}
		if err := s.Admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		installed++
	}
	if installed == 0 {
		return fmt.Errorf("the chart has no admission policies for %s", part)
	}
	return nil
}
