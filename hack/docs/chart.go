// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// chart is a figure with lines over an axis of numbers, or of words. It is drawn for a light page: darkColours has its
// colours on a dark one.
type chart struct {
	title, below  string
	xTitle        string
	yTitle        string
	xWords        []string // at 0, 1, 2, ...; nil: numbers
	xTicks        []float64
	yTicks        []float64
	lines         []line
	markAt        float64 // a vertical line; NaN: none
	mark          string
	width, height int
}

type line struct {
	name   string
	points [][2]float64
	dashed bool
}

var colours = []string{"#0b6e99", "#c4500c", "#5b3fa0", "#2e7d32"}

const (
	left, right, top, bottom = 64, 200, 44, 76
	font                     = `font-family="system-ui, sans-serif"`
)

// svg draws the chart. The same chart gives the same bytes.
func (c chart) svg() string {
	var b strings.Builder
	draw := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	draw(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`, c.width, c.height, html.EscapeString(c.title))
	draw(`<!-- SPDX-License-Identifier: Apache-2.0; drawn by make docs-figures -->`)
	draw(`<rect width="100%%" height="100%%" fill="#ffffff"/>`)
	text := func(x, y float64, anchor, size, words string) {
		draw(`<text x="%s" y="%s" text-anchor="%s" font-size="%s" %s fill="#1f2328">%s</text>`, number(x), number(y), anchor, size, font, html.EscapeString(words))
	}
	plotRight, plotBottom := float64(c.width-right), float64(c.height-bottom)
	x, y := c.scales(plotRight, plotBottom)
	text(left, 24, "start", "16", c.title)
	for _, t := range c.yTicks {
		draw(`<line x1="%d" x2="%s" y1="%s" y2="%s" stroke="#d1d9e0"/>`, left, number(plotRight), number(y(t)), number(y(t)))
		text(left-8, y(t)+4, "end", "12", plain(t))
	}
	for i, t := range c.xTicks {
		words := plain(t)
		if c.xWords != nil {
			words = c.xWords[i]
		}
		draw(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="#8c959f"/>`, number(x(t)), number(x(t)), number(plotBottom), number(plotBottom+5))
		text(x(t), plotBottom+20, "middle", "12", words)
	}
	draw(`<line x1="%d" x2="%s" y1="%s" y2="%s" stroke="#8c959f"/>`, left, number(plotRight), number(plotBottom), number(plotBottom))
	text((left+plotRight)/2, plotBottom+40, "middle", "13", c.xTitle)
	if c.yTicks[0] != 0 {
		// Two strokes across the foot of an axis are how a reader knows that it does not begin at zero.
		draw(`<path d="M%d %s v-8 l-5 -3 l10 -4 l-5 -3 v-8" fill="none" stroke="#4b545e" stroke-width="1.5"/>`, left, number(plotBottom))
		text(left+10, plotBottom-8, "start", "11", "axis starts at "+plain(c.yTicks[0]))
	}
	draw(`<text transform="translate(18 %s) rotate(-90)" text-anchor="middle" font-size="13" %s fill="#1f2328">%s</text>`, number((top+plotBottom)/2), font, html.EscapeString(c.yTitle))
	if !math.IsNaN(c.markAt) {
		draw(`<line x1="%s" x2="%s" y1="%d" y2="%s" stroke="#4b545e" stroke-dasharray="2 4"/>`, number(x(c.markAt)), number(x(c.markAt)), top, number(plotBottom))
		text(x(c.markAt)+6, plotBottom-8, "start", "12", c.mark)
	}
	for i, l := range c.lines {
		colour, dash := colours[i%len(colours)], ""
		if l.dashed {
			dash = ` stroke-dasharray="6 4"`
		}
		var points []string
		for _, p := range l.points {
			points = append(points, number(x(p[0]))+","+number(y(p[1])))
			draw(`<circle cx="%s" cy="%s" r="3" fill="%s"/>`, number(x(p[0])), number(y(p[1])), colour)
		}
		draw(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, strings.Join(points, " "), colour, dash)
		at := float64(top + 12 + 22*i)
		draw(`<line x1="%s" x2="%s" y1="%s" y2="%s" stroke="%s" stroke-width="2"%s/>`, number(plotRight+14), number(plotRight+40), number(at-4), number(at-4), colour, dash)
		text(plotRight+46, at, "start", "12", l.name)
	}
	text(left, float64(c.height)-12, "start", "11", c.below)
	draw(`</svg>`)
	return b.String()
}

// scales from the first tick to the last.
func (c chart) scales(plotRight, plotBottom float64) (x, y func(float64) float64) {
	scale := func(ticks []float64, from, to float64) func(float64) float64 {
		first, last := ticks[0], ticks[len(ticks)-1]
		return func(v float64) float64 { return from + (v-first)/(last-first)*(to-from) }
	}
	return scale(c.xTicks, left+10, plotRight-10), scale(c.yTicks, plotBottom, top)
}

func number(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
