// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/dataplane/device"
)

// makeServedSynchronous does so with what an earlier process exported that did not. Hosts need not be interrupted: the
// kernel looks at the attribute with each write. A file that cannot be opened is on a filesystem that takes no writes
// any more, and is looked at again before its next namespace is made.
func (h *host) makeServedSynchronous(ctx context.Context) error {
	all, err := h.subsystems()
	if err != nil {
		return err
	}
	for _, s := range all {
		for _, ns := range s.namespaces {
			if err := device.MakeSynchronous(ns.path); err != nil {
				logr.FromContextOrDiscard(ctx).Error(err, "A served volume can lose acknowledged writes", "nqn", s.nqn)
			}
		}
	}
	return nil
}
