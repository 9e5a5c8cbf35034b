// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A machine is a filesystem tree under construction, written as sysfs shows it.
type machine struct {
	t    *testing.T
	root string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	return machine{t, t.TempDir()}
}

// recorded builds the tree of testdata/NAME.tree.
func recorded(t *testing.T, name string) machine {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".tree"))
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(t).add(string(text))
}

// add makes files and links, one per line:
//
//	path = content      a file; \n in it is a new line
//	path -> target      a symbolic link
//	path/               a folder
//	path:               the folder of the indented lines that follow
//	# comment
func (m machine) add(text string) machine {
	m.t.Helper()
	folder := ""
	for line := range strings.Lines(text) {
		line, indented := strings.TrimRight(line, "\n"), strings.HasPrefix(line, " ")
		trimmed := strings.TrimSpace(line)
		path := func(p string) string {
			if indented {
				return filepath.Join(m.root, folder, strings.TrimSpace(p))
			}
			return filepath.Join(m.root, strings.TrimSpace(p))
		}
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		if p, target, ok := strings.Cut(line, " -> "); ok {
			m.parent(path(p))
			m.check(os.Symlink(target, path(p)))
		} else if p, content, ok := strings.Cut(line, " ="); ok {
			m.parent(path(p))
			m.check(os.WriteFile(path(p), []byte(strings.ReplaceAll(strings.TrimSpace(content), `\n`, "\n")+"\n"), 0o644))
		} else if strings.HasSuffix(trimmed, "/") {
			m.check(os.MkdirAll(path(trimmed), 0o755))
		} else if p, ok := strings.CutSuffix(trimmed, ":"); ok && !indented {
			folder = p
		} else {
			m.t.Fatalf("not a line of a tree: %q", line)
		}
	}
	return m
}

// remove takes away a file or a folder.
func (m machine) remove(path string) machine {
	m.t.Helper()
	if _, err := os.Lstat(filepath.Join(m.root, path)); err != nil {
		m.t.Fatal(err)
	}
	m.check(os.RemoveAll(filepath.Join(m.root, path)))
	return m
}

// unreadable puts a link to itself in the file's place: reading it fails, for root too.
func (m machine) unreadable(path string) {
	m.t.Helper()
	full := filepath.Join(m.root, path)
	m.check(os.RemoveAll(full))
	m.parent(full)
	m.check(os.Symlink(filepath.Base(full), full))
}

func (m machine) parent(path string) { m.check(os.MkdirAll(filepath.Dir(path), 0o755)) }

func (m machine) check(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}
