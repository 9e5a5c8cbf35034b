// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// report of fio 3.39, cut down to what is read.
const report = `{"fio version":"fio-3.39","jobs":[{"jobname":"bench","error":0,
"read":{"bw_bytes":81920000,"iops":20000.5,"total_ios":160004,"lat_ns":{"mean":50000.0},"clat_ns":{"percentile":{"50.000000":48000,"99.000000":90000}}},
"write":{"bw_bytes":0,"iops":0.0,"total_ios":0,"lat_ns":{"mean":0.0},"clat_ns":{"mean":0.0}}}]}`

func TestParse(t *testing.T) {
	got, err := parse(report)
	if want := (Measured{IOPS: 20000.5, BytesPerSecond: 81920000, MeanMicros: 50, P99Micros: 90}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	// As fio 3.39 does where it may not drop the device's caches.
	const warning = "fio: cache invalidation of /dev/weft-volume failed: Permission denied\n"
	if got, err := parse(warning + report); err != nil || got.IOPS != 20000.5 {
		t.Errorf("after a warning: %+v, %v", got, err)
	}
	swapped := strings.NewReplacer(`"read":`, `"write":`, `"write":`, `"read":`).Replace(report)
	if got, err := parse(swapped); err != nil || got.IOPS != 20000.5 {
		t.Errorf("of writes: %+v, %v", got, err)
	}
	for what, output := range map[string]string{
		"no report":  "fio: failed to open",
		"no job":     `{"jobs":[]}`,
		"an error":   strings.Replace(report, `"error":0`, `"error":5`, 1),
		"no I/O":     strings.Replace(report, `"total_ios":160004`, `"total_ios":0`, 1),
		"several":    strings.Replace(report, `"jobs":[`, `"jobs":[{},`, 1),
		"no numbers": `{"jobs":[{"error":0}]}`,
	} {
		if got, err := parse(output); err == nil {
			t.Errorf("%s was read as %+v", what, got)
		}
	}
}

// Ratios are of pairs that were measured one after the other: a machine that slows down does not change them.
func TestRatiosAreOfPairs(t *testing.T) {
	r := Result{Case: Cases()[0]}
	for _, pair := range [][2]float64{{100, 90}, {50, 40}, {10, 9.5}} {
		r.Local = append(r.Local, Measured{IOPS: pair[0], MeanMicros: 1})
		r.Volume = append(r.Volume, Measured{IOPS: pair[1], MeanMicros: 2})
	}
	if got := r.ratios(); !slices.Equal(got, []float64{0.8, 0.9, 0.95}) {
		t.Errorf("ratios %v", got)
	}
	var out bytes.Buffer
	report := Report{Variants: []Variant{{Name: "SPDK, plan Auto", MemoryBytes: 300 << 20, LargeBuffers: 128, Results: []Result{r, {Case: Cases()[1]}}}}}
	if err := report.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"SPDK, plan Auto (300 MiB of memory planned, 128 large buffers)\n",
		"| 4 KiB random reads, one at a time | 50 | 40 | 0.90 (0.80 to 0.95) | 1 / 2 µs | 0 / 0 µs |\n",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in\n%s", line, out.String())
		}
	}
	if strings.Contains(out.String(), Cases()[1].Name) {
		t.Errorf("a case that was not measured is reported:\n%s", out.String())
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{100, 1, 3}, 3}} {
		var all []Measured
		for _, v := range c.of {
			all = append(all, Measured{IOPS: v})
		}
		if got := median(all, iops); got != c.want {
			t.Errorf("the median of %v is %v, not %v", c.of, got, c.want)
		}
	}
}

// SPDK's own buffers are those of a target that was given none: half of each pool for the caches of all poll groups.
func TestVariants(t *testing.T) {
	o := benchSetup{NvmetDrive: "a", SPDKDrive: "b", Cores: 4}.Defaults()
	var names []string
	for _, v := range o.variants() {
		names = append(names, v.name)
		spec := v1alpha1.NvmfTargetSpec{Engine: v1alpha1.EngineNvmet}
		v.edit(&spec)
		switch b := spec.Buffers; v.name {
		case "Nvmet":
			if spec.Engine != v1alpha1.EngineNvmet || v.drive != "a" {
				t.Errorf("%+v", spec)
			}
		case "SPDK, plan Auto":
			if b != nil || *spec.Cores.Count != 4 || spec.Memory.Hugepages != v1alpha1.Hugepages2Mi || v.drive != "b" {
				t.Errorf("%+v", spec)
			}
		default:
			if b == nil || *b.Large != (v1alpha1.LargePool{Count: 1024, CachePerCore: 128}) || *b.Small != (v1alpha1.SmallPool{Count: 8192, CachePerCore: 1024}) {
				t.Errorf("%+v", b)
			}
		}
	}
	if len(names) != 3 {
		t.Errorf("variants %q", names)
	}
	if only := (benchSetup{NvmetDrive: "a"}).Defaults().variants(); len(only) != 1 {
		t.Errorf("without a drive for SPDK there are %d variants", len(only))
	}
}
