// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "fmt"

// Unschedulable says why a node gets no new volumes although it may serve: the reason of its condition Schedulable, and
// words; empty when nothing keeps them away. What it holds goes on, growth and snapshots too. The operator tells it,
// and the CSI controller acts on it; cordoned is spec.unschedulable of the Kubernetes Node.
func (n *NvmfNode) Unschedulable(cordoned bool) (reason, message string) {
	switch {
	case n.Spec.Leaving:
		return ReasonLeaving, "its target no longer selects it"
	case n.Spec.Unschedulable:
		return ReasonCordoned, fmt.Sprintf("it is cordoned; to place volumes on it again, run: kubectl weft uncordon %s", n.Name)
	case cordoned:
		return ReasonKubernetesNodeCordoned, fmt.Sprintf("its Kubernetes Node is cordoned; to place volumes on it again, run: kubectl uncordon %s", n.Name)
	}
	return "", ""
}
