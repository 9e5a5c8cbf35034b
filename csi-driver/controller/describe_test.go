// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// When a volume is served, each replica says what is needed to make the volume and its PersistentVolume again.
func TestReplicasDescribeTheirVolume(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	g := NewWithT(t)
	id := newVolume(t, s, st, "v")
	described := func() *v1alpha1.VolumeDescription {
		rep := replica(t, id)
		return rep.Spec.Description
	}
	g.Expect(described()).To(And(HaveField("Replicas", int32(1)), HaveField("Members", Equal(volume(t, id).Spec.Members)), HaveField("PersistentVolume", BeNil())))

	claim := bind(t, id)
	publish(t, s, id, node)
	g.Expect(described().PersistentVolume).To(And(HaveField("Name", id), HaveField("ClaimNamespace", claim.Namespace), HaveField("ClaimName", claim.Name),
		HaveField("AccessModes", Equal([]string{"ReadWriteOnce"})), HaveField("VolumeMode", "Filesystem"), HaveField("ReclaimPolicy", "Retain")))
}

// unreadable API server.
type unreadable struct{ client.Reader }

func (unreadable) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("the API server does not answer")
}

// A volume that was given to another claim never describes the former one: who recovers it would get another's data.
func TestDescribeTheClaimOfTheAttachment(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	g := NewWithT(t)
	id := newVolume(t, s, st, "v")
	node := newHost(t, "host")
	attach := func(pv string) *v1alpha1.PersistentVolumeDescription {
		request := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: requestName(id, node)},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: v1alpha1.DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		}
		create(t, request)
		publish(t, s, id, node)
		described := replica(t, id).Spec.Description.PersistentVolume
		g.Expect(api.Delete(t.Context(), request)).To(Succeed())
		unpublish(t, s, id, node)
		return described
	}
	former := bind(t, id)
	g.Expect(attach(id)).To(HaveField("ClaimName", former.Name))

	var pv corev1.PersistentVolume
	g.Expect(api.Get(t.Context(), keyOf(id), &pv)).To(Succeed())
	again := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: own(t, "by-hand")}, Spec: *pv.Spec.DeepCopy()}
	again.Spec.ClaimRef.Name, again.Spec.ClaimRef.UID = "other", ""
	create(t, &again)
	again.Status.Phase = corev1.VolumeBound
	g.Expect(api.Status().Update(t.Context(), &again)).To(Succeed())
	g.Expect(attach(again.Name)).To(And(HaveField("Name", again.Name), HaveField("ClaimName", "other")))
	g.Expect(s.claimOf(t.Context(), volume(t, id))).To(HaveField("Name", "other"), "where Events are written")
	for _, o := range []metav1.Object{volume(t, id), replica(t, id)} {
		namespace, name := v1alpha1.ClaimOf(o)
		g.Expect([]string{namespace, name, o.GetLabels()[v1alpha1.PVCNameKey]}).To(Equal([]string{former.Namespace, "other", "other"}), "what metrics have of %s", o.GetName())
	}

	// While the PersistentVolume cannot be read, nobody knows whose it is now.
	live := s.live
	s.live = unreadable{}
	g.Expect(s.persistentVolumeOf(t.Context(), volume(t, id), again.Name)).To(And(HaveField("Name", again.Name), HaveField("AccessModes", HaveLen(1)), HaveField("ClaimName", "")))
	g.Expect(s.persistentVolumeOf(t.Context(), volume(t, id), "another")).To(BeNil())
	s.live = live

	again.Status.Phase = corev1.VolumeReleased
	g.Expect(api.Status().Update(t.Context(), &again)).To(Succeed())
	g.Expect(attach(again.Name)).To(And(HaveField("Name", again.Name), HaveField("ClaimName", ""), HaveField("ClaimNamespace", "")))
	g.Expect(volume(t, id).Annotations).To(HaveKeyWithValue(v1alpha1.PVCNameKey, "other"))
	g.Expect(attach("gone")).To(BeNil())

	others := corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: own(t, "others")}, Spec: *pv.Spec.DeepCopy()}
	others.Spec.CSI.VolumeHandle = "another"
	create(t, &others)
	g.Expect(attach(others.Name)).To(BeNil(), "the PersistentVolume of another volume")
}

// A PersistentVolume that the description has no room for never keeps a volume from being attached.
func TestDescribeWithinBounds(t *testing.T) {
	g := NewWithT(t)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: slices.Repeat([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, 9), MountOptions: []string{"noatime", "discard"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{FSType: strings.Repeat("x", 100)}},
	}}
	is := describePersistentVolume(pv)
	g.Expect(is).To(And(HaveField("FSType", ""), HaveField("AccessModes", HaveLen(v1alpha1.MaxDescribedModes)), HaveField("MountOptions", Equal([]string{"noatime", "discard"}))))
	pv.Spec.MountOptions = slices.Repeat([]string{"noatime"}, v1alpha1.MaxDescribedOptions+1)
	g.Expect(describePersistentVolume(pv).MountOptions).To(BeEmpty())
	pv.Spec.MountOptions = []string{strings.Repeat("x", v1alpha1.MaxDescribedOption+1)}
	g.Expect(describePersistentVolume(pv).MountOptions).To(BeEmpty())
}

// After an upgrade that describes more, all volumes are described again, and nothing else waits for that.
func TestDescriptionsWaitForTheRest(t *testing.T) {
	st := newStorage(t, 1, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	g := NewWithT(t)
	id := newVolume(t, s, st, "v")
	undescribed := func() {
		t.Helper()
		rep := replica(t, id)
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"description":null}}`))
		g.Expect(api.Patch(t.Context(), rep, patch)).To(Succeed())
		g.Eventually(func() (*v1alpha1.VolumeDescription, error) {
			err := s.client.Get(t.Context(), client.ObjectKeyFromObject(rep), rep)
			return rep.Spec.Description, err
		}).WithTimeout(enough).Should(BeNil())
	}
	described := func() *v1alpha1.VolumeDescription { return replica(t, id).Spec.Description }

	undescribed()
	s.describes = flowcontrol.NewFakeNeverRateLimiter()
	g.Expect(s.settle(t.Context(), id)).To(Succeed())
	g.Expect(described()).To(BeNil())
	vol := volume(t, id)
	vol.Spec.QoS = &v1alpha1.VolumeQoS{IOPS: new(int64(2000))}
	g.Expect(api.Update(t.Context(), vol)).To(Succeed())
	g.Eventually(func() (*v1alpha1.VolumeDescription, error) { return described(), s.settle(t.Context(), id) }).WithTimeout(enough).ShouldNot(BeNil())

	undescribed()
	s.describes = flowcontrol.NewFakeAlwaysRateLimiter()
	g.Expect(s.settle(t.Context(), id)).To(Succeed())
	g.Expect(described()).NotTo(BeNil())
}
