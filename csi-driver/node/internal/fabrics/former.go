// SPDX-License-Identifier: Apache-2.0

package fabrics

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A Node object that was deleted and registered anew has another UID, and so this machine another host NQN. What it
// connected before stays connected, under the former one: no target admits that any more, but the kernel takes it for a
// path as long as it is there.

// ours tells whether a controller is one that weft made on this machine, now or as a former host.
func (h *Host) ours(c Controller) bool {
	_, ofWeft := v1alpha1.VolumeOfSubsystem(c.NQN)
	_, ofNode := v1alpha1.UUIDOfHost(c.HostNQN)
	return c.HostNQN == h.NQN || ofWeft && ofNode
}

// isFormer tells whether a controller is one of a former host.
func (h *Host) isFormer(c Controller) bool { return c.HostNQN != h.NQN }

// mayHaveFormer tells whether a subsystem may have controllers of a former host. They were made before this process
// began: all that there are are looked through once, so that a further volume does not read every other's.
func (h *Host) mayHaveFormer(nqn string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.former == nil {
		former, err := h.findFormer()
		if err != nil {
			return false, fmt.Errorf("look for connections of a former host: %w", err)
		}
		h.former = former
	}
	return h.former[nqn] || h.names[nqn] != "", nil
}

// findFormer gives the subsystems with controllers of a former host.
func (h *Host) findFormer() (map[string]bool, error) {
	all, err := h.everyController(func(string) bool { return true })
	found := map[string]bool{}
	for _, c := range all {
		if h.isFormer(c) {
			found[c.NQN] = true
		}
	}
	return found, err
}

// shed disconnects what this machine connected as a former host, and returns when it is gone. It fails with an
// *InUseError when something uses the volume through it alone.
func (h *Host) shed(ctx context.Context, nqn string, multipath bool) error {
	if may, err := h.mayHaveFormer(nqn); err != nil || !may {
		return err
	}
	all, err := h.allControllers(nqn)
	if err != nil {
		return err
	}
	former := slices.DeleteFunc(slices.Clone(all), func(c Controller) bool { return !h.isFormer(c) || c.going() })
	if len(former) == 0 {
		return nil
	}
	// With the kernel's multipath, the block device is one, and keeps the paths of this host.
	if own := slices.DeleteFunc(all, h.isFormer); !multipath || !connected(own) {
		used, err := h.inUse(nqn)
		if err == nil && used != nil {
			err = used
		}
		if err != nil {
			return fmt.Errorf("it is still connected as %s, which this node was before its Node object was made anew: %w", former[0].HostNQN, err)
		}
	}
	logr.FromContextOrDiscard(ctx).Info("Disconnecting what a former host connected", "nqn", nqn, "host", former[0].HostNQN)
	return h.remove(ctx, nqn, h.isFormer)
}
