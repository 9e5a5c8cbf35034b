// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/claim"
)

// table prints for people, and keeps the first error.
type table struct {
	out io.Writer
	// colours: the output shows them.
	colours bool
	err     error
}

func newTable(out io.Writer) *table {
	_, colours := out.(coloured)
	return &table{out: out, colours: colours}
}

// title of a list, in a colour.
func (t *table) title(colour, text string) {
	text = printable(text)
	if t.colours && colour != "" {
		text = colour + text + plain
	}
	t.write(text + "\n")
}

func (t *table) line(format string, args ...any) {
	t.write(printable(fmt.Sprintf(format+"\n", args...)))
}

func (t *table) write(text string) {
	if t.err == nil {
		_, t.err = io.WriteString(t.out, text)
	}
}

// printable text: others write Events and messages, and a terminal would obey what is in them.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// ends a command with an exit code, unless its output could not be written.
func (t *table) ends(code int) error {
	if t.err != nil {
		return t.err
	}
	return &ExitError{code}
}

// columns prints rows under a head, each column as wide as it needs.
func (t *table) columns(rows [][]string) {
	if t.err != nil {
		return
	}
	var text bytes.Buffer // it takes everything
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if t.err = w.Flush(); t.err != nil {
		return
	}
	shown := printable(text.String())
	if t.colours {
		shown = strings.Join(paint(strings.Split(strings.TrimSuffix(shown, "\n"), "\n"), rows), "\n") + "\n"
	}
	t.write(shown)
}

func (a Answer) print(t *table) {
	words := map[claim.Verdict]string{claim.Fits: "fits", claim.CannotHold: "does not fit", claim.Unknown: "unknown"}[a.Verdict]
	switch {
	case a.Node == "":
		t.line("NvmfTarget %s: %s", a.Target, words)
	case a.Matches != nil && !*a.Matches:
		t.line("NvmfTarget %s on node %s: %s (but its nodeSelector does not match the node)", a.Target, a.Node, words)
	default:
		t.line("NvmfTarget %s on node %s: %s", a.Target, a.Node, words)
	}
	for _, r := range a.Reasons {
		t.line("- %s: %s", r.Reason, r.Message)
	}
	if a.Plan == nil {
		return
	}
	if len(a.Reasons) > 0 {
		t.line("It would need this plan:")
	}
	a.Changes.print(t)
	printPlan(t, a.Plan)
}

func printPlan(t *table, p *v1alpha1.Plan) {
	t.line("")
	t.columns(append([][]string{{"SERVES", "ON", ""}}, servedRows(p)...))
	if len(p.Choices) > 0 {
		t.line("")
		rows := [][]string{{"SETTING", "VALUE", "SOURCE", "WHY"}}
		for _, c := range p.Choices {
			rows = append(rows, []string{c.Setting, c.Value, string(c.Source), c.Why})
		}
		t.columns(rows)
	}
	if len(p.Memory) > 0 {
		t.line("")
		t.columns(memoryRows(p))
	}
	printWarnings(t, p.Choices)
}

// servedRows are what a plan serves, and where: a kind, a name, and more about it.
func servedRows(p *v1alpha1.Plan) [][]string {
	var rows [][]string
	for _, portal := range p.Portals {
		rows = append(rows, []string{string(portal.Transport), addressOf(portal.Portal),
			fmt.Sprintf("%d I/O queues of depth %d, in-capsule data %s", portal.MaxIOQueues, portal.QueueDepth, bytesOf(portal.InCapsuleDataSize))})
	}
	for _, d := range p.Drives {
		about := strings.TrimSpace("serial " + d.Serial + " " + d.PCIAddress)
		if d.DeviceClass != "" {
			about = "class " + d.DeviceClass + ", " + about
		}
		rows = append(rows, []string{"drive", d.ID, about})
	}
	if p.File != nil {
		rows = append(rows, []string{"file", p.File.Path, p.File.Size.String()})
	}
	if p.OverProvisioningPercent > 0 {
		rows = append(rows, []string{"promises", "of each pool", fmt.Sprintf("up to %d%%; writes to volumes in a full pool fail", p.OverProvisioningPercent)})
	}
	return rows
}

// memoryRows are the lines of the plan and what they add up to: the target's own memory, and its pod's beside it.
func memoryRows(p *v1alpha1.Plan) [][]string {
	rows := [][]string{{"MEMORY", "MIB", "HOW"}}
	for _, m := range p.Memory {
		rows = append(rows, []string{m.Use, mib(m.Bytes), m.How})
	}
	if p.SPDK == nil {
		return rows
	}
	pod := "request and limit, without the hugepages"
	from := fmt.Sprintf("hugepages of %s (nvmf_tgt -s)", p.SPDK.Hugepages)
	if p.SPDK.Hugepages == v1alpha1.HugepagesDisabled {
		pod, from = "request and limit, including the target", "regular memory (nvmf_tgt -s)"
	}
	return append(rows, []string{"total: target", mib(p.SPDK.MemoryBytes), from}, []string{"total: pod", mib(p.SPDK.PodMemoryBytes), pod})
}

func printWarnings(t *table, choices []v1alpha1.Choice) {
	for _, c := range choices {
		if c.Warning != "" {
			t.line("")
			t.line("warning: %s %s: %s", c.Setting, c.Value, c.Warning)
		}
	}
}

func addressOf(p v1alpha1.Portal) string {
	return net.JoinHostPort(p.Address, strconv.Itoa(int(p.Port)))
}

func portalOf(p v1alpha1.Portal) string { return string(p.Transport) + " " + addressOf(p) }

func mib(bytes int64) string { return strconv.FormatFloat(float64(bytes)/(1<<20), 'f', 1, 64) }

func bytesOf(n int64) string {
	if n > 0 && n%1024 == 0 {
		return fmt.Sprintf("%d KiB", n/1024)
	}
	return fmt.Sprintf("%d B", n)
}
