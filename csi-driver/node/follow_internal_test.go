// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"
	"time"
)

// However many replicas a node has, and although it read them all at the same moment once: it asks the API server at a
// pace, and for each within the time that is promised.
func TestReadsOfManyReplicasComeApart(t *testing.T) {
	for replicas, promised := range map[int]time.Duration{1: followInterval, 20: followInterval, 30: 30 * followPace, 200: longestFollow} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			begin := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
			var f followed
			last := map[string]time.Time{}
			for i := range replicas {
				f.read(fmt.Sprint(i), begin)
			}
			for i := range replicas { // once more, now that it is known how many there are
				f.read(fmt.Sprint(i), begin)
				last[fmt.Sprint(i)] = begin
			}
			reads, most := 0, 0
			for now := begin; now.Sub(begin) < 10*promised; now = now.Add(mendInterval) {
				together := 0
				for name, at := range last {
					if now.Sub(at) >= promised+mendInterval {
						t.Fatalf("replica %s was not read for %s", name, now.Sub(at))
					}
					if f.due(name, now) {
						f.read(name, now)
						last[name] = now
						together++
					}
				}
				reads, most = reads+together, max(most, together)
			}
			if reads > 14*replicas { // each after three quarters of the time, at the earliest
				t.Errorf("%d reads in ten times %s", reads, promised)
			}
			// Their moments are in the last quarter of the time, which is five looks long.
			if replicas == 200 && most > 2*replicas/5 {
				t.Errorf("%d of %d replicas were read together", most, replicas)
			}
		})
	}
}
