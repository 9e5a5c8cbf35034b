// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A kernel that gives a leg up by itself goes on with the other one, and nobody has recorded it.
func TestLegsWaitForEver(t *testing.T) {
	at := attached{Mirrored: true, Connection: v1alpha1.Connection{CtrlLossTimeoutSeconds: 10}}
	if got := at.connection(replica{Name: "r0", Identity: "id"}).CtrlLossTimeoutSeconds; got != v1alpha1.CtrlLossTimeoutForever {
		t.Errorf("the kernel gives the leg up after %d s", got)
	}
}
