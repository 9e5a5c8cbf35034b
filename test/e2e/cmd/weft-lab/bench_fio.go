// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Case is one way of reading or writing a device.
type Case struct {
	// Name for people.
	Name string `json:"name"`
	// RW, BlockSize and Depth are fio's.
	RW        string `json:"rw"`
	BlockSize string `json:"bs"`
	Depth     int    `json:"iodepth"`
}

// Cases that are measured, in their order.
func Cases() []Case {
	return []Case{
		{"4 KiB random reads, one at a time", "randread", "4k", 1},
		{"4 KiB random reads, depth 32", "randread", "4k", 32},
		{"4 KiB random writes, depth 32", "randwrite", "4k", 32},
		{"128 KiB reads, depth 8", "read", "128k", 8},
		{"128 KiB writes, depth 8", "write", "128k", 8},
	}
}

// command of fio for the first bytes of a device, past caches.
func (c Case) command(device string, bytes int64, seconds int) []string {
	return []string{
		"fio", "--name=bench", "--filename=" + device, "--size=" + strconv.FormatInt(bytes, 10), "--direct=1", "--ioengine=libaio",
		"--rw=" + c.RW, "--bs=" + c.BlockSize, "--iodepth=" + strconv.Itoa(c.Depth), "--time_based", "--runtime=" + strconv.Itoa(seconds),
		// The caches are dropped already, and a pod without privileges may not do it.
		"--invalidate=0", "--ramp_time=1", "--randrepeat=0", "--norandommap", "--output-format=json",
	}
}

// fill is fio's command that writes the first bytes of a device once, so that all reads find data.
func fill(device string, bytes int64) []string {
	return []string{
		"fio", "--name=fill", "--filename=" + device, "--size=" + strconv.FormatInt(bytes, 10), "--direct=1", "--ioengine=libaio",
		"--rw=write", "--bs=1M", "--iodepth=4", "--invalidate=0", "--output-format=json",
	}
}

// Measured is what one run of fio saw.
type Measured struct {
	IOPS           float64 `json:"iops"`
	BytesPerSecond float64 `json:"bytesPerSecond"`
	// MeanMicros and P99Micros are latencies of one I/O.
	MeanMicros float64 `json:"meanMicros"`
	P99Micros  float64 `json:"p99Micros"`
}

// parse what fio printed: a report, after warnings.
func parse(output string) (Measured, error) {
	if i := strings.Index("\n"+output, "\n{"); i > 0 {
		output = output[i:]
	}
	type direction struct {
		IOPS  float64 `json:"iops"`
		Bytes float64 `json:"bw_bytes"`
		Count int64   `json:"total_ios"`
		Lat   struct {
			Mean float64 `json:"mean"`
		} `json:"lat_ns"`
		Clat struct {
			Percentile map[string]float64 `json:"percentile"`
		} `json:"clat_ns"`
	}
	var report struct {
		Jobs []struct {
			Error int       `json:"error"`
			Read  direction `json:"read"`
			Write direction `json:"write"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(output), &report); err != nil {
		return Measured{}, fmt.Errorf("fio printed no report: %w: %s", err, output)
	}
	if len(report.Jobs) != 1 {
		return Measured{}, fmt.Errorf("fio reports %d jobs, not 1", len(report.Jobs))
	}
	job := report.Jobs[0]
	if job.Error != 0 {
		return Measured{}, fmt.Errorf("fio reports error %d", job.Error)
	}
	d := job.Read
	if d.Count == 0 {
		d = job.Write
	}
	if d.Count == 0 || d.IOPS == 0 {
		return Measured{}, fmt.Errorf("fio did no I/O")
	}
	return Measured{IOPS: d.IOPS, BytesPerSecond: d.Bytes, MeanMicros: d.Lat.Mean / 1000, P99Micros: d.Clat.Percentile["99.000000"] / 1000}, nil
}
