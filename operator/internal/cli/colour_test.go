// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// without colours is a text.
func without(text string) string {
	return strings.NewReplacer(bold, "", red, "", yellow, "", plain, "").Replace(text)
}

// What is wrong has a colour, what is well has none, and without colours a text is what it is without a terminal.
func TestColoursOfTables(t *testing.T) {
	unwell := small()
	unwell.nodes[0].Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionAgentAlive, metav1.ConditionFalse, v1alpha1.ReasonAgentSilent), condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolFailed)}
	f, err := lookAtFleet(t.Context(), stocked(t).api, noon)
	if err != nil {
		t.Fatal(err)
	}
	shown := func(s *status, args ...string) func(io.Writer) error {
		return func(out io.Writer) error {
			if err := s.show(out, &output{format: outputTable}, args); err != nil && exitCode(err) != CodeUnwell {
				return err
			}
			return nil
		}
	}
	wide := &output{format: outputWide}
	for name, c := range map[string]struct {
		show func(out io.Writer) error
		// want are painted, never are not.
		want, never []string
	}{
		"a cluster that is well": {shown(small()), []string{bold + "NODE "}, []string{red, yellow}},
		"a cluster that is not":  {shown(unwell), []string{red + "False (PoolFailed)" + plain, red + "silent" + plain, red + "Problems:" + plain}, []string{red + "True", red + "alive"}},
		"a node":                 {shown(unwell, "a"), []string{"AgentAlive " + red + "False" + plain}, nil},
		"a node that is well":    {shown(small(), "a"), nil, []string{red}},
		"drives": {func(out io.Writer) error { return f.listDrives(nil).show(out, wide) },
			[]string{red + driveNotReady + plain, yellow + "DeviceMissing it is not there" + plain}, []string{red + driveRetiring, yellow + driveRetiring, yellow + driveDropped, yellow + "-"}},
		"volumes": {func(out io.Writer) error { return f.listVolumes(nil).show(out, wide) }, []string{yellow + string(v1alpha1.VolumeUnknown) + plain}, nil},
		"what is checked": {func(out io.Writer) error {
			r := CheckReport{Nodes: []CheckedNode{{Name: "a"}}, Findings: []CheckFinding{{Wrong: true, Message: "w"}, {Message: "l"}}, NotKnown: []string{"k"}, NotLookedAt: []string{"n"}}
			tab := newTable(out)
			r.print(tab, true)
			return tab.err
		}, []string{red + "Wrong:" + plain, yellow + "Look after:" + plain, yellow + "Not looked at:" + plain, yellow + "unknown" + plain}, []string{red + "Look", yellow + "Not known:"}},
	} {
		var with, alone bytes.Buffer
		if err := c.show(coloured{&with}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.show(&alone); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if without(with.String()) != alone.String() || with.Len() == alone.Len() {
			t.Errorf("%s: colours change the text\n%sto\n%s", name, &alone, without(with.String()))
		}
		got := spaces.ReplaceAllString(with.String(), " ")
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: want %q in\n%q", name, want, got)
			}
		}
		for _, never := range c.never {
			if strings.Contains(got, never) {
				t.Errorf("%s: %q is in\n%q", name, never, got)
			}
		}
	}
}

// The words that are wrong in a column, and those beside them that are not.
func TestColoursOfStates(t *testing.T) {
	for column, c := range map[string]struct{ red, yellow, none []string }{
		"READY":       {[]string{"False", "False (PoolFailed)", "no"}, []string{"Unknown", "unknown"}, []string{"True", "yes", "-"}},
		"AGENT":       {[]string{"silent"}, []string{"unknown"}, []string{"alive", "answers"}},
		"STATE":       {[]string{string(v1alpha1.VolumeUnavailable), string(v1alpha1.VolumeLost), driveNotReady}, []string{string(v1alpha1.VolumeDegraded), string(v1alpha1.VolumeUnknown), string(v1alpha1.MemberOut)}, []string{string(v1alpha1.VolumeReady), string(v1alpha1.VolumeDeleting), driveRetiring, driveDropped, driveUnused, "Filling"}},
		"DATA":        {nil, []string{string(v1alpha1.MemberOut)}, []string{string(v1alpha1.MemberInSync), string(v1alpha1.MemberFilling)}},
		"RECORD":      {nil, []string{string(v1alpha1.MemberOut)}, []string{string(v1alpha1.MemberInSync)}},
		"PHASE":       {[]string{"Failed"}, []string{"Unknown"}, []string{"Running", "Pending", "Succeeded"}},
		"RECOVERABLE": {[]string{"no"}, []string{"in doubt"}, []string{"yes", "by name", "its PersistentVolume"}},
		"PROBLEM":     {nil, []string{"DeviceMissing it is not there"}, []string{"-", ""}},
		"SIZE":        {nil, []string{"unknown"}, []string{"no", "False", "1Gi"}},
	} {
		for colour, words := range map[string][]string{red: c.red, yellow: c.yellow, "": c.none} {
			for _, word := range words {
				if got := colourOf([]string{column}, []string{word}, 0); got != colour {
					t.Errorf("%s %s: got %q, want %q", column, word, got, colour)
				}
			}
		}
	}
	for _, c := range []struct {
		head, row []string
		want      string
	}{
		{[]string{"CONDITION", "STATUS"}, []string{v1alpha1.ConditionReady, "False"}, red},
		{[]string{"CONDITION", "STATUS"}, []string{v1alpha1.ConditionReady, "True"}, ""},
		{[]string{"CONDITION", "STATUS"}, []string{v1alpha1.ConditionDegraded, "True"}, red},
		{[]string{"CONDITION", "STATUS"}, []string{v1alpha1.ConditionDegraded, "False"}, ""},
		{[]string{"CONDITION", "STATUS"}, []string{v1alpha1.ConditionProgressing, "True"}, ""},
		{[]string{"NEEDED", "HAS"}, []string{"required", "no"}, red},
		{[]string{"NEEDED", "HAS"}, []string{"optional", "no"}, ""},
		{[]string{"NEEDED", "HAS"}, []string{"required", "unknown"}, yellow},
	} {
		if got := colourOf(c.head, c.row, 1); got != c.want {
			t.Errorf("%v: got %q, want %q", c.row, got, c.want)
		}
	}
}

// A cell is painted where it is, also after characters of several bytes, or not at all.
func TestCellsArePaintedWhereTheyAre(t *testing.T) {
	for name, c := range map[string]struct {
		rows [][]string
		want string
	}{
		"wide characters": {[][]string{{"NODE", "STATE", "READY"}, {"größe", "NotReady", "False"}},
			bold + "NODE    STATE      READY" + plain + "\ngröße   " + red + "NotReady" + plain + "   " + red + "False" + plain + "\n"},
		"a cell of two columns": {[][]string{{"NODE", "READY"}, {"a\tb", "False"}}, ""},
		"a list without a head": {[][]string{{"Claim:", "unknown"}}, "Claim:   unknown\n"},
	} {
		var out bytes.Buffer
		tab := newTable(coloured{&out})
		tab.columns(c.rows)
		if tab.err != nil || c.want != "" && out.String() != c.want || c.want == "" && strings.Contains(out.String(), red) {
			t.Errorf("%s: got %q, want %q; %v", name, &out, c.want, tab.err)
		}
	}
}

// Colours are for terminals, unless somebody says otherwise.
func TestColourFlag(t *testing.T) {
	nodes := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []corev1.Node{debian(nil)}}
	for name, c := range map[string]struct {
		args     []string
		colours  bool
		mistaken bool
	}{
		"into a pipe":          {nil, false, false},
		"always":               {[]string{"--color=always"}, true, false},
		"never":                {[]string{"--color=never"}, false, false},
		"for programs, always": {[]string{"--color=always", "-o", "json"}, false, false},
		"a mistake":            {[]string{"--color=blue"}, false, true},
	} {
		var out bytes.Buffer
		cmd := Command("test")
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"check", "--kubeconfig", apiServer(t, map[string]any{"/api/v1/nodes": nodes}, nil)}, c.args...))
		err := cmd.ExecuteContext(t.Context())
		if c.mistaken != (err != nil) || strings.Contains(out.String(), bold) != c.colours {
			t.Errorf("%s: %v, %q", name, err, &out)
		}
	}
	t.Setenv("TERM", "xterm")
	if showsColours(&bytes.Buffer{}) {
		t.Error("a buffer is no terminal")
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("no pseudo-terminal: %v", err)
	}
	defer func() { _ = terminal.Close() }()
	for _, c := range []struct {
		noColour, kind string
		want           bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"", "dumb", false}} {
		t.Setenv("NO_COLOR", c.noColour)
		t.Setenv("TERM", c.kind)
		if got := showsColours(terminal); got != c.want {
			t.Errorf("NO_COLOR=%q TERM=%q: %v", c.noColour, c.kind, got)
		}
	}
}

// What others wrote reaches the terminal as text, and does not move its cursor or set its clipboard.
func TestOthersDoNotCommandTheTerminal(t *testing.T) {
	var out strings.Builder
	shown := &table{out: &out, colours: true}
	const theirs = "Event \x1b]0;title\x07\x1b[2J\u009b1A"
	shown.title(bold, theirs)
	shown.line("%s", theirs)
	shown.columns([][]string{{"MESSAGE"}, {theirs}})
	left := strings.NewReplacer(bold, "", red, "", yellow, "", plain, "").Replace(out.String())
	if strings.ContainsFunc(left, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) || strings.Count(left, "Event") != 3 {
		t.Errorf("%q", out.String())
	}
}
