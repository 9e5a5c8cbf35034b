// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Size of a fleet.
type Size struct{ Nodes, Volumes int }

// String is nodes/volumes, as in SizesVariable.
func (s Size) String() string { return fmt.Sprintf("%d/%d", s.Nodes, s.Volumes) }

// SizesVariable has the sizes to measure, as nodes/volumes, each larger than the one before: "100/2000,300/6000".
const SizesVariable = "WEFT_SCALE"

// Sizes that are asked for; else one that takes a minute.
func Sizes(t testing.TB) []Size {
	t.Helper()
	text := os.Getenv(SizesVariable)
	if text == "" {
		text = "20/200"
	}
	var sizes []Size
	for _, one := range strings.Split(text, ",") {
		var s Size
		if _, err := fmt.Sscanf(one, "%d/%d", &s.Nodes, &s.Volumes); err != nil || s.Nodes < 2 || s.Volumes < 1 {
			t.Fatalf("%s=%s: write sizes as nodes/volumes, such as 100/2000,300/6000; each with at least two nodes", SizesVariable, text)
		}
		if n := len(sizes); n > 0 && (s.Nodes < sizes[n-1].Nodes || s.Volumes < sizes[n-1].Volumes) {
			t.Fatalf("%s=%s: each size must be at least the one before it", SizesVariable, text)
		}
		sizes = append(sizes, s)
	}
	return sizes
}

// HeapMiB is what this process keeps in memory after a collection.
func HeapMiB() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// CPUTime that this process has used so far; the API server is another one.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// AwaitQuiet waits until nothing was asked of the API server, and idle was true, for so long.
func AwaitQuiet(t testing.TB, asked *Requests, quiet time.Duration, idle func() bool) {
	t.Helper()
	const limit = 10 * time.Minute
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	begun, since, last := time.Now(), time.Now(), asked.Now()
	for time.Since(since) < quiet {
		if time.Since(begun) > limit {
			t.Fatalf("not quiet after %s: %v", limit, asked.Now())
		}
		<-tick.C
		if now := asked.Now(); !maps.Equal(now, last) || !idle() {
			since, last = time.Now(), now
		}
	}
}
