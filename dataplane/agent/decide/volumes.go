// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

const replicaKind = "NvmfReplica"

// volume is an NvmfReplica and what the engine, which knows of volumes only, has of it.
type volume struct {
	item
	obj    *v1alpha1.NvmfReplica
	nqn    string
	found  engine.Volume // when present
	export *engine.Export
	// former are exports of attachments that have ended.
	former []*engine.Export
	// device of its pool, as deviceOf, or where it was found or is to be made.
	device string
	// written: it holds data, or did. What is known of it once stays known.
	written bool

	// held are the hosts that wait for a place.
	held []v1alpha1.VolumeHost

	exported, degraded, limited metav1.Condition
}

// leaving volumes are to be deleted and admit nobody: the controller has unpublished them everywhere.
func (v *volume) leaving() bool { return v.deleting && len(v.obj.Spec.Hosts) == 0 }

func (d *decider) indexVolumes() {
	found := map[engine.ID][]engine.Volume{}
	for _, v := range d.Target.State.Volumes {
		found[v.ID] = append(found[v.ID], v)
	}
	rival := rivals(d.Volumes, func(v *v1alpha1.NvmfReplica) string { return v.Spec.UUID }, func(v *v1alpha1.NvmfReplica) bool { return d.deviceOf(v) != "" })
	d.byName = make(map[string]*volume, len(d.Volumes))
	d.promised = map[string]int64{}
	for _, obj := range d.Volumes {
		v := &volume{
			item: itemOf(replicaKind, obj, obj.Spec.UUID, obj.Spec.Used, obj.Status.Conditions),
			obj:  obj, nqn: obj.CurrentSubsystem(), device: d.deviceOf(obj), written: obj.Status.Written || d.making(obj).Written,
		}
		for _, e := range d.exports[obj.Name] {
			if e.NQN == v.nqn {
				v.export = e
			} else {
				v.former = append(v.former, e)
			}
		}
		if v.rival = rival[obj.Name]; v.rival == "" {
			d.locate(v, found[v.id])
		}
		d.volumes = append(d.volumes, v)
		d.byName[obj.Name] = v
		if v.presence != absent {
			d.places++
		}
		switch {
		case v.presence == present:
			// What it has, not what it asks for: a growth that finds no room is not promised.
			d.promised[v.device] += v.found.SizeBytes
		case v.presence != absent:
			d.promised[v.device] += d.poolOf(v.device).served(obj.Spec.Size)
		}
	}
}

// deviceOf a volume's pool: where it is, or is being made; empty when nobody asked for it yet.
func (d *decider) deviceOf(obj *v1alpha1.NvmfReplica) string {
	return cmp.Or(obj.Status.Device, d.making(obj).Pool)
}

// locate a volume. Its pool was recorded before it was made, so one without a record was never made, unless it is
// found: then it is taken as it is, and may hold data even if nothing of that is allocated now. One that is used, or
// has or had hosts, and has no record was written by hand or came out of a backup without its status, since nobody is
// admitted to what was not made: it may be in any pool. So may one that takes the place of an object that is gone,
// whatever its spec says: what that stood for may be there still.
func (d *decider) locate(v *volume, found []engine.Volume) {
	if len(found) > 0 {
		at := max(0, slices.IndexFunc(found, func(f engine.Volume) bool { return f.Pool == v.device }))
		v.written = v.written || found[at].AllocatedBytes > 0 || v.device == ""
		v.presence, v.found, v.device = present, found[at], found[at].Pool
		return
	}
	known := d.known(v.device)
	if v.device == "" {
		was := d.Records.Items[v.id]
		admitted := len(v.obj.Spec.Hosts)+len(was.Attachments)+len(was.Dismissed) > 0
		known = !v.wasMade && !was.Gone && !admitted || d.allReadable()
	}
	v.presence = v.missing(known)
}

// decideVolumes serves what is there first, so that growth is counted before room is given to new volumes.
func (d *decider) decideVolumes() {
	for _, v := range d.volumes {
		if v.presence != absent {
			d.decideVolume(v)
		}
	}
	for _, v := range d.volumes {
		if v.presence == absent {
			d.decideVolume(v)
		}
	}
	for _, v := range d.volumes {
		if !v.released {
			d.decision.Volumes[v.obj.Name] = d.volumeStatus(v)
		}
	}
}

func (d *decider) decideVolume(v *volume) {
	if v.suspect != "" {
		d.serveOn(v)
		return
	}
	v.degraded = quiet()
	d.endFormer(v)
	switch {
	case v.rival != "":
		d.refuseVolume(v)
	case v.leaving():
		d.removeVolume(v)
	case v.presence == present:
		v.created = yes()
		d.grow(v)
		d.serve(v)
	case v.presence == absent && v.deleting:
		v.created = no(v1alpha1.ReasonDeleting, "it was deleted before it was created")
		v.exported = v.created
	case v.presence == absent:
		d.create(v)
	case v.presence == lost:
		v.degraded = yesBecause(v1alpha1.ReasonVolumeLost, "%s", d.whyLost(v))
		v.created = v.createdOr(no(v.degraded.Reason, "%s", v.degraded.Message))
		d.serveUnreachable(v)
	default:
		v.created = v.createdOr(unknown(v1alpha1.ReasonPoolFailed, d.whyUnseen(v.device)))
		v.degraded = yesBecause(v1alpha1.ReasonPoolFailed, "%s", d.whyUnseen(v.device))
		d.serveUnreachable(v)
	}
	d.limit(v)
}

func (d *decider) whyLost(v *volume) string {
	if v.device == "" {
		return fmt.Sprintf("replica %s was used, but no pool of this node contains it; it is not created again, because it would be empty: check node and uuid of this member in NvmfVolume %s", v.id, v.obj.Spec.Volume.Name)
	}
	if d.dropped(v.device) {
		return fmt.Sprintf("its drive, %s, was given up (spec.droppedDrives of NvmfNode %s); the replica is not created again, because it would be empty", v.device, d.Node.Name)
	}
	return fmt.Sprintf("pool %s does not contain replica %s any more; it is not created again, because it would be empty", v.device, v.id)
}

// refuseVolume that has a rival: it serves nothing. When its object goes, there is nothing of it but a subsystem.
func (d *decider) refuseVolume(v *volume) {
	v.created = v.inUse()
	v.exported = v.created
	switch {
	case !v.leaving():
	case v.export == nil:
		v.letGo(&d.decision.ReleaseVolumes)
	case !d.Attempts.Tried(VerbUnexport, v.nqn):
		d.decision.Operations.Unexport = append(d.decision.Operations.Unexport, v.nqn)
	}
}

// whyUnseen says why nothing is known of what a device holds.
func (d *decider) whyUnseen(device string) string {
	if p := d.poolOf(device); p != nil {
		return fmt.Sprintf("pool %s cannot be read, so its content is unknown: %s", device, p.message)
	}
	if device != "" {
		return fmt.Sprintf("pool %s is neither planned nor open, so its content is unknown", device)
	}
	return "not all pools of this node can be read, so their content is unknown"
}

// removeVolume unexports it, looks again, and removes it. Each round does one step, and the next looks.
func (d *decider) removeVolume(v *volume) {
	ops, err := &d.decision.Operations, errors.Join(d.formerRefusal(v), d.Attempts.err(VerbUnexport, v.nqn))
	deleting := no(v1alpha1.ReasonDeleting, "deletion is in progress")
	v.created, v.exported = v.createdOr(deleting), deleting
	switch {
	case v.export == nil && len(v.former) == 0:
		v.exported = d.remove(&v.item, v.device, VerbDeleteVolume, &ops.DeleteVolumes, &d.decision.ReleaseVolumes)
	case err != nil:
		v.exported = no(v1alpha1.ReasonDeleting, "it cannot be unexported yet: %v", err)
	case v.export != nil && !d.Attempts.Tried(VerbUnexport, v.nqn):
		ops.Unexport = append(ops.Unexport, v.nqn)
	}
}

// grow a volume that asks for more. Its pool must have the room for all that it may grow to. What is said of it are
// sizes of data.
func (d *decider) grow(v *volume) {
	has, want := d.dataOf(v), sizeOf(v.obj.Spec.Size)
	served := d.poolOf(v.device).served(v.obj.Spec.Size)
	more := served - v.found.SizeBytes
	err := d.Attempts.err(VerbGrowVolume, string(v.id))
	switch p := d.poolOf(v.device); {
	case more == 0 || v.deleting:
	case more < 0:
		v.degraded = yesBecause(v1alpha1.ReasonShrinkRefused, "it has %d bytes and cannot shrink to %d: data beyond the new end would be lost", has, want)
	case d.complete(v) && (err != nil || p.readable() && !d.fits(p, served, more)):
		// It can do without the trailer that is missing.
	case errors.Is(err, engine.ErrNoSpace) || p.readable() && !d.fits(p, served, more):
		v.degraded = yesBecause(v1alpha1.ReasonNoSpace, "it cannot be expanded from %d to %d bytes: pool %s has not enough space", has, want, v.device)
	case err != nil:
		v.degraded = yesBecause(v1alpha1.ReasonPending, "it cannot be expanded from %d to %d bytes yet: %v", has, want, err)
	case !d.Attempts.Tried(VerbGrowVolume, string(v.id)):
		d.promised[v.device] += more
		d.decision.Operations.GrowVolumes = append(d.decision.Operations.GrowVolumes, engine.VolumeSize{ID: v.id, SizeBytes: served})
	}
}

// dataOf a volume that is there: what was asked for where the pool rounded that up, else what it has without its
// header and trailer.
func (d *decider) dataOf(v *volume) int64 {
	if p := d.poolOf(v.device); v.found.SizeBytes == p.served(v.obj.Spec.Size) || d.complete(v) {
		return sizeOf(v.obj.Spec.Size)
	}
	return v1alpha1.WithoutOverhead(v.found.SizeBytes)
}

// complete tells whether a volume that was made before volumes had trailers has all its data, though it is to grow by
// one.
func (d *decider) complete(v *volume) bool {
	described := v.obj.Spec.Description
	return (described == nil || !described.Trailer) && v.found.SizeBytes < d.poolOf(v.device).served(v.obj.Spec.Size) &&
		v.found.SizeBytes >= v1alpha1.HeaderBytes+sizeOf(v.obj.Spec.Size)
}

// create a volume that never was. Its record names its pool before the engine is asked.
func (d *decider) create(v *volume) {
	spec := engine.VolumeSpec{ID: v.id}
	p, refusal := d.poolFor(v, &spec)
	err := d.Attempts.err(VerbCreateVolume, string(v.id))
	limit, limited := d.Node.Spec.Plan.VolumeLimit()
	switch {
	case errors.Is(err, engine.ErrNoSpace):
		v.created = no(v1alpha1.ReasonNoSpace, "%v", err)
		if v.device != "" {
			v.device, v.record.Pool = "", "" // it was not made there, and may be made in another one
			d.record(&v.item, v.record)
		}
	case errors.Is(err, engine.ErrNotFound) && v.obj.Spec.Source != nil:
		v.created = no(v1alpha1.ReasonSourceNotReady, "%v", err)
	case errors.Is(err, engine.ErrBusy):
		v.created = no(v1alpha1.ReasonPending, "%v", err)
		if p != nil { // it may be on its way
			d.places++
			d.promised[p.device.ID] += p.served(v.obj.Spec.Size)
		}
	case err != nil:
		v.created = no(v1alpha1.ReasonCreateFailed, "%v", err)
	case refusal != nil:
		v.created = *refusal
	case limited && d.places >= limit:
		v.created = no(v1alpha1.ReasonNoSpace, "node %s has %s, the maximum number of its target", d.Node.Name, text.Plural(int(d.places), "volume"))
	default:
		v.created = no(v1alpha1.ReasonPending, "creation is in progress")
		d.places++
		if !d.Attempts.Tried(VerbCreateVolume, string(v.id)) {
			spec.Pool, v.device, spec.SizeBytes = p.device.ID, p.device.ID, p.served(v.obj.Spec.Size)
			v.written = v.written || d.copiesData(v)
			v.record.Pool, v.record.Written = v.device, v.written
			d.record(&v.item, v.record)
			d.promised[v.device] += spec.SizeBytes
			d.decision.Operations.CreateVolumes = append(d.decision.Operations.CreateVolumes, spec)
		}
	}
	v.exported = v.created
}

// poolFor a new volume: its source's, if it has one, else the emptiest of its class. It adds the source to spec. Once a
// pool was asked for it, it is asked again, unless it has answered that it has no room: what got no answer may be
// carried out later, and in another pool there would be a second one, which is served when the first one is away.
func (d *decider) poolFor(v *volume, spec *engine.VolumeSpec) (*pool, *metav1.Condition) {
	refuse := func(reason, format string, args ...any) (*pool, *metav1.Condition) {
		r := no(reason, format, args...)
		return nil, &r
	}
	if v.obj.Spec.Source != nil {
		source, ok := d.sourceOf(v)
		if !ok || source.pool == "" {
			return refuse(v1alpha1.ReasonSourceNotReady, "its source, %s, is not on this node yet", source.name)
		}
		spec.Source = source.source
		p := d.poolOf(source.pool)
		if served := p.served(v.obj.Spec.Size); !p.readable() || !d.fits(p, served, served) {
			return refuse(v1alpha1.ReasonNoSpace, "pool %s, which contains its source, has not enough space for %d bytes, including %d for its header and trailer", source.pool, served, v1alpha1.OverheadBytes)
		}
		return p, nil
	}
	if p := d.poolOf(v.device); p.readable() { // else a person has dropped it
		served := p.served(v.obj.Spec.Size)
		switch {
		case !p.ready(): // whoever asked may try another node, with another replica
			return refuse(v1alpha1.ReasonNoSpace, "its creation was begun in pool %s, which is no longer planned", v.device)
		case !d.fits(p, served, served):
			return refuse(v1alpha1.ReasonNoSpace, "pool %s, where its creation was begun, has not enough space for %d bytes, including %d for its header and trailer", v.device, served, v1alpha1.OverheadBytes)
		}
		return p, nil
	}
	class, blocks := v.obj.Spec.DeviceClass, v.obj.Spec.BlockSizeBytes
	if p := d.choosePool(v.obj.Spec); p != nil {
		return p, nil
	}
	if !slices.ContainsFunc(d.pools, (*pool).ready) {
		return refuse(v1alpha1.ReasonNodeNotReady, "no pool of this node is ready")
	}
	if !slices.ContainsFunc(d.pools, func(p *pool) bool { return p.ready() && p.of(class) }) {
		return refuse(v1alpha1.ReasonNoSpace, "no pool of this node that is ready has device class %s", class)
	}
	if !slices.ContainsFunc(d.pools, func(p *pool) bool { return p.ready() && p.of(class) && p.blocks(blocks) }) {
		return refuse(v1alpha1.ReasonNoSpace, "no pool of this node%s that is ready has logical blocks of %d bytes, as the volume's other replica has", ofClass(class), blocks)
	}
	return refuse(v1alpha1.ReasonNoSpace, "no pool of this node%s has enough space for %d bytes, including %d for its header and trailer", ofClass(class), v1alpha1.WithOverhead(sizeOf(v.obj.Spec.Size)), v1alpha1.OverheadBytes)
}

// ofClass in words, behind what is of it.
func ofClass(class string) string {
	if class == "" {
		return ""
	}
	return " of device class " + class
}

// copiesData says whether what a volume is made from holds data, or did.
func (d *decider) copiesData(v *volume) bool {
	if v.obj.Spec.Source == nil {
		return false
	}
	source, ok := d.sourceOf(v)
	return !ok || source.written
}

// origin of a volume's first data.
type origin struct {
	name   string
	id     engine.ID
	source engine.Source
	pool   string // empty: the engine does not have it
	// written: it holds data, or did.
	written bool
}

// sourceOf a volume; false when its object is not on this node.
func (d *decider) sourceOf(v *volume) (origin, bool) {
	if name := v.obj.Spec.Source.Snapshot; name != "" {
		o := origin{name: "NvmfSnapshot " + name}
		s := d.snapNames[name]
		if s == nil {
			return o, false
		}
		o.id, o.source = s.id, engine.Source{Snapshot: s.id}
		if s.presence == present {
			o.pool = s.found.Pool
			o.written = s.found.AllocatedBytes > 0
		}
		return o, true
	}
	name := v.obj.Spec.Source.Replica
	o := origin{name: replicaKind + " " + name}
	source := d.byName[name]
	if source == nil {
		return o, false
	}
	o.id, o.source, o.written = source.id, engine.Source{Volume: source.id}, source.written
	if source.presence == present {
		o.pool = source.device
	}
	return o, true
}
