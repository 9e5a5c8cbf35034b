// SPDX-License-Identifier: Apache-2.0

//go:build lab

package inventory

import (
	"os"
	"testing"
)

// TestVerbs asks the lab's software RDMA device, through the real kernel, several times: nothing is left open.
func TestVerbs(t *testing.T) {
	t0 := tree{root: "/"}
	names, err := t0.listIfThere(infinibandDir)
	if err != nil || len(names) == 0 {
		t.Fatalf("no RDMA device (%v): run this on a node of the lab (weft-lab up)", err)
	}
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	var before int
	var first Limits
	for i := range 8 {
		got, err := limitsOf(t0, Verbs{}, names[0])
		if err != nil {
			t.Fatal(err)
		}
		if got.MaxQP < 1 || got.MaxSRQ < 1 || got.MaxSRQWR < 256 {
			t.Fatalf("limits of %s: %+v", names[0], got)
		}
		if i == 0 { // the first open file of a process brings the runtime's poller with it
			first, before = got, open()
		}
		if got != first {
			t.Fatalf("limits of %s: %+v, and before %+v", names[0], got, first)
		}
	}
	t.Logf("%s: %+v", names[0], first)
	if after := open(); after != before {
		t.Errorf("%d files are open, and were %d before", after, before)
	}
}
