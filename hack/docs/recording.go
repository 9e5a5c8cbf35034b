// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"time"
)

const (
	// longestPause is how long the picture waits for the next line, however long the command took.
	longestPause = 1200 * time.Millisecond
	// hold is how long the end stays before the picture begins again.
	hold = 8 * time.Second

	lineHeight, charWidth, margin, bar = 17, 7.25, 14, 30
)

// row is a line of the terminal.
type row struct {
	at   time.Duration // since the picture began
	text string
}

var (
	// control sequences of terminals (colours, moves): a picture has neither.
	control = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]`)
	// step of the demo, and the prompt.
	step = regexp.MustCompile(`^(==>|\$) `)
)

// layout makes a row of each line, cut to the terminal's width so that tables stay tables, and shortens pauses.
func layout(c cast) []row {
	rows := []row{{text: "$ " + c.header.Command}}
	var at, before time.Duration
	for _, e := range c.events {
		at += min(e.at-before, longestPause)
		before = e.at
		text := strings.TrimSuffix(strings.ReplaceAll(control.ReplaceAllString(e.text, ""), "\r\n", "\n"), "\n")
		for line := range strings.SplitSeq(text, "\n") {
			// What a carriage return overwrote is gone.
			line = strings.TrimRight(line[strings.LastIndex(line, "\r")+1:], " ")
			cells := []rune(line)
			if len(cells) > c.header.Width {
				cells = append(cells[:c.header.Width-1], '…')
			}
			rows = append(rows, row{at, string(cells)})
		}
	}
	return rows
}

// drawFile gives the picture of a recording.
func drawFile(from, to string) (map[string]string, error) {
	in, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	c, err := readCast(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return map[string]string{to: draw(c)}, nil
}

// draw makes the picture: a terminal with a ground of its own, so that it can be read on light and dark pages, in which
// CSS alone moves the text. Where nothing moves (no animation, or a reader who wants none), it shows the end.
func draw(c cast) string {
	lines := layout(c)
	width := float64(c.header.Width)*charWidth + 2*margin
	inner := c.header.Height * lineHeight
	height := bar + inner + margin
	label := fmt.Sprintf("Recording of %s", c.header.Command)
	recorded := time.Unix(c.header.Timestamp, 0).UTC().Format("2 January 2006")
	var b strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	put(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %d" role="img" aria-label="%s">`, width, height, html.EscapeString(label))
	put(`<!-- SPDX-License-Identifier: Apache-2.0; drawn by make demo-recording -->`)
	put(`<style>`)
	put(`text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e6edf3;white-space:pre}`)
	put(`.step{fill:#79c0ff;font-weight:bold}.bar{fill:#9198a1}`)
	put(`%s`, animation(lines, c.header.Height))
	put(`</style>`)
	put(`<rect x="0.5" y="0.5" width="%g" height="%d" rx="6" fill="#0d1117" stroke="#6e7681"/>`, width-1, height-1)
	put(`<text class="bar" x="%d" y="19">%s</text>`, margin, html.EscapeString(c.header.Command))
	put(`<text class="bar" x="%g" y="19" text-anchor="end">recorded on %s; pauses are shortened, times are as printed</text>`, width-margin, recorded)
	put(`<svg x="%d" y="%d" width="%g" height="%d">`, margin, bar, width-2*margin, inner)
	put(`<g class="scroll" transform="translate(0 %d)">`, -max(0, len(lines)-c.header.Height)*lineHeight)
	for i, l := range lines {
		if l.text == "" {
			continue
		}
		class := ""
		if step.MatchString(l.text) {
			class = ` class="step"`
		}
		put(`<text%s xml:space="preserve" y="%d">%s</text>`, class, (i+1)*lineHeight-4, html.EscapeString(l.text))
	}
	put(`</g>`)
	put(`<rect class="cover" y="%d" width="100%%" height="%d" fill="#0d1117"/>`, inner, inner)
	put(`</svg>`)
	put(`</svg>`)
	return b.String()
}

// animation is the CSS that moves the text up line by line, and what hides the lines that are not printed yet down.
func animation(lines []row, height int) string {
	all := lines[len(lines)-1].at + hold
	var scroll, cover strings.Builder
	for i, l := range lines {
		// Of lines that are printed at once, the last one says how far the text is.
		if i+1 < len(lines) && lines[i+1].at == l.at {
			continue
		}
		percent := 100 * l.at.Seconds() / all.Seconds()
		shown := i + 1
		fmt.Fprintf(&scroll, "%.2f%%{transform:translateY(%dpx)}", percent, -max(0, shown-height)*lineHeight)
		// Its place in the picture is the end of the window.
		fmt.Fprintf(&cover, "%.2f%%{transform:translateY(%dpx)}", percent, (min(shown, height)-height)*lineHeight)
	}
	return fmt.Sprintf("@keyframes scroll{%s}\n@keyframes cover{%s}\n", scroll.String(), cover.String()) +
		fmt.Sprintf("@media (prefers-reduced-motion:no-preference){.scroll{animation:scroll %.1fs step-end infinite}", all.Seconds()) +
		fmt.Sprintf(".cover{animation:cover %.1fs step-end infinite}}", all.Seconds())
}
