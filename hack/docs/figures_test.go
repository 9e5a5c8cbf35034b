// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"strings"
	"testing"
)

// The figures and tables of docs/tuning.md are those that weft's plans come to today.
func TestFiguresAreUpToDate(t *testing.T) {
	files, err := figures("../..")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("%s is not what weft's plans come to: run make docs-figures, and read the diff (%v)", path, err)
		}
		if !strings.HasSuffix(path, ".svg") {
			continue
		}
		if len(want) > 100_000 {
			t.Errorf("%s has %d bytes", path, len(want))
		}
		decoder := xml.NewDecoder(strings.NewReader(want))
		for {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
	}
}

func TestReplaceBetween(t *testing.T) {
	const doc = "a\n<!-- x: written by make docs-figures -->\nold\n<!-- end of x -->\nb\n"
	got, err := replaceBetween(doc, "x", "new\n")
	if want := strings.Replace(doc, "old", "new", 1); err != nil || got != want {
		t.Errorf("got %q and %v", got, err)
	}
	if _, err := replaceBetween(doc, "y", ""); err == nil {
		t.Error("a table without a place was put somewhere")
	}
}

// A reader of a figure sees that its axis does not begin at zero, and has a ground under the words on every page.
func TestFiguresCanBeRead(t *testing.T) {
	from := func(first float64) chart {
		return chart{title: "t", xTicks: []float64{0, 1}, yTicks: []float64{first, first + 1}, markAt: math.NaN(), width: 720, height: 340,
			lines: []line{{name: "l", points: [][2]float64{{0, first}, {1, first + 1}}}}}
	}
	for first, marked := range map[float64]bool{0: false, 130: true} {
		light := from(first).svg()
		if got := strings.Contains(light, "axis starts at 130"); got != marked {
			t.Errorf("an axis from %g is marked: %v", first, got)
		}
		dark, err := darkened("t", light)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(light, `height="100%" fill="#ffffff"`) || strings.Contains(dark, "#ffffff") || strings.Contains(dark, "#1f2328") {
			t.Errorf("words and ground of the two figures are not of two pages:\n%s\n%s", light, dark)
		}
	}
	if _, err := darkened("t", `fill="#123456"`); err == nil {
		t.Error("a colour without one for a dark page was kept")
	}
}
