// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// walls are the rooms of CONTRIBUTING.md, with the rooms that each may import.
func walls(t *testing.T) map[string][]string {
	t.Helper()
	_, table, found := strings.Cut(read(t, "../../CONTRIBUTING.md"), "\n| Directory | What belongs there | Imports allowed from weft |\n")
	if !found {
		t.Fatal("CONTRIBUTING.md has no table of folders")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	code := regexp.MustCompile("`([a-z0-9/-]+)`")
	rooms := map[string][]string{}
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(row), " | ")
		if len(cells) != 3 {
			continue // what is there imports nothing of weft's components
		}
		var allowed []string
		for _, m := range code.FindAllStringSubmatch(cells[2], -1) {
			allowed = append(allowed, m[1])
		}
		for _, m := range code.FindAllStringSubmatch(cells[0], -1) {
			rooms[m[1]] = allowed
		}
	}
	return rooms
}

// roomOf a package is the longest folder of the table that it is in.
func roomOf(rooms map[string][]string, pkg string) string {
	in := ""
	for room := range rooms {
		if (pkg == room || strings.HasPrefix(pkg, room+"/")) && len(room) > len(in) {
			in = room
		}
	}
	return in
}

// The table of who may import whom is true of the product, whatever the build tags of a file: depguard in .golangci.yml
// has the same walls for whoever writes an import.
func TestImportsKeepToTheirRooms(t *testing.T) {
	const module = "github.com/weft-storage/weft/"
	rooms := walls(t)
	seen := map[string]bool{}
	for _, component := range []string{"api", "config", "csi-driver", "dataplane", "internal", "operator"} {
		err := filepath.WalkDir("../../"+component, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && strings.HasSuffix(d.Name(), "test"):
				return filepath.SkipDir // a fake
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			pkg := strings.TrimPrefix(filepath.Dir(path), "../../")
			room := roomOf(rooms, pkg)
			if room == "" {
				t.Errorf("%s is in no room: give it a row in CONTRIBUTING.md", pkg)
				return nil
			}
			seen[room] = true
			for _, i := range file.Imports {
				name, err := strconv.Unquote(i.Path.Value)
				if err != nil {
					return err
				}
				imported, ours := strings.CutPrefix(name, module)
				if !ours {
					continue
				}
				if to := roomOf(rooms, imported); to != room && !slices.Contains(rooms[room], to) {
					t.Errorf("%s imports %s, which its room %s may not: ask where the code belongs", path, imported, room)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for room := range rooms {
		if _, err := os.Stat("../../" + room); err != nil {
			t.Errorf("CONTRIBUTING.md has a row for %s: %v", room, err)
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d rooms have code", len(seen))
	}
}
