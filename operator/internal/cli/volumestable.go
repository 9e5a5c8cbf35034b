// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/operator/internal/claim"
)

func (a VolumesAnswer) print(t *table) {
	words := map[claim.Verdict]string{claim.Fits: "fit", claim.CannotHold: "do not fit", claim.Unknown: "unknown"}[a.Verdict]
	t.line("Volumes of NvmfTarget %s: %s", a.Target, words)
	for _, r := range a.Reasons {
		t.line("- %s: %s", r.Reason, r.Message)
	}
	t.line("")
	rows := [][]string{{"VOLUMES", "SIZE", "REPLICAS", "HOST CONTROLLERS", "HOST QUEUE PAIRS", "WRITES SENT"}}
	for _, v := range a.Volumes {
		sent := fmt.Sprintf("%d x", v.Replicas)
		if v.WriteBytesPerSecond > 0 {
			sent += " = " + rate(v.WriteBytesPerSecond)
		}
		rows = append(rows, []string{strconv.FormatInt(v.Count, 10), sizeOf(v.SizeBytes), strconv.Itoa(v.Replicas),
			strconv.FormatInt(v.HostControllers, 10), strconv.FormatInt(v.HostQueuePairs, 10), sent})
	}
	t.columns(rows)
	a.printNodes(t)
	for _, w := range a.Warnings {
		t.line("")
		t.line("warning: %s", w)
	}
}

// printNodes with their figures: those of all nodes working, then the most after the loss of another one.
func (a VolumesAnswer) printNodes(t *table) {
	if len(a.Nodes) == 0 {
		return
	}
	t.line("")
	rows := [][]string{{"NODE", "ZONE", "REPLICAS", "PROMISED", "OF", "ATTACHMENTS", "OF", "CONTROLLERS", "QUEUE PAIRS", "MEMORY MIB", "WRITES", "OF"}}
	reserve := false
	for i := range a.Nodes {
		n := &a.Nodes[i]
		reserve = reserve || n.Reserve != nil
		rows = append(rows, append([]string{n.Node, orDash(n.Zone)}, n.row(n.Figures)...))
	}
	t.columns(rows)
	if !reserve {
		return
	}
	t.line("")
	t.line("Reserve: the most that each node holds after the loss of any other one, when all replicas are created again")
	head := append([]string{"NODE", "ZONE"}, rows[0][2:]...)
	rows = [][]string{head}
	for i := range a.Nodes {
		n := &a.Nodes[i]
		rows = append(rows, append([]string{n.Node, orDash(n.Zone)}, n.row(*n.Reserve)...))
	}
	t.columns(rows)
}

func (n *NodeLoad) row(f Figures) []string {
	count := func(i int64) string { return strconv.FormatInt(i, 10) }
	expected, memory := "-", "-"
	if n.AttachmentsExpected > 0 {
		expected = count(n.AttachmentsExpected)
	}
	if n.MemoryBytes > 0 {
		memory = mib(n.MemoryBytes)
	}
	return []string{count(f.Replicas), sizeOf(f.PromisedBytes), sizeOf(n.PromisableBytes), count(f.Attachments), expected,
		count(f.Controllers), count(f.QueuePairs), memory, rate(f.WriteBytesPerSecond), rate(n.LinkBytesPerSecond)}
}

func sizeOf(bytes int64) string { return size(resource.NewQuantity(bytes, resource.BinarySI)) }

// rate of bytes a second; a dash when not known.
func rate(bytes int64) string {
	if bytes <= 0 {
		return "-"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(bytes)/1_000_000), ".0") + " MB/s"
}
