// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var flag = regexp.MustCompile(`--[a-z-]+`)

func TestTheReadmeHasEveryCommandAndFlag(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.HasPrefix(cells[1], " `weft-lab ") {
			rows = append(rows, strings.ReplaceAll(cells[1], "`", " ")+" ")
		}
	}
	has := func(words ...string) bool {
		for _, row := range rows {
			found := true
			for _, word := range words {
				found = found && strings.Contains(row, word)
			}
			if found {
				return true
			}
		}
		return false
	}
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Runnable() && !has(" "+cmd.CommandPath()+" ") {
			t.Errorf("README.md has no row for %s", cmd.CommandPath())
		}
		for _, name := range flag.FindAllString(cmd.LocalNonPersistentFlags().FlagUsages(), -1) {
			if !has(" "+cmd.CommandPath()+" ", name) {
				t.Errorf("README.md has no row for %s %s", cmd.CommandPath(), name)
			}
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(newCommand())
	if len(rows) == 0 {
		t.Error("README.md has no command")
	}
}

func TestDemoSaysHowLongItTakes(t *testing.T) {
	if first := howLong(false); !strings.Contains(first, "10 to 20 minutes") || !strings.Contains(first, "Later runs take about 3") {
		t.Errorf("a first run says %q", first)
	}
	if later := howLong(true); !strings.Contains(later, "3 minutes") || strings.Contains(later, "first run") {
		t.Errorf("a later run says %q", later)
	}
}

func TestDemoSaysHowToGoOn(t *testing.T) {
	said := goOn("/src/.lab/kubeconfig", "/src", "node1")
	for _, line := range []string{
		"export KUBECONFIG=/src/.lab/kubeconfig PATH=/src/bin:/src/bin/" + runtime.GOARCH + ":$PATH",
		"export PATH=$(weft-lab assets-dir):$PATH", "kubectl weft volume weft-demo", "kubectl logs weft-demo", "weft-lab exec node1 -- nvme list",
	} {
		if !strings.Contains(said, "\n"+line+"\n") {
			t.Errorf("it does not say %q", line)
		}
	}
	page := regexp.MustCompile(`docs/[a-z-]+\.md`).FindString(said)
	if _, err := os.Stat("../../../../" + page); page == "" || err != nil {
		t.Errorf("it names the page %q: %v", page, err)
	}
}
