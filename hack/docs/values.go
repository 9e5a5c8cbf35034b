// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	valuesFile  = "charts/weft/values.yaml"
	chartReadme = "charts/weft/README.md"
	tableBegin  = "<!-- Written by make generate from values.yaml. Do not edit. -->\n"
	tableEnd    = "<!-- End of the values. -->\n"
	// documented starts the comment of a value that users may set.
	documented = "# -- "
)

// values writes the table of the chart's values into its README: each value with a comment that starts with documented,
// or whose parent has one.
func values(root string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(root, valuesFile))
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("%s: %w", valuesFile, err)
	}
	table := tableBegin + "\n| Value | Default | Meaning |\n| --- | --- | --- |\n"
	rows, err := valueRows(document.Content[0], "")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", valuesFile, err)
	}
	table += strings.Join(rows, "") + "\n" + tableEnd
	readme, err := os.ReadFile(filepath.Join(root, chartReadme))
	if err != nil {
		return nil, err
	}
	before, rest, ok := strings.Cut(string(readme), tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !ok || !ended {
		return nil, fmt.Errorf("%s lacks %q and, behind it, %q", chartReadme, tableBegin, tableEnd)
	}
	return map[string]string{chartReadme: before + table + after}, nil
}

func valueRows(mapping *yaml.Node, path string) ([]string, error) {
	var rows []string
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := strings.TrimPrefix(path+"."+key.Value, ".")
		means := meaning(key.HeadComment)
		inside := value.Kind == yaml.MappingNode && documentedInside(value)
		if means == "" && !inside && path == "" {
			return nil, errors.New(name + " has no comment that starts with " + documented)
		}
		if means != "" || !inside {
			standard := ""
			if !inside {
				var content any
				if err := value.Decode(&content); err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				text, err := json.Marshal(content)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				standard = "`" + string(text) + "`"
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", name, standard, strings.ReplaceAll(means, "|", `\|`)))
		}
		if inside {
			inner, err := valueRows(value, name)
			if err != nil {
				return nil, err
			}
			rows = append(rows, inner...)
		}
	}
	return rows, nil
}

// meaning of a value: its comment from documented on, in one line.
func meaning(comment string) string {
	at := strings.LastIndex(comment, documented)
	if at < 0 {
		return ""
	}
	var words []string
	for line := range strings.Lines(comment[at+len(documented):]) {
		words = append(words, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
	}
	return strings.Join(words, " ")
}

func documentedInside(mapping *yaml.Node) bool {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if meaning(mapping.Content[i].HeadComment) != "" || mapping.Content[i+1].Kind == yaml.MappingNode && documentedInside(mapping.Content[i+1]) {
			return true
		}
	}
	return false
}
