// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// attachmentsPossible on this node; nil when nothing limits them. It is what the plan says, but never more than the
// target that runs was started for: until the operator says that its pod follows the plan, what was possible before
// stays, unless the plan has less.
func (d *decider) attachmentsPossible() *int64 {
	n := *d.Node
	pod := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionTargetPodReady)
	if pod == nil || pod.ObservedGeneration >= n.Generation && pod.Status == metav1.ConditionTrue && pod.Reason != v1alpha1.ReasonPodOutdated {
		n.Status.Attachments = nil
	}
	limit, limited := n.AttachmentLimit()
	if !limited {
		return nil
	}
	return &limit
}

// countAttachments, and hold back those for which there is no place. Whoever was admitted before keeps its place, as
// the engine, the record of what was served and the volume's status have it, also when the target comes back empty and
// when the plan has fewer places now: only what is new waits, in the order of the volumes' names. So two controllers
// that list attachments at the same moment never have more admitted than there are places.
func (d *decider) countAttachments() {
	d.attachments = v1alpha1.Places{Possible: d.attachmentsPossible()}
	for _, e := range d.strayExports {
		d.attachments.Used += int64(len(e.Hosts))
	}
	for _, v := range d.volumes {
		d.attachments.Used += d.Node.AttachmentPlaces(v.obj.Spec.Connection) * int64(len(d.placed(v)))
	}
	for _, v := range d.volumes {
		if v.rival == "" && v.suspect == "" {
			d.holdBack(v)
		}
	}
}

// placed hosts of a volume: those that the engine admits, listed or not, and those that are listed and were admitted.
func (d *decider) placed(v *volume) []string {
	hosts := v.admits()
	var before []string
	if was := d.Records.Items[v.id].Export; was != nil && v.rival == "" {
		before = append(before, was.Hosts...)
	}
	for _, h := range v.obj.Status.Hosts {
		before = append(before, h.NQN)
	}
	for _, nqn := range before {
		listed := slices.ContainsFunc(v.obj.Spec.Hosts, func(h v1alpha1.VolumeHost) bool { return h.NQN == nqn }) && !v.dismissed(nqn)
		if listed || v.suspect != "" {
			hosts = append(hosts, nqn)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// holdBack the hosts of a volume that have no place, and give one to the others.
func (d *decider) holdBack(v *volume) {
	placed := d.placed(v)
	takes := d.Node.AttachmentPlaces(v.obj.Spec.Connection)
	for _, h := range v.obj.Spec.Hosts {
		switch {
		case slices.Contains(placed, h.NQN) || v.dismissed(h.NQN):
		case d.attachments.Possible != nil && d.attachments.Used+takes > *d.attachments.Possible:
			v.held = append(v.held, h)
		default:
			d.attachments.Used += takes
		}
	}
}

// heldBack says of a volume which of its hosts wait for a place.
func (d *decider) heldBack(v *volume) metav1.Condition {
	names := make([]string, len(v.held))
	for i, h := range v.held {
		names[i] = h.Node
	}
	return no(v1alpha1.ReasonAttachmentsExhausted, "its attachment to %s waits: %d of %d planned attachments of this node's target are in use, and it needs %d; %s, or detach other volumes of this node",
		text.Few(names, named, ", "), d.attachments.Used, *d.attachments.Possible, d.Node.AttachmentPlaces(v.obj.Spec.Connection), d.Node.MoreAttachments(*d.attachments.Possible))
}
