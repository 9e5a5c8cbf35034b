// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// terminal that shows what a program writes: it knows the sequences that kubectl weft top uses.
type terminal struct {
	t             *testing.T
	width, height int
	lines         []string
	written       bytes.Buffer
}

// upwards is what upAndClear makes.
var upwards = regexp.MustCompile(`^\x1b\[(\d+)A\x1b\[J`)

func (v *terminal) Write(p []byte) (int, error) {
	v.written.Write(p)
	text := string(p)
	if m := upwards.FindStringSubmatch(text); m != nil {
		up, err := strconv.Atoi(m[1])
		if err != nil || up > len(v.lines) || up >= v.height {
			v.t.Fatalf("%s lines up, of %d on a screen of %d", m[1], len(v.lines), v.height)
		}
		v.lines, text = v.lines[:len(v.lines)-up], strings.TrimPrefix(text, m[0])
	}
	for line := range strings.Lines(text) {
		for _, colour := range []string{bold, yellow, plain} {
			line = strings.ReplaceAll(line, colour, "")
		}
		if len(line) > v.width+1 {
			v.t.Errorf("a line takes more than a row: %q", line)
		}
		v.lines = append(v.lines, strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}

func (v *terminal) screen() *screen {
	return &screen{out: v, stderr: v, colours: true, size: func() (int, int, bool) { return v.width, v.height, true }}
}

func (v *terminal) shows(want string) {
	v.t.Helper()
	if got := strings.Join(v.lines, "\n"); got != want {
		v.t.Errorf("the terminal shows\n%s\nwant\n%s", got, want)
	}
}

// On a terminal, tables replace each other, and nothing before them.
func TestTablesReplaceEachOther(t *testing.T) {
	v := &terminal{t: t, width: 12, height: 8}
	s := v.screen()
	v.lines = []string{"$ kubectl weft top nodes -w"}
	s.note("Counting...")
	v.shows("$ kubectl weft top nodes -w\nCounting...")
	if err := errors.Join(
		s.refresh("noon", "NODE X\na 1\nb 2\n", []bool{false, true}, nil),
		s.refresh("later", "NODE X\na 3\n", []bool{false}, []string{"cannot read b, for reasons"})); err != nil {
		t.Fatal(err)
	}
	v.shows("$ kubectl weft top nodes -w\nlater\nNODE X\na 3\ncannot read ")
	if got := v.written.String(); !strings.Contains(got, bold+"NODE X"+plain+"\na 1\n"+yellow+"b 2"+plain) {
		t.Errorf("wrote %q", got)
	}
	if err := s.refresh("full", "NODE X\n"+strings.Repeat("c 1\n", 9), make([]bool, 9), []string{"cannot"}); err != nil {
		t.Fatal(err)
	}
	v.shows("$ kubectl weft top nodes -w\nfull\nNODE X\nc 1\nc 1\nc 1\nand 6 more\ncannot")
	s.complain([]string{"API away"}) // it takes the place of a table
	v.lines = v.lines[:1]
	v.height = 2
	if err := s.refresh("small", "NODE X\na 3\nb 4\n", make([]bool, 2), []string{"cannot"}); err != nil {
		t.Fatal(err)
	}
	v.shows("$ kubectl weft top nodes -w\nsmall")
}

// A table that stays is whole, also on a small terminal.
func TestTableStays(t *testing.T) {
	v := &terminal{t: t, width: 60, height: 4}
	s := v.screen()
	s.note("Counting...")
	if err := s.print("NODE X\n"+strings.Repeat("c 1\n", 9), make([]bool, 9)); err != nil {
		t.Fatal(err)
	}
	v.shows("NODE X\n" + strings.TrimSuffix(strings.Repeat("c 1\n", 9), "\n"))
	v.lines = nil
	s.complain([]string{"one"})
	s.complain([]string{"one"})
	s.complain(nil)
	s.complain([]string{"one"})
	v.shows("one\none")
}

// A file or a pipe gets no sequences of terminals.
func TestPipesGetTextAlone(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	var stderr bytes.Buffer
	s := newScreen(file, &stderr)
	s.note("Counting...")
	if err := errors.Join(s.refresh("noon", "NODE X\na 1\n", []bool{true}, []string{"cannot"}), s.refresh("later", "NODE X\na 2\n", []bool{true}, []string{"cannot"})); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil || string(text) != "noon\nNODE X\na 1\n\nlater\nNODE X\na 2\n" || stderr.String() != "cannot\n" {
		t.Errorf("%v: got %q and %q", err, text, &stderr)
	}
}
