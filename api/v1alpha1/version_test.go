// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestCompareVersions(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want v1alpha1.VersionVerdict
	}{
		{"0.1.0", "0.1.0", v1alpha1.VersionsSupported},
		{"0.1.0", "0.1.9", v1alpha1.VersionsSupported},
		{"0.1.9", "0.2.0", v1alpha1.VersionsSupported},
		{"v1.4.0", "1.3.7", v1alpha1.VersionsSupported},
		{"0.2.0-dev.g01234567", "0.1.0", v1alpha1.VersionsSupported},
		{"0.1.0", "0.3.0", v1alpha1.VersionsUnsupported},
		{"1.0.0", "0.9.0", v1alpha1.VersionsUnsupported},
		{"1.1.0", "2.1.0", v1alpha1.VersionsUnsupported},
		{"", "0.1.0", v1alpha1.VersionsIncomparable},
		{"development", "0.1.0", v1alpha1.VersionsIncomparable},
		{"0.1", "0.1.0", v1alpha1.VersionsIncomparable},
	} {
		// It does not matter which of the two is the node's.
		if one, other := v1alpha1.CompareVersions(c.a, c.b), v1alpha1.CompareVersions(c.b, c.a); one != c.want || other != c.want {
			t.Errorf("%q and %q: %d, %d; want %d", c.a, c.b, one, other, c.want)
		}
	}
}
