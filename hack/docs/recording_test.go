// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const recordings = "../../docs/figures/"

// clock gives moments a second apart.
func clock() func() time.Time {
	at := time.Unix(1_800_000_000, 0)
	return func() time.Time {
		at = at.Add(time.Second)
		return at
	}
}

func TestRecord(t *testing.T) {
	var shown bytes.Buffer
	c, err := record(t.Context(), []string{"sh", "-c", "echo one in /home/me/weft/.lab; echo two >&2; printf three"}, "/home/me/weft", &shown, clock())
	if err != nil {
		t.Fatal(err)
	}
	if shown.String() != "one in /home/me/weft/.lab\ntwo\nthree" {
		t.Errorf("shown: %q", shown.String())
	}
	want := []event{{time.Second, "one in ~/weft/.lab\r\n"}, {2 * time.Second, "two\r\n"}, {3 * time.Second, "three\r\n"}}
	if !slices.Equal(c.events, want) {
		t.Errorf("recorded %v, want %v", c.events, want)
	}

	var file bytes.Buffer
	if err := c.write(&file); err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(file.String(), "\n")
	if !strings.HasPrefix(first, `{"version":2,"width":120,"height":30,"timestamp":1800000001,"command":"sh -c `) {
		t.Errorf("the header is %s", first)
	}
	again, err := readCast(&file)
	if err != nil || again.header != c.header || !slices.Equal(again.events, c.events) {
		t.Errorf("read back %v, %v", again, err)
	}
}

// A run that fails is not published, and leaves the recording of the last good one.
func TestFailedCommandIsNotRecorded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demo.cast")
	if err := os.WriteFile(path, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"sh", "-c", "echo working; exit 3"}, {"true"}, {"/nowhere/demo"}} {
		if err := run(t.Context(), append([]string{"record", path}, command...)); err == nil {
			t.Errorf("%q was recorded", command)
		}
	}
	if left, err := os.ReadFile(path); err != nil || string(left) != "good" {
		t.Errorf("left %q, %v", left, err)
	}
}

func TestReadCastRefuses(t *testing.T) {
	const head = `{"version":2,"width":80,"height":24}` + "\n"
	for _, text := range []string{
		"", "{}", `{"version":1,"width":80,"height":24}`, head, head + `[1,"o"]`, head + `[1,"i","typed"]`, head + `["1","o","x"]`,
		head + `[2,"o","x"]` + "\n" + `[1,"o","y"]`, head + `[1,"o","x"`,
	} {
		if c, err := readCast(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read as %v", text, c)
		}
	}
}

func TestLayout(t *testing.T) {
	c := cast{header{Version: 2, Width: 10, Height: 3, Command: "x"}, []event{
		{100 * time.Millisecond, "short\r\n"},
		{time.Minute, "\x1b[1;32mgreen\x1b[0m\r\n\r\n"},
		{time.Minute + time.Second, "50 %\r100 %  \r\n"},
		{time.Minute + time.Second, "0123456789ab\r\n"},
	}}
	want := []row{
		{0, "$ x"}, {100 * time.Millisecond, "short"}, {1300 * time.Millisecond, "green"}, {1300 * time.Millisecond, ""},
		{2300 * time.Millisecond, "100 %"}, {2300 * time.Millisecond, "012345678…"},
	}
	if got := layout(c); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestDrawing(t *testing.T) {
	c := cast{header{Version: 2, Width: 20, Height: 3, Timestamp: 1_800_000_000, Command: "make demo"}, []event{
		{time.Second, "==> start <&>\r\n"}, {2 * time.Second, "a\r\nb\r\n"},
	}}
	picture := draw(c)
	decoder := xml.NewDecoder(strings.NewReader(picture))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("no XML: %v\n%s", err, picture)
		}
	}
	for _, part := range []string{
		">==&gt; start &lt;&amp;&gt;</text>", "recorded on 15 January 2027",
		// Four lines in a window of three: the end, where nothing moves, is one line up.
		`transform="translate(0 -17)"`,
		"@keyframes scroll{0.00%{transform:translateY(0px)}10.00%{transform:translateY(0px)}20.00%{transform:translateY(-17px)}}",
		// The cover hides two lines at the beginning, then one, then none.
		"@keyframes cover{0.00%{transform:translateY(-34px)}10.00%{transform:translateY(-17px)}20.00%{transform:translateY(0px)}}",
		"@media (prefers-reduced-motion:no-preference){.scroll{animation:scroll 10.0s",
	} {
		if !strings.Contains(picture, part) {
			t.Errorf("the picture lacks %s:\n%s", part, picture)
		}
	}
	if links := regexp.MustCompile(`(href|url\(|@import|<script)`).FindString(picture); links != "" {
		t.Errorf("the picture depends on something else: %s", links)
	}
}

// recorded skips a test of the recording in docs/figures while there is none: `make demo-recording` makes it.
func recorded(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(recordings + "demo.cast"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("no recording in docs/figures: run `make demo-recording`")
	}
}

// The picture of README.md is drawn from the recording beside it.
func TestPictureIsOfTheRecording(t *testing.T) {
	recorded(t)
	drawn := filepath.Join(t.TempDir(), "demo.svg")
	if err := run(t.Context(), []string{"draw", recordings + "demo.cast", drawn}); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(drawn)
	if err != nil {
		t.Fatal(err)
	}
	if have, err := os.ReadFile(recordings + "demo.svg"); err != nil || !bytes.Equal(have, want) {
		t.Errorf("docs/figures/demo.svg is not what demo.cast gives (%v): run `go run ./hack/docs draw docs/figures/demo.cast docs/figures/demo.svg`", err)
	}
}

var (
	// stepOf the demo, in its code.
	stepOf = regexp.MustCompile(`(?:Step\{Name: |\t\t\{)"([^"]+)", (?:Do: )?(?:func|[dr]\.)`)
	// begun is a step in a recording, whose lines are JSON as Go writes it.
	begun = regexp.MustCompile(`==\\u003e (.*?)\\r\\n`)
)

// The recording shows the steps that the demo has today.
func TestRecordingIsOfTodaysDemo(t *testing.T) {
	recorded(t)
	steps := func(re *regexp.Regexp, paths ...string) []string {
		var found []string
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range re.FindAllSubmatch(text, -1) {
				found = append(found, string(m[1]))
			}
		}
		slices.Sort(found)
		return found
	}
	want := steps(stepOf, "../../test/e2e/cmd/weft-lab/demo.go", "../../test/e2e/suite/steps.go")
	have := steps(begun, recordings+"demo.cast")
	if len(want) == 0 || !slices.Equal(have, want) {
		t.Errorf("docs/figures/demo.cast has the steps %q, the demo %q: run `make demo-recording`", have, want)
	}
}
