// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weft-storage/weft/operator/internal/cli"
)

// documented is a call that a page shows: a line of its code, or what stands between backticks.
var documented = regexp.MustCompile("(?m)(?:`|^ *)kubectl weft ([^`\n#|]+)")

// The pages show calls of commands and flags that exist.
func TestDocumentedCalls(t *testing.T) {
	calls := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "charts/weft/*.md", "charts/weft/templates/NOTES.txt"} {
		pages, err := filepath.Glob("../../../" + pattern)
		if err != nil || len(pages) == 0 {
			t.Fatalf("no page is called %s: %v", pattern, err)
		}
		for _, page := range pages {
			for _, m := range documented.FindAllStringSubmatch(read(t, page), -1) {
				calls++
				if err := exists(strings.Fields(m[1])); err != nil {
					t.Errorf("%s: kubectl weft %s: %v", page, m[1], err)
				}
			}
		}
	}
	if calls == 0 {
		t.Error("no page shows a call")
	}
}

// Every command is in the index of the pages, and once in the table of commands and in that of their rights.
func TestCommandsAreListed(t *testing.T) {
	table := read(t, "../../../docs/kubectl-weft.md")
	rights := read(t, "../../../docs/kubectl-weft/rights.md")
	mayRun := map[string]int{}
	for _, row := range regexp.MustCompile("(?m)^\\| ((?:`[a-z-]+`(?:, )?)+) \\|").FindAllStringSubmatch(rights, -1) {
		for name := range strings.SplitSeq(strings.ReplaceAll(row[1], "`", ""), ", ") {
			mayRun[name]++
		}
	}
	for _, cmd := range cli.Command("test").Commands() {
		if !strings.Contains(read(t, "../../../docs/README.md"), "`"+cmd.Name()+"`") {
			t.Errorf("docs/README.md does not name the command %s", cmd.Name())
		}
		if n := strings.Count(table, "\n| [`kubectl weft "+cmd.Name()+"`]("); n != 1 {
			t.Errorf("%d rows of the table of commands are about %s", n, cmd.Name())
		}
		if n := mayRun[cmd.Name()]; n != 1 {
			t.Errorf("%d rows of the table of rights are about %s", n, cmd.Name())
		}
	}
}

// exists says of a call whether its command does, with these flags and so many arguments. A command alone is a name.
func exists(args []string) error {
	cmd, rest, err := cli.Command("test").Find(args)
	if err != nil || len(rest) == 0 {
		return err
	}
	cmd.InitDefaultVersionFlag()
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
