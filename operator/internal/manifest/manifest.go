// SPDX-License-Identifier: Apache-2.0

// Package manifest builds what the operator applies: for each object, exactly
// the fields that the operator owns, for server-side apply under v1alpha1.OperatorFieldManager.
//
// Every configuration of weft's own objects carries the UID and the resourceVersion of the object it
// was computed from. Without them an apply to an object that was deleted
// meanwhile would make it again, and one computed from an old cache would
// overwrite what was decided since; with them the API server answers Conflict.
// Target pods and their budgets are the operator's to make, and carry neither.
package manifest

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// NodeSpec claims or releases a node: NvmfNode.spec.
type NodeSpec struct {
	metav1ac.TypeMetaApplyConfiguration    `json:",inline"`
	*metav1ac.ObjectMetaApplyConfiguration `json:"metadata,omitempty"`
	Spec                                   *v1alpha1.NvmfNodeSpec `json:"spec,omitempty"`
}

// IsApplyConfiguration makes it one.
func (*NodeSpec) IsApplyConfiguration() {}

// NodeConditions are the operator's conditions in NvmfNode.status.
type NodeConditions struct {
	metav1ac.TypeMetaApplyConfiguration    `json:",inline"`
	*metav1ac.ObjectMetaApplyConfiguration `json:"metadata,omitempty"`
	Status                                 *nodeConditionsStatus `json:"status,omitempty"`
}

type nodeConditionsStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IsApplyConfiguration makes it one.
func (*NodeConditions) IsApplyConfiguration() {}

// TargetStatus is all of NvmfTarget.status.
type TargetStatus struct {
	metav1ac.TypeMetaApplyConfiguration    `json:",inline"`
	*metav1ac.ObjectMetaApplyConfiguration `json:"metadata,omitempty"`
	Status                                 *v1alpha1.NvmfTargetStatus `json:"status,omitempty"`
}

// IsApplyConfiguration makes it one.
func (*TargetStatus) IsApplyConfiguration() {}

// ForNodeSpec returns what gives the node the desired spec, or nil when it has it. An
// empty spec releases the node.
func ForNodeSpec(node *v1alpha1.NvmfNode, desired v1alpha1.NvmfNodeSpec) *NodeSpec {
	// These are a person's: what is not applied stays as it is.
	has := node.Spec
	has.DroppedDrives, desired.DroppedDrives = nil, nil
	has.Unschedulable, desired.Unschedulable = false, false
	has.UnschedulableDrives, desired.UnschedulableDrives = nil, nil
	if equality.Semantic.DeepEqual(has, desired) {
		return nil
	}
	return &NodeSpec{
		TypeMetaApplyConfiguration:   typeMeta("NvmfNode"),
		ObjectMetaApplyConfiguration: objectMeta(node),
		Spec:                         desired.DeepCopy(),
	}
}

// operatorConditions are those of an NvmfNode that the operator writes.
var operatorConditions = []string{
	v1alpha1.ConditionAgentAlive, v1alpha1.ConditionSchedulable, v1alpha1.ConditionTargetPodReady, v1alpha1.ConditionTargetImageReady,
	v1alpha1.ConditionUpdated, v1alpha1.ConditionVersionSkew, v1alpha1.ConditionEvictable,
}

// ForNodeCondition returns what gives the node some of the operator's conditions, or nil when
// it has them. The transition time is kept while the condition's status is; otherwise it is the
// given condition's. The operator's other conditions go with them as they are: what a field manager
// applies no more is removed.
func ForNodeCondition(node *v1alpha1.NvmfNode, give ...metav1.Condition) *NodeConditions {
	conditions := slices.Clone(node.Status.Conditions)
	changed := false
	for _, c := range give {
		changed = meta.SetStatusCondition(&conditions, c) || changed
	}
	if !changed {
		return nil
	}
	own := slices.DeleteFunc(conditions, func(c metav1.Condition) bool { return !slices.Contains(operatorConditions, c.Type) })
	return &NodeConditions{
		TypeMetaApplyConfiguration:   typeMeta("NvmfNode"),
		ObjectMetaApplyConfiguration: objectMeta(node),
		Status:                       &nodeConditionsStatus{Conditions: own},
	}
}

// ForTargetStatus returns what gives the target the desired status, or nil when it has it.
func ForTargetStatus(target *v1alpha1.NvmfTarget, desired v1alpha1.NvmfTargetStatus) *TargetStatus {
	if equality.Semantic.DeepEqual(target.Status, desired) {
		return nil
	}
	return &TargetStatus{
		TypeMetaApplyConfiguration:   typeMeta("NvmfTarget"),
		ObjectMetaApplyConfiguration: objectMeta(target),
		Status:                       desired.DeepCopy(),
	}
}

func typeMeta(kind string) metav1ac.TypeMetaApplyConfiguration {
	return *metav1ac.TypeMeta().WithKind(kind).WithAPIVersion(v1alpha1.GroupVersion.String())
}

func objectMeta(o metav1.Object) *metav1ac.ObjectMetaApplyConfiguration {
	return metav1ac.ObjectMeta().WithName(o.GetName()).WithUID(o.GetUID()).WithResourceVersion(o.GetResourceVersion())
}
