// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// The places of a node are counted from its own replicas, however many the cluster has.
func TestPlacesAreCountedFromTheNodesOwnReplicas(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	plan := &v1alpha1.Plan{SPDK: &v1alpha1.SPDKPlan{Attachments: &v1alpha1.Attachments{Expected: 2, IOQueues: 2}}}
	objects := []client.Object{
		&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "few"}, Spec: v1alpha1.NvmfNodeSpec{Plan: plan}},
		&v1alpha1.NvmfNode{ObjectMeta: metav1.ObjectMeta{Name: "many"}, Spec: v1alpha1.NvmfNodeSpec{Plan: plan}},
	}
	for i := range 10 {
		rep := &v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Spec: v1alpha1.NvmfReplicaSpec{Node: "many", Hosts: []v1alpha1.VolumeHost{{NQN: "nqn"}}}}
		if i == 0 {
			rep.Spec.Node = "few"
		}
		objects = append(objects, rep)
	}
	listed := 0
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&v1alpha1.NvmfReplica{}, nodeField, func(o client.Object) []string { return []string{o.(*v1alpha1.NvmfReplica).Spec.Node} }).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			listed += meta.LenList(list)
			return err
		}}).Build()
	if err := checkPlaces(t.Context(), reader, &v1alpha1.NvmfVolume{}, "few"); err != nil || listed != 1 {
		t.Errorf("%v, from %d replicas; want a place, from one", err, listed)
	}
	err := checkPlaces(t.Context(), reader, &v1alpha1.NvmfVolume{}, "many")
	if listed != 10 {
		t.Errorf("from %d replicas in all, want 10", listed)
	}
	expectError(t, toStatus(err), codes.ResourceExhausted, "has 9 of 2 planned attachments")
}
