// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/mount-utils"

	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
)

var _ engine.Measured = (*Engine)(nil)

// Statistics implements engine.Measured: of the pools' block devices. The kernel counts nothing of a namespace that is
// a file: the log of its reads and writes that a host may ask for stays at zero (nvmet_get_smart_log_nsid in
// drivers/nvme/target/admin-cmd.c, Linux 6.12), and nvmet's folder in debugfs has controllers only. What hosts do with
// a volume is counted on them alone.
func (e *Engine) Statistics(ctx context.Context, _ []engine.ID, _ bool) (engine.Statistics, error) {
	pools, err := e.mountedPools()
	if err != nil {
		return engine.Statistics{}, err
	}
	stats := engine.Statistics{Pools: map[string]engine.IO{}}
	for id, m := range pools {
		if ctx.Err() != nil {
			return engine.Statistics{}, ctx.Err()
		}
		text, err := e.readAttr(e.path("sys/dev/block", fmt.Sprintf("%d:%d", m.Major, m.Minor), "stat"))
		if err != nil {
			continue // its drive has gone
		}
		if stats.Pools[id], err = parseStat(text); err != nil {
			return engine.Statistics{}, fmt.Errorf("statistics of %s: %w", m.Source, err)
		}
	}
	return stats, nil
}

// mountedPools by their devices' IDs.
func (h *host) mountedPools() (map[string]*mount.MountInfo, error) {
	dirs, err := names(h.poolsDir())
	if err != nil && !isMissing(err) {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	mounts, err := h.mounts()
	if err != nil {
		return nil, err
	}
	pools := map[string]*mount.MountInfo{}
	for _, name := range dirs {
		id, err := url.PathUnescape(name)
		if err != nil {
			continue // not a name that poolDir makes
		}
		if m := mountedOn(mounts, filepath.Join(h.poolsDir(), name)); m != nil {
			pools[id] = m
		}
	}
	return pools, nil
}

// statFields of a block device's file stat (Documentation/block/stat.rst). Older kernels than 4.18 lack the last of
// them.
const (
	statFields  = 15
	sectorBytes = 512
)

// parseStat of a block device. Sectors are of 512 bytes, and times in milliseconds.
func parseStat(text string) (engine.IO, error) {
	words := strings.Fields(text)
	if len(words) < statFields {
		return engine.IO{}, fmt.Errorf("%q has %d fields, not %d", text, len(words), statFields)
	}
	var n [statFields]uint64
	var errs []error
	for i := range n {
		var err error
		n[i], err = strconv.ParseUint(words[i], 10, 64)
		errs = append(errs, err)
	}
	// Of each kind: I/Os, those that were merged into others, sectors, and milliseconds.
	kind := func(at int) engine.Operations {
		return engine.Operations{Count: n[at], Bytes: n[at+2] * sectorBytes, Seconds: float64(n[at+3]) / 1000}
	}
	return engine.IO{Read: kind(0), Write: kind(4), Discard: kind(11)}, errors.Join(errs...)
}

// DriveHealth implements engine.Measured. Nothing ends the wait for a dead drive but the kernel's patience with it,
// 60 seconds by default (nvme_core.admin_timeout): a shorter one would have the kernel reset the controller.
func (e *Engine) DriveHealth(_ context.Context, pool string) (device.Health, error) {
	pools, err := e.mountedPools()
	if err != nil {
		return device.Health{}, err
	}
	m := pools[pool]
	if m == nil {
		return device.Health{}, fmt.Errorf("%w: pool %s is not mounted", engine.ErrUnavailable, pool)
	}
	if !strings.HasPrefix(filepath.Base(m.Source), "nvme") {
		return device.Health{}, fmt.Errorf("%w: %s is not an NVMe drive", engine.ErrUnsupported, m.Source)
	}
	return device.ReadHealth(device.KernelAdmin(e.path(m.Source)))
}
