// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

const (
	// model that every subsystem reports.
	model = "weft"
	// nsid of a volume in a subsystem of its own.
	nsid = 1
	// serialLen is what NVMe allows.
	serialLen = 20
)

// wantedExport is the subsystem of a volume: a pure function of its object, the plan and what keys this node can read.
// A host whose keys it cannot is left out.
func (d *decider) wantedExport(v *volume) engine.Export {
	hosts := make([]string, 0, len(v.obj.Spec.Hosts))
	sealed := map[string]string{}
	for _, h := range v.obj.Spec.Hosts {
		if !v.dismissed(h.NQN) && !slices.Contains(v.held, h) && d.readable(h.SealedKeys) {
			hosts, sealed[h.NQN] = append(hosts, h.NQN), h.SealedKeys
		}
	}
	slices.Sort(hosts)
	var retired []string
	for _, h := range v.obj.Spec.Hosts {
		if nqn := v1alpha1.HostNQN(h.Retired); h.Retired != "" && slices.Contains(hosts, h.NQN) && !slices.Contains(hosts, nqn) {
			retired = append(retired, nqn)
		}
	}
	return engine.Export{
		NQN:         v.nqn,
		Serial:      serial(v.id),
		Model:       model,
		MaxIOQueues: d.maxIOQueues(transportsOf(v.obj)),
		Namespaces:  []engine.Namespace{{NSID: nsid, Volume: v.id}},
		Hosts:       slices.Compact(hosts),
		Retired:     retired,

		Authentication: d.authentication(sealed),
	}
}

// serial number of a subsystem: the first digits of its volume's UUID.
func serial(id engine.ID) string {
	digits := id.NGUID()
	return digits[:min(len(digits), serialLen)]
}

// maxIOQueues of a subsystem: the most that a planned portal of its transports allows; of any portal, when none has
// those.
func (d *decider) maxIOQueues(transports []v1alpha1.TransportType) int {
	var own, most int32
	for _, p := range d.Node.Spec.Plan.Portals {
		most = max(most, p.MaxIOQueues)
		if slices.Contains(transports, p.Transport) {
			own = max(own, p.MaxIOQueues)
		}
	}
	if own == 0 {
		own = most
	}
	return int(max(1, own))
}

// transportsOf a volume, sorted.
func transportsOf(obj *v1alpha1.NvmfReplica) []v1alpha1.TransportType {
	if len(obj.Spec.Connection.Transports) == 0 {
		return []v1alpha1.TransportType{v1alpha1.TransportTCP}
	}
	return slices.Sorted(slices.Values(obj.Spec.Connection.Transports))
}

// endFormer takes away the exports of attachments that have ended. The volume is not served to the next before, which
// the engine sees to.
func (d *decider) endFormer(v *volume) {
	for _, e := range v.former {
		if !d.Attempts.Tried(VerbUnexport, e.NQN) {
			d.decision.Operations.Unexport = append(d.decision.Operations.Unexport, e.NQN)
		}
	}
}

// formerRefusal is why an export of an attachment that has ended could not be taken away; nil when none was refused.
func (d *decider) formerRefusal(v *volume) error {
	for _, e := range v.former {
		if err := d.Attempts.err(VerbUnexport, e.NQN); err != nil {
			return fmt.Errorf("%s of an earlier attachment still exists: %w", e.NQN, err)
		}
	}
	return nil
}

// isServed says whether the engine's export is as wanted for the hosts that are connected, and reached through every
// open portal.
func (d *decider) isServed(is *engine.Export, want engine.Export) bool {
	return is != nil && is.Serial == want.Serial && is.Model == want.Model &&
		slices.Equal(is.Namespaces, want.Namespaces) && sameSet(is.Hosts, want.Hosts) && engine.SameAuthentication(is.Authentication, want.Authentication) &&
		(len(want.Hosts) == 0 || !slices.ContainsFunc(d.Target.State.Portals, func(p engine.Portal) bool {
			return !slices.Contains(is.Portals, p.Portal)
		}))
}

// isCurrent says whether the limits of an export that is served are as wanted, too. They concern connections to come,
// so that they are not is no reason to call the volume unserved. A limit that the engine does not keep for each export
// (0), or that waits for the target's restart, is not asked for: it would be again and again.
func (d *decider) isCurrent(is *engine.Export, want engine.Export) bool {
	return is.MaxIOQueues == want.MaxIOQueues || is.MaxIOQueues == 0 || len(d.Target.RestartNeeded) > 0
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// serve a volume that is there.
func (d *decider) serve(v *volume) {
	want := d.wantedExport(v)
	err := errors.Join(d.formerRefusal(v), d.Attempts.err(VerbExport, v.nqn))
	unread := d.unreadable(v)
	switch stray := d.strayHosts(v.id); {
	case stray == "" && len(unread) > 0 && v.admitsOnly(want.Hosts, unread):
		v.exported = keysUnreadable(unread)
		if v.export == nil {
			d.waiting = append(d.waiting, v.obj.Name)
		}
		return
	case stray != "":
		v.exported = no(v1alpha1.ReasonExportFailed, "subsystem %s, which has no object, still admits hosts to the volume; with two subsystems, two nodes could write at the same time. "+
			"Delete the pods that use it, and replace NvmfVolume %s with one whose member has the name in the NQN", stray, v.obj.Spec.Volume.Name)
		return
	case len(v.former) == 0 && d.isServed(v.export, want):
		v.exported = d.reached(v)
		if !d.isCurrent(v.export, want) && !d.Attempts.Tried(VerbExport, v.nqn) {
			d.decision.Operations.Export = append(d.decision.Operations.Export, want)
		}
		return
	case err != nil:
		v.exported = no(v1alpha1.ReasonExportFailed, "%v", err)
	default:
		v.exported = no(v1alpha1.ReasonPending, "the export is in progress")
		if !d.Attempts.Tried(VerbExport, v.nqn) {
			d.decision.Operations.Export = append(d.decision.Operations.Export, want)
		}
	}
	if len(want.Hosts) > 0 {
		d.waiting = append(d.waiting, v.obj.Name)
	}
}

// reached judges an export that is as wanted: a volume with hosts needs a portal of one of its transports. That others
// are not open is the node's to tell (PortalsReady), and its hosts', which lack paths.
func (d *decider) reached(v *volume) metav1.Condition {
	transports := transportsOf(v.obj)
	if len(v.export.Hosts) == 0 || len(portalsOf(v.export.Portals, transports)) > 0 {
		if len(v.held) > 0 {
			return d.heldBack(v)
		}
		if again := common(v.attachments(), v.record.Dismissed); len(again) > 0 {
			return yesBecause(v1alpha1.ReasonAsExpected, "not for attachments that have ended and cannot be admitted again: %s; detach the volume there and attach it again", text.Few(again, named, ", "))
		}
		return yes()
	}
	names := make([]string, len(transports))
	for i, t := range transports {
		names[i] = string(t)
	}
	return no(v1alpha1.ReasonPortalFailed, "no %s portal of this node is open", strings.Join(names, " or "))
}

// serveUnreachable keeps the hosts of a volume right whose pool cannot be read,
// or which is lost: a host that is no longer listed must be shut out all the same. With no host left, the subsystem
// is taken away, which needs no volume.
func (d *decider) serveUnreachable(v *volume) {
	v.exported = unknown(v.degraded.Reason, v.degraded.Message)
	want := d.wantedExport(v)
	if len(want.Hosts) > 0 && v.presence == unseen && d.mayAppear(v.device) {
		d.waiting = append(d.waiting, v.obj.Name)
	}
	if v.export == nil {
		v.exported.Status = metav1.ConditionFalse
		return
	}
	if sameSet(v.export.Hosts, want.Hosts) || v.admitsOnly(want.Hosts, d.unreadable(v)) {
		return
	}
	verb := VerbExport
	if len(want.Hosts) == 0 {
		verb = VerbUnexport
	}
	if err := d.Attempts.err(verb, v.nqn); err != nil {
		v.exported = no(v1alpha1.ReasonExportFailed, "%v", err)
	}
	switch {
	case d.Attempts.Tried(verb, v.nqn):
	case verb == VerbUnexport:
		d.decision.Operations.Unexport = append(d.decision.Operations.Unexport, v.nqn)
	default:
		d.decision.Operations.Export = append(d.decision.Operations.Export, want)
	}
}

// mayAppear says whether there is hope for a pool: not when its device now holds something that weft did not write, nor
// when nobody would open it, for it is neither planned nor open.
func (d *decider) mayAppear(id string) bool {
	var foreign *device.ForeignSignatureError
	return (id == "" || d.poolOf(id) != nil) && !errors.As(d.Attempts.err(VerbOpenPool, id), &foreign)
}

// admitted are the hosts that the engine admits. Whether the volume was blank is judged when a host is first reported,
// and kept while it stays: nobody tells a host to connect before it is reported, so what is unwritten now was unwritten
// when it was admitted. It is not blank when in doubt: once it was written, even if nothing is left of that, or with
// another host about. A copy of what was never written is blank, too. A host that was admitted before and is no longer
// is not about: it was disconnected before the engine let go of it.
func (d *decider) admitted(v *volume) []v1alpha1.AdmittedHost {
	nqns := v.admits()
	hosts := make([]v1alpha1.AdmittedHost, 0, len(nqns))
	for _, nqn := range nqns {
		host := v1alpha1.AdmittedHost{NQN: nqn, Keys: v.fingerprint(nqn)}
		at := slices.IndexFunc(v.obj.Status.Hosts, func(h v1alpha1.AdmittedHost) bool { return h.NQN == nqn })
		if listed := v.obj.Listed(nqn); listed != nil {
			host.Node = listed.Node
		} else if at >= 0 { // dismissed, and still admitted
			host.Node = v.obj.Status.Hosts[at].Node
		}
		if at >= 0 {
			host.Blank = v.obj.Status.Hosts[at].Blank
		} else {
			host.Blank = v.presence == present && v.suspect == "" && !v.written && d.alone(v, nqn)
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// admits are the hosts that the engine admits to the volume, through whichever of its subsystems; sorted.
func (v *volume) admits() []string {
	var nqns []string
	if v.export != nil {
		nqns = append(nqns, v.export.Hosts...)
	}
	for _, e := range v.former {
		nqns = append(nqns, e.Hosts...)
	}
	slices.Sort(nqns)
	return slices.Compact(nqns)
}

// alone says that no other host is admitted, or is to be.
func (d *decider) alone(v *volume, nqn string) bool {
	another := func(host string) bool { return host != nqn }
	return !slices.ContainsFunc(v.admits(), another) &&
		!slices.ContainsFunc(v.obj.Spec.Hosts, func(h v1alpha1.VolumeHost) bool { return another(h.NQN) })
}

// portalsOf these transports, each once, in the order in which hosts connect to them.
func portalsOf(portals []v1alpha1.Portal, transports []v1alpha1.TransportType) []v1alpha1.Portal {
	var of []v1alpha1.Portal
	for _, p := range portals {
		if slices.Contains(transports, p.Transport) {
			of = append(of, p)
		}
	}
	slices.SortFunc(of, engine.ComparePortals)
	return slices.Compact(of)
}
