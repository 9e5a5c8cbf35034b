// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

const noRaid1 = "load kernel module raid1: modprobe: not found"

// reportMirrors does what the node plugin does that has looked whether its node can hold mirrors.
func reportMirrors(t *testing.T, node string, status corev1.ConditionStatus) {
	t.Helper()
	reason, message := v1alpha1.ReasonAsExpected, "it can"
	if status != corev1.ConditionFalse {
		reason, message = v1alpha1.ReasonModuleMissing, noRaid1
	}
	w := nodetest.ConditionWriter{
		Client: api, Node: node, UID: types.UID(uidOf(t, node)), Clock: clock.RealClock{}, Type: v1alpha1.ConditionMirrorsUnavailable, FieldManager: "test",
	}
	if err := w.Write(t.Context(), status, reason, message); err != nil {
		t.Fatal(err)
	}
}

// A volume with several replicas is not attached where it cannot be mirrored; one without a mirror is.
func TestPublishToANodeThatCannotHoldMirrors(t *testing.T) {
	st := newStorage(t, 2, 10*gi)
	s, _ := newService(t)
	seen(t, s, st)
	node := newHost(t, "host")
	attached, id := newMirrored(t, s, st, "attached"), newMirrored(t, s, st, "v")
	hold(t, s, attached, node) // a node that says nothing
	reportMirrors(t, node, corev1.ConditionTrue)
	_, err := s.ControllerPublishVolume(within(t, enough), publishRequest(id, node))
	expectError(t, err, codes.Unavailable, id, "node "+node, "WeftMirrorsUnavailable (KernelModuleMissing: "+noRaid1+")")
	if hosts := volume(t, id).Spec.Attachments; len(hosts) != 0 {
		t.Errorf("hosts: %v", hosts)
	}
	hold(t, s, attached, node) // again, as the attacher does when it restarts
	publish(t, s, newVolume(t, s, st, "plain"), node)

	elsewhere := newHost(t, "elsewhere")
	reportMirrors(t, elsewhere, corev1.ConditionFalse)
	hold(t, s, id, elsewhere)
	unpublish(t, s, id, elsewhere)
	reportMirrors(t, node, corev1.ConditionUnknown)
	hold(t, s, id, node)
}

// A volume does not become mirrored under a node that cannot mirror it. It waits, and goes on when the node can.
func TestAVolumeBecomesMirroredOnlyWhereItCan(t *testing.T) {
	m := newMoves(t, 2)
	node := newHost(t, "host")
	m.id = newVolume(t, m.service(), m.st, "v")
	publish(t, m.service(), m.id, node)
	reportMirrors(t, node, corev1.ConditionTrue)
	modify := func() error {
		_, err := m.service().ControllerModifyVolume(within(t, enough), &csi.ControllerModifyVolumeRequest{VolumeId: m.id, MutableParameters: map[string]string{"replicas": "2"}})
		return err
	}
	g := NewWithT(t)
	expectError(t, modify(), codes.Unavailable, m.id, "node "+node, noRaid1)
	g.Expect(replicasOf(volume(t, m.id))).To(Equal(1))

	m.move(m.id+"-0", "")
	m.waits("node " + node + ": condition WeftMirrorsUnavailable (KernelModuleMissing: " + noRaid1)
	g.Expect(mirrorOf(t, m.id)).To(BeNil())
	g.Expect(volume(t, m.id).Replicated()).To(BeFalse())
	g.Expect(volume(t, m.id).Annotations).NotTo(HaveKey(convertAnnotation))

	reportMirrors(t, node, corev1.ConditionFalse)
	m.until(m.has(m.id + "-1"))
	g.Expect(modify()).To(Succeed())
	reportMirrors(t, node, corev1.ConditionTrue)
	g.Expect(modify()).To(Succeed()) // it is mirrored there already
	m.until(m.has(m.id+"-1", m.id+"-2"))
}

// While no node uses a volume, none is asked. The one that attaches it when it has become mirrored is.
func TestAVolumeBecomesMirroredWhileDetached(t *testing.T) {
	m := newDoubled(t)
	node := newHost(t, "host")
	reportMirrors(t, node, corev1.ConditionTrue)
	m.until(func(g Gomega) { g.Expect(volume(t, m.id).Spec.Mirrored).To(BeTrue()) })
	_, err := m.service().ControllerPublishVolume(within(t, enough), publishRequest(m.id, node))
	expectError(t, err, codes.Unavailable, "node "+node, noRaid1)
}
