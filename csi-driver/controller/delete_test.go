// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// erased waits until a node's engine holds neither.
func erased(t testing.TB, node string, uuids ...string) {
	t.Helper()
	NewWithT(t).Eventually(func() bool {
		volumes, snapshots := holds(t, node)
		return slices.ContainsFunc(uuids, func(id string) bool { return slices.Contains(volumes, id) || slices.Contains(snapshots, id) })
	}).WithTimeout(enough).Should(BeFalse())
}

func deleteByHand(t testing.TB, obj client.Object) {
	t.Helper()
	if err := api.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// What a person deleted is kept, until CSI asks for its deletion.
func TestDeleteMarksWhatWasDeletedByHand(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	snap := newSnapshot(t, s, "snap", id)
	var object v1alpha1.NvmfSnapshot
	if err := api.Get(t.Context(), types.NamespacedName{Name: snap.SnapshotId}, &object); err != nil {
		t.Fatal(err)
	}
	if !object.Spec.Taken {
		t.Error("it is not recorded that the snapshot was taken")
	}
	uuid := volume(t, id).Spec.UUID
	deleteByHand(t, volume(t, id))
	deleteByHand(t, &object)
	settled, stop := context.WithCancel(t.Context())
	go s.Settle(settled)
	defer stop()
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		g.Expect(replica(t, id).Status.Conditions).To(ContainElement(And(HaveField("Type", v1alpha1.ConditionReady), HaveField("Reason", v1alpha1.ReasonNotMarked))))
		g.Expect(api.Get(t.Context(), types.NamespacedName{Name: snap.SnapshotId}, &object)).To(Succeed())
		g.Expect(object.Status.Conditions).To(ContainElement(And(HaveField("Type", v1alpha1.ConditionReady), HaveField("Reason", v1alpha1.ReasonNotMarked))))
	}).WithTimeout(enough).Should(Succeed())
	volumes, snapshots := holds(t, st.nodes[0])
	g.Expect(volumes).To(ContainElement(uuid))
	g.Expect(snapshots).To(ContainElement(object.Spec.UUID))

	if _, err := s.DeleteSnapshot(within(t, enough), &csi.DeleteSnapshotRequest{SnapshotId: snap.SnapshotId}); err != nil {
		t.Error(err)
	}
	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
	erased(t, st.nodes[0], uuid, object.Spec.UUID)
}

// A host that is admitted between the mark and the deletion stops the deletion.
func TestEraseOnlyWhatWasRead(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	silence(t, st.nodes[0])
	node := newHost(t, "host")
	read := volume(t, id)
	if read.Spec.Used {
		t.Error("used before it was attached")
	}
	changed := read.DeepCopy()
	h := attachment{node: node, nodeUID: uidOf(t, node)}.host()
	changed.Spec.Attachments, changed.Spec.Session = []v1alpha1.VolumeHost{h}, changed.Spec.UUID
	if err := api.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	if err := s.erase(t.Context(), read); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if v := volume(t, id); v.Spec.DeletionMark != "" || v.DeletionTimestamp != nil {
		t.Errorf("marked %q, deleted %v", v.Spec.DeletionMark, v.DeletionTimestamp)
	}
	// Between the two writes.
	between := &admitting{Client: s.client, admit: func() {
		changed := volume(t, id)
		changed.Spec.Size.Add(changed.Spec.Size)
		if err := api.Update(t.Context(), changed); err != nil {
			t.Error(err)
		}
	}}
	s.client = between
	if err := s.erase(t.Context(), volume(t, id)); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	if v := volume(t, id); !v.Marked() || v.DeletionTimestamp != nil {
		t.Errorf("marked %q, deleted %v", v.Spec.DeletionMark, v.DeletionTimestamp)
	}
}

// admitting has another writer come in before each deletion.
type admitting struct {
	client.Client
	admit func()
}

func (c *admitting) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	c.admit()
	return c.Client.Delete(ctx, obj, opts...)
}

// What no agent could make is withdrawn like any other deletion: an admission policy refuses one without the mark.
func TestWithdrawMarks(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newVolume(t, s, st, "v")
	silence(t, st.nodes[0])
	done := make(chan error, 1)
	read := volume(t, id)
	go func() {
		_, err := s.withdraw(within(t, enough), read, errNoSpace)
		done <- err
	}()
	g := NewWithT(t)
	g.Eventually(func() *metav1.Time { return volume(t, id).DeletionTimestamp }).WithTimeout(enough).ShouldNot(BeNil())
	g.Expect(volume(t, id).Marked()).To(BeTrue())
	agents[st.nodes[0]].Start(t.Context())
	g.Expect(<-done).To(Succeed())
}

// A volume that is in use after its deletion was begun, or after it was withdrawn and made after all, bears no mark:
// else whoever deletes its object by mistake would delete its data.
func TestWhatIsUsedIsNotMarked(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	// begun is what an interrupted deletion leaves.
	begun := func() {
		t.Helper()
		read := volume(t, id)
		marked := read.DeepCopy()
		marked.Mark()
		if err := api.Patch(t.Context(), marked, client.MergeFrom(read)); err != nil {
			t.Fatal(err)
		}
	}
	begun()
	if again := newVolume(t, s, st, "v"); again != id || volume(t, id).Spec.DeletionMark != "" {
		t.Errorf("made: %s, marked %q", again, volume(t, id).Spec.DeletionMark)
	}
	begun()
	publish(t, s, id, node)
	if v := volume(t, id); v.Spec.DeletionMark != "" {
		t.Errorf("attached: marked %q", v.Spec.DeletionMark)
	}
	unpublish(t, s, id, node)
	if _, err := s.DeleteVolume(within(t, enough), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
}

// The agent finds room after all while the volume is being withdrawn: what is handed out is not marked.
func TestVolumeThatIsMadeWhileItIsWithdrawnIsNotMarked(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	name := own(t, "v")
	once := false
	s.client = &admitting{Client: s.client, admit: func() {
		if once {
			return
		}
		once = true
		agents[st.nodes[0]].Start(t.Context())
		NewWithT(t).Eventually(func() bool {
			return meta.IsStatusConditionTrue(replica(t, name).Status.Conditions, v1alpha1.ConditionCreated)
		}).WithTimeout(enough).Should(BeTrue())
	}}
	silence(t, st.nodes[0])
	made := make(chan error, 1)
	go func() {
		_, err := s.CreateVolume(within(t, enough), createRequest(st, name, gi))
		made <- err
	}()
	g := NewWithT(t)
	g.Eventually(func() *v1alpha1.NvmfReplica { return replica(t, name) }).WithTimeout(enough).ShouldNot(BeNil())
	// The agent's word, before it finds room.
	v := replica(t, name)
	v.Status.ObservedGeneration = v.Generation
	v.Status.Conditions = []metav1.Condition{condition(v1alpha1.ConditionCreated, metav1.ConditionFalse, v1alpha1.ReasonNoSpace, "no room")}
	g.Expect(api.Status().Update(t.Context(), v)).To(Succeed())
	// It was the only node, and is not asked a second time by the same call.
	expectError(t, <-made, codes.ResourceExhausted)
	if again := newVolume(t, s, st, "v"); again != name {
		t.Errorf("made %s", again)
	}
	if v := volume(t, name); !once || v.Spec.DeletionMark != "" || v.DeletionTimestamp != nil {
		t.Errorf("marked %q, deleted %v", v.Spec.DeletionMark, v.DeletionTimestamp)
	}
}

// From its first attachment on, a manifest of the volume says that there may be data.
func TestAttachedIsUsed(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, node)
	unpublish(t, s, id, node)
	first := volume(t, id)
	if !first.Spec.Used || len(first.Spec.Attachments) > 0 {
		t.Errorf("got %+v", first.Spec)
	}
	// Its object is lost with its data, and comes back from a backup.
	for _, force := range []func() error{
		func() error {
			return api.Patch(t.Context(), &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: id}}, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		},
		func() error { return client.IgnoreNotFound(api.Delete(t.Context(), volume(t, id))) },
		func() error {
			return api.Patch(t.Context(), &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: id + "-0"}}, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		},
		func() error { return client.IgnoreNotFound(api.Delete(t.Context(), replica(t, id))) },
	} {
		if err := force(); err != nil {
			t.Fatal(err)
		}
	}
	agents[st.nodes[0]].Lose(first.Spec.UUID)
	create(t, &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: id, Finalizers: first.Finalizers}, Spec: first.Spec})
	settled, stop := context.WithCancel(t.Context())
	go s.Settle(settled)
	defer stop()
	// Where the agent did not see that the object was gone, the one from the backup is from the past, for all it knows.
	NewWithT(t).Eventually(func() []metav1.Condition {
		if rep := replica(t, id); rep != nil {
			return rep.Status.Conditions
		}
		return nil
	}).WithTimeout(enough).
		Should(ContainElement(HaveField("Reason", Or(Equal(v1alpha1.ReasonVolumeLost), Equal(v1alpha1.ReasonRestoreSuspected)))))
	if made := agents[st.nodes[0]].Made()[first.Spec.UUID]; made != 1 {
		t.Errorf("made %d times", made)
	}
}
