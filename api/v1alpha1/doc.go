// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the objects of the API group weft.storage.
//
// They are the only store of weft: what a target exports is a pure function
// of these objects. Every field has exactly one writer, named in its
// comment: the user, the operator, the CSI controller, or the agent of one node.
//
// +kubebuilder:object:generate=true
// +groupName=weft.storage
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every object of this package.
var GroupVersion = schema.GroupVersion{Group: "weft.storage", Version: "v1alpha1"}

// SchemeBuilder and AddToScheme register the package's types with a scheme.
var (
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	AddToScheme   = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&NvmfTarget{}, &NvmfTargetList{},
		&NvmfNode{}, &NvmfNodeList{},
		&NvmfVolume{}, &NvmfVolumeList{},
		&NvmfReplica{}, &NvmfReplicaList{},
		&NvmfSnapshot{}, &NvmfSnapshotList{},
		&NvmfMirror{}, &NvmfMirrorList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
