// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// item is what volumes and snapshots have in common.
type item struct {
	kind, name string
	id         engine.ID
	presence   presence
	// deleting: its object is to go; marked: and its data with it; kept: the data stays.
	deleting, marked, kept bool
	// wasCreated: its status says that it was made. wasMade: that, or its spec.
	wasCreated, wasMade bool
	// rival is the name of another object that has the same UUID and the data.
	rival string
	// released: its object is let go, see Decision.ReleaseVolumes and ReleaseSnapshots.
	released bool
	// suspect says why its object may be from the past; empty when it is not.
	suspect string
	// record of what is acted on now.
	record Record

	created metav1.Condition
}

// presence of a volume or snapshot in the engine.
type presence int

const (
	// absent: it was never made, or is no longer there; either way it was looked for where it would be.
	absent presence = iota
	present
	// unseen: where it would be could not be read. It is not known whether it is there.
	unseen
	// lost: it had been made, and was looked for where it was, or wherever it could be.
	lost
)

// object is an NvmfReplica or an NvmfSnapshot.
type object interface {
	metav1.Object
	Marked() bool
}

// itemOf an object; made is what its spec says.
func itemOf(kind string, obj object, uuid string, made bool, conditions []metav1.Condition) item {
	created := meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionCreated)
	return item{
		kind: kind, name: obj.GetName(), id: engine.ID(uuid), deleting: !obj.GetDeletionTimestamp().IsZero(), marked: obj.Marked(),
		wasCreated: created, wasMade: created || made,
	}
}

// rivals are the objects whose UUID another one has as well, with the other's name. It is held by the object that the
// agent has written to, else the oldest: that cannot change while both exist.
func rivals[T object](objects []T, uuid func(T) string, held func(T) bool) map[string]string {
	sorted := slices.SortedStableFunc(slices.Values(objects), func(a, b T) int {
		if held(a) != held(b) {
			return map[bool]int{true: -1, false: 1}[held(a)]
		}
		return a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time)
	})
	holders, of := map[string]string{}, map[string]string{}
	for _, o := range sorted {
		if holder, ok := holders[uuid(o)]; ok {
			of[o.GetName()] = holder
		} else {
			holders[uuid(o)] = o.GetName()
		}
	}
	return of
}

// inUse is what is true of an item with a rival.
func (i *item) inUse() metav1.Condition {
	return no(v1alpha1.ReasonUUIDInUse, "%s %s already has uuid %s and the data; you can delete this object, which deletes no data", i.kind, i.rival, i.id)
}

// missing judges an item that was not found; known says that where it would be was read.
func (i *item) missing(known bool) presence {
	switch {
	case !known:
		return unseen
	case i.wasMade:
		return lost
	default:
		return absent
	}
}

// createdOr is yes for what is there, or was made once; else it is the other condition.
func (i *item) createdOr(other metav1.Condition) metav1.Condition {
	if i.presence == present || i.wasCreated {
		return yes()
	}
	return other
}

// letGo of its object, and of its name in the decision.
func (i *item) letGo(release *[]string) {
	i.released = true
	*release = append(*release, i.name)
}

// remove an item that nothing uses any more: delete it, look again, release its object. home is the pool where it is,
// or would be.
func (d *decider) remove(i *item, home string, verb Verb, operations *[]engine.ID, release *[]string) metav1.Condition {
	err := d.Attempts.err(verb, string(i.id))
	needer, needed := d.needed[i.id]
	switch {
	case i.presence == unseen:
		return no(v1alpha1.ReasonDeleting, "%s. If the drive is permanently lost, run: kubectl weft drop %s %s",
			d.whyUnseen(home), d.Node.Name, cmp.Or(home, "DRIVE"))
	case i.presence != present:
		i.letGo(release)
	case needed:
		return no(v1alpha1.ReasonDeleting, "%s must be created from it first", needer)
	case !i.marked:
		return d.keepData(i, release)
	case err != nil:
		return no(v1alpha1.ReasonDeleting, "it cannot be deleted yet: %v", err)
	case !d.Attempts.Tried(verb, string(i.id)):
		*operations = append(*operations, i.id)
	}
	return no(v1alpha1.ReasonDeleting, "deletion is in progress")
}

// notSeen are the first conditions of an object that nobody can look at yet: it is not ready, and the others are
// unknown.
func (d *decider) notSeen(generation int64, reason, message string, others ...string) []metav1.Condition {
	own := []metav1.Condition{typed(v1alpha1.ConditionReady, no(reason, "%s", message))}
	for _, t := range others {
		own = append(own, typed(t, unknown(reason, message)))
	}
	return Conditions(nil, generation, d.Now, own...)
}
