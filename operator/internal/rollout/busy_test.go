// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/rollout"
)

// replicaOn a drive; without a reason it is ready.
func replicaOn(device, reason string) v1alpha1.NvmfReplica {
	v := v1alpha1.NvmfReplica{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	v.Spec.Node, v.Status.Device = "a", device
	ready, degraded := metav1.ConditionTrue, metav1.ConditionFalse
	if reason != "" {
		ready, degraded = metav1.ConditionFalse, metav1.ConditionTrue
	}
	v.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: ready, Reason: reason}, {Type: v1alpha1.ConditionDegraded, Status: degraded},
	}
	return v
}

// TestBusy: what is being made, changed or deleted is waited for, and what is on a dead drive is not.
func TestBusy(t *testing.T) {
	changed, deleted := replicaOn("well", ""), replicaOn("well", "")
	changed.Generation = 2
	deleted.DeletionTimestamp = new(metav1.Now())
	pending := v1alpha1.NvmfSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	pending.Spec.Node, pending.Spec.Replica = "a", "v"
	pending.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}}
	for name, test := range map[string]struct {
		why       string
		replica   v1alpha1.NvmfReplica
		snapshots []v1alpha1.NvmfSnapshot
		want      []string
	}{
		"ready":                        {"", replicaOn("well", ""), nil, nil},
		"changed":                      {"", changed, nil, []string{"replica v"}},
		"deleted":                      {"", deleted, nil, []string{"replica v"}},
		"a snapshot is being made":     {"", replicaOn("well", ""), []v1alpha1.NvmfSnapshot{pending}, []string{"snapshot s"}},
		"on a dead drive":              {v1alpha1.ReasonDeviceMissing, replicaOn("dead", v1alpha1.ReasonPoolFailed), nil, nil},
		"on a drive that is not read":  {v1alpha1.ReasonPoolFailed, replicaOn("dead", v1alpha1.ReasonPoolFailed), nil, nil},
		"on one that is being opened":  {v1alpha1.ReasonPending, replicaOn("dead", v1alpha1.ReasonPoolFailed), nil, []string{"replica v"}},
		"on another one":               {v1alpha1.ReasonDeviceMissing, replicaOn("well", v1alpha1.ReasonPending), nil, []string{"replica v"}},
		"lost":                         {"", replicaOn("well", v1alpha1.ReasonVolumeLost), nil, nil},
		"its snapshot on a dead drive": {v1alpha1.ReasonDeviceSwapped, replicaOn("dead", v1alpha1.ReasonPoolFailed), []v1alpha1.NvmfSnapshot{pending}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			node := &v1alpha1.NvmfNode{}
			node.Status.Pools = []v1alpha1.PoolStatus{{Device: "dead", Ready: test.why == "", Reason: test.why}, {Device: "well", Ready: true}}
			if busy := rollout.Busy(node, []v1alpha1.NvmfReplica{test.replica}, test.snapshots); !slices.Equal(busy, test.want) {
				t.Errorf("%v, want %v", busy, test.want)
			}
		})
	}
}
