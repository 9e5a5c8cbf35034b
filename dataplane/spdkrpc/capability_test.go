// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"slices"
	"testing"

	"github.com/weft-storage/weft/internal/capability"
)

// Whether an image has the methods that weft calls is judged without this package: by kubectl weft check-image. The
// client can make these calls, and weft makes none of the exceptions.
func TestImagesAreCheckedForEveryMethod(t *testing.T) {
	notCalled := []string{"bdev_lvol_decouple_parent", "keyring_get_keys"}
	checked := slices.Concat(notCalled, capability.Methods(), capability.NVMeMethods(), capability.HistogramMethods())
	have := Methods()
	slices.Sort(checked)
	slices.Sort(have)
	if !slices.Equal(checked, have) {
		t.Errorf("internal/capability and this test list the methods\n%q,\nthe client can call\n%q", checked, have)
	}
}
