// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// What the guard decides from gets past the predicates of its watches, and what changes all the time does not.
func TestWatchesPassWhatIsDecidedFrom(t *testing.T) {
	deleted := func(o client.Object) { now := metav1.Now(); o.SetDeletionTimestamp(&now) }
	replaced := func(o client.Object) { o.SetUID("another") }
	mirror := &v1alpha1.NvmfMirror{}
	mirror.Spec.Members = []v1alpha1.MirrorMember{{Replica: "a", State: v1alpha1.MemberFilling}}
	member := func(change func(*v1alpha1.MirrorMember)) func(client.Object) {
		return func(o client.Object) { change(&o.(*v1alpha1.NvmfMirror).Spec.Members[0]) }
	}
	for name, tc := range map[string]struct {
		of            func(client.Object) any
		object        client.Object
		passes, stops []func(client.Object)
	}{
		"a node": {standing, storageNode("n"),
			[]func(client.Object){deleted, replaced, func(o client.Object) { o.SetAnnotations(map[string]string{v1alpha1.AllowEvictionAnnotation: ""}) }},
			[]func(client.Object){func(o client.Object) { o.(*v1alpha1.NvmfNode).Status.OrphanCount = 3 }}},
		"a partner": {alive, storageNode("n"),
			[]func(client.Object){func(o client.Object) { o.(*v1alpha1.NvmfNode).Status.Conditions = nil }},
			[]func(client.Object){func(o client.Object) { o.SetLabels(map[string]string{"a": "b"}) }}},
		"a Node": {cordoned, &corev1.Node{},
			[]func(client.Object){func(o client.Object) { o.(*corev1.Node).Spec.Unschedulable = true }},
			[]func(client.Object){func(o client.Object) { o.(*corev1.Node).Status.Phase = corev1.NodeRunning }}},
		"a replica": {serving, testReplica("a", "n"),
			[]func(client.Object){deleted, replaced, func(o client.Object) { o.(*v1alpha1.NvmfReplica).Status.Conditions = nil },
				func(o client.Object) { o.(*v1alpha1.NvmfReplica).Status.Written = true }},
			[]func(client.Object){func(o client.Object) { o.(*v1alpha1.NvmfReplica).Status.Device = "eui.1" }}},
		"a volume": {replicas, &v1alpha1.NvmfVolume{},
			[]func(client.Object){func(o client.Object) { o.(*v1alpha1.NvmfVolume).Spec.Replicas = 2 }},
			[]func(client.Object){func(o client.Object) { o.(*v1alpha1.NvmfVolume).Spec.Used = true }}},
		"a mirror": {members, mirror,
			[]func(client.Object){
				func(o client.Object) { o.(*v1alpha1.NvmfMirror).Spec.Dirty = true },
				func(o client.Object) { o.(*v1alpha1.NvmfMirror).Spec.Holder = "n" },
				member(func(m *v1alpha1.MirrorMember) { m.State = v1alpha1.MemberInSync }),
				member(func(m *v1alpha1.MirrorMember) { m.Suspect = true }),
				member(func(m *v1alpha1.MirrorMember) { m.Foreign = true }),
				member(func(m *v1alpha1.MirrorMember) { m.Identity = "i" }),
			},
			[]func(client.Object){member(func(m *v1alpha1.MirrorMember) { m.CopiedBytes = 1 })}},
	} {
		t.Run(name, func(t *testing.T) {
			passes := func(change func(client.Object)) bool {
				after := tc.object.DeepCopyObject().(client.Object)
				change(after)
				return changed(tc.of).Update(event.UpdateEvent{ObjectOld: tc.object, ObjectNew: after})
			}
			for i, change := range tc.passes {
				if !passes(change) {
					t.Errorf("change %d is not seen", i)
				}
			}
			for i, change := range tc.stops {
				if passes(change) {
					t.Errorf("change %d is looked at, and nothing is decided from it", i)
				}
			}
		})
	}
}
