// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// said cancels the command as soon as it has written something.
type said struct{ cancel context.CancelFunc }

func (s said) Write(p []byte) (int, error) {
	s.cancel()
	return len(p), nil
}

func TestCancelInterruptsTheWholeGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "interrupted")
	child := `trap 'echo child >>"$1"; exit 0' INT; echo up; sleep 60`
	parent := `trap 'echo parent >>"$1"' INT; bash -c "$2" child "$1"; exit 0`
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := Cmd{Log: said{cancel}, Group: true, Cleanup: time.Minute, Args: []string{"bash", "-c", parent, "parent", file, child}}.Run(ctx)
	if err != nil && !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Error(err)
	}
	data, err := os.ReadFile(file)
	if err != nil || string(data) != "child\nparent\n" {
		t.Errorf("interrupted: %q, %v", data, err)
	}
}
