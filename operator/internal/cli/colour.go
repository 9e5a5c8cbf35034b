// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Colours of a terminal, and what ends them.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

// Values of --color.
const (
	colourAuto   = "auto"
	colourAlways = "always"
	colourNever  = "never"
)

var colourModes = []string{colourAuto, colourAlways, colourNever}

// coloured is an output that shows colours.
type coloured struct{ io.Writer }

// colourFlag adds --color to all commands, and has their output show colours.
func colourFlag(root *cobra.Command) {
	mode := colourAuto
	root.PersistentFlags().StringVar(&mode, "color", mode, "colors for what is wrong: auto (on a terminal, unless NO_COLOR is set), always or never")
	_ = root.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(colourModes, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if !slices.Contains(colourModes, mode) {
			return fmt.Errorf("--color is %q; must be auto, always or never", mode)
		}
		if out := cmd.OutOrStdout(); mode == colourAlways || mode == colourAuto && showsColours(out) {
			cmd.SetOut(coloured{out})
		}
		return nil
	}
}

// showsColours says whether an output is a terminal that nobody asked to show none. See https://no-color.org.
func showsColours(out io.Writer) bool {
	f, is := out.(*os.File)
	return is && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// stateColours are the columns of tables that tell a state, and the colour of what is wrong in them; "" for what is
// not. Work that ends by itself, and what a person wanted, is not wrong.
var stateColours = map[string]func(cell string) string{
	"READY": whose(map[string]string{"False": red, "no": red, "Unknown": yellow}),
	"AGENT": whose(map[string]string{"silent": red}),
	"STATE": whose(map[string]string{
		driveNotReady: red, string(v1alpha1.VolumeUnavailable): red, string(v1alpha1.VolumeLost): red,
		string(v1alpha1.VolumeDegraded): yellow, string(v1alpha1.VolumeUnknown): yellow, string(v1alpha1.MemberOut): yellow,
	}),
	"DATA":        whose(map[string]string{string(v1alpha1.MemberOut): yellow}),
	"RECORD":      whose(map[string]string{string(v1alpha1.MemberOut): yellow}),
	"PHASE":       whose(map[string]string{"Failed": red, "Unknown": yellow}),
	"RECOVERABLE": whose(map[string]string{"no": red, "in doubt": yellow}),
	"PROBLEM": func(cell string) string {
		if cell == "-" || cell == "" {
			return ""
		}
		return yellow
	},
}

// whose colour is that of the word that a cell begins with.
func whose(colours map[string]string) func(string) string {
	return func(cell string) string {
		word, _, _ := strings.Cut(cell, " (")
		return colours[word]
	}
}

// colourOf a cell in a row under a head.
func colourOf(head, row []string, i int) string {
	switch {
	case row[i] == "unknown":
		return yellow
	case head[i] == "STATUS":
		if kind := slices.Index(head, "CONDITION"); kind >= 0 && len(amiss([]metav1.Condition{{Type: row[kind], Status: metav1.ConditionStatus(row[i])}})) > 0 {
			return red
		}
	case head[i] == "HAS":
		if needed := slices.Index(head, "NEEDED"); needed >= 0 && row[needed] == "required" && row[i] == "no" {
			return red
		}
	case stateColours[head[i]] != nil:
		return stateColours[head[i]](row[i])
	}
	return ""
}

// paint the lines of a table with these rows, of which the first is the head. A row whose cells are not where the
// head's are, because one of them has several lines or columns, stays as it is.
func paint(lines []string, rows [][]string) []string {
	if len(rows) == 0 || len(lines) != len(rows) || strings.ToUpper(rows[0][0]) != rows[0][0] {
		return lines
	}
	head := rows[0]
	var starts []int // in characters: heads are ASCII
	at := 0
	for _, name := range head {
		i := strings.Index(lines[0][at:], name)
		if i < 0 {
			return lines
		}
		starts = append(starts, at+i)
		at += i + len(name)
	}
	painted := []string{bold + lines[0] + plain}
	for n, row := range rows[1:] {
		painted = append(painted, paintRow(lines[n+1], head, row, starts))
	}
	return painted
}

func paintRow(line string, head, row []string, starts []int) string {
	if len(row) != len(head) {
		return line
	}
	characters := []rune(line)
	for i := len(row) - 1; i >= 0; i-- { // backwards, so that what is before stays where it is
		colour, end := colourOf(head, row, i), starts[i]+len([]rune(row[i]))
		if colour == "" || end > len(characters) || string(characters[starts[i]:end]) != row[i] {
			continue
		}
		characters = slices.Concat(characters[:starts[i]], []rune(colour+row[i]+plain), characters[end:])
	}
	return string(characters)
}
