// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"context"
	"fmt"

	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// SetQoS implements engine.Engine. SPDK keeps limits where the I/O of a bdev passes, which is nowhere while nobody
// has it open: then it takes the first ones, and refuses to change them.
func (e *Engine) SetQoS(ctx context.Context, limits []engine.VolumeQoS) []error {
	s, end, err := e.begin(ctx)
	defer end()
	if err != nil {
		return failAll(len(limits), err)
	}
	ids := make([]engine.ID, len(limits))
	for i, want := range limits {
		ids[i] = want.ID
	}
	st, err := s.finishStore(s.startVolumes(ids, s.listBdevs))
	if err != nil {
		return failAll(len(limits), err)
	}
	errs := make([]error, len(limits))
	found := make([]*lvol, len(limits))
	var set []int
	for i, want := range limits {
		found[i], errs[i] = s.planQoS(st, want)
		if found[i] != nil {
			set = append(set, i)
		}
	}
	call(s, set, errs, func(i int) spdkrpc.Request[spdkrpc.Done] {
		return limit(found[i].bdev, rateLimits(limits[i].QoS))
	})
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("limits of volume %s: %w", limits[i].ID, err)
		}
	}
	return errs
}

func limit(bdev string, to spdkrpc.QoS) spdkrpc.BdevSetQosLimit {
	return spdkrpc.BdevSetQosLimit{
		Name: bdev, RWIOPS: &to.RWIOPS, RWMiBPerSec: &to.RWMiBPerSec, ReadMiBPerSec: &to.ReadMiBPerSec, WriteMiBPerSec: &to.WriteMiBPerSec,
	}
}

// planQoS finds the volume to be limited; nil when its limits are as asked. While its hosts are kept waiting, they are
// lifted: see quiet.
func (s *session) planQoS(st *store, want engine.VolumeQoS) (*lvol, error) {
	if err := want.Validate(); err != nil {
		return nil, err
	}
	is, err := st.find(st.volumes, want.ID)
	if err == nil {
		err = s.unchanging(is)
	}
	switch {
	case err != nil:
		return nil, err
	case is.limits == rateLimits(want.QoS):
		return nil, nil
	case is.limits != (spdkrpc.QoS{}) && !is.claimed:
		return nil, fmt.Errorf("%w: SPDK can change its limits only while the volume is exported", engine.ErrBusy)
	}
	return is, nil
}

func rateLimits(q engine.QoS) spdkrpc.QoS {
	return spdkrpc.QoS{RWIOPS: uint64(q.IOPS), RWMiBPerSec: uint64(q.MiBps), ReadMiBPerSec: uint64(q.ReadMiBps), WriteMiBPerSec: uint64(q.WriteMiBps)}
}

func qosOf(l spdkrpc.QoS) engine.QoS {
	return engine.QoS{IOPS: int64(l.RWIOPS), MiBps: int64(l.RWMiBPerSec), ReadMiBps: int64(l.ReadMiBPerSec), WriteMiBps: int64(l.WriteMiBPerSec)}
}
