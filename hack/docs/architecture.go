// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

const architecture = "docs/figures/architecture-"

// darkColours by the colours of pictures for a light page: that of who talks to whom, which people edit, and charts.
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
}

var colour = regexp.MustCompile(`#[0-9a-f]{6}\b`)

// darkArchitecture is the picture of who talks to whom for a dark page.
func darkArchitecture(root string) (string, error) {
	light, err := os.ReadFile(filepath.Join(root, architecture+"light.svg"))
	if err != nil {
		return "", err
	}
	return darkened(architecture+"light.svg", string(light))
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
