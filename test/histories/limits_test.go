// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/utils/ptr"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller"
	"github.com/weft-storage/weft/dataplane/engine"
)

// anyLimits, or none.
func (w *world) anyLimits() engine.QoS {
	which, n := w.rng.IntN(16), 1+w.rng.Int64N(100)
	limit := func(bit int, n int64) int64 {
		if which&bit == 0 {
			return 0
		}
		return n
	}
	return engine.QoS{IOPS: limit(1, n*v1alpha1.QoSIOPSStep), MiBps: limit(2, n+1), ReadMiBps: limit(4, n+2), WriteMiBps: limit(8, n+3)}
}

// attributes of a VolumeAttributesClass with these limits.
func attributes(limits engine.QoS) map[string]string {
	all := map[string]string{}
	for key, n := range map[string]int64{"bandwidth": limits.MiBps, "readBandwidth": limits.ReadMiBps, "writeBandwidth": limits.WriteMiBps} {
		if n > 0 {
			all[key] = fmt.Sprintf("%dMi", n)
		}
	}
	if limits.IOPS > 0 {
		all["iops"] = fmt.Sprint(limits.IOPS)
	}
	return all
}

// limitsIn an object.
func limitsIn(q *v1alpha1.VolumeQoS) engine.QoS {
	if q == nil {
		return engine.QoS{}
	}
	return engine.QoS{
		IOPS: ptr.Deref(q.IOPS, 0), MiBps: ptr.Deref(q.BandwidthMiBps, 0), ReadMiBps: ptr.Deref(q.ReadBandwidthMiBps, 0), WriteMiBps: ptr.Deref(q.WriteBandwidthMiBps, 0),
	}
}

// checkLimits of a volume: where hosts can use it, they are in force. While hosts wait for SPDK to change a volume, it
// has none.
func (w *world) checkLimits(v *volume) {
	w.Helper()
	if v.idle() {
		return
	}
	const change = "nvmf_subsystem_listener_set_ana_state"
	var state engine.State
	w.await("the target to serve", func() (answers bool) {
		target := w.storage.Target()
		before := target.Calls()[change]
		state, answers = w.serving()
		return answers && len(state.Portals) > 0 && serves(state, v.uuid) &&
			len(target.Inaccessible()) == 0 && target.Calls()[change] == before
	})
	for _, found := range state.Volumes {
		if string(found.ID) == v.uuid && found.QoS != v.limits {
			w.Fatalf("volume %s is served with limits %+v, and should have %+v", v.id, found.QoS, v.limits)
		}
	}
}

func (w *world) modification(v *volume, limits engine.QoS) call {
	return w.onController(fmt.Sprintf("ControllerModifyVolume %s to %+v", v.id, limits), func(ctx context.Context, s *controller.Service) error {
		_, err := s.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: v.id, MutableParameters: attributes(limits)})
		return err
	})
}

// modify a volume's limits.
func (w *world) modify(v *volume) {
	v.limits = w.anyLimits()
	w.must(w.make(w.modification(v, v.limits)))
}
