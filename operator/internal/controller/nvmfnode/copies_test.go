// SPDX-License-Identifier: Apache-2.0

package nvmfnode

import (
	"context"
	"reflect"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

// cache gives its objects as the manager's does: itself where a reader says that it only reads, else a copy, which it
// counts. It writes to an API server.
type cache struct {
	client.Client
	objects []client.Object
	copied  int
}

func (c *cache) Get(_ context.Context, key client.ObjectKey, out client.Object, opts ...client.GetOption) error {
	o := client.GetOptions{}
	o.ApplyOptions(opts)
	for _, is := range c.objects {
		if reflect.TypeOf(is) != reflect.TypeOf(out) || client.ObjectKeyFromObject(is) != key {
			continue
		}
		if o.UnsafeDisableDeepCopy == nil || !*o.UnsafeDisableDeepCopy {
			c.copied++
			is = is.DeepCopyObject().(client.Object)
		}
		reflect.ValueOf(out).Elem().Set(reflect.ValueOf(is).Elem())
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// newReconciler has in its cache what the API server has.
func newReconciler(t *testing.T, objects ...client.Object) (*Reconciler, *cache) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)
	for _, kind := range []client.Object{&v1alpha1.NvmfReplica{}, &v1alpha1.NvmfSnapshot{}} {
		builder = builder.WithIndex(kind, "spec.node", func(client.Object) []string { return nil })
	}
	api := builder.Build()
	for _, o := range objects {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
	}
	c := &cache{Client: api, objects: objects}
	return &Reconciler{Client: c, Live: api, Clock: testingclock.NewFakePassiveClock(noon), Namespace: "weft-system", Version: "1.0.0"}, c
}

func look(t *testing.T, r *Reconciler) {
	t.Helper()
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "node"}}); err != nil {
		t.Fatal(err)
	}
}

// A renewed Lease leads to a look at the node, which copies nothing: the NvmfNode has its inventory in it.
func TestLookAtARenewedLeaseCopiesNothing(t *testing.T) {
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Status: v1alpha1.NvmfNodeStatus{AgentVersion: "1.0.0"}}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: v1alpha1.AgentLeasePrefix + "node"},
		Spec:       coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(noon)), LeaseDurationSeconds: new(int32(40))},
	}
	r, c := newReconciler(t, node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, lease)
	alive, _ := judge("node", lease, noon)
	schedulable, err := r.schedulable(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = manifest.ForNodeCondition(node, alive, schedulable, judgeSkew(r.Version, "1.0.0", noon)).Status.Conditions
	c.copied = 0
	look(t, r)
	if c.copied > 0 {
		t.Errorf("%d objects were copied", c.copied)
	}
}

// What the cache has is its own: an NvmfNode that is deleted loses its finalizer at the API server first.
func TestNodeThatIsDeletedStaysAsItIsInTheCache(t *testing.T) {
	node := &v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "node", Finalizers: []string{v1alpha1.TuningFinalizer, "test/other"}}}
	r, _ := newReconciler(t, node)
	was := node.DeepCopy()
	look(t, r)
	if !equality.Semantic.DeepEqual(node, was) {
		t.Errorf("the cache has %+v, not %+v", node.ObjectMeta, was.ObjectMeta)
	}
	now := &v1alpha1.NvmfNode{}
	if err := r.Live.Get(t.Context(), client.ObjectKeyFromObject(node), now); err != nil {
		t.Fatal(err)
	}
	if now.DeletionTimestamp == nil || len(now.Finalizers) != 1 {
		t.Errorf("the API server has %+v", now.ObjectMeta)
	}
}
