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

// inherit what an earlier process made in the pools: it may have been killed before it synced, and what a pool is said
// to hold is there after a loss of power. Each filesystem is synced once for each mount, and again if that fails. One
// that takes long is waited for once, and then holds up nothing but its own pool.
func (h *host) inherit(mounts []mount.MountInfo, dirs []string) {
	var begun []*syncing
	for _, dir := range dirs {
		m := mountedOn(mounts, dir)
		if m == nil || h.syncs[syncKey(dir, m)] != nil {
			continue
		}
		s := &syncing{done: make(chan struct{})}
		h.syncs[syncKey(dir, m)] = s
		begun = append(begun, s)
		go func() {
			s.err = h.sync(dir)
			close(s.done)
		}()
	}
	patience := time.NewTimer(syncPatience)
	defer patience.Stop()
	for _, s := range begun {
		select {
		case <-s.done:
		case <-patience.C:
			return
		}
	}
}

func syncKey(dir string, m *mount.MountInfo) string { return fmt.Sprintf("%d %s", m.ID, dir) }

// synced says whether a pool's filesystem was synced.
func (h *host) synced(dir string, m *mount.MountInfo) error {
	s := h.syncs[syncKey(dir, m)]
	if s == nil {
		return fmt.Errorf("%s was not synced after a restart of the agent", dir)
	}
	select {
	case <-s.done:
	default:
		return fmt.Errorf("%s is still being synced after a restart of the agent", dir)
	}
	if s.err != nil {
		delete(h.syncs, syncKey(dir, m))
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
