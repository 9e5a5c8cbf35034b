// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// readingOf a text, so many seconds after noon.
func readingOf(t *testing.T, seconds int, text string) *reading {
	t.Helper()
	families, err := parsed(strings.NewReader(text+"\nother 1\n"), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return &reading{at: noon.Add(time.Duration(seconds) * time.Second), families: families}
}

// ioText of a volume whose I/Os took 1 ms and had 4 KiB each.
func ioText(volume string, reads, writes int) string {
	var b strings.Builder
	for op, n := range map[string]int{"read": reads, "write": writes} {
		fmt.Fprintf(&b, "%s{volume=%q,op=%q} %d\n%s{volume=%q,op=%q} %d\n%s{volume=%q,op=%q} %g\n", ioOfVolumes.operations, volume, op, n,
			ioOfVolumes.bytes, volume, op, n*4096, ioOfVolumes.seconds, volume, op, float64(n)/1000)
	}
	return b.String()
}

// Rates are never negative, and never of a time or a count that did not happen: then they are unknown.
func TestRates(t *testing.T) {
	const counted = "\nweft_agent_statistics_timestamp_seconds "
	for name, c := range map[string]struct {
		from, to string
		reads    float64 // a second; negative: not known
	}{
		"grown":                        {ioText("v", 100, 0), ioText("v", 200, 0), 10},
		"idle":                         {ioText("v", 100, 7), ioText("v", 100, 7), 0},
		"began again, with less":       {ioText("v", 1<<40, 7), ioText("v", 3, 7), -1},
		"began again, one of them":     {ioText("v", 100, 7), ioText("v", 200, 3), -1},
		"began again, with more":       {ioText("v", 10, 7), ioText("v", 300, 7), 29}, // fewer than there were, not more
		"new":                          {ioText("other", 1, 1), ioText("v", 1<<40, 7), -1},
		"gone":                         {ioText("v", 100, 7), ioText("other", 1, 1), -1},
		"the one beside it new":        {ioText("v", 100, 7), ioText("v", 200, 7) + ioText("other", 5, 5), 10},
		"counted in less time":         {ioText("v", 100, 7) + counted + "1000", ioText("v", 200, 7) + counted + "1005", 20},
		"counted at the same time":     {ioText("v", 100, 7) + counted + "1000", ioText("v", 100, 7) + counted + "1000", -1},
		"the clock set back":           {ioText("v", 100, 7) + counted + "1000", ioText("v", 200, 7) + counted + "10", -1},
		"the clock set forward":        {ioText("v", 100, 7) + counted + "1000", ioText("v", 200, 7) + counted + "5000", -1},
		"of an agent that was updated": {ioText("v", 100, 7), ioText("v", 200, 7) + counted + "1005", 10},
	} {
		t.Run(name, func(t *testing.T) {
			is := span{readingOf(t, 0, c.from), readingOf(t, 10, c.to)}
			got := is.flows(ioOfVolumes, by("volume"))["v"].traffic()
			switch {
			case c.reads < 0 && got != nil:
				t.Errorf("got %+v, though it is not known", got)
			case c.reads >= 0 && (got == nil || got.ReadsPerSecond != c.reads || math.Abs(got.ReadBytesPerSecond-c.reads*4096) > 1e-6):
				t.Errorf("got %+v", got)
			case c.reads > 0 && math.Abs(*got.ReadLatencySeconds-0.001) > 1e-9, c.reads == 0 && got.ReadLatencySeconds != nil:
				t.Errorf("latency %v", got.ReadLatencySeconds)
			}
		})
	}
	alone := span{to: readingOf(t, 0, ioText("v", 100, 7))}
	if got := alone.flows(ioOfVolumes, by("volume")); got != nil {
		t.Errorf("one reading has no rates; got %v", got)
	}
}

// Counts are totals, and what is new of them, also after they began again.
func TestCounts(t *testing.T) {
	is := span{readingOf(t, 0, `errors{replica="a"} 5
errors{replica="b"} 100`), readingOf(t, 10, `errors{replica="a"} 7
errors{replica="b"} 3
errors{replica="c"} 4`)}
	for replica, want := range map[string]Count{"a": {7, 2}, "b": {3, 3}, "c": {4, 0}} {
		if got := is.counts("errors", by("replica"))[replica]; got != want {
			t.Errorf("%s: got %+v, want %+v", replica, got, want)
		}
	}
	if got := is.counts("errors", together)[""]; got != (Count{14, 5}) || got.String() != "14 (+5)" {
		t.Errorf("together: %s", got)
	}
}

func TestFiguresForPeople(t *testing.T) {
	for seconds, want := range map[float64]string{0.000085: "85 us", 0.0009996: "1000 us", 0.00124: "1.24 ms", 0.0451: "45.1 ms", 0.4512: "451 ms", 2.5: "2.50 s"} {
		if got := latency(&seconds); got != want {
			t.Errorf("%g s: got %s, want %s", seconds, got, want)
		}
	}
	for n, want := range map[float64]string{0: "0", 0.004: "0.00", 9.994: "9.99", 12.34: "12.3", 123456.7: "123457"} {
		if got := perSecond(n); got != want {
			t.Errorf("%g: got %s, want %s", n, got, want)
		}
	}
}
