// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/sizing"
)

// Node is all that a claim is decided from, of one node.
type Node struct {
	// Name of the Kubernetes Node, of the NvmfNode, and in the replicas' spec.node.
	Name string
	// Exists says that the Kubernetes Node does; without it labels and addresses are unknown.
	Exists bool
	// Labels of the Kubernetes Node.
	Labels map[string]string
	// InternalIPs of the Kubernetes Node, in its order.
	InternalIPs []string
	// NotReadySince is since when the Kubernetes Node is not Ready; zero while it is, or does not say.
	NotReadySince time.Time
	// Allocatable is what the kubelet of the Kubernetes Node has for pods; nil as long as it does not say.
	Allocatable *sizing.Allocatable
	// HostUnable says why hosts of the Kubernetes Node cannot authenticate; empty when they can, and where nothing
	// tells that a node plugin runs there.
	HostUnable string
	// Nvmf is the NvmfNode; nil as long as no agent has made it.
	Nvmf *v1alpha1.NvmfNode
	// Replicas counts the NvmfReplicas on the node, by target; those that are being deleted count.
	Replicas map[string]int
	// Snapshots counts the NvmfSnapshots on the node. They lie in the pool of the target that claims it.
	Snapshots int
}

// Claimant is the target that the node's NvmfNode names now; "" when there is none.
func (n Node) Claimant() string {
	if n.Nvmf == nil {
		return ""
	}
	return n.Nvmf.Spec.Target
}

// Holds reports whether data of the target lies on the node.
func (n Node) Holds(target string) bool {
	return target != "" && (n.Replicas[target] > 0 || n.Snapshots > 0 && n.Claimant() == target)
}

// OverPromised tells, of each ready pool of the node of which more is promised than this percentage of its size allows,
// how much. That happens when a target's overProvisioningPercent is lowered, or a drive comes back smaller: nothing is
// taken away, and nothing new is given.
func (n Node) OverPromised(percent int32) []string {
	var told []string
	plan := &v1alpha1.Plan{OverProvisioningPercent: percent}
	for _, p := range n.Nvmf.Status.Pools {
		if !p.Ready || p.Total == nil || p.Promised == nil {
			continue
		}
		if limit := plan.Promisable(p.Total.Value()); p.Promised.Value() > limit {
			told = append(told, fmt.Sprintf("%s (%s promised of pool %s, %s allowed)",
				n.Name, p.Promised, p.Device, resource.NewQuantity(limit, resource.BinarySI)))
		}
	}
	return told
}

// NewNode of the objects that there are of a node; the first two may be nil.
func NewNode(name string, kube *corev1.Node, nvmf *v1alpha1.NvmfNode, replicas []v1alpha1.NvmfReplica, snapshots []v1alpha1.NvmfSnapshot) Node {
	n := Node{Name: name, Nvmf: nvmf, Replicas: map[string]int{}, Snapshots: len(snapshots)}
	if kube != nil {
		n.Exists, n.Labels, n.InternalIPs, n.Allocatable = true, kube.Labels, InternalIPs(kube), Allocatable(kube)
		n.NotReadySince, n.HostUnable = NotReadySince(kube), HostUnable(kube)
	}
	for i := range replicas {
		n.Replicas[replicas[i].Spec.Target]++
	}
	return n
}

// HostUnable says why hosts of a Kubernetes Node cannot authenticate; empty when they can, and where nothing tells that
// a node plugin runs there: it reports whether it can mirror as well, since before it reported this.
func HostUnable(node *corev1.Node) string {
	if v1alpha1.NodeCondition(node, v1alpha1.ConditionAuthenticationUnavailable) == nil && v1alpha1.NodeCondition(node, v1alpha1.ConditionMirrorsUnavailable) == nil {
		return ""
	}
	_, why := v1alpha1.HostPublicKey(node)
	return why
}

// InternalIPs of a Kubernetes Node, in its order.
func InternalIPs(node *corev1.Node) []string {
	var ips []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// NotReadySince is since when a Kubernetes Node is not Ready, or its kubelet has not been heard of; zero while it is
// Ready, or has never said.
func NotReadySince(node *corev1.Node) time.Time {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// Allocatable is what the node's kubelet has for pods; nil as long as it does not say.
func Allocatable(node *corev1.Node) *sizing.Allocatable {
	if len(node.Status.Allocatable) == 0 {
		return nil
	}
	return &sizing.Allocatable{
		CPUs:          node.Status.Allocatable.Cpu().MilliValue() / 1000,
		MemoryBytes:   node.Status.Allocatable.Memory().Value(),
		HugepageBytes: HugepageBytes(node.Status.Allocatable),
	}
}

// HugepageBytes of a kubelet's capacity or of what it can allocate, by the size of a page in bytes.
func HugepageBytes(of corev1.ResourceList) map[int64]int64 {
	bytes := map[int64]int64{}
	for name, quantity := range of {
		size, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		if page, err := resource.ParseQuantity(size); err == nil && page.Sign() > 0 { // the kubelet writes no other
			bytes[page.Value()] = quantity.Value()
		}
	}
	return bytes
}
