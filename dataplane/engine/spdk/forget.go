// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/weft-storage/weft/dataplane/engine"
)

// ForgetPools implements engine.Engine.
func (e *Engine) ForgetPools(ctx context.Context, devices []string) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(devices), err)
	}
	st, err := s.readStore()
	if err != nil {
		return failAll(len(devices), err)
	}
	s.findGone(st)
	errs := make([]error, len(devices))
	for i, device := range devices {
		errs[i] = s.forget(st, device)
	}
	return errs
}

func (s *session) forget(st *store, device string) error {
	at := slices.IndexFunc(st.pools, func(p *pool) bool { return p.Device == device })
	if at < 0 {
		return nil
	}
	p := st.pools[at]
	if p.Err == nil {
		return fmt.Errorf("pool %s can be read: %w", device, engine.ErrInUse)
	}
	if p.base.Name != "" {
		o := &opening{Device: engine.Device{ID: device}}
		if len(p.base.Driver.NVMe) > 0 {
			o.PCIAddress = p.Path
		}
		if err := s.detach(o); err != nil {
			return fmt.Errorf("pool %s: %w", device, err)
		}
	}
	// Last: a call that is cut off before begins again.
	if err := os.Remove(s.recordOf(device)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// findGone marks the pools that the target has open on a drive of the kernel which is not there any more: SPDK knows an
// lvstore until its bdev is deleted, and would list it from memory.
func (s *session) findGone(st *store) {
	for _, p := range st.pools {
		if p.Err != nil || p.base.Driver.AIO == nil || p.Path == p.Device {
			continue // a file's ID is its path
		}
		if err := s.checkDrive(&opening{Device: engine.Device{ID: p.Device, Path: p.Path}}); err != nil {
			p.Err = fmt.Errorf("%w: pool %s: %w", engine.ErrUnavailable, p.Device, err)
		}
	}
}
