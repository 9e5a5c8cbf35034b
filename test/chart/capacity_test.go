// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A CSIDriver with storageCapacity and nobody who publishes it keeps every pod whose claim waits for it
// (WaitForFirstConsumer) from being scheduled, for ever. csi-provisioner publishes nothing when one of these is
// missing.
func TestCapacityThatTheSchedulerAsksForIsPublished(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		drivers := of[*storagev1.CSIDriver](objects)
		if len(drivers) != 1 || drivers[0].Spec.StorageCapacity == nil || !*drivers[0].Spec.StorageCapacity {
			t.Fatalf("the CSIDriver does not ask for capacity: %+v", drivers)
		}
		var provisioner *corev1.Container
		for _, w := range workloads(objects) {
			for i, c := range w.template.Spec.Containers {
				if c.Name == "csi-provisioner" {
					provisioner = &w.template.Spec.Containers[i]
				}
			}
		}
		if provisioner == nil {
			t.Fatal("there is no csi-provisioner")
		}
		for _, arg := range []string{"--enable-capacity", "--capacity-ownerref-level=2", "--feature-gates=Topology=false"} {
			if !slices.Contains(provisioner.Args, arg) {
				t.Errorf("csi-provisioner runs without %s: %v", arg, provisioner.Args)
			}
		}
		for name, path := range map[string]string{"POD_NAME": "metadata.name", "NAMESPACE": "metadata.namespace"} {
			if !slices.ContainsFunc(provisioner.Env, func(e corev1.EnvVar) bool {
				return e.Name == name && e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == path
			}) {
				t.Errorf("csi-provisioner is not told %s", name)
			}
		}
		var may []rbacv1.PolicyRule
		for _, r := range of[*rbacv1.ClusterRole](objects) {
			if r.Name == "weft-csi-provisioner" {
				may = append(may, r.Rules...)
			}
		}
		for _, r := range of[*rbacv1.Role](objects) {
			if r.Name == "weft-csi-sidecars" {
				may = append(may, r.Rules...)
			}
		}
		for resource, verbs := range map[string][]string{
			"nodes": {"get", "list", "watch"}, "csinodes": {"get", "list", "watch"}, "pods": {"get"}, "replicasets": {"get"},
			"csistoragecapacities": {"get", "list", "watch", "create", "update", "delete"},
		} {
			for _, verb := range verbs {
				if !slices.ContainsFunc(may, func(r rbacv1.PolicyRule) bool {
					return slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb)
				}) {
					t.Errorf("csi-provisioner may not %s %s", verb, resource)
				}
			}
		}
	})
}
