// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
