// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

// orphan is data whose object was deleted by mistake.
type orphan struct {
	kind     v1alpha1.OrphanKind
	id, uuid string
	size     int64
	// bare: its object lost its finalizer, so the agent may not know what it was called.
	bare bool
	// backup of the object.
	backup data
	// volume or snapshot that it was; the other is nil.
	volume   *volume
	snapshot *snapshot
}

// orphanOf a UUID; nil when it is none.
func (w *world) orphanOf(uuid string) *orphan {
	i := slices.IndexFunc(w.orphans, func(o *orphan) bool { return o.uuid == uuid })
	if i < 0 {
		return nil
	}
	return w.orphans[i]
}

// endOrphan takes one back, and half the time deletes it then, which is the way to delete an orphan.
func (w *world) endOrphan() {
	i, keep := w.rng.IntN(len(w.orphans)), w.rng.IntN(2) == 0
	o := w.orphans[i]
	w.orphans = slices.Delete(w.orphans, i, i+1)
	w.takeBack(o)
	switch {
	case !keep:
		w.deleteMarked(o.kind, o.id)
		w.awaitErased(o.uuid)
	case o.volume != nil:
		w.volumes = append(w.volumes, o.volume)
		w.attach(o.volume, w.hosts[w.rng.IntN(len(w.hosts))])
	default:
		w.snapshots = append(w.snapshots, o.snapshot)
	}
}

// takeBack an orphan by an object as it was, or by one that has what the node lists and no more.
func (w *world) takeBack(o *orphan) {
	w.tally.takenBack.Add(1)
	is := w.listedOrphans()[o.uuid]
	if is == nil {
		w.Fatalf("%s is no orphan any more", o.id)
	}
	again := o.fromBackup()
	if w.rng.IntN(2) == 0 {
		again = o.fromList(is, w)
	}
	w.byHand("kubectl create "+string(o.kind)+" "+o.id+" to take it back", func(ctx context.Context, api client.Client) error {
		err := api.Create(ctx, again.DeepCopyObject().(data))
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if err := w.until(o.id+" to be taken back", func() (bool, error) {
		return meta.IsStatusConditionTrue(w.conditions(o), v1alpha1.ConditionReady) && w.listedOrphans()[o.uuid] == nil, nil
	}); err != nil {
		w.Fatalf("%v: it says %+v, and the node lists %+v", err, w.conditions(o), w.listedOrphans()[o.uuid])
	}
	if o.volume != nil {
		o.volume.deleted, o.volume.bare, o.volume.takenBack = false, false, true
	}
}

func (w *world) conditions(o *orphan) []metav1.Condition {
	w.Helper()
	if o.snapshot == nil {
		return w.object(o.id).Status.Conditions
	}
	var s v1alpha1.NvmfSnapshot
	w.must(api.Get(w.ctx, client.ObjectKey{Name: o.id}, &s))
	return s.Status.Conditions
}

func (o *orphan) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.id, Finalizers: []string{v1alpha1.VolumeFinalizer}}
}

// fromBackup is the object as it was, without the hosts that it listed.
func (o *orphan) fromBackup() data {
	again := o.backup.DeepCopyObject().(data)
	labels, annotations := maps.Clone(again.GetLabels()), maps.Clone(again.GetAnnotations())
	switch is := again.(type) {
	case *v1alpha1.NvmfVolume:
		is.ObjectMeta, is.Status = o.meta(), v1alpha1.NvmfVolumeStatus{}
		is.Spec.Hosts, is.Spec.SubsystemNQN, is.Spec.Used = nil, "", true
	case *v1alpha1.NvmfSnapshot:
		is.ObjectMeta, is.Status = o.meta(), v1alpha1.NvmfSnapshotStatus{}
		is.Spec.Taken = true
	}
	again.SetLabels(labels)
	again.SetAnnotations(annotations)
	return again
}

// fromList is an object of what the node lists, as in docs/tasks/recover-a-deleted-volume.md, with what a copy was made
// from, which its claim says. What neither says is the default.
func (o *orphan) fromList(is *v1alpha1.Orphan, w *world) data {
	if o.snapshot != nil {
		return &v1alpha1.NvmfSnapshot{ObjectMeta: o.meta(), Spec: v1alpha1.NvmfSnapshotSpec{
			UUID: is.UUID, Node: w.storage.Name, Volume: o.snapshot.of, Taken: true,
		}}
	}
	o.volume.limits, o.volume.both = engine.QoS{}, false
	return &v1alpha1.NvmfVolume{ObjectMeta: o.meta(), Spec: v1alpha1.NvmfVolumeSpec{
		UUID: is.UUID, Node: w.storage.Name, Target: w.target, Size: *resource.NewQuantity(is.Size.Value(), resource.BinarySI), Used: true,
		Source: o.backup.(*v1alpha1.NvmfVolume).Spec.Source,
	}}
}
