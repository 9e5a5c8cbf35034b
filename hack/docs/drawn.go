// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// drawn are the pictures for a light page that people draw and edit: of who talks to whom, of the layers of a volume
// with replicas, and of what happens to it in each failure.
var drawn = []string{
	"architecture", "replicas-stack",
	"replicas-node-off", "replicas-network-cut", "replicas-drive-errors", "replicas-writer-off", "replicas-api-away",
	"replicas-return", "replicas-move",
}

// darkColours by the colours of pictures for a light page: those that people draw, and charts.
var darkColours = map[string]string{
	"#1f2328": "#e6edf3", // names
	"#4b545e": "#b1bac4", // words
	"#ffffff": "#1c2128", // boxes
	"#f6f8fa": "#151b23", // boxes around boxes
	"#8c959f": "#6e7681", // their edges
	"#0b62c4": "#58a6ff", // calls to the API server
	"#57606a": "#9198a1", // calls on a machine
	"#b54708": "#f0883e", // data
	"#d1d9e0": "#3d444d", // the grid of a chart
	"#0b6e99": "#4cb3dd", // lines of a chart, in their order
	"#c4500c": "#f0883e",
	"#5b3fa0": "#b39bf5",
	"#2e7d32": "#5fc46a",
	"#cf222e": "#ff7b72", // what is broken, and waits
}

var colour = regexp.MustCompile(`#[0-9a-f]{6}\b`)

// darkDrawn are the pictures that people draw, for a dark page, by their paths.
func darkDrawn(root string) (map[string]string, error) {
	dark := map[string]string{}
	for _, name := range drawn {
		path := filepath.Join(root, "docs/figures", name)
		light, err := os.ReadFile(path + "-light.svg")
		if err != nil {
			return nil, err
		}
		if dark[path+"-dark.svg"], err = darkened(name, string(light)); err != nil {
			return nil, err
		}
	}
	return dark, nil
}

// darkened is a picture for a dark page: the one for a light page in other colours.
func darkened(name, light string) (string, error) {
	var err error
	dark := colour.ReplaceAllStringFunc(light, func(c string) string {
		d, ok := darkColours[c]
		if !ok && err == nil {
			err = fmt.Errorf("%s has the colour %s: give darkColours one for a dark page", name, c)
		}
		return d
	})
	return dark, err
}
