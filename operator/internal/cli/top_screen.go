// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

const (
	// upAndClear goes up a number of lines, and clears everything from there.
	upAndClear = "\x1b[%dA\x1b[J"
	// rowsBeside the table that fit on a screen: the prompt.
	rowsBeside = 1
)

// screen is where tables go. On a terminal, they replace each other, as wide and as high as it is.
type screen struct {
	out, stderr io.Writer
	// size of the terminal; false: the output is none.
	size    func() (width, height int, is bool)
	colours bool
	// drawn lines that the next table replaces.
	drawn int
	// complained already, and how many tables or documents were printed one after the other.
	complained string
	documents  int
}

func newScreen(out, stderr io.Writer) *screen {
	s := &screen{out: out, stderr: stderr, size: func() (int, int, bool) { return 0, 0, false }}
	if with, is := out.(coloured); is {
		s.out, s.colours = with.Writer, true
	}
	if f, ok := s.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.size = func() (int, int, bool) {
			width, height, err := term.GetSize(int(f.Fd()))
			return width, height, err == nil && width > 0 && height > 0
		}
	}
	return s
}

// note what a person waits for. The next table replaces it.
func (s *screen) note(text string) {
	if _, _, terminal := s.size(); terminal {
		_ = s.draw([]string{text}) // the table tells of an output that fails
	}
}

// draw lines in place of those drawn before.
func (s *screen) draw(lines []string) error {
	text := strings.Join(lines, "\n")
	if len(lines) > 0 {
		text += "\n"
	}
	if s.drawn > 0 {
		text = fmt.Sprintf(upAndClear, s.drawn) + text
	}
	s.drawn = len(lines)
	_, err := io.WriteString(s.out, text)
	return err
}

// bars in place of those drawn before, as many as there is room for; nothing without a terminal.
func (s *screen) bars(bars []string) error {
	width, height, terminal := s.size()
	if !terminal {
		return nil
	}
	var lines []string
	for _, bar := range bars[:min(len(bars), max(height-rowsBeside, 0))] {
		lines = append(lines, cut(printable(bar), width))
	}
	if len(lines)+s.drawn == 0 {
		return nil
	}
	return s.draw(lines)
}

// print a whole table. It stays.
func (s *screen) print(table string, marked []bool) error {
	if s.drawn > 0 {
		if err := s.draw(nil); err != nil {
			return err
		}
	}
	_, err := io.WriteString(s.out, strings.Join(s.painted(linesOf(table), marked), "\n")+"\n")
	return err
}

// document for programs: several are separated.
func (s *screen) document(text []byte, yaml bool) error {
	if yaml && s.documents > 0 {
		text = append([]byte("---\n"), text...)
	}
	s.documents++
	_, err := s.out.Write(text)
	return err
}

// refresh the table with one of a later time. What cannot be shown for lack of rows is counted.
func (s *screen) refresh(title, table string, marked []bool, failed []string) error {
	width, height, terminal := s.size()
	if !terminal {
		s.complain(failed)
		if s.documents++; s.documents > 1 {
			title = "\n" + title
		}
		return s.print(title+"\n"+table, nil)
	}
	lines := linesOf(table)
	room := max(height-rowsBeside-1-len(failed), 3) // a title
	if left := len(lines) - room; left > 0 {
		lines = append(lines[:room-1:room-1], fmt.Sprintf("and %d more", left+1))
	}
	for i := range lines {
		lines[i] = cut(lines[i], width)
	}
	lines = append([]string{cut(title, width)}, s.painted(lines, marked)...)
	for _, text := range failed {
		lines = append(lines, cut(text, width))
	}
	return s.draw(lines[:min(len(lines), max(height-rowsBeside, 1))])
}

// complain on standard error, once about the same.
func (s *screen) complain(lines []string) {
	text := strings.Join(lines, "\n")
	if text == s.complained {
		return
	}
	s.complained = text
	if s.drawn > 0 {
		_ = s.draw(nil) // the table tells of an output that fails
	}
	if text != "" {
		_, _ = fmt.Fprintln(s.stderr, text)
	}
}

// painted lines of a table, its head first.
func (s *screen) painted(lines []string, marked []bool) []string {
	if !s.colours || len(marked) == 0 {
		return lines
	}
	lines = slices.Clone(lines)
	lines[0] = bold + lines[0] + plain
	for i, is := range marked {
		if is && i+1 < len(lines) {
			lines[i+1] = yellow + lines[i+1] + plain
		}
	}
	return lines
}

func linesOf(table string) []string {
	return strings.Split(strings.TrimRight(table, "\n"), "\n")
}

// cut a line to a width, so that it takes one row.
func cut(line string, width int) string {
	if all := []rune(line); len(all) > width {
		return string(all[:max(width, 1)])
	}
	return line
}
