// SPDX-License-Identifier: Apache-2.0

package decide

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// Decide says what to do next, and what is true now. It is pure, and total: whatever was observed,
// there is a Decision, and one without Operations means that all that could be tried was tried.
func Decide(s Observed) Decision {
	d := &decider{
		Observed: s,
		decision: Decision{Volumes: map[string]v1alpha1.NvmfReplicaStatus{}, Snapshots: map[string]v1alpha1.NvmfSnapshotStatus{}},
	}
	switch {
	case s.Node.Spec.Plan == nil:
		d.nothingKnown(v1alpha1.ReasonNotClaimed, "no NvmfTarget claims this node")
	case s.Target.Err != nil:
		d.nothingKnown(s.Target.Reason, s.Target.Err.Error())
	default:
		d.index()
		d.decidePools()
		d.decideVolumes()
		d.decideSnapshots()
		d.letGo()
		d.decideOrphans()
		d.decideNotes()
		d.decidePortals() // last: portals wait until nothing else is left to try
		d.decideNode()
	}
	return d.decision
}

// decider indexes what was observed and collects the Decision.
type decider struct {
	Observed
	decision Decision

	pools     []*pool // planned ones in the plan's order, then others that the engine holds
	volumes   []*volume
	snapshots []*snapshot
	byName    map[string]*volume
	snapNames map[string]*snapshot
	// exports that the engine has, by volume.
	exports map[string][]*engine.Export
	// What has no object.
	orphanVolumes   []engine.Volume
	orphanSnapshots []engine.Snapshot
	strayExports    []engine.Export
	// drops tells of each drive that is to be dropped what became of that.
	drops []v1alpha1.DroppedDriveStatus
	// promised bytes of each pool: what its volumes may grow to with headers and trailers, written or not, what its
	// snapshots hold, and what is being cleared.
	promised map[string]int64
	// places are taken by volumes: those that may be there, and those that are being made.
	places int64
	// attachments of the node, with those that find a place now.
	attachments v1alpha1.Places
	// needed are the sources that something waits to be made from, with the name of what waits.
	needed map[engine.ID]string
	// waiting are the volumes with hosts that are not exported as wanted, but may yet be.
	waiting []string

	portalsReady metav1.Condition
}

func (d *decider) index() {
	d.exports = make(map[string][]*engine.Export, len(d.Target.State.Exports))
	for i := range d.Target.State.Exports {
		e := &d.Target.State.Exports[i]
		if volume, ours := v1alpha1.ReplicaOfSubsystem(e.NQN); ours {
			d.exports[volume] = append(d.exports[volume], e)
		}
	}
	d.indexPools()
	d.decideDrops() // what was given up is lost, not unknown
	d.indexVolumes()
	d.indexSnapshots()
	d.indexOrphans()
	d.indexClearing()
	d.indexNeeded()
	d.recall()
}

// indexNeeded notes the sources of what is not made yet. They are not deleted
// before: without its source it could never be made.
func (d *decider) indexNeeded() {
	d.needed = map[engine.ID]string{}
	for _, v := range d.volumes {
		if v.presence != absent || v.deleting || v.rival != "" || v.obj.Spec.Source == nil {
			continue
		}
		if source, ok := d.sourceOf(v); ok {
			d.needed[source.id] = replicaKind + " " + v.obj.Name
		}
	}
	for _, s := range d.snapshots {
		if source := d.byName[s.obj.Spec.Replica]; s.presence == absent && !s.deleting && s.rival == "" && source != nil {
			d.needed[source.id] = "NvmfSnapshot " + s.obj.Name
		}
	}
}

// nothingKnown decides when there is no engine, or it does not answer: nothing
// is done, and what was true of volumes and pools stays as it was last seen.
func (d *decider) nothingKnown(reason, message string) {
	d.decision.Node = d.nodeNothingKnown(reason, message)
	for _, obj := range d.Volumes {
		if len(obj.Status.Conditions) == 0 {
			status := *obj.Status.DeepCopy()
			status.Conditions = d.notSeen(obj.Generation, reason, message,
				v1alpha1.ConditionCreated, v1alpha1.ConditionExported, v1alpha1.ConditionDegraded, v1alpha1.ConditionQoSApplied)
			d.decision.Volumes[obj.Name] = status
		}
	}
	for _, obj := range d.Snapshots {
		if len(obj.Status.Conditions) == 0 {
			status := *obj.Status.DeepCopy()
			status.Conditions = d.notSeen(obj.Generation, reason, message, v1alpha1.ConditionCreated)
			d.decision.Snapshots[obj.Name] = status
		}
	}
}
