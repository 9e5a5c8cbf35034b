// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const root = "../.."

// helmProgram that make builds.
func helmProgram(t *testing.T) string {
	t.Helper()
	helm, err := filepath.Abs(cmp.Or(os.Getenv("HELM"), filepath.Join(root, "bin", "helm")))
	if err == nil {
		_, err = os.Stat(helm)
	}
	if err != nil {
		t.Fatalf("%v; make bin/helm builds it: make $PWD/bin/helm", err)
	}
	return helm
}

// smallProgram answers --version, as weft's programs do, and knows the modules it was built from.
const smallProgram = `package main

import "fmt"

var version string

func main() { fmt.Println("weft version", version) }
`

// program compiles smallProgram once.
var program = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "weft-release-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	for name, content := range map[string]string{"main.go": smallProgram, "go.mod": "module example.com/small\n\ngo 1.26\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("go", "build", "-ldflags", "-s -w -X main.version=1.2.3", "-o", "small", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	if words, err := cmd.CombinedOutput(); err != nil {
		_, _ = os.Stderr.Write(words)
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, "small"))
})

// programs is a folder as make release-programs leaves it.
func programs(t *testing.T) string {
	t.Helper()
	data, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	folders := map[string][]string{"darwin-amd64": {"kubectl-weft"}, "darwin-arm64": {"kubectl-weft"}}
	for _, arch := range architectures {
		folders[arch] = []string{"weft-operator", "weft-agent", "weft-csi", "weft-launch", "kubectl-weft"}
	}
	for folder, names := range folders {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, folder, name), data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// bases is a folder with a base for each architecture that has one package.
func bases(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files := [][2]string{
		{"./etc/os-release", "ID=debian\nVERSION_ID=\"13\"\n"},
		{"./var/lib/dpkg/status.d/xfsprogs", "Package: xfsprogs\nVersion: 6.13.0-2+b1\nArchitecture: all\nDescription: XFS\n more: words\n"},
	}
	for _, arch := range architectures {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, f := range files {
			if err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o644, Size: int64(len(f[1])), Typeflag: tar.TypeReg}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte(f[1])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, arch+".tar"), out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// small is a builder of a release of small programs on small bases, from this checkout's chart and samples, with a
// changelog of its own.
func small(t *testing.T) *builder {
	t.Helper()
	repo := t.TempDir()
	for _, dir := range []string{"charts", filepath.Join("config", "samples"), filepath.Join("operator", "cmd", "kubectl-weft")} {
		if err := os.CopyFS(filepath.Join(repo, dir), os.DirFS(filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
	}
	license, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"LICENSE": license, "CHANGELOG.md": []byte(changelog)} {
		if err := os.WriteFile(filepath.Join(repo, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	on := bases(t)
	return &builder{
		repo: repo, programs: programs(t), out: filepath.Join(t.TempDir(), "release"), helm: helmProgram(t),
		base: on, targetBase: on, version: "1.2.3", targetVersion: "1.1.0", revision: "0123456789abcdef0123456789abcdef01234567",
		at: time.Unix(1_700_000_000, 0).UTC(), log: io.Discard,
	}
}

const changelog = `# Changelog

## [Unreleased]

### Added

- Not released yet.

## [1.2.3] - 2026-01-31

### Fixed

- Released.

## [1.2.30] - 2026-01-01

- Another one.

[1.2.3]: https://example.com/
`
