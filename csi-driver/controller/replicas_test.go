// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// stopping writes volumes, but no replicas: the service is killed between the two.
type stopping struct{ client.Client }

func (stopping) is(obj client.Object) bool {
	_, ok := obj.(*v1alpha1.NvmfReplica)
	return ok
}

func (c stopping) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if c.is(obj) {
		return context.Canceled
	}
	return c.Client.Create(ctx, obj, opts...)
}

func (c stopping) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if c.is(obj) {
		return context.Canceled
	}
	return c.Client.Patch(ctx, obj, patch, opts...)
}

func (c stopping) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	if c.is(obj) {
		return context.Canceled
	}
	return c.Client.Delete(ctx, obj, opts...)
}

// Each call is cut off after it has written the volume and before its replica, and carried through by the next.
func TestCallsThatStopBetweenVolumeAndReplica(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := own(t, "v")
	whole := s.client
	calls := []struct {
		name string
		call func(context.Context) error
		done func() bool
	}{
		{"create", func(ctx context.Context) error {
			_, err := s.CreateVolume(ctx, createRequest(st, id, gi))
			return err
		}, func() bool { return replica(t, id) != nil }},
		{"publish", func(ctx context.Context) error {
			_, err := s.ControllerPublishVolume(ctx, publishRequest(id, node))
			return err
		}, func() bool { return len(replica(t, id).Status.Hosts) == 1 }},
		{"expand", func(ctx context.Context) error {
			_, err := s.ControllerExpandVolume(ctx, expandRequest(id, 2*gi))
			return err
		}, func() bool { return replica(t, id).Status.Size.Value() == 2*gi }},
		{"unpublish", func(ctx context.Context) error {
			_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node})
			return err
		}, func() bool { return len(replica(t, id).Status.Hosts) == 0 }},
		{"delete", func(ctx context.Context) error {
			_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		}, func() bool { return replica(t, id) == nil && volume(t, id) == nil }},
	}
	for _, c := range calls {
		s.client = stopping{whole}
		if err := c.call(within(t, enough)); err == nil {
			t.Fatalf("%s succeeded without its replica", c.name)
		}
		s.client = whole
		if err := c.call(within(t, enough)); err != nil || !c.done() {
			t.Fatalf("%s, repeated: %v", c.name, err)
		}
	}
}

// A publish that is overtaken by an unpublish of another replica of the service admits nobody.
func TestAWriteFromAnOlderVolumeIsRefused(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	first, second := newHost(t, "first"), newHost(t, "second")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, first)
	oldVolume, oldReplica := volume(t, id), replica(t, id)
	unpublish(t, s, id, first)

	if _, err := s.bring(t.Context(), oldVolume, nil, oldVolume.Spec.Members[0], oldReplica); err != nil {
		t.Errorf("what it had read is what it wanted to write: %v", err)
	}
	stale := oldReplica.DeepCopy()
	stale.Spec.Hosts = nil
	if _, err := s.bring(t.Context(), oldVolume, nil, oldVolume.Spec.Members[0], stale); !apierrors.IsConflict(err) {
		t.Errorf("a replica as it was read before: got %v, want a conflict", err)
	}
	now := replica(t, id)
	now.Spec.VolumeGeneration--
	if err := api.Update(t.Context(), now); !apierrors.IsInvalid(err) {
		t.Errorf("an older generation: got %v", err)
	}
	if hosts := replica(t, id).Spec.Hosts; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
	publish(t, s, id, second)
	if hosts := replica(t, id).Spec.Hosts; len(hosts) != 1 || hosts[0].Node != second {
		t.Errorf("hosts: %v", hosts)
	}
}

// What a call has left half done is carried through without another, and so is what a person did to the objects.
func TestSettle(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	ctx, stop := context.WithCancel(t.Context())
	go s.Settle(ctx)
	defer stop()
	g := NewWithT(t)

	left := newVolume(t, s, st, "left")
	publish(t, s, left, node)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"attachments":null}}`))
	g.Expect(api.Patch(t.Context(), volume(t, left), patch)).To(Succeed())
	g.Eventually(func() string { return usersOf(t, left) }).WithTimeout(enough).Should(BeEmpty())

	// Marked and deleted, as kubectl weft delete volume does.
	vol := volume(t, left)
	vol.Mark()
	g.Expect(api.Update(t.Context(), vol)).To(Succeed())
	deleteByHand(t, vol)
	g.Eventually(func() *v1alpha1.NvmfVolume { return volume(t, left) }).WithTimeout(enough).Should(BeNil())
	erased(t, st.nodes[0], vol.Spec.UUID)
}

// Somebody took off a volume's finalizer while it was attached: its replica still admits the host until it is detached.
func TestUnpublishWithoutItsVolume(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, node)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := api.Patch(t.Context(), volume(t, id), patch); err != nil {
		t.Fatal(err)
	}
	deleteByHand(t, volume(t, id))
	unpublish(t, s, id, node)
	if rep := replica(t, id); len(rep.Spec.Hosts)+len(rep.Status.Hosts) != 0 {
		t.Errorf("still admitted: %v, %v", rep.Spec.Hosts, rep.Status.Hosts)
	}
}

// A member whose name another volume's replica has is not touched.
func TestAReplicaOfAnotherVolumeIsNotTouched(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	vol := volume(t, id)
	name := own(t, "thief")
	vol.Spec.UUID = "0a0b0c0d-0e0f-4001-8203-040506070809"
	create(t, &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: vol.Spec})
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(name, node))
	expectError(t, err, codes.FailedPrecondition, "is not the replica that NvmfVolume "+name+" lists")
}

// A volume that is created again, as after its finalizer was taken off, begins with generation 1; its replica, which is
// still there, follows it.
func TestAVolumeThatIsCreatedAgainHasItsReplica(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	id := newVolume(t, s, st, "v")
	publish(t, s, id, node)
	unpublish(t, s, id, node)
	was := volume(t, id)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := api.Patch(t.Context(), volume(t, id), patch); err != nil {
		t.Fatal(err)
	}
	deleteByHand(t, volume(t, id))
	create(t, &v1alpha1.NvmfVolume{ObjectMeta: metav1.ObjectMeta{Name: id, Finalizers: was.Finalizers}, Spec: was.Spec})
	publish(t, s, id, node)
	if rep, vol := replica(t, id), volume(t, id); rep.Spec.VolumeUID != string(vol.UID) || rep.Spec.VolumeGeneration != vol.Generation || vol.Generation >= was.Generation {
		t.Errorf("the replica follows generation %d of %s, not %d of %s", rep.Spec.VolumeGeneration, rep.Spec.VolumeUID, vol.Generation, vol.UID)
	}
}
