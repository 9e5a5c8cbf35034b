// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A limit of 0 would not do: a core of this process, which has keys in its memory, is then given to a pipe all the
// same.
func TestNoCoreDumps(t *testing.T) {
	if err := withoutCoreDumps(); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit != (unix.Rlimit{Cur: 1, Max: 1}) {
		t.Errorf("the limit is %+v, %v", limit, err)
	}
}
