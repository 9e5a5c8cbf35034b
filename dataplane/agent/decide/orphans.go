// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// indexClearing counts what was deleted and is still to be cleared as promised: that much is not to be had yet.
func (d *decider) indexClearing() {
	for _, p := range d.Target.State.Pools {
		d.promised[p.Device] += p.ClearingBytes
	}
}

// indexOrphans finds what the engine holds that has no object. It counts as promised: an object may take it back.
func (d *decider) indexOrphans() {
	ids := map[engine.ID]bool{}
	for _, v := range d.volumes {
		ids[v.id] = true
	}
	for _, s := range d.snapshots {
		ids[s.id] = true
	}
	for _, v := range d.Target.State.Volumes {
		if !ids[v.ID] {
			d.orphanVolumes = append(d.orphanVolumes, v)
			d.promised[v.Pool] += v.SizeBytes
		}
	}
	for _, s := range d.Target.State.Snapshots {
		if !ids[s.ID] {
			d.orphanSnapshots = append(d.orphanSnapshots, s)
			d.promised[s.Pool] += s.AllocatedBytes
		}
	}
	for _, e := range d.Target.State.Exports {
		if replica, ours := v1alpha1.ReplicaOfSubsystem(e.NQN); ours && d.byName[replica] == nil {
			d.strayExports = append(d.strayExports, e)
		}
	}
}

// strayHosts is the subsystem without an object that still admits hosts to a volume; empty when there is none.
func (d *decider) strayHosts(id engine.ID) string {
	for _, e := range d.strayExports {
		if len(e.Hosts) > 0 && slices.ContainsFunc(e.Namespaces, func(ns engine.Namespace) bool { return ns.Volume == id }) {
			return e.NQN
		}
	}
	return ""
}

// keepData of an item whose object was deleted without a valid mark. The object is let go once the node's status
// tells what it was called: from then on it can be taken back by that name.
func (d *decider) keepData(i *item, release *[]string) metav1.Condition {
	i.kept = true
	if d.recorded(i.id) {
		i.letGo(release)
	}
	return no(v1alpha1.ReasonNotMarked, "it was deleted without its metadata.uid in spec.deletionMark, so its data stays on this node; see status.orphans of NvmfNode %s; %s", d.Node.Name, d.recovery(i))
}

// recovery of data whose object goes, in words. The CSI controller gives a volume its replicas again.
func (d *decider) recovery(i *item) string {
	if i.kind != replicaKind {
		return fmt.Sprintf("to recover it, create an %s with this name and uuid %s", i.kind, i.id)
	}
	of := d.byName[i.name].obj.Spec.Volume
	return fmt.Sprintf("to recover it if NvmfVolume %s is gone too, create that with uuid %s, used: true and the member %s (uuid %s, node %s)", of.Name, of.UUID, i.name, i.id, d.Node.Name)
}

// recorded says that the node's status lists an orphan, or has no place for more.
func (d *decider) recorded(id engine.ID) bool {
	listed := d.Node.Status.Orphans
	if len(listed) >= v1alpha1.MaxOrphans || d.lastOrphan(string(id)) != nil {
		return true
	}
	d.decision.Unrecorded = true
	return false
}

func (d *decider) lastOrphan(uuid string) *v1alpha1.Orphan {
	at := slices.IndexFunc(d.Node.Status.Orphans, func(o v1alpha1.Orphan) bool { return o.UUID == uuid })
	if at < 0 {
		return nil
	}
	return &d.Node.Status.Orphans[at]
}

// decideOrphans tells of what has no object. None of it is deleted. A subsystem that admits nobody is taken away: that
// can disturb nobody, even if the object were only not seen, for then it is made again. But first the node's status
// lists what it serves, by the name that the subsystem has. One that admits hosts stays: a pod may be using it whose
// NvmfReplica was lost, and "no object" is no proof that nobody does.
func (d *decider) decideOrphans() {
	orphans := &d.decision.Orphans
	for _, v := range d.orphanVolumes {
		orphans.Volumes = append(orphans.Volumes, v.ID)
	}
	for _, s := range d.orphanSnapshots {
		orphans.Snapshots = append(orphans.Snapshots, s.ID)
	}
	for _, e := range d.strayExports {
		switch {
		case len(e.Hosts) > 0:
			orphans.Exports = append(orphans.Exports, e.NQN)
		case !d.Attempts.Tried(VerbUnexport, e.NQN) && d.mayUnexport(e):
			d.decision.Operations.Unexport = append(d.decision.Operations.Unexport, e.NQN)
		}
	}
	slices.Sort(orphans.Volumes)
	slices.Sort(orphans.Snapshots)
	slices.Sort(orphans.Exports)
}

// mayUnexport a stray subsystem once what it serves is recorded.
func (d *decider) mayUnexport(e engine.Export) bool {
	return !slices.ContainsFunc(e.Namespaces, func(ns engine.Namespace) bool {
		orphan := slices.ContainsFunc(d.orphanVolumes, func(v engine.Volume) bool { return v.ID == ns.Volume })
		return orphan && !d.recorded(ns.Volume)
	})
}

// orphanStatuses are what the node's status lists: what has no object, and what is kept though its object goes. What
// was listed keeps its place, and its name. It stays listed while its pool cannot be read. count is how many there are,
// with those for which the list has no room.
func (d *decider) orphanStatuses() (listed []v1alpha1.Orphan, count int32) {
	found := d.foundOrphans()
	var all []v1alpha1.Orphan
	for _, was := range d.Node.Status.Orphans {
		is, ok := found[was.UUID]
		switch {
		case ok:
			is.Name, is.Replica = cmp.Or(is.Name, was.Name), cmp.Or(is.Replica, was.Replica)
			is.Allocated = figure(was.Allocated, is.Allocated.Value(), 0, d.Refresh)
			all = append(all, is)
			delete(found, was.UUID)
		case !d.known(was.Device) && !d.hasObject(engine.ID(was.UUID)):
			all = append(all, was)
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[uuid])
	}
	return all[:min(len(all), v1alpha1.MaxOrphans)], int32(len(all))
}

func (d *decider) hasObject(id engine.ID) bool {
	return slices.ContainsFunc(d.volumes, func(v *volume) bool { return v.id == id }) ||
		slices.ContainsFunc(d.snapshots, func(s *snapshot) bool { return s.id == id })
}

// maxOtherDevices is the API's bound.
const maxOtherDevices = 8

// foundOrphans by UUID.
func (d *decider) foundOrphans() map[string]v1alpha1.Orphan {
	served := map[engine.ID]string{}
	for _, e := range d.strayExports {
		for _, ns := range e.Namespaces {
			served[ns.Volume], _ = v1alpha1.ReplicaOfSubsystem(e.NQN)
		}
	}
	found := map[string]v1alpha1.Orphan{}
	add := func(o v1alpha1.Orphan) {
		if first, twice := found[o.UUID]; twice {
			if len(first.OtherDevices) < maxOtherDevices {
				first.OtherDevices = append(first.OtherDevices, o.Device)
			}
			o = first
		}
		found[o.UUID] = o
	}
	addVolume := func(v engine.Volume, name string) {
		add(v1alpha1.Orphan{
			UUID: string(v.ID), Kind: v1alpha1.OrphanReplica, Name: name, Device: v.Pool, Size: *bytesOf(v1alpha1.WithoutOverhead(v.SizeBytes)), Allocated: figure(nil, v.AllocatedBytes, 0, true),
		})
	}
	addSnapshot := func(s engine.Snapshot, name, replica string) {
		add(v1alpha1.Orphan{
			UUID: string(s.ID), Kind: v1alpha1.OrphanSnapshot, Name: name, Replica: replica, Device: s.Pool, Size: *bytesOf(v1alpha1.WithoutOverhead(s.SizeBytes)), Allocated: figure(nil, s.AllocatedBytes, 0, true),
		})
	}
	for _, v := range d.orphanVolumes {
		addVolume(v, served[v.ID])
	}
	for _, s := range d.orphanSnapshots {
		addSnapshot(s, "", "")
	}
	for _, v := range d.volumes {
		if v.kept {
			addVolume(v.found, v.name)
		}
	}
	for _, s := range d.snapshots {
		if s.kept {
			addSnapshot(s.found, s.name, s.obj.Spec.Replica)
		}
	}
	return found
}
