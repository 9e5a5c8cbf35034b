// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// The cache may lag behind: a node is opened only if the API server itself says that no other is open. Closing needs no
// such look.
func TestANodeIsNotOpenedOnTheWordOfTheCache(t *testing.T) {
	guards := manifest.Guards{Namespace: "weft-system", Image: "weft"}
	for name, live := range map[string]bool{"the other is open": true, "the other is closed": false} {
		t.Run(name, func(t *testing.T) {
			node, other := storageNode("n"), storageNode("m")
			mirror := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: "vol"}}
			mirror.Spec.Members = []v1alpha1.MirrorMember{
				{Replica: "a", ReplicaUID: "a-uid", State: v1alpha1.MemberInSync}, {Replica: "b", ReplicaUID: "b-uid", State: v1alpha1.MemberInSync},
			}
			kube := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Unschedulable: true}}
			shared := []client.Object{node, other, mirror, kube, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, testReplica("a", "n"), testReplica("b", "m"), testBudget("n", false)}
			r := &Reconciler{
				Client: testClient(t, append(shared, testBudget("m", false))...), Live: testClient(t, append(shared, testBudget("m", live))...),
				Recorder: events.NewFakeRecorder(10), Clock: testingclock.NewFakePassiveClock(metav1.Now().Time), Guards: guards,
			}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(node)}); err != nil {
				t.Fatal(err)
			}
			budget := &policyv1.PodDisruptionBudget{}
			if err := r.Get(t.Context(), client.ObjectKey{Namespace: guards.Namespace, Name: manifest.GuardName("n")}, budget); err != nil {
				t.Fatal(err)
			}
			if manifest.BudgetOpen(budget) == live {
				t.Errorf("the other node is open: %t, this one: %t", live, manifest.BudgetOpen(budget))
			}
		})
	}
}

// A node was drained and deleted, as when machines are replaced one after the other. Its budget is gone, and the
// agent's lease not over yet.
func TestANodeIsNotOpenedAfterTheOtherWasDrainedAndDeleted(t *testing.T) {
	guards := manifest.Guards{Namespace: "weft-system", Image: "weft"}
	node := storageNode("n")
	mirror := &v1alpha1.NvmfMirror{ObjectMeta: metav1.ObjectMeta{Name: "vol"}}
	mirror.Spec.Members = []v1alpha1.MirrorMember{
		{Replica: "a", ReplicaUID: "a-uid", State: v1alpha1.MemberInSync}, {Replica: "b", ReplicaUID: "b-uid", State: v1alpha1.MemberInSync},
	}
	kube := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	c := testClient(t, node, storageNode("m"), mirror, kube, testReplica("a", "n"), testReplica("b", "m"), testBudget("n", false))
	r := &Reconciler{
		Client: c, Live: c, Recorder: events.NewFakeRecorder(10), Clock: testingclock.NewFakePassiveClock(metav1.Now().Time), Guards: guards,
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(node)}); err != nil {
		t.Fatal(err)
	}
	budget := &policyv1.PodDisruptionBudget{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: guards.Namespace, Name: manifest.GuardName("n")}, budget); err != nil {
		t.Fatal(err)
	}
	if manifest.BudgetOpen(budget) {
		t.Error("the only node that is left was opened")
	}
}

func storageNode(name string) *v1alpha1.NvmfNode {
	n := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAgentAlive, Status: metav1.ConditionTrue}}
	return n
}

func testBudget(node string, open bool) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: manifest.GuardName(node)}}
	b.Spec.MinAvailable = new(intstr.FromInt32(2))
	if open {
		b.Spec.MinAvailable = new(intstr.FromInt32(0))
	}
	return b
}

func testClient(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	byNode := func(o client.Object) []string { return []string{o.(*v1alpha1.NvmfReplica).Spec.Node} }
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.NvmfNode{}).
		WithIndex(&v1alpha1.NvmfReplica{}, "spec.node", byNode).Build()
}
