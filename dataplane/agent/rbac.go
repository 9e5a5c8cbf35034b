// SPDX-License-Identifier: Apache-2.0

package agent

// What the agent may do. Objects of other nodes are kept from it by field selectors, not by these rules:
// RBAC knows no fields. Events about objects without a namespace are kept in namespace default. The last two
// let the metrics endpoint ask who its caller is and what it may read.
//
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfnodes,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfnodes/status,verbs=patch
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfreplicas;nvmfsnapshots,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfreplicas/status;nvmfsnapshots/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=weft-system,verbs=get;create;update
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
