// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/dataplane/device"
)

// syncPatience with a pool's filesystem, for which all other calls wait.
const syncPatience = 2 * time.Second

// syncing is the sync of a filesystem. err is set when done is closed.
type syncing struct {
	done chan struct{}
	err  error
}

// inherit what an earlier process made in a pool: it may have been killed before it synced, and what a pool is said to
// hold is there after a loss of power. A filesystem is synced once for each mount, and again if that fails; one that
// takes long holds up nothing but its own pool.
func (h *host) inherit(dir string, m *mount.MountInfo) error {
	key := fmt.Sprintf("%d %s", m.ID, dir)
	s := h.syncs[key]
	if s == nil {
		s = &syncing{done: make(chan struct{})}
		h.syncs[key] = s
		go func() {
			s.err = h.sync(dir)
			close(s.done)
		}()
	}
	select {
	case <-s.done:
	case <-time.After(syncPatience):
		return fmt.Errorf("%s is still being synced after a restart of the agent", dir)
	}
	if s.err != nil {
		delete(h.syncs, key)
	}
	return s.err
}

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
