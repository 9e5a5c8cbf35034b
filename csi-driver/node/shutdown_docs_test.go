// SPDX-License-Identifier: Apache-2.0

//go:build !lab

// A machine of the lab has no documents.

package node_test

import (
	"os"
	"strings"
	"testing"
)

func TestShutdownIsDocumentedAsItIsTried(t *testing.T) {
	docs, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	if !strings.Contains(strings.ReplaceAll(string(docs), "\n  ", "\n"), giveUp) {
		t.Errorf("docs/operations.md does not have this command:\n%s", giveUp)
	}
}
