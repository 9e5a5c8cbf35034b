// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// maxRounds of one run: channels, what they reset, interrupts, and one more.
const maxRounds = 5

// Result of a run.
type Result struct {
	// Record as it is now. What was stored last may be older.
	Record v1alpha1.TuningStatus
	// Drifted settings, which were put right.
	Drifted []string
	// Problems that kept settings from being tried, each a sentence.
	Problems []string
	// Writes that were made.
	Writes int
}

// Run gives the host the wanted settings, and puts back those on record that are not wanted. store keeps a record where
// the next run finds it; nothing is written that was not stored before. When store fails, or the host cannot be looked
// at, Run ends with that error, and with what is true until then.
func Run(ctx context.Context, host Host, wanted []v1alpha1.PlannedSetting, stored v1alpha1.TuningStatus, store func(context.Context, v1alpha1.TuningStatus) error) (Result, error) {
	result := Result{Record: *stored.DeepCopy()}
	tried := map[string]bool{}
	for round := 1; ; round++ {
		observed, err := Gather(ctx, host, wanted, result.Record, tried)
		if err != nil {
			return result, err
		}
		d := Decide(observed)
		result.Record, result.Problems = d.Record, d.Problems
		if round == 1 { // later it is the driver's own doing, at what was written before
			result.Drifted = d.Drifted
		}
		if len(d.Writes) == 0 || round > maxRounds {
			return result, nil
		}
		if !equality.Semantic.DeepEqual(d.Record, stored) {
			if err := store(ctx, d.Record); err != nil {
				return result, errors.Join(errors.New("nothing is written that is not on record"), fmt.Errorf("store the record: %w", err))
			}
			stored = d.Record
		}
		outcomes := act(ctx, host, d.Writes)
		for setting := range outcomes {
			tried[setting] = true
		}
		result.Writes += len(outcomes)
		result.Record = complete(settle(d.Record, outcomes), observed.BootID, observed.NICs)
	}
}
