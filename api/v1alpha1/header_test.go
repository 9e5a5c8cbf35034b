// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestOverhead(t *testing.T) {
	const overhead, step = v1alpha1.OverheadBytes, v1alpha1.VolumeSizeStep
	if overhead%step != 0 {
		t.Errorf("with an overhead of %d bytes, no engine could keep a size in steps of %d exactly", overhead, step)
	}
	for data, served := range map[int64]int64{step: step + overhead, 1 << 30: 1<<30 + overhead, 8 << 50: 8<<50 + overhead} {
		if got := v1alpha1.WithOverhead(data); got != served {
			t.Errorf("%d bytes are served as %d, want %d", data, got, served)
		}
		if got := v1alpha1.WithoutOverhead(served); got != data {
			t.Errorf("%d bytes that are served have %d of data, want %d", served, got, data)
		}
	}
	for _, served := range []int64{overhead, overhead - 1, 0, -1} {
		if got := v1alpha1.WithoutOverhead(served); got != 0 {
			t.Errorf("%d bytes that are served have %d of data", served, got)
		}
	}
}
