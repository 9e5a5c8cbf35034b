// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestHeader(t *testing.T) {
	const header, step = v1alpha1.HeaderBytes, v1alpha1.VolumeSizeStep
	if header%step != 0 {
		t.Errorf("with a header of %d bytes, no engine could keep a size in steps of %d exactly", header, step)
	}
	for data, served := range map[int64]int64{step: step + header, 1 << 30: 1<<30 + header, 8 << 50: 8<<50 + header} {
		if got := v1alpha1.WithHeader(data); got != served {
			t.Errorf("%d bytes are served as %d, want %d", data, got, served)
		}
		if got := v1alpha1.WithoutHeader(served); got != data {
			t.Errorf("%d bytes that are served have %d of data, want %d", served, got, data)
		}
	}
	for _, served := range []int64{header, header - 1, 0, -1} {
		if got := v1alpha1.WithoutHeader(served); got != 0 {
			t.Errorf("%d bytes that are served have %d of data", served, got)
		}
	}
}
