// SPDX-License-Identifier: Apache-2.0

// Figures draws the pictures of docs/tuning.md, and fills in its tables: what was published of systems that weft brings to
// Kubernetes, beside what weft's plan says of them. It also makes the picture of who talks to whom for dark pages. Run it from the repository's root: make docs-figures.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const page = "docs/tuning.md"

func main() {
	files, err := generate(".")
	if err == nil {
		for _, path := range slices.Sorted(maps.Keys(files)) {
			if err = os.WriteFile(path, []byte(files[path]), 0o644); err != nil {
				break
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// generate the content of each file, by its path.
func generate(root string) (map[string]string, error) {
	p, err := readPublished(root)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	doc := string(text)
	for name, write := range map[string]func(published) (string, error){"receive-queues": receiveQueueTable, "buffers": bufferTable} {
		table, err := write(p)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		if doc, err = replaceBetween(doc, name, table); err != nil {
			return nil, err
		}
	}
	files[filepath.Join(root, page)] = doc
	for name, draw := range map[string]func(published) (chart, error){"receive-queues": receiveQueueChart, "buffers": bufferChart, "cores": coreChart} {
		c, err := draw(p)
		if err != nil {
			return nil, fmt.Errorf("figure %s: %w", name, err)
		}
		files[filepath.Join(root, "docs/figures", name+".svg")] = c.svg()
	}
	if files[filepath.Join(root, architecture+"dark.svg")], err = darkArchitecture(root); err != nil {
		return nil, err
	}
	return files, nil
}

// replaceBetween the marks of a table.
func replaceBetween(doc, name, table string) (string, error) {
	first, last := "<!-- "+name+": written by make docs-figures -->\n", "<!-- end of "+name+" -->"
	before, rest, found := strings.Cut(doc, first)
	_, after, ended := strings.Cut(rest, last)
	if !found || !ended {
		return "", fmt.Errorf("%s has no %q and %q", page, first, last)
	}
	return before + first + table + last + after, nil
}
