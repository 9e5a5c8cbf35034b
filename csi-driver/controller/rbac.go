// SPDX-License-Identifier: Apache-2.0

package controller

// What this service may do; the chart's ClusterRole says the same. The last two let the metrics endpoint ask who its
// caller is and what it may read.
//
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfvolumes;nvmfreplicas,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfvolumes/status,verbs=patch
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfmirrors,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfsnapshots,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=weft.storage,resources=nvmftargets;nvmfnodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=volumeattachments,verbs=get;list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csinodes,verbs=get;list
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
