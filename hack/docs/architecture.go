// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

const architecture = "docs/figures/architecture-"

// darkColours by the colours of the picture for a light page, which is the one that people edit.
var darkColours = map[string]string{
	"#1f2328": "#e6edf3", // names
	"#4b545e": "#b1bac4", // words
	"#ffffff": "#1c2128", // boxes
	"#f6f8fa": "#151b23", // boxes around boxes
	"#8c959f": "#6e7681", // their edges
	"#0b62c4": "#58a6ff", // calls to the API server
	"#57606a": "#9198a1", // calls on a machine
	"#b54708": "#f0883e", // data
}

var colour = regexp.MustCompile(`#[0-9a-f]{6}\b`)

// darkArchitecture is the picture of who talks to whom for a dark page: that for a light one in other colours.
func darkArchitecture(root string) (string, error) {
	light, err := os.ReadFile(filepath.Join(root, architecture+"light.svg"))
	if err != nil {
		return "", err
	}
	dark := colour.ReplaceAllStringFunc(string(light), func(c string) string {
		d, ok := darkColours[c]
		if !ok && err == nil {
			err = fmt.Errorf("%slight.svg has the colour %s: give darkColours one for a dark page", architecture, c)
		}
		return d
	})
	return dark, err
}
