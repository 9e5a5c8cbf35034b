// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

// PortalKey names a portal in Attempts and messages.
func PortalKey(p v1alpha1.Portal) string {
	return fmt.Sprintf("%s %s %d", p.Transport, p.Address, p.Port)
}

// decidePortals opens what is planned and closes what is not, with three cautions.
//
// Opening waits for everything else: it has a round of its own, in which nothing else is
// left to try, so every export is there before the first host comes back. While
// the agent is settling it waits, too, for volumes with hosts that may yet appear (a drive that
// the kernel finds late): a host that comes too early may be told for good that its volume does not exist. After that,
// the others are served without them.
//
// Closing waits until no export of the node admits a host: hosts were told the
// portal's address when they were admitted, and it is not known which of them still use it.
//
// A portal keeps the settings it was opened with while hosts may use it; without hosts
// it is closed, and opened again with the planned ones. One of SPDK's is left open when the whole target has to be
// restarted for settings: they may be among them, and then it would come back as it was.
func (d *decider) decidePortals() {
	var problems, remarks []string
	busy := slices.ContainsFunc(d.Target.State.Exports, func(e engine.Export) bool { return len(e.Hosts) > 0 })
	var toOpen []engine.Portal
	var toClose []v1alpha1.Portal
	for _, want := range d.plannedPortals() {
		is := d.openPortal(want.Portal)
		err := d.Attempts.err(VerbOpenPortal, PortalKey(want.Portal))
		switch {
		case is == nil && err != nil:
			problems = append(problems, err.Error())
		case is == nil:
			problems = append(problems, PortalKey(want.Portal)+" is being opened")
			if !d.Attempts.Tried(VerbOpenPortal, PortalKey(want.Portal)) {
				toOpen = append(toOpen, want)
			}
		case differs(is, want) && d.Node.Spec.Plan.Engine == v1alpha1.EngineSPDK && len(d.Target.RestartNeeded) > 0:
			remarks = append(remarks, fmt.Sprintf("%s keeps queue depth %d and in-capsule data of %d bytes instead of the planned %d and %d until the target is restarted",
				PortalKey(want.Portal), is.QueueDepth, is.InCapsuleDataBytes, want.QueueDepth, want.InCapsuleDataBytes))
		case differs(is, want):
			problems = append(problems, fmt.Sprintf("%s keeps queue depth %d and in-capsule data of %d bytes instead of the planned %d and %d until no host is attached to this node",
				PortalKey(want.Portal), is.QueueDepth, is.InCapsuleDataBytes, want.QueueDepth, want.InCapsuleDataBytes))
			if !busy && !d.Attempts.Tried(VerbClosePortal, PortalKey(want.Portal)) {
				toClose = append(toClose, want.Portal)
			}
		}
	}
	for _, is := range d.Target.State.Portals {
		if d.isPlanned(is.Portal) {
			continue
		}
		remarks = append(remarks, PortalKey(is.Portal)+" is no longer planned, and is closed when no host is attached to this node")
		if !busy && !d.Attempts.Tried(VerbClosePortal, PortalKey(is.Portal)) {
			toClose = append(toClose, is.Portal)
		}
	}
	if len(toOpen) > 0 && d.Settling && len(d.waiting) > 0 {
		d.decision.PortalsHeld = d.waiting
		problems = append(problems, "portals wait for "+text.Few(d.waiting, named, ", "))
		toOpen = nil
	}
	if d.decision.Operations.Empty() {
		d.decision.Operations.ClosePortals = toClose
		d.decision.Operations.OpenPortals = toOpen
	}
	switch {
	case len(problems) > 0:
		d.portalsReady = no(d.portalReason(), "%s", strings.Join(append(problems, remarks...), "; "))
	case len(remarks) > 0:
		d.portalsReady = yesBecause(v1alpha1.ReasonAsExpected, "%s", strings.Join(remarks, "; "))
	default:
		d.portalsReady = yes()
	}
}

// differs says whether a portal was opened otherwise than planned. One that has no limit of queues can have no other.
func differs(is *engine.Portal, want engine.Portal) bool {
	return is.QueueDepth != 0 && is.QueueDepth != want.QueueDepth || is.InCapsuleDataBytes != want.InCapsuleDataBytes
}

// portalReason: Pending while opening is only a matter of time.
func (d *decider) portalReason() string {
	for _, want := range d.plannedPortals() {
		if d.openPortal(want.Portal) != nil || d.Attempts.err(VerbOpenPortal, PortalKey(want.Portal)) != nil {
			return v1alpha1.ReasonPortalFailed
		}
	}
	return v1alpha1.ReasonPending
}

func (d *decider) plannedPortals() []engine.Portal {
	portals := make([]engine.Portal, 0, len(d.Node.Spec.Plan.Portals))
	for _, p := range d.Node.Spec.Plan.Portals {
		portals = append(portals, engine.Portal{Portal: p.Portal, QueueDepth: int(p.QueueDepth), InCapsuleDataBytes: int(p.InCapsuleDataSize)})
	}
	return portals
}

func (d *decider) isPlanned(portal v1alpha1.Portal) bool {
	return slices.ContainsFunc(d.Node.Spec.Plan.Portals, func(p v1alpha1.PlannedPortal) bool { return p.Portal == portal })
}

func (d *decider) openPortal(portal v1alpha1.Portal) *engine.Portal {
	at := slices.IndexFunc(d.Target.State.Portals, func(p engine.Portal) bool { return p.Portal == portal })
	if at < 0 {
		return nil
	}
	return &d.Target.State.Portals[at]
}
