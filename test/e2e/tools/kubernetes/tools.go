// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package kubernetes pins the version of the Kubernetes programs that the lab
// runs. The staging modules have to be replaced one by one because
// k8s.io/kubernetes requires them as v0.0.0.
package kubernetes

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
