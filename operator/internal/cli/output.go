// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Formats of -o.
const (
	outputTable = "table"
	outputWide  = "wide"
	outputJSON  = "json"
	outputYAML  = "yaml"
	// outputText of a command that changes something is in lines.
	outputText = "text"
)

// output is the format that -o asks for, of those that a command offers.
type output struct {
	format string
	offers []string
}

// outputFlag adds -o to a command that shows something. Tables are the default; what has no further columns is the same
// with outputWide.
func outputFlag(cmd *cobra.Command) *output {
	return formatFlag(cmd, outputTable, outputWide, outputJSON, outputYAML)
}

// resultFlag adds -o to a command that changes something.
func resultFlag(cmd *cobra.Command) *output {
	return formatFlag(cmd, outputText, outputJSON, outputYAML)
}

// formatFlag adds -o with these formats to a command, which runs with no other. The first is the default.
func formatFlag(cmd *cobra.Command, offers ...string) *output {
	o := &output{offers: offers}
	cmd.PreRunE = func(*cobra.Command, []string) error { return o.check() }
	cmd.Flags().StringVarP(&o.format, "output", "o", offers[0], "output format: "+o.list())
	// The flag exists: it was added a line ago.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.offers, cobra.ShellCompDirectiveNoFileComp))
	return o
}

func (o *output) list() string {
	last := len(o.offers) - 1
	return strings.Join(o.offers[:last], ", ") + " or " + o.offers[last]
}

// check that the command offers the format.
func (o *output) check() error {
	if !slices.Contains(o.offers, o.format) {
		return fmt.Errorf("--output is %q; must be %s", o.format, o.list())
	}
	return nil
}

// wide tables have columns that few need.
func (o *output) wide() bool { return o.format == outputWide }

// forPeople says that the output is a table or lines.
func (o *output) forPeople() bool { return o.format != outputJSON && o.format != outputYAML }

// encode v for programs; false: the command prints a table instead.
func (o *output) encode(w io.Writer, v any) (done bool, err error) {
	switch o.format {
	case outputJSON:
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false) // "<" and "&" in messages are for people
		return true, encoder.Encode(v)
	case outputYAML:
		text, err := yaml.Marshal(v)
		if err != nil {
			return true, fmt.Errorf("encode the output: %w", err)
		}
		_, err = w.Write(text)
		return true, err
	}
	return false, nil
}
