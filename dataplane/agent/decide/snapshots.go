// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/internal/text"
)

// snapshot is an NvmfSnapshot and what the engine has of it.
type snapshot struct {
	item
	obj   *v1alpha1.NvmfSnapshot
	found engine.Snapshot // when present

	ready metav1.Condition
}

func (d *decider) indexSnapshots() {
	found := map[engine.ID]engine.Snapshot{}
	for _, s := range d.Target.State.Snapshots {
		found[s.ID] = s
	}
	rival := rivals(d.Snapshots, func(s *v1alpha1.NvmfSnapshot) string { return s.Spec.UUID }, func(s *v1alpha1.NvmfSnapshot) bool { return s.Status.Device != "" })
	d.snapNames = make(map[string]*snapshot, len(d.Snapshots))
	for _, obj := range d.Snapshots {
		s := &snapshot{item: itemOf("NvmfSnapshot", obj, obj.Spec.UUID, obj.Spec.Taken, obj.Status.Conditions), obj: obj}
		s.rival = rival[obj.Name]
		if f, ok := found[s.id]; s.rival != "" {
			s.presence = absent
		} else if ok {
			s.presence, s.found = present, f
			d.promised[f.Pool] += f.AllocatedBytes
		} else {
			s.presence = d.whereMissing(s)
		}
		d.snapshots = append(d.snapshots, s)
		d.snapNames[obj.Name] = s
	}
}

// whereMissing judges a snapshot that was not found. It can only be in its replica's pool; when that
// is not known any more, in any.
func (d *decider) whereMissing(s *snapshot) presence {
	known := d.allReadable()
	if v := d.byName[s.obj.Spec.Replica]; v != nil && v.device != "" {
		known = d.known(v.device)
	} else if v != nil && v.presence == absent {
		known = true // a volume that never was has no snapshot
	}
	return s.missing(known)
}

func (d *decider) decideSnapshots() {
	for _, s := range d.snapshots {
		switch {
		case s.rival != "":
			s.created = s.inUse()
			s.ready = s.created
			if s.deleting {
				s.letGo(&d.decision.ReleaseSnapshots)
			}
		case s.suspect != "":
			s.created = s.createdOr(unknown(v1alpha1.ReasonRestoreSuspected, s.suspect))
			s.ready = no(v1alpha1.ReasonRestoreSuspected, "%s", s.suspect)
		case s.deleting:
			d.removeSnapshot(s)
		case s.presence == present:
			s.created, s.ready = yes(), yes()
		case s.presence == absent:
			s.created = d.createSnapshot(s)
			s.ready = s.created
		case s.presence == lost:
			s.ready = no(v1alpha1.ReasonVolumeLost, "snapshot %s was taken, but is not in its pool any more; it is not taken again, because it would contain later data", s.id)
			s.created = s.createdOr(s.ready)
		default:
			s.created = s.createdOr(unknown(v1alpha1.ReasonPoolFailed, d.whyUnseen(d.homeOf(s))))
			s.ready = no(v1alpha1.ReasonPoolFailed, "%s", d.whyUnseen(d.homeOf(s)))
		}
		if !s.released {
			d.decision.Snapshots[s.obj.Name] = d.snapshotStatus(s)
		}
	}
}

// homeOf a snapshot is its replica's pool; empty when that is not known.
func (d *decider) homeOf(s *snapshot) string {
	if v := d.byName[s.obj.Spec.Replica]; v != nil {
		return v.device
	}
	return ""
}

func (d *decider) createSnapshot(s *snapshot) metav1.Condition {
	source := d.byName[s.obj.Spec.Replica]
	err := d.Attempts.err(VerbCreateSnapshot, string(s.id))
	switch {
	case errors.Is(err, engine.ErrNotFound) || source == nil || source.presence != present:
		return no(v1alpha1.ReasonSourceNotReady, "NvmfReplica %s is not on this node yet", s.obj.Spec.Replica)
	case errors.Is(err, engine.ErrNoSpace):
		return no(v1alpha1.ReasonNoSpace, "%v", err)
	case d.poolOf(source.device).readable() && d.room(d.poolOf(source.device)) < source.found.AllocatedBytes:
		return no(v1alpha1.ReasonNoSpace, "pool %s has no space to keep the %d bytes of NvmfReplica %s when they are overwritten", source.device, source.found.AllocatedBytes, s.obj.Spec.Replica)
	case errors.Is(err, engine.ErrBusy):
		d.promised[source.device] += source.found.AllocatedBytes // it may be on its way
		return no(v1alpha1.ReasonPending, "%v", err)
	case err != nil:
		return no(v1alpha1.ReasonCreateFailed, "%v", err)
	case !d.Attempts.Tried(VerbCreateSnapshot, string(s.id)):
		d.promised[source.device] += source.found.AllocatedBytes
		d.decision.Operations.CreateSnapshots = append(d.decision.Operations.CreateSnapshots, engine.SnapshotSpec{ID: s.id, Volume: source.id})
	}
	return no(v1alpha1.ReasonPending, "creation is in progress")
}

func (d *decider) removeSnapshot(s *snapshot) {
	ops, err := &d.decision.Operations, d.Attempts.err(VerbDeleteSnapshot, string(s.id))
	s.created = s.createdOr(no(v1alpha1.ReasonDeleting, "deletion is in progress"))
	s.ready = d.remove(&s.item, d.homeOf(s), VerbDeleteSnapshot, &ops.DeleteSnapshots, &d.decision.ReleaseSnapshots)
	clones := d.clonesOf(s)
	if s.presence == present && d.needed[s.id] == "" && errors.Is(err, engine.ErrBusy) && len(clones) > 0 {
		s.ready = no(v1alpha1.ReasonDeleting, "it cannot be deleted while NvmfReplicas depend on it: %s", text.Few(clones, named, ", "))
	}
}

// clonesOf a snapshot are the replicas that were made from it and are still there.
func (d *decider) clonesOf(s *snapshot) []string {
	var names []string
	for _, v := range d.volumes {
		if v.obj.Spec.Source != nil && v.obj.Spec.Source.Snapshot == s.obj.Name && v.presence != absent {
			names = append(names, v.obj.Name)
		}
	}
	return names
}

func (d *decider) snapshotStatus(s *snapshot) v1alpha1.NvmfSnapshotStatus {
	status := *s.obj.Status.DeepCopy()
	status.ObservedGeneration = s.observedGeneration(s.obj.Generation, status.ObservedGeneration)
	if s.presence == present {
		status.Ready, status.Device = true, s.found.Pool
		// The smallest volume that it can be restored to: its own volume may be a little larger.
		status.Size = keep(status.Size, v1alpha1.LeastData(s.found.SizeBytes, d.clustersOf(s.found.Pool)))
		if status.CreatedAt == nil {
			at := metav1.NewTime(s.found.CreatedAt).Rfc3339Copy()
			status.CreatedAt = &at
		}
		status.Allocated = figure(status.Allocated, s.found.AllocatedBytes, 0, d.Refresh)
	}
	status.Conditions = Conditions(s.obj.Status.Conditions, status.ObservedGeneration, d.Now,
		typed(v1alpha1.ConditionCreated, s.created),
		typed(v1alpha1.ConditionReady, s.ready),
	)
	return status
}
