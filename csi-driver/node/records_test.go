// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"os"
	"path/filepath"
	"testing"
)

// A process that was killed while it wrote a record leaves a file that nobody would ever remove.
func TestCleanRemovesWhatAKilledProcessLeft(t *testing.T) {
	s := setUp(t)
	must(t, s.service.Clean()) // there is no folder yet
	must(t, s.stage(blockCapability()))
	for _, name := range []string{".new-1", ".new-2"} {
		must(t, os.WriteFile(filepath.Join(s.service.Records, name), []byte(`{"nqn":`), 0o600))
	}
	must(t, s.service.Clean())
	left, err := os.ReadDir(s.service.Records)
	must(t, err)
	if len(left) != 1 || left[0].Name() != vol+".json" {
		t.Errorf("left are %v", left)
	}
}
