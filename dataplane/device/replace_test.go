// SPDX-License-Identifier: Apache-2.0

package device

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReplaceFile: what a process left that ended in the middle is in nobody's way.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file+NewSuffix, []byte("longer than both, and cut o"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"the first", "second"} {
		if err := ReplaceFile(file, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != content {
			t.Errorf("it has %q, not %q: %v", got, content, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
	if err := ReplaceFile(filepath.Join(dir, "missing", "file"), nil); !os.IsNotExist(err) {
		t.Errorf("without a folder: %v", err)
	}
}
