// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestValuesTable(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(chartReadme, "# Chart\n\n"+tableBegin+"old\n"+tableEnd+"after\n")
	write(valuesFile, `# A licence.

# -- Image of all.
image:
  repository: example/a
  # -- Tag, such as
  # v1 | v2.
  tag: ""
# About the part, not a value.
part:
  # -- Requests.
  resources:
    requests: {cpu: 10m}
`)
	got, err := values(root)
	if err != nil {
		t.Fatal(err)
	}
	want := "# Chart\n\n" + tableBegin + `
| Value | Default | Meaning |
| --- | --- | --- |
| ` + "`image`" + ` |  | Image of all. |
| ` + "`image.repository` | `\"example/a\"`" + ` |  |
| ` + "`image.tag` | `\"\"`" + ` | Tag, such as v1 \| v2. |
| ` + "`part.resources` | `{\"requests\":{\"cpu\":\"10m\"}}`" + ` | Requests. |

` + tableEnd + "after\n"
	if got[chartReadme] != want {
		t.Errorf("got\n%s\nwant\n%s", got[chartReadme], want)
	}
	write(valuesFile, "unexplained: 1\n")
	if _, err := values(root); err == nil || !strings.Contains(err.Error(), "unexplained has no comment") {
		t.Errorf("a value that nobody explains: %v", err)
	}
	write(chartReadme, "# Chart\n")
	write(valuesFile, "# -- One.\none: 1\n")
	if _, err := values(root); err == nil || !strings.Contains(err.Error(), "lacks") {
		t.Errorf("a README without a place for the table: %v", err)
	}
}
