// SPDX-License-Identifier: Apache-2.0

package versions_test

import (
	"testing"

	"github.com/weft-storage/weft/internal/versions"
)

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want versions.Verdict
	}{
		{"0.1.0", "0.1.0", versions.Supported},
		{"0.1.0", "0.1.9", versions.Supported},
		{"0.1.9", "0.2.0", versions.Supported},
		{"v1.4.0", "1.3.7", versions.Supported},
		{"0.2.0-dev.g01234567", "0.1.0", versions.Supported},
		{"0.1.0", "0.3.0", versions.Unsupported},
		{"1.0.0", "0.9.0", versions.Unsupported},
		{"1.1.0", "2.1.0", versions.Unsupported},
		{"", "0.1.0", versions.Incomparable},
		{"development", "0.1.0", versions.Incomparable},
		{"0.1", "0.1.0", versions.Incomparable},
	} {
		// It does not matter which of the two is the node's.
		if one, other := versions.Compare(c.a, c.b), versions.Compare(c.b, c.a); one != c.want || other != c.want {
			t.Errorf("%q and %q: %d, %d; want %d", c.a, c.b, one, other, c.want)
		}
	}
}
