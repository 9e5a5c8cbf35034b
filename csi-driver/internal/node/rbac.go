// SPDX-License-Identifier: Apache-2.0

package node

// The node plugin reads one object: its own Node, once, for its UID.
//
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
