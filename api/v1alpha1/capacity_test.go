// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"math"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestPromisable(t *testing.T) {
	for _, tc := range []struct {
		plan        *v1alpha1.Plan
		total, want int64
	}{
		{nil, 1000, 1000},
		{&v1alpha1.Plan{}, 1000, 1000},
		{&v1alpha1.Plan{OverProvisioningPercent: 100}, 1001, 1001},
		{&v1alpha1.Plan{OverProvisioningPercent: 150}, 1001, 1501},
		{&v1alpha1.Plan{OverProvisioningPercent: 400}, 1 << 50, 1 << 52},
		{&v1alpha1.Plan{OverProvisioningPercent: 100}, math.MaxInt64, math.MaxInt64},
	} {
		if got := tc.plan.Promisable(tc.total); got != tc.want {
			t.Errorf("%+v of %d: got %d, want %d", tc.plan, tc.total, got, tc.want)
		}
	}
}
