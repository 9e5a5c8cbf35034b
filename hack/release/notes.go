// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// notes are what the changelog says of a version. A development build has what is not released yet.
func notes(changelog, version string) (string, error) {
	heading := "## [" + version + "]"
	if strings.Contains(version, "-dev.") {
		heading = "## [Unreleased]"
	}
	var out []string
	inside := false
	for line := range strings.Lines(changelog) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "## ") || strings.HasPrefix(line, "[") && strings.Contains(line, "]: ") {
			inside = strings.HasPrefix(line, heading)
			continue
		}
		if inside {
			out = append(out, line)
		}
	}
	text := strings.TrimSpace(strings.Join(out, "\n"))
	if text == "" {
		return "", fmt.Errorf("CHANGELOG.md says nothing under %q; write what is new for users there", heading)
	}
	return text + "\n", nil
}
