// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weft-storage/weft/dataplane/balance"
)

func cores(n int, change ...func([]balance.Core)) []balance.Core {
	all := make([]balance.Core, n)
	for i := range all {
		all[i] = balance.Core{ID: i, Physical: i}
	}
	for _, c := range change {
		c(all)
	}
	return all
}

// on places thread n+1 with loads[n] on core at[n].
func on(at []int, loads ...float64) []balance.Thread {
	threads := make([]balance.Thread, len(at))
	for i := range at {
		threads[i] = balance.Thread{ID: uint64(i + 1), Core: at[i], Load: loads[i], Came: -1}
	}
	return threads
}

func TestDecide(t *testing.T) {
	interrupts := func(core int, share float64) func([]balance.Core) {
		return func(c []balance.Core) { c[core].Interrupts = share }
	}
	siblings := func(c []balance.Core) { c[0].Physical, c[1].Physical = 7, 7 }
	for _, c := range []struct {
		name    string
		cores   []balance.Core
		threads []balance.Thread
		want    []balance.Move
	}{
		{"two busy threads on one core, another core free", cores(2), on([]int{0, 0}, 0.5, 0.5), []balance.Move{{Thread: 1, From: 0, To: 1}}},
		{"equal already", cores(2), on([]int{0, 1}, 0.9, 0.9), nil},
		{"one thread cannot be divided", cores(2), on([]int{0, 1}, 0.95, 0.1), nil},
		{"little load is left alone", cores(2), on([]int{0, 0}, 0.2, 0.2), nil},
		{"a gain under the threshold", cores(2), on([]int{0, 0}, 0.9, 0.1), nil},
		{"the busy thread leaves the core with interrupts", cores(2, interrupts(0, 0.4)), on([]int{0, 1}, 0.6, 0.1), []balance.Move{{Thread: 1, From: 0, To: 1}, {Thread: 2, From: 1, To: 0}}},
		{"a free core is better than an exchange", cores(3, interrupts(0, 0.4)), on([]int{0, 1}, 0.8, 0.3), []balance.Move{{Thread: 1, From: 0, To: 2}}},
		{"a physical core rather than a sibling", cores(3, siblings), on([]int{0, 0}, 0.5, 0.5), []balance.Move{{Thread: 1, From: 0, To: 2}}},
		{"away from a sibling", cores(3, siblings), on([]int{0, 1}, 0.9, 0.9), []balance.Move{{Thread: 1, From: 0, To: 2}}},
		{"fixed load counts", cores(2, func(c []balance.Core) { c[0].Fixed = 0.5 }), on([]int{0, 1}, 0.45, 0.05), []balance.Move{{Thread: 1, From: 0, To: 1}}},
		{"one that rests stays", cores(2), func() []balance.Thread {
			threads := on([]int{0, 0}, 0.5, 0.5)
			threads[0].Resting = true
			return threads
		}(), []balance.Move{{Thread: 2, From: 0, To: 1}}},
		{"back needs twice the gain", cores(2), func() []balance.Thread {
			threads := on([]int{0, 0}, 0.75, 0.25)
			threads[0].Came, threads[1].Came = 1, 1
			return threads
		}(), nil},
		{"nothing there", nil, nil, nil},
		{"a core whose time interrupts take whole", cores(2, interrupts(0, 1)), on([]int{0}, 0.5), []balance.Move{{Thread: 1, From: 0, To: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rand.Shuffle(len(c.threads), func(i, j int) { c.threads[i], c.threads[j] = c.threads[j], c.threads[i] })
			rand.Shuffle(len(c.cores), func(i, j int) { c.cores[i], c.cores[j] = c.cores[j], c.cores[i] })
			step, ok := balance.Decide(c.cores, c.threads, balance.Options{})
			if ok != (len(c.want) > 0) {
				t.Fatalf("decided %v: %+v", ok, step)
			}
			if diff := cmp.Diff(c.want, step.Moves, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
