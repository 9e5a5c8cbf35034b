// SPDX-License-Identifier: Apache-2.0

package main

// What the operator may do, and nothing more. There is no create on NvmfNodes: an
// apply can then never make one that its agent did not.

// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=weft.storage,resources=nvmftargets,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=weft.storage,resources=nvmftargets/status,verbs=patch
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfnodes,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfnodes/status,verbs=patch
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfvolumes;nvmfreplicas;nvmfsnapshots;nvmfmirrors,verbs=get;list;watch

// Target pods and guards are made, never changed: apply creates with the verb patch. Their budgets follow what the
// nodes serve.
// +kubebuilder:rbac:groups="",resources=pods,namespace=weft-system,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,namespace=weft-system,verbs=get;list;watch;create;patch;delete

// Events about cluster-scoped objects lie in the namespace default, those about the leader's
// Lease in weft's own; client-go writes the latter through the older API.
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,namespace=weft-system,verbs=create;patch
// Those about a node's budget lie beside it.
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=weft-system,verbs=create;patch

// The agents' Leases are read, the leader's own is written.
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=weft-system,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=weft-system,resourceNames=weft-operator,verbs=update

// Whoever scrapes the metrics is authenticated and authorized by the API server.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// The webhook's certificate lies in one Secret, and its authorities in one configuration. Both come with the
// installation: there is no right to create a Secret, which could be filled with another account's token, nor to read
// another one.
// +kubebuilder:rbac:groups="",resources=secrets,namespace=weft-system,resourceNames=weft-operator-webhook,verbs=get;list;watch;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=weft-nvmftargets,verbs=get;list;watch;patch
