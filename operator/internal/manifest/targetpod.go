// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/cpus"
)

const (
	// TargetLabel on a target pod names its NvmfTarget.
	TargetLabel = "weft.storage/target"
	// NodeLabel on a target pod names its node; of a name that is too long for a label, the
	// beginning and a hash. Which NvmfNode a pod belongs to is said by its ownerReference.
	NodeLabel = "weft.storage/node"
	// StartupAnnotation on a target pod is a hash of all that its target was started with, and
	// that only a restart can change.
	StartupAnnotation = "weft.storage/startup"
	// TargetServiceAccount is the ServiceAccount of target pods. It has no rights, and no token is mounted.
	TargetServiceAccount = "weft-target"
	// TargetContainer is the name of a target pod's only container.
	TargetContainer = "target"

	targetSocket = "/run/weft/spdk.sock"
	launcher     = "/usr/local/bin/weft-launch"

	// maxPodName is the bound of an object's name, maxLabelValue that of a label's value.
	maxPodName, maxLabelValue = 253, 63
)

// TargetPods is what all target pods have in common.
type TargetPods struct {
	// Namespace they are made in: the operator's own.
	Namespace string
	// Image that holds weft-launch and SPDK's target.
	Image string
	// ImagePullPolicy for it. Default: Kubernetes' own.
	ImagePullPolicy corev1.PullPolicy
}

// TargetPodName is the name of a node's target pod. It depends on the node alone, so that a
// node cannot have two.
func TargetPodName(node string) string { return fit(v1alpha1.TargetPodPrefix+node, maxPodName) }

// TargetPodLabels are what target pods are found by.
func TargetPodLabels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: v1alpha1.ComponentTarget}
}

// Pod returns the target pod of a node whose plan is for SPDK, with its StartupAnnotation. It depends on
// what a restart is needed for, and on nothing that the agent tells a target while it runs. It
// is to be applied only where there is none: a pod is replaced, never changed.
func (p TargetPods) Pod(node *v1alpha1.NvmfNode) (*corev1ac.PodApplyConfiguration, error) {
	cores, err := cpus.ParseMask(node.Spec.Plan.SPDK.CoreMask)
	if err != nil {
		return nil, fmt.Errorf("read the core mask of node %s: %w", node.Name, err)
	}
	spec := p.podSpec(node.Name, node.Spec.Plan, cores.Size())
	hash, err := startup(spec, *node.Spec.Plan.SPDK)
	if err != nil {
		return nil, fmt.Errorf("hash what the target of node %s is started with: %w", node.Name, err)
	}
	labels := TargetPodLabels()
	labels["app.kubernetes.io/part-of"] = "weft"
	labels[TargetLabel] = node.Spec.Target
	labels[NodeLabel] = fit(node.Name, maxLabelValue)
	return corev1ac.Pod(TargetPodName(node.Name), p.Namespace).
		WithLabels(labels).
		WithAnnotations(map[string]string{
			StartupAnnotation:                         hash,
			"kubectl.kubernetes.io/default-container": TargetContainer,
		}).
		WithOwnerReferences(ownedBy(node)).
		WithSpec(spec), nil
}

// Startup is the StartupAnnotation of a node's target pod with a plan; "" for a plan without a target pod, and where
// Pod fails.
func (p TargetPods) Startup(node *v1alpha1.NvmfNode, plan *v1alpha1.Plan) string {
	if plan == nil || plan.SPDK == nil {
		return ""
	}
	with := *node
	with.Spec.Plan = plan
	pod, err := p.Pod(&with)
	if err != nil {
		return ""
	}
	return pod.Annotations[StartupAnnotation]
}

// startup hashes the pod and the settings that the agent sends before the target starts: SPDK takes
// buffers, transports and poll groups once. The scheduler, its knobs and balancing can change afterwards; interrupt
// mode cannot, and is an argument of the pod. What says how the cluster treats the pod, and not what the target
// is, is left out: no release that changes a probe may restart targets.
func startup(pod *corev1ac.PodSpecApplyConfiguration, settings v1alpha1.SPDKPlan) (string, error) {
	spec := *pod
	spec.TerminationGracePeriodSeconds, spec.PriorityClassName, spec.DNSPolicy = nil, nil, nil
	spec.EnableServiceLinks, spec.Tolerations, spec.Affinity = nil, nil, nil
	spec.Containers = slices.Clone(spec.Containers)
	for i := range spec.Containers {
		c := &spec.Containers[i]
		c.ImagePullPolicy, c.TerminationMessagePolicy = nil, nil
		c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = nil, nil, nil
	}
	// What attachments need is in the numbers of the others.
	settings.Scheduler, settings.Balance, settings.Attachments = nil, false, nil
	if settings.Mode == v1alpha1.CoresStatic {
		settings.Mode = v1alpha1.CoresDynamic
	}
	data, err := json.Marshal(struct {
		Pod      *corev1ac.PodSpecApplyConfiguration
		Settings v1alpha1.SPDKPlan
	}{&spec, settings})
	if err != nil {
		return "", err
	}
	return digest(data, 16), nil
}

func (p TargetPods) podSpec(node string, plan *v1alpha1.Plan, cores int) *corev1ac.PodSpecApplyConfiguration {
	volumes, mounts := targetVolumes(plan.SPDK)
	container := corev1ac.Container().
		WithName(TargetContainer).
		WithImage(p.Image).
		WithCommand(launcher).
		WithArgs(launchArgs(plan)...).
		WithResources(targetResources(plan.SPDK, cores)).
		WithSecurityContext(corev1ac.SecurityContext().
			// Devices, hugepages and their physical addresses are the node's.
			WithPrivileged(true).WithAllowPrivilegeEscalation(true).
			WithRunAsUser(0).WithRunAsNonRoot(false).
			WithReadOnlyRootFilesystem(true)).
		WithVolumeMounts(mounts...).
		WithTerminationMessagePolicy(corev1.TerminationMessageReadFile).
		// A start reads all drives and may take minutes on a slow machine. Killing a target that is
		// only slow stops the I/O that it goes on serving: a stall of its RPC must last. A probe runs
		// on the target's own cores, so there are few once it has started; its end ends the container at once.
		WithStartupProbe(probe(2, 150)).
		WithLivenessProbe(probe(30, 4)).
		WithReadinessProbe(probe(30, 3))
	if p.ImagePullPolicy != "" {
		container.WithImagePullPolicy(p.ImagePullPolicy)
	}
	return corev1ac.PodSpec().
		WithServiceAccountName(TargetServiceAccount).
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithPriorityClassName("system-node-critical").
		WithRestartPolicy(corev1.RestartPolicyAlways).
		// Long enough to give drives back to the kernel.
		WithTerminationGracePeriodSeconds(30).
		WithHostNetwork(true).
		WithHostPID(false).
		WithDNSPolicy(corev1.DNSDefault).
		WithSecurityContext(corev1ac.PodSecurityContext().
			WithRunAsUser(0).WithRunAsGroup(0).WithRunAsNonRoot(false).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeUnconfined))).
		WithAffinity(onNode(node)).
		// As the agent: a node that an NvmfTarget selects serves whatever else its taints are for.
		WithTolerations(corev1ac.Toleration().WithOperator(corev1.TolerationOpExists)).
		WithContainers(container).
		WithVolumes(volumes...)
}

// launchArgs are those of weft-launch.
func launchArgs(plan *v1alpha1.Plan) []string {
	s := plan.SPDK
	args := []string{
		"run",
		"--socket=" + targetSocket,
		"--core-mask=" + s.CoreMask,
		fmt.Sprintf("--memory-bytes=%d", s.MemoryBytes),
		"--hugepages=" + string(s.Hugepages),
		"--driver=" + string(s.Driver),
	}
	if s.Mode == v1alpha1.CoresInterrupt {
		args = append(args, "--interrupt")
	}
	if s.Driver == v1alpha1.DriverKernel {
		return args
	}
	var drives []string
	for _, d := range plan.Drives {
		if d.PCIAddress != "" {
			drives = append(drives, "--pci="+d.PCIAddress+"="+d.ID)
		}
	}
	slices.Sort(drives)
	return append(args, drives...)
}

// targetResources are requested and limited alike: only a pod of QoS class Guaranteed gets
// whole CPUs from the kubelet's static CPU manager, and is the last to be killed for memory.
func targetResources(s *v1alpha1.SPDKPlan, cores int) *corev1ac.ResourceRequirementsApplyConfiguration {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(cores), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(roundUp(s.PodMemoryBytes, 1<<20), resource.BinarySI),
	}
	if size := pageBytes(s.Hugepages); size > 0 {
		list[hugepageResource(s.Hugepages)] = *resource.NewQuantity(roundUp(s.MemoryBytes, size), resource.BinarySI)
	}
	return corev1ac.ResourceRequirements().WithRequests(list).WithLimits(list)
}

func roundUp(n, step int64) int64 { return (n + step - 1) / step * step }

func pageBytes(size v1alpha1.Hugepages) int64 {
	switch size {
	case v1alpha1.Hugepages2Mi:
		return 2 << 20
	case v1alpha1.Hugepages1Gi:
		return 1 << 30
	}
	return 0
}

func hugepageResource(size v1alpha1.Hugepages) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + string(size))
}

func probe(periodSeconds, failures int32) *corev1ac.ProbeApplyConfiguration {
	return corev1ac.Probe().
		WithExec(corev1ac.ExecAction().WithCommand(launcher, "probe", "--socket="+targetSocket)).
		WithPeriodSeconds(periodSeconds).
		WithTimeoutSeconds(10).
		WithFailureThreshold(failures)
}

// onNode binds a pod to a node through the scheduler, as a DaemonSet does: it counts the pod's
// CPUs, memory and hugepages, and says why they do not fit.
func onNode(node string) *corev1ac.AffinityApplyConfiguration {
	return corev1ac.Affinity().WithNodeAffinity(corev1ac.NodeAffinity().
		WithRequiredDuringSchedulingIgnoredDuringExecution(corev1ac.NodeSelector().
			WithNodeSelectorTerms(corev1ac.NodeSelectorTerm().
				WithMatchFields(corev1ac.NodeSelectorRequirement().
					WithKey("metadata.name").WithOperator(corev1.NodeSelectorOpIn).WithValues(node)))))
}

// scratch are the directories of an image that SPDK and DPDK write to: locks of cores and drives, and the files by
// which DPDK's processes share memory.
var scratch = map[string]string{"tmp": "/tmp", "var-tmp": "/var/tmp", "dpdk": "/var/run/dpdk"}

// targetVolumes are what a target sees of its node, at the same paths, and where it may write beside that.
func targetVolumes(s *v1alpha1.SPDKPlan) ([]*corev1ac.VolumeApplyConfiguration, []*corev1ac.VolumeMountApplyConfiguration) {
	var volumes []*corev1ac.VolumeApplyConfiguration
	var mounts []*corev1ac.VolumeMountApplyConfiguration
	type hostPath struct {
		name, path  string
		kind        corev1.HostPathType
		readOnly    bool
		propagation corev1.MountPropagationMode
	}
	paths := []hostPath{
		// The target's RPC socket, where the agent finds it.
		{name: "socket", path: "/run/weft", kind: corev1.HostPathDirectoryOrCreate},
		{name: "dev", path: "/dev", kind: corev1.HostPathDirectory, propagation: corev1.MountPropagationHostToContainer},
		{name: "sys", path: "/sys", kind: corev1.HostPathDirectory, propagation: corev1.MountPropagationHostToContainer},
		// Pools in files.
		{name: "state", path: "/var/lib/weft", kind: corev1.HostPathDirectoryOrCreate, propagation: corev1.MountPropagationHostToContainer},
		// A node without udev has no such folder, and nothing depends on it.
		{name: "udev", path: "/run/udev", kind: corev1.HostPathDirectoryOrCreate, readOnly: true},
	}
	if s.Driver != v1alpha1.DriverKernel { // the launcher loads the driver's module
		paths = append(paths, hostPath{name: "modules", path: "/lib/modules", kind: corev1.HostPathDirectory, readOnly: true})
	}
	for _, h := range paths {
		volumes = append(volumes, corev1ac.Volume().WithName(h.name).
			WithHostPath(corev1ac.HostPathVolumeSource().WithPath(h.path).WithType(h.kind)))
		mount := corev1ac.VolumeMount().WithName(h.name).WithMountPath(h.path)
		if h.readOnly {
			mount.WithReadOnly(true)
		}
		if h.propagation != "" {
			mount.WithMountPropagation(h.propagation)
		}
		mounts = append(mounts, mount)
	}
	for _, name := range slices.Sorted(maps.Keys(scratch)) {
		volumes = append(volumes, corev1ac.Volume().WithName(name).WithEmptyDir(corev1ac.EmptyDirVolumeSource()))
		mounts = append(mounts, corev1ac.VolumeMount().WithName(name).WithMountPath(scratch[name]))
	}
	if pageBytes(s.Hugepages) > 0 {
		volumes = append(volumes, corev1ac.Volume().WithName("hugepages").
			WithEmptyDir(corev1ac.EmptyDirVolumeSource().WithMedium(corev1.StorageMediumHugePagesPrefix+corev1.StorageMedium(s.Hugepages))))
		mounts = append(mounts, corev1ac.VolumeMount().WithName("hugepages").WithMountPath("/dev/hugepages"))
	}
	return volumes, mounts
}

// fit returns a name of at most most bytes: the name itself, or its beginning and a hash of all of it.
func fit(name string, most int) string {
	if len(name) <= most {
		return name
	}
	const digits = 10
	return strings.TrimRight(name[:most-digits-1], "-.") + "-" + digest([]byte(name), digits)
}

// digest is the beginning of a hash, in hexadecimal digits.
func digest(data []byte, digits int) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:digits]
}
