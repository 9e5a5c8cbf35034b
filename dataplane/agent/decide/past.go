// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

// Record is what this node last acted on for a volume or snapshot. It is kept durably, so that no agent of the node
// acts on an object from before it: one that a lagging API server shows, or that came back with a backup of etcd.
type Record struct {
	// UID, ResourceVersion and Generation of the object.
	UID             types.UID `json:"uid"`
	ResourceVersion string    `json:"resourceVersion"`
	Generation      int64     `json:"generation"`
	// Observed is the generation that the object's status told of, which none but this node's agent writes.
	Observed int64 `json:"observed,omitempty"`
	// Attachments that it listed, and those that were dismissed since the volume was made, by UUID, in order.
	Attachments []string `json:"attachments,omitempty"`
	Dismissed   []string `json:"dismissed,omitempty"`
	// Export that was to be served; nil of a snapshot, and of a volume that was leaving.
	Export *engine.Export `json:"export,omitempty"`
	// Sealed keys of the export's hosts that have some, by NQN. The keys themselves are in no record.
	Sealed map[string]string `json:"sealed,omitempty"`
	// Pool in which a volume is to be made, and Written, that it has data from the start: on record before the engine
	// is asked, until the object's status says both. Were the agent killed after the engine made a volume without a
	// record, and its pool then unreadable, another agent would make it a second time elsewhere.
	Pool    string `json:"pool,omitempty"`
	Written bool   `json:"written,omitempty"`
	// Gone says that its object is gone, seen to be or let go by the agent: another one may take its place.
	Gone bool `json:"gone,omitempty"`
	// Suspect says why the object that was seen since may be from the past; empty when it is not. It stays until a
	// person declares the restore, because any later write to the object raises its version.
	Suspect string `json:"suspect,omitempty"`
}

// Records of a node.
type Records struct {
	// Items by the UUID of the volume or snapshot.
	Items map[engine.ID]Record
	// Suspicion is the ID by which a person declares the restore that is suspected; empty when none is.
	Suspicion string
	// Next is the ID of a suspicion that begins now; it was never used before.
	Next string
}

// RecordChanges must be durable before anything else of a decision is done.
type RecordChanges struct {
	Put  map[engine.ID]Record
	Drop []engine.ID
	// Suspicion as in Records, from now on.
	Suspicion string
}

// recall what was acted on before, tell by it which objects may be from the past, and record what is acted on now.
func (d *decider) recall() {
	d.decision.Records = &RecordChanges{Put: map[engine.ID]Record{}}
	for _, v := range d.volumes {
		if v.rival != "" {
			continue
		}
		v.record = d.recallItem(&v.item, v.obj, v.obj.Status.ObservedGeneration, v.presence == present || v.export != nil, v.attachments())
		if v.suspect == "" && v.record.UID != "" && v.obj.Status.Device == "" {
			v.record.Pool, v.record.Written = v.device, v.written
		}
	}
	d.countAttachments()
	for _, v := range d.volumes {
		if v.rival != "" {
			continue
		}
		switch {
		case v.suspect == "" && !v.leaving():
			want := d.wantedExport(v)
			want.Authentication = nil
			v.record.Export, v.record.Sealed = &want, v.sealedKeys(want)
		case v.suspect != "" && v.record.Export != nil:
			v.nqn = v.record.Export.NQN
			v.export = d.exportNamed(v.nqn)
		}
		d.record(&v.item, v.record)
	}
	for _, s := range d.snapshots {
		if s.rival != "" {
			continue
		}
		s.record = d.recallItem(&s.item, s.obj, s.obj.Status.ObservedGeneration, s.presence == present, nil)
		d.record(&s.item, s.record)
	}
	d.forget()
	if len(d.suspects()) > 0 {
		d.decision.Records.Suspicion = d.Records.Suspicion
		if d.Records.Suspicion == "" {
			d.decision.Records.Suspicion = d.Records.Next
		}
	}
}

// recallItem answers what is to be on record of it: what is acted on now, or, of one that is suspect, what was before.
// found says that the engine has something of it. Of one that may be in a pool that cannot be read nothing is recorded
// for the first time: nothing is done either.
func (d *decider) recallItem(i *item, obj metav1.Object, observed int64, found bool, attachments []string) Record {
	was, recorded := d.Records.Items[i.id]
	if !recorded && !found && i.presence == unseen {
		return Record{}
	}
	i.suspect = suspicion(was, recorded, found, obj, observed, attachments)
	if i.suspect != "" && !d.declared() {
		was.Suspect = i.suspect
		return was
	}
	i.suspect = ""
	is := Record{UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(), Generation: obj.GetGeneration(), Observed: observed, Attachments: attachments}
	// What was let go may be shown for a while, and nothing brings it back. And what an object that is gone stood for
	// may not have been looked for yet.
	is.Gone = was.Gone && (was.UID == is.UID && i.deleting || i.presence == unseen)
	is.Dismissed = append(slices.Clone(was.Dismissed), without(was.Attachments, attachments)...)
	slices.Sort(is.Dismissed)
	is.Dismissed = slices.Compact(is.Dismissed)
	return is
}

// suspicion that an object is from the past; empty when there is none. resourceVersions of one resource are compared as
// numbers, which Kubernetes allows since 1.35; a generation never becomes less, even where whoever restored etcd raised
// its revision. An attachment is dismissed once and for all.
func suspicion(was Record, recorded, found bool, obj metav1.Object, observed int64, attachments []string) string {
	switch {
	case !recorded && found:
		return "its data is on this node, but the node has no record of it"
	case !recorded:
		return ""
	case was.Suspect != "":
		return was.Suspect
	case obj.GetUID() != was.UID && !was.Gone:
		return fmt.Sprintf("its UID is %s, but the agent has acted on UID %s", obj.GetUID(), was.UID)
	}
	order, err := resourceversion.CompareResourceVersion(obj.GetResourceVersion(), was.ResourceVersion)
	again := common(without(attachments, was.Attachments), was.Dismissed)
	switch {
	case len(again) > 0:
		return fmt.Sprintf("it lists attachments that have ended: %s", text.Few(again, named, ", "))
	case obj.GetUID() != was.UID:
		return ""
	case err != nil:
		return fmt.Sprintf("its resourceVersion cannot be compared with the recorded one: %v", err)
	case order < 0:
		return fmt.Sprintf("its resourceVersion %s is older than the recorded %s", obj.GetResourceVersion(), was.ResourceVersion)
	case obj.GetGeneration() < was.Generation:
		return fmt.Sprintf("its generation %d is older than the recorded %d", obj.GetGeneration(), was.Generation)
	case observed < was.Observed:
		return fmt.Sprintf("its status is of generation %d, but was of generation %d before", observed, was.Observed)
	}
	return ""
}

// making is the record of a volume whose status does not say yet in which pool it is; empty when there is none.
func (d *decider) making(obj *v1alpha1.NvmfReplica) Record {
	if was := d.Records.Items[engine.ID(obj.Spec.UUID)]; obj.Status.Device == "" && was.UID == obj.UID {
		return was
	}
	return Record{}
}

// declared says that a person has declared the restore that is suspected.
func (d *decider) declared() bool {
	return d.Records.Suspicion != "" && d.Node.Annotations[v1alpha1.RestoredAnnotation] == d.Records.Suspicion
}

// record what is not on record yet, instead of what this decision was about to before.
func (d *decider) record(i *item, is Record) {
	was, ok := d.Records.Items[i.id]
	switch {
	case is.UID == "" && is.Suspect == "":
	case ok && Same(was, is):
		delete(d.decision.Records.Put, i.id)
	default:
		d.decision.Records.Put[i.id] = is
	}
}

// forget what is no more: the API server shows no object of it, and no pool that could hold it cannot be read. Where
// only the object is gone, that is recorded.
func (d *decider) forget() {
	listed, here := map[engine.ID]bool{}, map[engine.ID]bool{}
	for _, v := range d.volumes {
		listed[v.id] = true
	}
	for _, s := range d.snapshots {
		listed[s.id] = true
	}
	for _, v := range d.Target.State.Volumes {
		here[v.ID] = true
	}
	for _, s := range d.Target.State.Snapshots {
		here[s.ID] = true
	}
	for id, r := range d.Records.Items {
		switch {
		case listed[id]:
		case d.allReadable() && !here[id] && (r.Export == nil || d.exportNamed(r.Export.NQN) == nil):
			d.decision.Records.Drop = append(d.decision.Records.Drop, id)
		case !r.Gone:
			r.Gone = true
			d.decision.Records.Put[id] = r
		}
	}
	slices.Sort(d.decision.Records.Drop)
}

// exportNamed is what the engine serves under an NQN; nil when that is nothing.
func (d *decider) exportNamed(nqn string) *engine.Export {
	at := slices.IndexFunc(d.Target.State.Exports, func(x engine.Export) bool { return x.NQN == nqn })
	if at < 0 {
		return nil
	}
	return &d.Target.State.Exports[at]
}

// letGo of the objects whose finalizer comes off.
func (d *decider) letGo() {
	note := func(i *item) {
		if i.released && i.suspect == "" && i.rival == "" {
			i.record.Gone = true
			d.record(i, i.record)
		}
	}
	for _, v := range d.volumes {
		note(&v.item)
	}
	for _, s := range d.snapshots {
		note(&s.item)
	}
}

// suspects are the volumes and snapshots whose objects may be from the past, each with the reason.
func (d *decider) suspects() []string {
	var all []string
	note := func(i *item) {
		if i.suspect != "" {
			all = append(all, fmt.Sprintf("%s %s (%s)", i.kind, i.name, i.suspect))
		}
	}
	for _, v := range d.volumes {
		note(&v.item)
	}
	for _, s := range d.snapshots {
		note(&s.item)
	}
	return all
}

func (d *decider) restoreSuspected() metav1.Condition {
	suspects := d.suspects()
	if len(suspects) == 0 {
		return quiet()
	}
	id := d.decision.Records.Suspicion
	return yesBecause(v1alpha1.ReasonRestoreSuspected, "some objects may be outdated, as after a restore of etcd; the agent keeps serving them unchanged. If the objects are correct, confirm it: kubectl annotate nvmfnode %s %s=%s --overwrite. Objects: %s",
		d.Node.Name, v1alpha1.RestoredAnnotation, id, text.Few(suspects, named, "; "))
}

// serveOn what is served of a volume whose object may be from the past, and change nothing. Only a target that came
// back empty is given again what it had.
func (d *decider) serveOn(v *volume) {
	unsure := no(v1alpha1.ReasonRestoreSuspected, "%s", v.suspect)
	v.created = v.createdOr(unknown(v1alpha1.ReasonRestoreSuspected, v.suspect))
	v.degraded = yesBecause(v1alpha1.ReasonRestoreSuspected, "%s", v.suspect)
	v.limited = unknown(v1alpha1.ReasonRestoreSuspected, v.suspect)
	want := d.recordedExport(v.record)
	switch {
	case v.export != nil:
		v.exported = d.reached(v)
	case want == nil || len(want.Hosts) == 0 || v.presence != present:
		v.exported = unsure
	default:
		v.exported = unsure
		d.waiting = append(d.waiting, v.obj.Name)
		if !d.Attempts.Tried(VerbExport, v.nqn) {
			d.decision.Operations.Export = append(d.decision.Operations.Export, *want)
		}
	}
}

// observedGeneration is the one that was acted on: not that of an object that may be from the past.
func (i *item) observedGeneration(generation, observed int64) int64 {
	if i.suspect != "" {
		return observed
	}
	return generation
}

// attachments that the object lists, in order.
func (v *volume) attachments() []string {
	var uuids []string
	for _, h := range v.obj.Spec.Hosts {
		if uuid, ok := v1alpha1.AttachmentOfHost(h.NQN); ok {
			uuids = append(uuids, uuid)
		}
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}

// dismissed says that a host was shut out before, and is never admitted again.
func (v *volume) dismissed(nqn string) bool {
	uuid, ok := v1alpha1.AttachmentOfHost(nqn)
	return ok && slices.Contains(v.record.Dismissed, uuid)
}

// without those of others.
func without(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(one string) bool { return slices.Contains(others, one) })
}

// common to both.
func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(one string) bool { return !slices.Contains(b, one) })
}
