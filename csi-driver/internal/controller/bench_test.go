// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// BenchmarkCreateVolume makes 200 volumes at once, as a rollout does, against a real API server and agents that
// answer at once. Each round is what a user waits for: from the first call to the last answer.
//
//	go test ./csi-driver/internal/controller -run '^$' -bench CreateVolume -benchtime 5x
func BenchmarkCreateVolume(b *testing.B) {
	const atOnce = 200
	st := newStorage(b, 3, 10000*gi)
	s, _ := newService(b)
	seen(b, s, st)
	for round := 0; b.Loop(); round++ {
		ids := make([]string, atOnce)
		for i := range ids {
			ids[i] = own(b, fmt.Sprintf("%d-%d", round, i))
		}
		each(b, ids, func(id string) error {
			_, err := s.CreateVolume(within(b, enough), createRequest(st, id, gi))
			return err
		})
		b.StopTimer()
		each(b, ids, func(id string) error {
			_, err := s.DeleteVolume(within(b, enough), &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		})
		b.StartTimer()
	}
	b.ReportMetric(float64(atOnce*b.N)/b.Elapsed().Seconds(), "volumes/s")
}

// each id at once.
func each(b *testing.B, ids []string, do func(id string) error) {
	b.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(ids))
	for i, id := range ids {
		wg.Go(func() { errs[i] = do(id) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}
