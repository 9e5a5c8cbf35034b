// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestWithoutAnAPIServer(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := apiServer()
	g.Expect(err).To(MatchError(And(ContainSubstring("set --kubeconfig"), ContainSubstring("KUBERNETES_SERVICE_HOST"))))
}
