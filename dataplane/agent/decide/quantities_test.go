// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestFiguresMoveInSteps(t *testing.T) {
	const step = 50 * mebibyte
	of := func(mebibytes int64) *resource.Quantity { return bytesOf(mebibytes * mebibyte) }
	for name, tc := range map[string]struct {
		old     *resource.Quantity
		n       int64
		step    int64
		refresh bool
		want    int64 // MiB
	}{
		"the first is told at once":           {nil, 1, step, false, 1},
		"none yet is told at once":            {nil, 0, step, false, 0},
		"less than a step is not told":        {of(100), 149 * mebibyte, step, true, 100},
		"a step is":                           {of(100), 149*mebibyte + 1, step, true, 150},
		"downwards, too":                      {of(100), 50 * mebibyte, step, true, 50},
		"less than a step downwards is not":   {of(100), 51 * mebibyte, step, true, 100},
		"not between refreshes":               {of(100), 900 * mebibyte, step, false, 100},
		"that it was written is told":         {of(0), 1, step, true, 1},
		"that nothing is left is told":        {of(1), 0, step, true, 0},
		"without a step, each MiB is told":    {of(100), 101 * mebibyte, 0, true, 101},
		"without a step, part of one is none": {of(100), 100*mebibyte - 1, 0, true, 100},
	} {
		if got := figure(tc.old, tc.n, tc.step, tc.refresh); got.Value() != tc.want*mebibyte {
			t.Errorf("%s: got %s, want %dMi", name, got, tc.want)
		}
	}
}
