// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
)

// Report of one run.
type Report struct {
	// Seconds of each measurement.
	Seconds  int       `json:"seconds"`
	Variants []Variant `json:"variants"`
}

// Variant is one target that was measured.
type Variant struct {
	// Name such as "SPDK, plan Auto".
	Name string `json:"name"`
	// MemoryBytes that the plan gives the target; 0 of the kernel's.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// LargeBuffers of the plan; 0 of the kernel's.
	LargeBuffers int32    `json:"largeBuffers,omitempty"`
	Results      []Result `json:"results"`
}

// Result of a case, a pair of measurements for each round.
type Result struct {
	Case   Case       `json:"case"`
	Volume []Measured `json:"volume"`
	Local  []Measured `json:"local"`
}

// ratios of the volume's I/O a second to the local drive's, a round each, sorted.
func (r Result) ratios() []float64 {
	var out []float64
	for i := range min(len(r.Volume), len(r.Local)) {
		out = append(out, r.Volume[i].IOPS/r.Local[i].IOPS)
	}
	slices.Sort(out)
	return out
}

// median of what the measurements have.
func median(of []Measured, what func(Measured) float64) float64 {
	var values []float64
	for _, m := range of {
		values = append(values, what(m))
	}
	slices.Sort(values)
	return middle(values)
}

// middle of sorted values; of an even number, between the two.
func middle(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func iops(m Measured) float64 { return m.IOPS }
func mean(m Measured) float64 { return m.MeanMicros }
func p99(m Measured) float64  { return m.P99Micros }

// Write the report as tables for a page: for each variant the medians, and the ratios with the lowest and highest.
func (r Report) Write(w io.Writer) error {
	p := &printer{w: w}
	for _, v := range r.Variants {
		p.line("%s%s", v.Name, v.about())
		p.line("")
		p.line("| | local drive, I/O a second | volume, I/O a second | ratio (lowest to highest) | mean latency, local / volume | 99th percentile, local / volume |")
		p.line("| --- | --- | --- | --- | --- | --- |")
		for _, c := range v.Results {
			ratios := c.ratios()
			if len(ratios) == 0 {
				continue
			}
			p.line("| %s | %.0f | %.0f | %.2f (%.2f to %.2f) | %.0f / %.0f µs | %.0f / %.0f µs |", c.Case.Name,
				median(c.Local, iops), median(c.Volume, iops), middle(ratios), ratios[0], ratios[len(ratios)-1],
				median(c.Local, mean), median(c.Volume, mean), median(c.Local, p99), median(c.Volume, p99))
		}
		p.line("")
	}
	return p.err
}

func (v Variant) about() string {
	if v.MemoryBytes == 0 {
		return ""
	}
	return fmt.Sprintf(" (%.0f MiB of memory planned, %d large buffers)", float64(v.MemoryBytes)/(1<<20), v.LargeBuffers)
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}
