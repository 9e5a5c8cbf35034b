// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// limit a volume as its object asks. It waits for the export, for targets change the limits of an exported volume only;
// and portals wait for it, so that after a restart of the target limits are back before the first host is. For an
// export that the engine holds back portals do not wait, so the first limits of its volume come before it. What the
// target refuses keeps no volume from being served.
func (d *decider) limit(v *volume) {
	want := wantedQoS(v.obj.Spec.QoS)
	err := d.Attempts.err(VerbSetQoS, string(v.id))
	switch {
	case v.leaving():
		v.limited = no(v1alpha1.ReasonDeleting, "deletion is in progress")
	case v.presence != present:
		v.limited = unknown(v.created.Reason, v.created.Message)
		if v.presence != absent {
			v.limited = unknown(v.degraded.Reason, v.degraded.Message)
		}
	case want == v.found.QoS:
		if v.limited = yes(); want == (engine.QoS{}) {
			v.limited = yesBecause(v1alpha1.ReasonNotNeeded, "no limits requested")
		}
	case !d.Target.Info.QoS || errors.Is(err, engine.ErrUnsupported):
		v.limited = no(v1alpha1.ReasonUnsupported, "engine %s does not support limits: the volume is served without them; remove spec.qos of NvmfVolume %s, or use a target with engine %s", d.Target.Info.Type, v.obj.Spec.Volume.Name, v1alpha1.EngineSPDK)
	case err != nil:
		v.limited = no(v1alpha1.ReasonQoSFailed, "%v", err)
	case d.Attempts.Tried(VerbSetQoS, string(v.id)):
		v.limited = no(v1alpha1.ReasonQoSFailed, "requested %s, but the target set %s", wordsOfQoS(want), wordsOfQoS(v.found.QoS))
	case v.export == nil && (v.found.QoS != (engine.QoS{}) || !errors.Is(d.Attempts.err(VerbExport, d.wantedExport(v).NQN), engine.ErrBusy)):
		v.limited = no(v1alpha1.ReasonPending, "limits are set when the volume is exported")
	default:
		v.limited = no(v1alpha1.ReasonPending, "limits are being set")
		d.decision.Operations.SetQoS = append(d.decision.Operations.SetQoS, engine.VolumeQoS{ID: v.id, QoS: want})
	}
}

func wantedQoS(q *v1alpha1.VolumeQoS) engine.QoS {
	if q == nil {
		return engine.QoS{}
	}
	return engine.QoS{IOPS: orZero(q.IOPS), MiBps: orZero(q.BandwidthMiBps), ReadMiBps: orZero(q.ReadBandwidthMiBps), WriteMiBps: orZero(q.WriteBandwidthMiBps)}
}

// qosInForce as the API says it; nil for no limits.
func qosInForce(q engine.QoS) *v1alpha1.VolumeQoS {
	if q == (engine.QoS{}) {
		return nil
	}
	return &v1alpha1.VolumeQoS{IOPS: unlessZero(q.IOPS), BandwidthMiBps: unlessZero(q.MiBps), ReadBandwidthMiBps: unlessZero(q.ReadMiBps), WriteBandwidthMiBps: unlessZero(q.WriteMiBps)}
}

func orZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func unlessZero(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

func wordsOfQoS(q engine.QoS) string {
	var words []string
	for _, limit := range []struct {
		n    int64
		unit string
	}{{q.IOPS, "IOPS"}, {q.MiBps, "MiB/s"}, {q.ReadMiBps, "MiB/s read"}, {q.WriteMiBps, "MiB/s written"}} {
		if limit.n != 0 {
			words = append(words, fmt.Sprintf("%d %s", limit.n, limit.unit))
		}
	}
	if len(words) == 0 {
		return "no limits"
	}
	return strings.Join(words, ", ")
}
