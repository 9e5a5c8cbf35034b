// SPDX-License-Identifier: Apache-2.0

package node

// The node plugin reads its own Node, when it starts and with each stage, and the volumes that it stages, with their
// replicas. Of those that are staged, it reads the replicas to follow their portals, and a volume to see whether it is
// still attached to this node when no path is live. It reads a volume that it has something to tell of, and, with
// snapshots, what a volume was made from whose data came with the header of another. It reads from
// the CSIDriver which version is installed. It reads and writes the mirror records of those that have several replicas,
// while it holds them, and watches those that its node holds. It writes its conditions of its Node, and Events about
// it and about volumes; RBAC knows neither fields nor "its own", which the chart's admission policies weft-csi-node and
// weft-csi-node-mirrors add. The last two let the metrics endpoint ask who its caller is and what it may read.
//
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups="",resources=nodes/status,verbs=patch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csidrivers,resourceNames=csi.weft.storage,verbs=get
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfreplicas;nvmfsnapshots;nvmfvolumes,verbs=get
// +kubebuilder:rbac:groups=weft.storage,resources=nvmfmirrors,verbs=get;list;watch;update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
