// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// Busy names what is being made, changed, exported or deleted on a node, or is degraded. What is out of reach is not
// waited for: a dead drive would keep its node from every change, and the target has nothing of it to serve. Without
// its NvmfNode, which may be nil, a node has no dead drives. The replicas and snapshots are all on this node.
func Busy(node *v1alpha1.NvmfNode, replicas []v1alpha1.NvmfReplica, snapshots []v1alpha1.NvmfSnapshot) []string {
	var names []string
	homes := map[string]string{}
	for i := range replicas {
		r := &replicas[i]
		homes[r.Name] = r.Status.Device
		c := r.Status.Conditions
		if outOfReach(node, r.Status.Device, c) {
			continue
		}
		if !r.DeletionTimestamp.IsZero() || r.Status.ObservedGeneration < r.Generation ||
			!meta.IsStatusConditionTrue(c, v1alpha1.ConditionReady) || !meta.IsStatusConditionFalse(c, v1alpha1.ConditionDegraded) {
			names = append(names, "replica "+r.Name)
		}
	}
	for i := range snapshots {
		s := &snapshots[i]
		if outOfReach(node, cmp.Or(s.Status.Device, homes[s.Spec.Replica]), s.Status.Conditions) {
			continue
		}
		if !s.DeletionTimestamp.IsZero() || !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady) {
			names = append(names, "snapshot "+s.Name)
		}
	}
	return names
}

// outOfReach: the agent says of a replica or snapshot that it is lost, or of its pool that its drive is gone, is
// another one, or cannot be read.
func outOfReach(node *v1alpha1.NvmfNode, device string, conditions []metav1.Condition) bool {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil || ready.Status == metav1.ConditionTrue:
		return false
	case ready.Reason == v1alpha1.ReasonVolumeLost:
		return true
	case node == nil:
		return false
	}
	return slices.ContainsFunc(node.Status.Pools, func(p v1alpha1.PoolStatus) bool {
		return p.Device == device && !p.Ready && slices.Contains(unreachable, p.Reason)
	})
}

// unreachable are the reasons of pools that do not pass by themselves.
var unreachable = []string{
	v1alpha1.ReasonDeviceMissing, v1alpha1.ReasonDeviceSwapped, v1alpha1.ReasonForeignSignature, v1alpha1.ReasonPoolFailed,
}
