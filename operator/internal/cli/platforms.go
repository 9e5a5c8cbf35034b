// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// defaultKubeletDir is the kubelet's directory unless a distribution or a site chose another, and the chart's default.
const defaultKubeletDir = "/var/lib/kubelet"

// platform is something that a node runs on, or runs, and that has a page in docs/platforms.
type platform struct {
	name, page string
	// is tells it by what the Node says.
	is func(n *corev1.Node) bool
	// kubeletDir that its kubelets have by default; "" where the platform does not decide that.
	kubeletDir string
	// advice is what to look after on each such node; "" for none.
	advice string
}

// Names that checks ask for.
const (
	talos, openShift, ubuntu = "Talos Linux", "OpenShift", "Ubuntu"
)

// localDrives is what holds in every cloud.
const localDrives = "the data on its local drives is lost when the instance is stopped or replaced; keep autoscaling and automatic repair away from storage nodes"

// platforms that are known. A node can be several: an operating system, a distribution of Kubernetes, a cloud.
var platforms = []platform{
	{name: talos, page: "talos.md", is: image("Talos"), kubeletDir: defaultKubeletDir,
		advice: "pods cannot load kernel modules there; list the modules of the features that you use in machine.kernel.modules (for engine: Nvmet, nvmet and nvmet_tcp)"},
	{name: openShift, page: "openshift.md", is: func(n *corev1.Node) bool {
		_, labeled := n.Labels["node.openshift.io/os_id"]
		return labeled || image("Red Hat Enterprise Linux CoreOS")(n)
	}, kubeletDir: defaultKubeletDir},
	{name: "RHEL", page: "openshift.md", is: image("Red Hat Enterprise Linux", "Rocky Linux", "AlmaLinux", "CentOS Stream", "Oracle Linux")},
	{name: ubuntu, page: "ubuntu.md", is: image("Ubuntu")},
	{name: "Flatcar", page: "kernel.md", is: image("Flatcar")},
	{name: "Container-Optimized OS", page: "clouds.md", is: image("Container-Optimized OS")},
	{name: "k3s", page: "k3s-rke2.md", is: kubelet("+k3s"), kubeletDir: defaultKubeletDir},
	{name: "RKE2", page: "k3s-rke2.md", is: kubelet("+rke2"), kubeletDir: defaultKubeletDir},
	{name: "k0s", page: "k3s-rke2.md", is: kubelet("+k0s"), kubeletDir: "/var/lib/k0s/kubelet"},
	{name: "MicroK8s", page: "k3s-rke2.md", is: func(n *corev1.Node) bool { return n.Labels["microk8s.io/cluster"] == "true" },
		kubeletDir: "/var/snap/microk8s/common/var/lib/kubelet"},
	{name: "arm64", page: "arm64.md", is: func(n *corev1.Node) bool { return n.Status.NodeInfo.Architecture == "arm64" }},
	{name: "AWS", page: "clouds.md", is: provider("aws"), advice: localDrives + "; use type: TCP, because EFA cannot carry NVMe over RDMA"},
	{name: "Azure", page: "clouds.md", is: provider("azure"), advice: localDrives},
	{name: "Google Cloud", page: "clouds.md", is: provider("gce"), advice: localDrives},
}

// image tells nodes by the beginning of their operating system's name.
func image(names ...string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		for _, name := range names {
			if strings.HasPrefix(n.Status.NodeInfo.OSImage, name) {
				return true
			}
		}
		return false
	}
}

// kubelet tells nodes by what a distribution adds to its kubelet's version.
func kubelet(suffix string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return strings.Contains(n.Status.NodeInfo.KubeletVersion, suffix) }
}

// provider tells nodes by the cloud that their ID is of.
func provider(scheme string) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return strings.HasPrefix(n.Spec.ProviderID, scheme+"://") }
}

// platformsOf a node, in the table's order.
func platformsOf(n *corev1.Node) []platform {
	var found []platform
	for _, p := range platforms {
		switch {
		case !p.is(n):
		case p.name == "RHEL" && len(found) > 0 && found[len(found)-1].name == openShift: // its nodes' system
		default:
			found = append(found, p)
		}
	}
	return found
}
