// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// serviceAccountsPrecedence is that of Kubernetes' FlowSchema service-accounts, which has all of them.
const serviceAccountsPrecedence = 9000

// urgent are heartbeats, and what is recorded of a mirror before a write is acknowledged.
var urgent = []string{"leases", "nvmfmirrors", "nvmfmirrors/status"}

// Each part of weft that asks the API server has a level that is weft's own, and agents and node plugins another one
// than the controllers, but for what must not wait behind them.
func TestRequestsHaveLevelsOfTheirOwn(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		levels, levelOf := map[string]bool{}, map[string]string{}
		for _, l := range of[*flowcontrolv1.PriorityLevelConfiguration](objects) {
			levels[l.Name] = true
			if l.Spec.Limited == nil || l.Spec.Limited.LimitResponse.Type != flowcontrolv1.LimitResponseTypeQueue {
				t.Errorf("level %s refuses requests instead of queuing them", l.Name)
			}
		}
		if len(levels) == 0 {
			if n := len(of[*flowcontrolv1.FlowSchema](objects)); n > 0 {
				t.Errorf("%d FlowSchemas lead to no level", n)
			}
			return
		}
		for _, f := range of[*flowcontrolv1.FlowSchema](objects) {
			level := f.Spec.PriorityLevelConfiguration.Name
			if !levels[level] || f.Spec.MatchingPrecedence >= serviceAccountsPrecedence {
				t.Errorf("FlowSchema %s leads to %s, after precedence %d", f.Name, level, f.Spec.MatchingPrecedence)
			}
			for _, rule := range f.Spec.Rules {
				for _, s := range rule.Subjects {
					if s.ServiceAccount == nil || s.ServiceAccount.Namespace != namespace {
						t.Fatalf("FlowSchema %s is for %+v", f.Name, s)
					}
					if resources := rule.ResourceRules[0].Resources; slices.Contains(resources, "*") {
						levelOf[s.ServiceAccount.Name] = level
					} else if slices.ContainsFunc(resources, func(r string) bool { return !slices.Contains(urgent, r) }) {
						t.Errorf("FlowSchema %s is for %v", f.Name, resources)
					}
				}
			}
		}
		for _, account := range of[*corev1.ServiceAccount](objects) {
			makesNone := account.Name == "weft-target" || account.Name == "weft-top"
			if level, is := levelOf[account.Name]; is == makesNone {
				t.Errorf("requests of %s are on level %q; target pods make none, and kubectl weft top only reads metrics", account.Name, level)
			}
		}
		if levelOf["weft-agent"] == levelOf["weft-operator"] || levelOf["weft-csi-node"] == levelOf["weft-csi-controller"] {
			t.Errorf("agents and node plugins can hold up controllers: %v", levelOf)
		}
	})
}
