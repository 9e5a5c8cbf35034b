// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-storage/weft/internal/text"
)

// A CheckReport is what `kubectl weft check -o json` prints.
type CheckReport struct {
	Nodes    []CheckedNode  `json:"nodes"`
	Findings []CheckFinding `json:"findings"`
	// NotLookedAt: what could not be read.
	NotLookedAt []string `json:"notLookedAt,omitempty"`
	// NotKnown: what nobody has reported.
	NotKnown []string `json:"notKnown,omitempty"`
	// InstalledVersion of weft; absent when it is not installed, or has no version.
	InstalledVersion string `json:"installedVersion,omitempty"`
}

// CheckedNode is one Linux node, with the platform pages that apply to it.
type CheckedNode struct {
	Name      string   `json:"name"`
	Platforms []string `json:"platforms,omitempty"`
	Kernel    string   `json:"kernel"`
	Kubelet   string   `json:"kubelet"`
	Pages     []string `json:"pages,omitempty"`
	// system is the name of its operating system.
	system string
	// AgentVersion of weft. What is absent from here on is not known.
	AgentVersion string `json:"agentVersion,omitempty"`
	// Hugepages as the kubelet counts them, by their size.
	Hugepages []CheckedHugepages `json:"hugepages,omitempty"`
	// Interfaces in the networks of NvmfTargets, or in shared networks.
	Interfaces []CheckedInterface `json:"interfaces,omitempty"`
	// ClockAheadSeconds of the API server's clock, to half a second; negative if it is behind.
	ClockAheadSeconds *float64 `json:"clockAheadSeconds,omitempty"`
}

// CheckedHugepages are pages of one size on a node.
type CheckedHugepages struct {
	Size string `json:"size"`
	// Kubelet: how many it counts. Kernel: how many there are; absent if it has not been reported.
	Kubelet int64  `json:"kubelet"`
	Kernel  *int64 `json:"kernel,omitempty"`
	// Needed for the plan of the node's target.
	Needed int64 `json:"needed"`
}

// CheckedInterface is one that carries I/O of a target. If no target has a portal yet, and the nodes were probed, it is
// one in a network of several nodes.
type CheckedInterface struct {
	Name    string `json:"name"`
	Target  string `json:"target,omitempty"`
	Network string `json:"network"`
	MTU     int32  `json:"mtu,omitempty"`
}

// CheckFinding is what is wrong, or is to be looked after, of a node or of the cluster.
type CheckFinding struct {
	Wrong   bool   `json:"wrong"`
	Node    string `json:"node,omitempty"`
	Message string `json:"message"`
	Page    string `json:"page,omitempty"`
}

// show the survey in a format, and end with the exit code that belongs to it.
func (s *survey) show(out io.Writer, format *output) error {
	t, r := newTable(out), s.report()
	done, err := format.encode(out, r)
	if err != nil {
		return err
	}
	if !done {
		r.print(t, format.wide())
	}
	if code := r.code(); t.err == nil && code != 0 {
		return &ExitError{code}
	}
	return t.err
}

func (s *survey) report() CheckReport {
	r := CheckReport{Nodes: []CheckedNode{}, Findings: []CheckFinding{}, NotLookedAt: s.unread, NotKnown: s.notKnown(), InstalledVersion: s.installedVersion}
	networks := s.networks()
	for i := range s.nodes {
		r.Nodes = append(r.Nodes, s.reportNode(&s.nodes[i], networks))
	}
	for _, f := range s.findings() {
		found := CheckFinding{Wrong: f.wrong, Node: f.node, Message: f.says}
		if f.page != "" {
			found.Page = platformsPages + f.page
		}
		r.Findings = append(r.Findings, found)
	}
	return r
}

func (s *survey) reportNode(n *corev1.Node, networks map[network]interfaces) CheckedNode {
	names, pages := platformPages(n)
	r := CheckedNode{Name: n.Name, Platforms: names, Kernel: n.Status.NodeInfo.KernelVersion, Kubelet: n.Status.NodeInfo.KubeletVersion, Pages: pages, system: n.Status.NodeInfo.OSImage,
		AgentVersion: s.agentVersion(n.Name), Hugepages: s.hugepagesOf(n)}
	for _, at := range sortedNetworks(networks) {
		if nic, in := networks[at][n.Name]; in {
			r.Interfaces = append(r.Interfaces, CheckedInterface{Name: nic.Name, Target: at.target, Network: at.prefix.String(), MTU: nic.MTU})
		}
	}
	if reading, known := s.clocks[n.Name]; known {
		r.ClockAheadSeconds = new(reading.ahead.Seconds())
	}
	return r
}

// platformPages are the platforms of a node by name, and the pages about them.
func platformPages(n *corev1.Node) (names, pages []string) {
	for _, p := range platformsOf(n) {
		names = append(names, p.name)
		if page := platformsPages + p.page; !slices.Contains(pages, page) {
			pages = append(pages, page)
		}
	}
	return names, pages
}

// code that the program ends with.
func (r CheckReport) code() int {
	switch {
	case slices.ContainsFunc(r.Findings, CheckFinding.isWrong):
		return CodeUnwell
	case len(r.NotLookedAt) > 0:
		return CodeUnknown
	}
	return 0
}

func (f CheckFinding) isWrong() bool { return f.Wrong }

// print for people.
func (r CheckReport) print(t *table, wide bool) {
	head := []string{"NODE", "PLATFORM", "KERNEL", "KUBELET", "SEE"}
	if wide {
		head = append(head, "WEFT", "HUGEPAGES", "NEEDED", "MTU", "CLOCK")
	}
	rows := [][]string{head}
	for _, n := range r.Nodes {
		row := []string{n.Name, cmp.Or(strings.Join(n.Platforms, ", "), orDash(n.system)), n.Kernel, n.Kubelet, orDash(strings.Join(n.Pages, ", "))}
		if wide {
			row = append(row, n.wide()...)
		}
		rows = append(rows, row)
	}
	t.columns(rows)
	printFindings(t, red, "Wrong:", slices.DeleteFunc(slices.Clone(r.Findings), func(f CheckFinding) bool { return !f.Wrong }))
	printFindings(t, yellow, "Look after:", slices.DeleteFunc(slices.Clone(r.Findings), CheckFinding.isWrong))
	printList(t, yellow, "Not looked at:", r.NotLookedAt)
	printList(t, "", "Not known:", r.NotKnown)
	if r.code() == 0 {
		t.line("")
		if len(r.NotKnown) > 0 {
			t.line("Nothing wrong was found.")
		} else {
			t.line("Nothing is wrong.")
		}
	}
}

func printList(t *table, colour, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	t.line("")
	t.title(colour, title)
	for _, l := range lines {
		t.line("- %s", l)
	}
}

// wide columns of a node.
func (n CheckedNode) wide() []string {
	var has, needed, mtus []string
	for _, h := range n.Hugepages {
		if h.Kubelet > 0 {
			has = append(has, fmt.Sprintf("%d x %s", h.Kubelet, h.Size))
		}
		if h.Needed > 0 {
			needed = append(needed, fmt.Sprintf("%d x %s", h.Needed, h.Size))
		}
	}
	for _, i := range n.Interfaces {
		if word := fmt.Sprintf("%d (%s)", i.MTU, i.Name); i.MTU > 0 && !slices.Contains(mtus, word) {
			mtus = append(mtus, word)
		}
	}
	clock := orUnknown("")
	if at := n.ClockAheadSeconds; at != nil {
		if clock = fmt.Sprintf("%+.0f s", *at); math.Abs(*at) < 1 {
			clock = "within 1 s"
		}
	}
	pages := strings.Join(has, ", ")
	if len(n.Hugepages) > 0 {
		pages = orDash(pages)
	}
	return []string{orUnknown(n.AgentVersion), orUnknown(pages), orDash(strings.Join(needed, ", ")), orUnknown(strings.Join(mtus, ", ")), clock}
}

// printFindings with the nodes that share each.
func printFindings(t *table, colour, title string, found []CheckFinding) {
	var lines []string
	var order []CheckFinding
	nodes := map[CheckFinding][]string{}
	for _, f := range found {
		key := f
		key.Node = ""
		if _, ok := nodes[key]; !ok {
			order = append(order, key)
		}
		nodes[key] = append(nodes[key], f.Node)
	}
	for _, f := range order {
		line := f.Message
		if nodes[f][0] != "" {
			line = text.Few(nodes[f], maxNamed, ", ") + ": " + line
		}
		if f.Page != "" {
			line += " (" + f.Page + ")"
		}
		lines = append(lines, line)
	}
	printList(t, colour, title, lines)
}
