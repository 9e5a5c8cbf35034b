// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"slices"
	"strings"
	"testing"
)

// The samples of docs/sizing.md fit the sample server, and the plan that the page shows in parts is what is printed.
func TestTuningSamples(t *testing.T) {
	const samples = "../../../config/samples/"
	shown := ""
	for _, name := range []string{"spdk/target-drives.yaml", "spdk/target-rdma.yaml", "spdk/target-tcp.yaml", "target-tuned.yaml"} {
		out, code, err := run(t, "", "plan", "-f", samples+name, "--inventory", samples+"inventory/server.yaml")
		if err != nil || code != 0 {
			t.Errorf("%s: exit code %d, %v: %s", name, code, err, out)
		}
		if shown == "" {
			shown = out
		}
	}
	_, block, found := strings.Cut(read(t, "../../../docs/sizing.md"), "```text\n")
	block, _, ended := strings.Cut(block, "```")
	if !found || !ended {
		t.Fatal("docs/sizing.md shows no plan")
	}
	printed := strings.Split(shown, "\n")
	for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
		// "(...)" leaves words out.
		parts := strings.Split(strings.TrimSpace(line), "(...)")
		if !slices.ContainsFunc(printed, func(p string) bool {
			for _, part := range parts {
				i := strings.Index(p, strings.TrimRight(part, " "))
				if i < 0 {
					return false
				}
				p = p[i+len(strings.TrimRight(part, " ")):]
			}
			return true
		}) {
			t.Errorf("docs/sizing.md shows a line that is not printed: %s", line)
		}
	}
}
