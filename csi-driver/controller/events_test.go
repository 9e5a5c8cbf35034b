// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/mirror"
)

// bind a volume to a claim, as the provisioner and Kubernetes do.
func bind(t *testing.T, volume string) *corev1.PersistentVolumeClaim {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: own(t, "claim")},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volume, AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}},
	}
	create(t, claim)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes,
		ClaimRef:               &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: volume}},
	}}
	create(t, pv)
	pv.Status.Phase = corev1.VolumeBound
	if err := api.Status().Update(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	return claim
}

// reasonsOn an object, of its Events.
func reasonsOn(t *testing.T, regarding client.Object) []string {
	t.Helper()
	var all eventsv1.EventList
	if err := api.List(t.Context(), &all, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, e := range all.Items {
		if e.Regarding.UID == regarding.GetUID() && e.Regarding.Name == regarding.GetName() {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// tellAll has each service tell the one thing that it has noticed.
func tellAll(t *testing.T, all ...*Service) {
	t.Helper()
	for _, s := range all {
		NewWithT(t).Eventually(s.untold.Len).WithTimeout(enough).Should(Equal(1))
		if !s.tellNext(t.Context()) {
			t.Fatal("the service was stopped")
		}
	}
}

// A lost replica gives one Event on the volume's claim, although two replicas of the service notice it; and none after
// a restart.
func TestALostReplicaGivesOneEvent(t *testing.T) {
	g := NewWithT(t)
	st := newStorage(t, 2, 10*gi)
	first, _ := newService(t)
	second, stop := newService(t)
	seen(t, first, st)
	id := newMirrored(t, first, st, "v")
	holder := hold(t, first, id, newHost(t, "host"))
	change := func(change func(mirror.Holder, mirror.Record) (mirror.Record, error)) {
		t.Helper()
		is := mirrorOf(t, id)
		next, err := change(mirror.Holder{Attachment: holder, Mark: uuid.NewString(), Now: time.Now()}, is.Spec)
		g.Expect(err).NotTo(HaveOccurred())
		is.Spec = next
		g.Expect(api.Update(t.Context(), is)).To(Succeed())
	}
	lose := func(h mirror.Holder, r mirror.Record) (mirror.Record, error) {
		return h.Lost(r, id+"-1", mirror.ReasonLost, nil)
	}

	claim := bind(t, id)
	change(lose)
	tellAll(t, first, second)
	g.Expect(reasonsOn(t, claim)).To(ConsistOf(v1alpha1.ReasonReplicaLost))
	g.Expect(reasonsOn(t, volume(t, id))).To(BeEmpty())

	// The next one tells what happens from then on. What it has noticed is in order, so the loss would be first.
	stop()
	third, _ := newService(t)
	change(func(h mirror.Holder, r mirror.Record) (mirror.Record, error) {
		return h.Return(r, id+"-1", "fresh", false, map[string]string{id + "-1": mirror.NoMark})
	})
	tellAll(t, third, first)
	g.Expect(reasonsOn(t, claim)).To(ConsistOf(v1alpha1.ReasonReplicaLost, v1alpha1.ReasonReplicaReturning))

	// Without a claim, the volume has the Event.
	g.Expect(api.Delete(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: id}})).To(Succeed())
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	g.Expect(client.IgnoreNotFound(api.Patch(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: id}}, patch))).To(Succeed())
	change(lose)
	tellAll(t, first, third)
	g.Expect(reasonsOn(t, volume(t, id))).To(ConsistOf(v1alpha1.ReasonReplicaLost))
	g.Expect(reasonsOn(t, claim)).To(HaveLen(2))
}

// A volume that waits for a person says so once, however often it is tried.
func TestAVolumeThatWaitsForAPersonGivesOneEvent(t *testing.T) {
	g := NewWithT(t)
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	id := newMirrored(t, s, st, "v")
	node := newHost(t, "host")
	hold(t, s, id, node)
	write(t, id)
	unpublish(t, s, id, node)
	silence(t, volume(t, id).Spec.Members[1].Node)
	s.grace = short
	for range 2 {
		_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
		g.Expect(err).To(MatchError(ContainSubstring("declare one current")))
		for s.untold.Len() > 0 {
			s.tellNext(t.Context())
		}
		g.Expect(reasonsOn(t, volume(t, id))).To(ConsistOf(v1alpha1.ReasonCurrentUnknown))
	}
}
