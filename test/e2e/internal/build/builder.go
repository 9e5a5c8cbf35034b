// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// rootModule is the module whose go.mod marks the repository's root.
const rootModule = "github.com/weft-storage/weft"

// Builder makes the lab's artifacts from one checkout of the repository.
type Builder struct {
	// Repo is the absolute path of the repository's root.
	Repo string
	// Cache holds what was built.
	Cache Cache
	// Progress is told about every step that takes time.
	Progress *Progress
}

// toolsDir holds the modules that pin what is built.
func (b *Builder) toolsDir() string { return filepath.Join(b.moduleDir(), "tools") }

// moduleDir is the folder of this Go module.
func (b *Builder) moduleDir() string { return filepath.Join(b.Repo, "test", "e2e") }

// Repo returns the root of the repository around the working directory, or else around this program.
func Repo() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	return firstRepo(".", filepath.Dir(program))
}

// firstRepo returns the root of the repository of the first of these folders that is in one, or why dir is in none.
func firstRepo(dir, other string) (string, error) {
	repo, err := FindRepo(dir)
	if err == nil {
		return repo, nil
	}
	if repo, otherErr := FindRepo(other); otherErr == nil {
		return repo, nil
	}
	return "", err
}

// FindRepo returns the root of the repository that contains dir.
func FindRepo(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		name, err := moduleName(filepath.Join(at, "go.mod"))
		switch {
		case err == nil && name == rootModule:
			return at, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		case at == filepath.Dir(at):
			return "", fmt.Errorf("%s is not inside a checkout of %s; run this from the repository", dir, rootModule)
		}
	}
}

func moduleName(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "module "); ok {
			return strings.TrimSpace(name), nil
		}
	}
	return "", lines.Err()
}
