// SPDX-License-Identifier: Apache-2.0

package decide

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// volumeStatus is what is true of a volume after decideVolume.
func (d *decider) volumeStatus(v *volume) v1alpha1.NvmfReplicaStatus {
	status := *v.obj.Status.DeepCopy()
	status.ObservedGeneration = v.observedGeneration(v.obj.Generation, status.ObservedGeneration)
	status.Device = v.device
	status.Written = v.written
	if v.presence == present {
		status.NQN, status.NSID, status.NGUID = v.nqn, nsid, v.id.NGUID()
		status.Size = keep(status.Size, d.dataOf(v))
		status.Allocated = figure(status.Allocated, v.found.AllocatedBytes, v1alpha1.AllocatedStep(v.found.SizeBytes), d.Refresh)
		status.QoS = qosInForce(v.found.QoS)
	}
	status.Portals = d.volumePortals(v)
	status.Hosts = d.admitted(v)
	status.Conditions = Conditions(v.obj.Status.Conditions, status.ObservedGeneration, d.Now,
		typed(v1alpha1.ConditionCreated, v.created),
		typed(v1alpha1.ConditionExported, v.exported),
		typed(v1alpha1.ConditionDegraded, v.degraded),
		typed(v1alpha1.ConditionQoSApplied, v.limited),
		typed(v1alpha1.ConditionReady, readyVolume(v)),
	)
	return status
}

// volumePortals are those of the volume's transports that lead to it, and those that are planned and will: a host that
// is admitted now is told of all its paths once, and goes on trying the ones that do not answer yet.
func (d *decider) volumePortals(v *volume) []v1alpha1.Portal {
	if v.export == nil {
		return nil
	}
	var portals []v1alpha1.Portal
	if len(v.export.Hosts) > 0 {
		portals = append(portals, v.export.Portals...)
	} else {
		for _, p := range d.Target.State.Portals {
			portals = append(portals, p.Portal)
		}
	}
	for _, p := range d.Node.Spec.Plan.Portals {
		portals = append(portals, p.Portal)
	}
	of := portalsOf(portals, transportsOf(v.obj))
	return of[:min(len(of), v1alpha1.MaxPortals)]
}

// readyVolume sums the other conditions up.
func readyVolume(v *volume) metav1.Condition {
	switch {
	case v.suspect != "":
		return no(v.degraded.Reason, "%s", v.degraded.Message)
	case v.leaving():
		return no(v.exported.Reason, "%s", v.exported.Message)
	case v.deleting && !v.marked:
		return no(v1alpha1.ReasonNotMarked, "it was deleted without its metadata.uid in spec.deletionMark: it stays available while hosts may use it (%s), and then its data stays on this node", text.Few(hostNames(v.obj), named, ", "))
	case v.deleting:
		return no(v1alpha1.ReasonStillAdmitted, "it is not deleted while hosts may use it: %s", text.Few(hostNames(v.obj), named, ", "))
	case v.presence == lost || v.presence == unseen:
		return no(v.degraded.Reason, "%s", v.degraded.Message)
	case !isTrue(v.created):
		return v.created
	case !isTrue(v.exported):
		return v.exported
	default:
		return yes()
	}
}

func hostNames(obj *v1alpha1.NvmfReplica) []string {
	names := make([]string, 0, len(obj.Spec.Hosts))
	for _, h := range obj.Spec.Hosts {
		names = append(names, h.Node)
	}
	return names
}
