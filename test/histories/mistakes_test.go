// SPDX-License-Identifier: Apache-2.0

package histories

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/controller"
)

// unguarded objects bear a label of this key: the policy that refuses their deletion is not in force.
const unguarded = "test.weft.storage/unguarded"

// mistake: the object of a volume, of its replica or of a snapshot is deleted, and nobody asked for its data to go.
func (w *world) mistake(v *volume) {
	which := w.rng.IntN(8)
	if v == nil || len(w.snapshots) > 0 && w.rng.IntN(3) == 0 {
		i := w.rng.IntN(len(w.snapshots))
		s := w.snapshots[i]
		w.snapshots = slices.Delete(w.snapshots, i, i+1)
		w.loseSnapshot(s, which < 2)
		return
	}
	v.backup = []data{w.object(v.id), w.copyOf(v.id)}
	switch {
	case which < 3:
		v.deleted = replicaKind
		w.deleteUnmarked(replicaKind, v.replica(), false)
		if v.attached() {
			w.servedWithoutReplica(v)
		}
	case which < 5:
		w.loseVolume(v)
	default:
		v.deleted = volumeKind
		w.deleteUnmarked(volumeKind, v.id, false)
		if v.attached() {
			w.servedOn(v)
		}
	}
}

func (w *world) loseSnapshot(s *snapshot, bare bool) {
	o := &orphan{kind: snapshotKind, id: s.id, uuid: s.uuid, size: s.size, bare: bare, snapshot: s}
	var backup v1alpha1.NvmfSnapshot
	w.must(api.Get(w.ctx, client.ObjectKey{Name: s.id}, &backup))
	o.backup = []data{&backup}
	w.deleteUnmarked(o.kind, s.id, bare)
	w.becomesOrphan(o)
}

// loseVolume deletes the NvmfVolume with its finalizer taken off, so that the NvmfReplica stays behind, and sometimes
// that as well. If the CSI controller comes first, it has let the replica go itself. While the volume is attached, it
// is served, and it can be detached.
func (w *world) loseVolume(v *volume) {
	o := &orphan{kind: replicaKind, id: v.id, uuid: v.uuid, size: v.size, backup: v.backup, volume: v}
	both, bare := w.rng.IntN(2) == 0, w.rng.IntN(2) == 0
	w.deleteUnmarked(volumeKind, v.id, true)
	for v.attached() {
		w.write(v)
		w.read(v)
		w.detach(v, v.hosts[0])
	}
	w.volumes = slices.DeleteFunc(w.volumes, func(other *volume) bool { return other == v })
	if both {
		o.bare = bare
		w.deleteUnmarked(replicaKind, v.replica(), bare)
	}
	var replica v1alpha1.NvmfReplica
	err := api.Get(w.ctx, client.ObjectKey{Name: v.replica()}, &replica)
	w.must(client.IgnoreNotFound(err))
	if o.left = err == nil && replica.DeletionTimestamp == nil; o.left {
		w.orphans = append(w.orphans, o)
		return
	}
	w.becomesOrphan(o)
}

// servedOn is a volume while it is attached, deleted or not: it reads as it was written, takes writes, and its objects
// stay. Nothing new is begun with it. Sometimes its deletion was meant after all, which is said now.
func (w *world) servedOn(v *volume) {
	w.write(v)
	w.read(v)
	if o := w.object(v.id); o.DeletionTimestamp == nil || !slices.Contains(o.Finalizers, v1alpha1.ReplicasFinalizer) {
		w.Fatalf("volume %s is deleted at %v and has finalizers %v", v.id, o.DeletionTimestamp, o.Finalizers)
	}
	expansion := w.onController("ControllerExpandVolume "+v.id, func(ctx context.Context, s *controller.Service) error {
		_, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: v.id, CapacityRange: &csi.CapacityRange{RequiredBytes: v.size + growth}})
		return err
	}, codes.FailedPrecondition)
	unattached := *v
	unattached.contexts = map[*host]map[string]string{}
	for _, c := range []call{w.deletion(v, codes.FailedPrecondition), expansion, w.publication(&unattached, w.hosts[w.rng.IntN(2)], codes.FailedPrecondition)} {
		if err := w.make(c); status.Code(err) != codes.FailedPrecondition {
			w.Fatalf("%s, which is deleted: %v", c.name, err)
		}
	}
	w.write(v)
	w.read(v)
	if replica := w.copyOf(v.id); replica.DeletionTimestamp != nil {
		w.Fatalf("replica %s of a volume that is attached is being deleted", replica.Name)
	}
	if w.rng.IntN(4) > 0 {
		return
	}
	v.meant = true
	w.byHand("kubectl patch nvmfvolume "+v.id+", to mark it", func(ctx context.Context, api client.Client) error {
		return mark(ctx, api, dataNamed(volumeKind, v.id))
	})
	w.write(v)
	w.read(v)
}

// servedWithoutReplica is a volume whose NvmfReplica was deleted, while it is attached: it reads as it was written,
// takes writes, and the object stays.
func (w *world) servedWithoutReplica(v *volume) {
	w.write(v)
	w.read(v)
	w.await("the deletion of "+v.replica()+" to be told of", func() bool {
		c := meta.FindStatusCondition(w.copyOf(v.id).Status.Conditions, v1alpha1.ConditionReady)
		return c != nil && c.Reason == v1alpha1.ReasonNotMarked
	})
	if o := w.copyOf(v.id); o.DeletionTimestamp == nil || !slices.Contains(o.Finalizers, v1alpha1.EngineFinalizer) {
		w.Fatalf("replica %s is deleted at %v and has finalizers %v", o.Name, o.DeletionTimestamp, o.Finalizers)
	}
	if c := w.deletion(v, codes.FailedPrecondition); status.Code(w.make(c)) != codes.FailedPrecondition {
		w.Fatalf("%s, which is attached: not refused", c.name)
	}
	w.write(v)
	w.read(v)
}

// settleMistakes: what is deleted and not attached any more becomes an orphan, or is gone where that was meant, or gets
// its replica again.
func (w *world) settleMistakes() {
	for _, v := range slices.Clone(w.volumes) {
		if v.whole() || v.attached() {
			continue
		}
		if v.deleted == replicaKind {
			w.awaitReplicaAgain(v)
			continue
		}
		w.volumes = slices.DeleteFunc(w.volumes, func(other *volume) bool { return other == v })
		if v.meant {
			w.awaitGone(volumeKind, v.id)
			w.awaitErased(v.uuid)
			continue
		}
		w.becomesOrphan(&orphan{kind: replicaKind, id: v.id, uuid: v.uuid, size: v.size, backup: v.backup, volume: v})
	}
}

// awaitReplicaAgain: a volume that may contain data gets another NvmfReplica, which takes its data back. Of one that
// was never attached, a person says that it may.
func (w *world) awaitReplicaAgain(v *volume) {
	w.Helper()
	if !w.object(v.id).Spec.Used {
		w.byHand("kubectl patch nvmfvolume "+v.id+", to say that it is used", func(ctx context.Context, api client.Client) error {
			return merge(ctx, api, dataNamed(volumeKind, v.id), `{"spec":{"used":true}}`)
		})
	}
	var o v1alpha1.NvmfReplica
	if err := w.until("another "+v.replica(), func() (bool, error) {
		w.controllerProcess() // makes it
		o = v1alpha1.NvmfReplica{}
		err := api.Get(w.ctx, client.ObjectKey{Name: v.replica()}, &o)
		again := o.UID != v.backup[1].GetUID() && o.DeletionTimestamp == nil && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady)
		return again && w.listedOrphans()[v.uuid] == nil, client.IgnoreNotFound(err)
	}); err != nil {
		w.Fatalf("%v: it is deleted at %v, has UID %s after %s, and says %+v", err, o.DeletionTimestamp, o.UID, v.backup[1].GetUID(), o.Status.Conditions)
	}
	v.deleted, v.takenBack = "", true
}

// becomesOrphan waits until the object is gone. By then the node tells what it was called, unless the agent was not
// asked; then it follows.
func (w *world) becomesOrphan(o *orphan) {
	w.awaitGone(o.kind, o.name())
	if o.volume != nil {
		w.awaitGone(volumeKind, o.id)
	}
	listed := w.listedOrphans()
	if o.bare {
		w.await(o.id+" to be an orphan", func() bool {
			listed = w.listedOrphans()
			return listed[o.uuid] != nil
		})
	}
	if is := listed[o.uuid]; is == nil || string(is.Kind) != o.kind || is.Name != o.name() && (!o.bare || is.Name != "") || is.Size.Value() != o.size {
		w.Fatalf("the object of %s is gone, and the node lists it as %+v", o.id, is)
	}
	w.orphans = append(w.orphans, o)
}

// listedOrphans of the node's status, by UUID.
func (w *world) listedOrphans() map[string]*v1alpha1.Orphan {
	w.Helper()
	var node v1alpha1.NvmfNode
	w.must(api.Get(w.ctx, client.ObjectKey{Name: w.storage.Name}, &node))
	listed := map[string]*v1alpha1.Orphan{}
	for i, o := range node.Status.Orphans {
		listed[o.UUID] = &node.Status.Orphans[i]
	}
	return listed
}

// awaitErased: nothing is left of what was deleted.
func (w *world) awaitErased(uuid string) {
	w.Helper()
	w.await("the target to serve", func() bool {
		state, answers := w.serving()
		return answers && len(state.Portals) > 0
	})
	for _, name := range w.storage.Target().Lvols() {
		if name == uuid {
			w.Fatalf("volume %s was deleted, and is there", uuid)
		}
	}
	w.await(fmt.Sprintf("%s not to be an orphan", uuid), func() bool { return w.listedOrphans()[uuid] == nil })
}
