// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

const tuningPage = "docs/tuning.md"

// figures is the content of each file, by its path: the pictures and tables of docs/tuning.md, with what was published
// of the systems that weft brings to Kubernetes beside what weft's plan says of them, and the pictures that
// people draw. Each picture is there for a light and for a dark page.
func figures(root string) (map[string]string, error) {
	p, err := readPublished(root)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, tuningPage))
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
	files[filepath.Join(root, tuningPage)] = doc
	for name, draw := range map[string]func(published) (chart, error){"receive-queues": receiveQueueChart, "buffers": bufferChart, "cores": coreChart} {
		c, err := draw(p)
		if err != nil {
			return nil, fmt.Errorf("figure %s: %w", name, err)
		}
		path, light := filepath.Join(root, "docs/figures", name), c.svg()
		files[path+"-light.svg"] = light
		if files[path+"-dark.svg"], err = darkened(name, light); err != nil {
			return nil, err
		}
	}
	dark, err := darkDrawn(root)
	if err != nil {
		return nil, err
	}
	maps.Copy(files, dark)
	return files, nil
}

// replaceBetween the marks of a table.
func replaceBetween(doc, name, table string) (string, error) {
	first, last := "<!-- "+name+": written by make docs-figures -->\n", "<!-- end of "+name+" -->"
	before, rest, found := strings.Cut(doc, first)
	_, after, ended := strings.Cut(rest, last)
	if !found || !ended {
		return "", fmt.Errorf("%s has no %q and %q", tuningPage, first, last)
	}
	return before + first + table + last + after, nil
}
