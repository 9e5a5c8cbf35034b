// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// constraints that each service account may use, by what the chart renders.
func constraints(objects []runtime.Object) map[string][]string {
	roles := map[string][]string{}
	for _, r := range of[*rbacv1.Role](objects) {
		for _, rule := range r.Rules {
			if slices.Contains(rule.Resources, "securitycontextconstraints") && slices.Contains(rule.Verbs, "use") &&
				slices.Equal(rule.APIGroups, []string{"security.openshift.io"}) {
				roles[r.Name] = append(roles[r.Name], rule.ResourceNames...)
			}
		}
	}
	may := map[string][]string{}
	for _, b := range of[*rbacv1.RoleBinding](objects) {
		for _, s := range b.Subjects {
			may[s.Name] = append(may[s.Name], roles[b.RoleRef.Name]...)
		}
	}
	return may
}

// A pod that asks for root or the node needs privileged. One that runs as a user of its own choice needs nonroot-v2,
// because restricted-v2 gives each namespace a range of users.
func TestEveryPodIsAdmittedOnOpenShift(t *testing.T) {
	objects := render(t, variations["openshift"]...)
	may := constraints(objects)
	want := map[string]string{"weft-target": "privileged"} // the operator's pods: operator/internal/manifest
	for _, w := range workloads(objects) {
		want[w.template.Spec.ServiceAccountName] = "nonroot-v2"
		if _, ok := privileged[w.name]; ok {
			want[w.template.Spec.ServiceAccountName] = "privileged"
		}
	}
	for account, constraint := range want {
		if !slices.Equal(may[account], []string{constraint}) {
			t.Errorf("ServiceAccount %s may use %q, want %s alone", account, may[account], constraint)
		}
	}
	if len(want) != 5 {
		t.Errorf("looked at %d service accounts, want 5", len(want))
	}
}

func TestNoConstraintIsUsedUnlessAskedFor(t *testing.T) {
	for account, may := range constraints(render(t)) {
		if len(may) > 0 {
			t.Errorf("ServiceAccount %s may use %q", account, may)
		}
	}
}
