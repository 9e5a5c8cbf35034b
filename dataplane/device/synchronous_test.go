// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"os"
	"testing"
)

func TestMakeSynchronous(t *testing.T) {
	path := t.TempDir() + "/file"
	if err := MakeSynchronous(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a file that is not there: %v", err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	for _, first := range []bool{true, false} {
		if changed, err := SetSynchronous(f); err != nil || changed != first {
			t.Errorf("changed %v, %v; want %v. This test needs a filesystem with the attribute S, such as ext4 or XFS, in TMPDIR", changed, err, first)
		}
	}
	if err := MakeSynchronous(path); err != nil {
		t.Error(err)
	}
}
