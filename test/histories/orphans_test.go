// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"cmp"
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
	// kind of the object that a node names: NvmfReplica or NvmfSnapshot.
	kind string
	// id of the volume or snapshot.
	id, uuid string
	size     int64
	// bare: its object lost its finalizer, so the agent may not know what it was called.
	bare bool
	// left: only the NvmfVolume is gone, with its finalizer taken off. The NvmfReplica is there, and the node lists no
	// orphan.
	left bool
	// backup of the objects: the NvmfVolume and the NvmfReplica, or the NvmfSnapshot.
	backup []data
	// volume or snapshot that it was; the other is nil.
	volume   *volume
	snapshot *snapshot
}

// name of the object that holds its data.
func (o *orphan) name() string {
	if o.volume != nil {
		return o.volume.replica()
	}
	return o.id
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
	case !keep && o.volume != nil:
		w.deleteMarked(volumeKind, o.id)
		w.awaitErased(o.uuid)
	case !keep:
		w.deleteMarked(snapshotKind, o.id)
		w.awaitErased(o.uuid)
	case o.volume != nil:
		w.volumes = append(w.volumes, o.volume)
		w.attach(o.volume, w.hosts[w.rng.IntN(len(w.hosts))])
	default:
		w.snapshots = append(w.snapshots, o.snapshot)
	}
}

// takeBack an orphan by objects as they were, in any order, or by one that has what the node lists and no more.
func (w *world) takeBack(o *orphan) {
	w.tally.takenBack.Add(1)
	is := w.listedOrphans()[o.uuid]
	if is == nil && !o.left {
		w.Fatalf("%s is no orphan any more", o.id)
	}
	again := o.fromBackup()
	if w.rng.IntN(2) == 0 {
		again = []data{o.fromList(is, w)}
	}
	w.rng.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	for _, object := range again {
		w.byHand("kubectl create "+kindOf(object)+" "+object.GetName()+" to take "+o.id+" back", func(ctx context.Context, api client.Client) error {
			err := api.Create(ctx, object.DeepCopyObject().(data))
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
	if err := w.until(o.id+" to be taken back", func() (bool, error) {
		w.controllerProcess() // gives a volume its replica again
		conditions, err := w.conditions(o)
		return meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady) && w.listedOrphans()[o.uuid] == nil, err
	}); err != nil {
		conditions, _ := w.conditions(o)
		w.Fatalf("%v: it says %+v, and the node lists %+v", err, conditions, w.listedOrphans()[o.uuid])
	}
	if o.volume != nil {
		o.volume.deleted, o.volume.takenBack = "", true
	}
}

// kindOf an object that the client may not have filled in.
func kindOf(o data) string {
	switch o.(type) {
	case *v1alpha1.NvmfVolume:
		return volumeKind
	case *v1alpha1.NvmfReplica:
		return replicaKind
	}
	return snapshotKind
}

// conditions of the object that holds the data; none while there is no such object.
func (w *world) conditions(o *orphan) ([]metav1.Condition, error) {
	object := dataNamed(o.kind, o.name())
	if err := api.Get(w.ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if s, ok := object.(*v1alpha1.NvmfSnapshot); ok {
		return s.Status.Conditions, nil
	}
	return object.(*v1alpha1.NvmfReplica).Status.Conditions, nil
}

func objectMeta(name, finalizer string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Finalizers: []string{finalizer}}
}

// fromBackup are the objects as they were, without the hosts that they listed.
func (o *orphan) fromBackup() []data {
	var all []data
	for _, was := range o.backup {
		again := was.DeepCopyObject().(data)
		labels, annotations := maps.Clone(again.GetLabels()), maps.Clone(again.GetAnnotations())
		switch is := again.(type) {
		case *v1alpha1.NvmfVolume:
			is.ObjectMeta = objectMeta(is.Name, v1alpha1.ReplicasFinalizer)
			is.Spec.Attachments, is.Spec.Session, is.Spec.Used = nil, "", true
		case *v1alpha1.NvmfReplica:
			is.ObjectMeta, is.Status = objectMeta(is.Name, v1alpha1.EngineFinalizer), v1alpha1.NvmfReplicaStatus{}
			is.Spec.Hosts, is.Spec.SubsystemNQN, is.Spec.Used = nil, "", true
		case *v1alpha1.NvmfSnapshot:
			is.ObjectMeta, is.Status = objectMeta(is.Name, v1alpha1.EngineFinalizer), v1alpha1.NvmfSnapshotStatus{}
			is.Spec.Taken = true
		}
		again.SetLabels(labels)
		again.SetAnnotations(annotations)
		all = append(all, again)
	}
	return all
}

// fromList is an object of what the node lists, as in docs/tasks/recover-a-deleted-volume.md, with what a copy was made
// from, which its claim says. What neither says is the default, unless the replica is there to be looked at.
func (o *orphan) fromList(is *v1alpha1.Orphan, w *world) data {
	if o.snapshot != nil {
		return &v1alpha1.NvmfSnapshot{ObjectMeta: objectMeta(o.id, v1alpha1.EngineFinalizer), Spec: v1alpha1.NvmfSnapshotSpec{
			UUID: is.UUID, Node: w.storage.Name, Volume: o.snapshot.of, Replica: cmp.Or(is.Replica, replicaOf(o.snapshot.of)), Taken: true,
		}}
	}
	v := &v1alpha1.NvmfVolume{ObjectMeta: objectMeta(o.id, v1alpha1.ReplicasFinalizer), Spec: v1alpha1.NvmfVolumeSpec{
		UUID: o.uuid, Target: w.target, Members: []v1alpha1.VolumeMember{{Name: o.name(), UUID: o.uuid, Node: w.storage.Name}}, Used: true,
		Source: o.backup[0].(*v1alpha1.NvmfVolume).Spec.Source,
	}}
	o.volume.limits = engine.QoS{}
	if o.left {
		replica := w.copyOf(o.id)
		v.Spec.Size, v.Spec.Connection = replica.Spec.Size, replica.Spec.Connection
		return v
	}
	v.Spec.Size = *resource.NewQuantity(is.Size.Value(), resource.BinarySI)
	o.volume.both = false
	return v
}
