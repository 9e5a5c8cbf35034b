// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
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
