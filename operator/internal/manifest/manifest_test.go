// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"encoding/json"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

var then = metav1.NewTime(time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC))

func node() *v1alpha1.NvmfNode {
	return &v1alpha1.NvmfNode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", ResourceVersion: "7", Labels: map[string]string{"not": "ours"}},
		Spec: v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{
			Engine: v1alpha1.EngineNvmet,
			File:   &v1alpha1.DeviceFile{Path: "/var/lib/weft/pool", Size: resource.MustParse("1024Mi")},
		}},
		Status: v1alpha1.NvmfNodeStatus{
			Inventory: &v1alpha1.Inventory{},
			Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "AsExpected", LastTransitionTime: then},
				{Type: v1alpha1.ConditionAgentAlive, Status: metav1.ConditionTrue, Reason: "AsExpected", LastTransitionTime: then},
			},
		},
	}
}

func wantJSON(t *testing.T, config any, want string) {
	t.Helper()
	got, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("applies\n%s\nwant\n%s", got, want)
	}
}

const head = `{"kind":"NvmfNode","apiVersion":"weft.storage/v1alpha1","metadata":{"name":"n1","uid":"u1","resourceVersion":"7"},`

func TestNodeSpec(t *testing.T) {
	same := *node().Spec.DeepCopy()
	same.Plan.File.Size = resource.MustParse("1Gi")
	same.Plan.Drives = []v1alpha1.PlannedDrive{}
	if c := manifest.ForNodeSpec(node(), same); c != nil {
		t.Error("1024Mi and 1Gi, and no drives and an empty list of them, are the same, but would be written")
	}
	administered := node()
	administered.Spec.Unschedulable, administered.Spec.UnschedulableDrives = true, []string{"eui.1"}
	administered.Spec.DroppedDrives = []v1alpha1.DroppedDrive{{ID: "eui.2"}}
	if c := manifest.ForNodeSpec(administered, node().Spec); c != nil {
		t.Error("an administrator's fields are not the operator's, but the spec would be written because of them")
	}
	wantJSON(t, manifest.ForNodeSpec(administered, v1alpha1.NvmfNodeSpec{}), head+`"spec":{}}`)
	wantJSON(t, manifest.ForNodeSpec(node(), v1alpha1.NvmfNodeSpec{}), head+`"spec":{}}`)
	wantJSON(t, manifest.ForNodeSpec(node(), v1alpha1.NvmfNodeSpec{Target: "slow", Plan: &v1alpha1.Plan{Engine: v1alpha1.EngineNvmet}}),
		head+`"spec":{"target":"slow","plan":{"engine":"Nvmet","portals":null}}}`)
}

func TestAgentAlive(t *testing.T) {
	now := metav1.NewTime(then.Add(time.Hour))
	alive := metav1.Condition{Type: v1alpha1.ConditionAgentAlive, Status: metav1.ConditionTrue, Reason: "AsExpected", LastTransitionTime: now}
	if c := manifest.ForNodeCondition(node(), alive); c != nil {
		t.Error("nothing changed but the clock, but it would be written")
	}
	alive.Message = "renews"
	wantJSON(t, manifest.ForNodeCondition(node(), alive),
		head+`"status":{"conditions":[{"type":"AgentAlive","status":"True","lastTransitionTime":"2026-11-20T08:00:00Z","reason":"AsExpected","message":"renews"}]}}`)
	both := node()
	both.Status.Conditions = append(both.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionTargetPodReady, Status: metav1.ConditionTrue, Reason: "NotNeeded", LastTransitionTime: then})
	wantJSON(t, manifest.ForNodeCondition(both, alive),
		head+`"status":{"conditions":[{"type":"AgentAlive","status":"True","lastTransitionTime":"2026-11-20T08:00:00Z","reason":"AsExpected","message":"renews"},`+
			`{"type":"TargetPodReady","status":"True","lastTransitionTime":"2026-11-20T08:00:00Z","reason":"NotNeeded","message":""}]}}`)
	alive.Status, alive.Reason = metav1.ConditionFalse, "AgentSilent"
	before := node()
	wantJSON(t, manifest.ForNodeCondition(before, alive),
		head+`"status":{"conditions":[{"type":"AgentAlive","status":"False","lastTransitionTime":"2026-11-20T09:00:00Z","reason":"AgentSilent","message":"renews"}]}}`)
	if before.Status.Conditions[1].Status != metav1.ConditionTrue {
		t.Error("the object that was given, which may be the cache's, was changed")
	}
}

func TestTargetStatus(t *testing.T) {
	target := &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "u2", ResourceVersion: "9"}}
	target.Status = v1alpha1.NvmfTargetStatus{ObservedGeneration: 1, Capacity: v1alpha1.Capacity{Total: resource.NewQuantity(1<<30, resource.BinarySI)}}
	same := *target.Status.DeepCopy()
	same.Capacity.Total = new(resource.MustParse("1024Mi"))
	if c := manifest.ForTargetStatus(target, same); c != nil {
		t.Error("1Gi and 1024Mi are the same, but would be written")
	}
	same.ObservedGeneration = 2
	wantJSON(t, manifest.ForTargetStatus(target, same),
		`{"kind":"NvmfTarget","apiVersion":"weft.storage/v1alpha1","metadata":{"name":"fast","uid":"u2","resourceVersion":"9"},"status":{"observedGeneration":2,"nodes":{"matching":0,"capable":0,"ready":0},"capacity":{"total":"1Gi"}}}`)
}
