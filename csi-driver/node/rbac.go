// SPDX-License-Identifier: Apache-2.0

package node

// The node plugin reads one object: its own Node, when it starts. It writes one condition of it, and Events about it;
// RBAC knows neither fields nor "its own", which the chart's admission policy weft-csi-node adds.
//
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups="",resources=nodes/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create
