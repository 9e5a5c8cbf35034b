// SPDX-License-Identifier: Apache-2.0

package base

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The same commands are looked for where Docker builds the image.
func TestBaseHasWhatTheDockerfileAsksFor(t *testing.T) {
	data, err := os.ReadFile("../../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	loop := regexp.MustCompile(`(?s)for command in (.*?);`).FindSubmatch(data)
	if loop == nil {
		t.Fatal("the Dockerfile looks for no commands")
	}
	if got, want := strings.Join(commands, " "), strings.Join(strings.Fields(strings.ReplaceAll(string(loop[1]), `\`, " ")), " "); got != want {
		t.Errorf("commands of the base:       %s\ncommands of the Dockerfile: %s", got, want)
	}
}

// A base that lacks a library or a command is not used: nothing would run in it before it is on a node.
func TestCheckNamesWhatIsMissing(t *testing.T) {
	// A program of this machine, which is linked with the C library at least.
	program, err := os.ReadFile("/usr/bin/env")
	if err != nil {
		t.Fatalf("%v; this test needs a program that is linked dynamically", err)
	}
	files := map[string][]byte{"./usr/bin/env": program, "./usr/share/doc/x": []byte("x")}
	for _, command := range commands {
		files["./usr/sbin/"+command] = []byte("#!/bin/sh\n")
	}
	if err := Check(archive(t, files)); err == nil || !strings.Contains(err.Error(), "the base lacks libc.so.6, which usr/bin/env need") {
		t.Errorf("without the C library: %v", err)
	}
	files["./usr/lib/x86_64-linux-gnu/libc.so.6"] = nil
	if err := Check(archive(t, files)); err != nil {
		t.Errorf("with all that it needs: %v", err)
	}
	delete(files, "./usr/sbin/mkfs.xfs")
	if err := Check(archive(t, files)); err == nil || !strings.Contains(err.Error(), "the base lacks the command mkfs.xfs") {
		t.Errorf("without mkfs.xfs: %v", err)
	}
}

func archive(t *testing.T, files map[string][]byte) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "base.tar")
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
