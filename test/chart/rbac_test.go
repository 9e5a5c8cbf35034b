// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestNoRoleIsWide(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		for _, r := range of[*rbacv1.ClusterRole](objects) {
			if r.AggregationRule != nil {
				t.Errorf("ClusterRole %s: aggregates what others add", r.Name)
			}
			checkRules(t, "ClusterRole "+r.Name, r.Rules, true)
		}
		for _, r := range of[*rbacv1.Role](objects) {
			checkRules(t, "Role "+r.Name, r.Rules, false)
		}
	})
}

func checkRules(t *testing.T, role string, rules []rbacv1.PolicyRule, clusterWide bool) {
	t.Helper()
	if len(rules) == 0 {
		t.Errorf("%s: has no rules", role)
	}
	for _, rule := range rules {
		for _, list := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.NonResourceURLs} {
			for _, item := range list {
				if item == "*" || item == "*/*" {
					t.Errorf("%s: has a wildcard: %+v", role, rule)
				}
			}
		}
		for _, verb := range []string{"escalate", "bind", "impersonate", "deletecollection"} {
			if slices.Contains(rule.Verbs, verb) {
				t.Errorf("%s: may %s: %+v", role, verb, rule)
			}
		}
		for _, resource := range []string{"secrets", "pods/exec", "nodes/proxy", "serviceaccounts/token", "clusterroles", "clusterrolebindings", "roles", "rolebindings"} {
			if slices.Contains(rule.Resources, resource) && !isTheWebhooksSecret(rule, clusterWide) {
				t.Errorf("%s: touches %s: %+v", role, resource, rule)
			}
		}
		if clusterWide && slices.ContainsFunc(rule.Resources, func(r string) bool { return r == "pods" || r == "poddisruptionbudgets" }) && !readsOnly(rule) {
			t.Errorf("%s: writes the pods of every namespace: %+v", role, rule)
		}
		// A lease of another namespace is another component's leadership.
		if clusterWide && slices.Contains(rule.Resources, "leases") {
			t.Errorf("%s: touches the leases of every namespace: %+v", role, rule)
		}
	}
}

// isTheWebhooksSecret: the operator's one Secret, by name, and no right to create one.
func isTheWebhooksSecret(rule rbacv1.PolicyRule, clusterWide bool) bool {
	return !clusterWide && slices.Equal(rule.Resources, []string{"secrets"}) &&
		slices.Equal(rule.ResourceNames, []string{"weft-operator-webhook"}) && !slices.Contains(rule.Verbs, "create")
}

func readsOnly(rule rbacv1.PolicyRule) bool {
	return !slices.ContainsFunc(rule.Verbs, func(v string) bool { return v != "get" && v != "list" && v != "watch" })
}

func TestBindingsAreBetweenThingsOfTheChart(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		type binding struct {
			name     string
			ref      rbacv1.RoleRef
			subjects []rbacv1.Subject
		}
		exists := map[string]bool{}
		accounts := map[string]bool{}
		// Roles that admit pods on OpenShift, and give no right in the API.
		admits := map[string]bool{}
		var bindings []binding
		for _, o := range objects {
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				exists["ClusterRole/"+o.Name] = true
			case *rbacv1.Role:
				exists["Role/"+o.Name] = true
				admits[o.Name] = len(o.Rules) == 1 && slices.Equal(o.Rules[0].Resources, []string{"securitycontextconstraints"}) &&
					slices.Equal(o.Rules[0].Verbs, []string{"use"})
				// Events about cluster-scoped objects are recorded in default, so that
				// writing them there is what a part may do outside its own namespace.
				eventsOnly := !slices.ContainsFunc(o.Rules, func(r rbacv1.PolicyRule) bool { return !slices.Equal(r.Resources, []string{"events"}) })
				if o.Namespace != namespace && (o.Namespace != "default" || !eventsOnly) {
					t.Errorf("Role %s is in namespace %q: %+v", o.Name, o.Namespace, o.Rules)
				}
			case *corev1.ServiceAccount:
				accounts[o.Name] = true
				if o.AutomountServiceAccountToken == nil || *o.AutomountServiceAccountToken {
					t.Errorf("ServiceAccount %s: gives its token to any pod that uses it", o.Name)
				}
			case *rbacv1.ClusterRoleBinding:
				bindings = append(bindings, binding{o.Name, o.RoleRef, o.Subjects})
			case *rbacv1.RoleBinding:
				bindings = append(bindings, binding{o.Name, o.RoleRef, o.Subjects})
			}
		}
		bound := map[string]bool{}
		for _, b := range bindings {
			if !exists[b.ref.Kind+"/"+b.ref.Name] {
				t.Errorf("%s binds %s %s, which is not the chart's", b.name, b.ref.Kind, b.ref.Name)
			}
			for _, s := range b.subjects {
				if s.Kind != "ServiceAccount" || !accounts[s.Name] || s.Namespace != namespace {
					t.Errorf("%s binds to %+v, which is not the chart's", b.name, s)
				}
				bound[s.Name] = bound[s.Name] || !admits[b.ref.Name]
			}
		}
		// What target pods run as: they are privileged on their node, and nobody in the API.
		if !accounts["weft-target"] || bound["weft-target"] {
			t.Errorf("ServiceAccount weft-target: exists %v, has a role %v", accounts["weft-target"], bound["weft-target"])
		}
		for _, w := range workloads(objects) {
			if !bound[w.template.Spec.ServiceAccountName] {
				t.Errorf("%s: its ServiceAccount %q has no role", w.name, w.template.Spec.ServiceAccountName)
			}
		}
	})
}

// TestEachPartHasItsOwnRights states, for the parts that run on nodes, what they cannot do at all.
func TestEachPartHasItsOwnRights(t *testing.T) {
	writes := map[string][]string{}
	for _, r := range of[*rbacv1.ClusterRole](render(t)) {
		for _, rule := range r.Rules {
			for _, verb := range []string{"create", "update", "patch", "delete"} {
				if slices.Contains(rule.Verbs, verb) {
					for _, resource := range rule.Resources {
						writes[r.Name] = append(writes[r.Name], verb+" "+resource)
					}
				}
			}
		}
	}
	for _, never := range []struct{ role, right string }{
		{"weft-agent", "patch nvmfvolumes"},
		{"weft-agent", "create nvmfreplicas"},
		{"weft-agent", "delete nvmfreplicas"},
		{"weft-agent", "patch nvmftargets"},
		{"weft-agent", "delete nvmfnodes"},
		{"weft-csi-node", "patch nvmfvolumes"},
		{"weft-csi-node", "update nvmfvolumes"},
		{"weft-csi-node", "patch nvmfreplicas"},
		{"weft-csi-node", "update nvmfreplicas"},
		{"weft-csi-node", "patch nodes"},
		{"weft-csi-controller", "patch nvmfreplicas/status"},
		{"weft-csi-controller", "patch nvmfsnapshots/status"},
		{"weft-operator", "delete nvmfvolumes"},
		{"weft-operator", "patch nvmfvolumes"},
		{"weft-operator", "delete nvmfreplicas"},
		{"weft-operator", "patch nvmfreplicas/status"},
	} {
		if slices.Contains(writes[never.role], never.right) {
			t.Errorf("%s may %s", never.role, never.right)
		}
	}
}

// The CSI controller writes Events on claims, which are in every namespace, and has no other right to Events. Sidecars
// come with rights of their own.
func TestEventsInEveryNamespace(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		may := map[string][]string{}
		for _, r := range of[*rbacv1.ClusterRole](objects) {
			for _, rule := range r.Rules {
				if slices.Contains(rule.Resources, "events") {
					may[r.Name] = append(may[r.Name], rule.Verbs...)
				}
			}
		}
		if !slices.Equal(may["weft-csi-controller"], []string{"create"}) {
			t.Errorf("the CSI controller may %q Events", may["weft-csi-controller"])
		}
		for _, part := range []string{"weft-operator", "weft-agent", "weft-csi-node"} {
			if may[part] != nil {
				t.Errorf("%s may %q the Events of every namespace", part, may[part])
			}
		}
	})
}
