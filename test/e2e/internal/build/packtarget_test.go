// SPDX-License-Identifier: Apache-2.0

package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackTarget with another program of this machine: the packed one runs where the folder was moved to, with its own
// libraries only, and takes arguments as they are.
func TestPackTarget(t *testing.T) {
	program, err := exec.LookPath("printf")
	if err != nil {
		t.Fatalf("%v; install coreutils", err)
	}
	made, moved := filepath.Join(t.TempDir(), "made"), filepath.Join(t.TempDir(), "moved here")
	if err := PackTarget(t.Context(), program, made); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(made, moved); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "nvmf_tgt")
	if err := os.Symlink(filepath.Join(moved, "nvmf_tgt"), link); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), link, "%s|", "a b", "$c").CombinedOutput()
	if err != nil || string(out) != "a b|$c|" {
		t.Errorf("it said %q: %v", out, err)
	}
	for _, library := range []string{"libc.so", "ld-linux"} {
		if found, _ := filepath.Glob(filepath.Join(moved, "lib", library+"*")); len(found) != 1 {
			t.Errorf("packed %v for %s", found, library)
		}
	}
	if err := PackTarget(t.Context(), program, moved); err == nil {
		t.Error("a folder that is there was packed into")
	}
}

func TestPackTargetRefuses(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "packed")
	for program, want := range map[string]string{script: "is not a program", "/nowhere/nvmf_tgt": "/nowhere/nvmf_tgt"} {
		if err := PackTarget(t.Context(), program, dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("PackTarget(%s): %v", program, err)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a folder was made for nothing")
	}
}
