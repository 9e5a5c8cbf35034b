// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// privileged lists who works on a node's kernel, and what of the node each
// may see: with the read-only ones marked, and those whose mounts stay on the node.
var privileged = map[string][]string{
	"weft-agent":    {"/dev", "/lib/modules ro", "/run/udev ro", "/run/weft", "/sys", "/var/lib/weft stays"},
	"weft-csi-node": {"/dev", "/lib/modules ro", "/run/udev ro", "/sys", "KUBELET stays"},
}

func TestWorkloadsAreThoseOfTheDesign(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		got := map[string]string{}
		for _, w := range workloads(objects) {
			got[w.name] = w.kind
		}
		want := map[string]string{
			"weft-operator": "Deployment", "weft-csi-controller": "Deployment",
			"weft-agent": "DaemonSet", "weft-csi-node": "DaemonSet",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// When a node shuts down gracefully the kubelet ends such pods last, after the volumes of the others are unmounted.
// What unmounts and what serves must be there until then.
func TestWhatVolumesNeedEndsLast(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		for _, w := range workloads(objects) {
			if got := w.template.Spec.PriorityClassName; w.kind == "DaemonSet" && got != "system-node-critical" {
				t.Errorf("%s: priority class %q", w.name, got)
			}
		}
	})
}

func TestEveryContainerIsExplicit(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		for _, w := range workloads(objects) {
			pod := w.template.Spec
			if len(pod.InitContainers) != 0 {
				t.Errorf("%s: has init containers, which this test does not look at", w.name)
			}
			for _, c := range pod.Containers {
				checkContainer(t, w.name+"/"+c.Name, c, pod.HostNetwork)
				if _, ok := privileged[w.name]; !ok {
					checkUnprivileged(t, w.name+"/"+c.Name, pod, c)
				}
			}
		}
	})
}

// TestTheNodePluginIsToldHowToMirror, with numbers that a template could write in another way.
func TestTheNodePluginIsToldHowToMirror(t *testing.T) {
	for set, want := range map[string][]string{
		"logLevel=info": {"--mirror-grace=5s", "--mirror-copy-kib-per-second=200000"},
		"csi.node.mirrors.graceSeconds=30,csi.node.mirrors.copyKiBPerSecond=100000000": {"--mirror-grace=30s", "--mirror-copy-kib-per-second=100000000"},
	} {
		for _, w := range workloads(render(t, "--set", set)) {
			if w.name != "weft-csi-node" {
				continue
			}
			for _, arg := range want {
				if !slices.Contains(w.template.Spec.Containers[0].Args, arg) {
					t.Errorf("%s: no %s in %q", set, arg, w.template.Spec.Containers[0].Args)
				}
			}
		}
	}
}

// TestTheOperatorIsToldWhichTargetToStart: target pods are its to make, and their image is the chart's to choose.
func TestTheOperatorIsToldWhichTargetToStart(t *testing.T) {
	digest := "sha256:" + strings.Repeat("c", 64)
	for _, test := range []struct{ set, image, policy string }{
		{"logLevel=info", "ghcr.io/weft-storage/weft-target:" + targetVersion(t), "IfNotPresent"},
		{"target.image.repository=registry.example/own,target.image.tag=v9,target.image.pullPolicy=Never", "registry.example/own:v9", "Never"},
		{"target.image.digest=" + digest, "ghcr.io/weft-storage/weft-target@" + digest, "IfNotPresent"},
	} {
		args := operator(t, "--set", test.set).Args
		for _, want := range []string{"--target-image=" + test.image, "--target-image-pull-policy=" + test.policy} {
			if !slices.Contains(args, want) {
				t.Errorf("%s: %s is not in %q", test.set, want, args)
			}
		}
	}
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		for _, w := range workloads(objects) {
			for _, arg := range w.template.Spec.Containers[0].Args {
				if image, ok := strings.CutPrefix(arg, "--target-image="); ok && !pinned.MatchString(image) {
					t.Errorf("%s: image %s is not pinned to a version", w.name, image)
				}
			}
		}
	})
}

// operator is the container of the operator in the chart, rendered with further arguments of helm.
func operator(t *testing.T, args ...string) corev1.Container {
	t.Helper()
	all := workloads(render(t, args...))
	i := slices.IndexFunc(all, func(w workload) bool { return w.name == "weft-operator" })
	return all[i].template.Spec.Containers[0]
}

// A guard pod runs a command of the operator: its image is the operator's own, whatever that is.
func TestTheOperatorIsToldWhichNodesToGuard(t *testing.T) {
	for _, test := range []struct{ set, guard, policy, single string }{
		{"logLevel=info", "ghcr.io/weft-storage/weft:", "IfNotPresent", "Block"},
		{"image.repository=registry.example/own,image.tag=v9,image.pullPolicy=Always", "registry.example/own:v9", "Always", "Block"},
		{"image.digest=sha256:" + strings.Repeat("c", 64), "ghcr.io/weft-storage/weft@sha256:c", "IfNotPresent", "Block"},
		{"guard.singleReplica=Allow", "ghcr.io/weft-storage/weft:", "IfNotPresent", "Allow"},
		{"guard.enabled=false", "", "", "Block"},
	} {
		c := operator(t, "--set", test.set)
		of := func(flag string) string {
			i := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, flag+"=") })
			if i < 0 {
				return ""
			}
			return strings.TrimPrefix(c.Args[i], flag+"=")
		}
		image := of("--guard-image")
		if !strings.HasPrefix(image, test.guard) || (image != c.Image) != (test.guard == "") {
			t.Errorf("%s: guards have image %q, the operator %q", test.set, image, c.Image)
		}
		if got := of("--guard-image-pull-policy"); got != test.policy {
			t.Errorf("%s: pull policy %q, want %q", test.set, got, test.policy)
		}
		if got := of("--guard-single-replica"); got != test.single {
			t.Errorf("%s: volumes with one replica: %q, want %q", test.set, got, test.single)
		}
	}
}

// TestChangedBlocksAreServedIfAskedFor: nothing of it is there otherwise.
func TestChangedBlocksAreServedIfAskedFor(t *testing.T) {
	const token, address = "--snapshot-metadata-token-file=/var/run/secrets/weft-agent/token", "--snapshot-metadata-bind-address=[$(NODE_ADDRESS)]:9900"
	for variation, asked := range map[string]bool{"default": false, "changed blocks": true} {
		objects := render(t, variations[variation]...)
		var found []string
		for _, w := range workloads(objects) {
			for _, c := range w.template.Spec.Containers {
				for _, arg := range c.Args {
					if strings.Contains(arg, "snapshot-metadata") {
						found = append(found, c.Name+" "+arg)
					}
				}
			}
			for _, v := range w.template.Spec.Volumes {
				if v.Projected != nil && v.Projected.Sources[0].ServiceAccountToken.Audience == v1alpha1.AgentAudience {
					found = append(found, v.Name)
				}
			}
		}
		for _, role := range of[*rbacv1.ClusterRole](objects) {
			for _, rule := range role.Rules {
				if slices.Contains(rule.Resources, "nvmfsnapshots/"+v1alpha1.BlocksResource) {
					found = append(found, role.Name)
				}
			}
		}
		for _, o := range of[*unstructured.Unstructured](objects) {
			if o.GetKind() == "SnapshotMetadataService" {
				ca, _, _ := unstructured.NestedString(o.Object, "spec", "caCert")
				is, err := base64.StdEncoding.DecodeString(ca)
				if err != nil || string(is) != testCA || o.GetName() != v1alpha1.DriverName {
					t.Errorf("%s has the certificate %q (%v)", o.GetName(), is, err)
				}
				found = append(found, o.GetName())
			}
		}
		want := []string{
			"weft-agent " + address, "weft-csi " + token, "csi-snapshot-metadata --tls-cert=/etc/weft/snapshot-metadata/tls.crt",
			"csi-snapshot-metadata --tls-key=/etc/weft/snapshot-metadata/tls.key", "agent-token", "weft-snapshot-metadata", v1alpha1.DriverName,
		}
		if !asked {
			want = nil
		}
		NewWithT(t).Expect(found).To(ConsistOf(want), variation)
	}
}

// TestTheSnapshotterIsThereWhereItCanWork: without the API it would end again and again.
func TestTheSnapshotterIsThereWhereItCanWork(t *testing.T) {
	for _, test := range []struct {
		args []string
		want bool
	}{
		{nil, false},
		{[]string{"--api-versions", "snapshot.storage.k8s.io/v1/VolumeSnapshot"}, true},
		{[]string{"--api-versions", "snapshot.storage.k8s.io/v1/VolumeSnapshot", "--set", "csi.controller.snapshotter.enabled=Never"}, false},
		{[]string{"--set", "csi.controller.snapshotter.enabled=Always"}, true},
	} {
		objects := render(t, test.args...)
		i := slices.IndexFunc(workloads(objects), func(w workload) bool { return w.name == "weft-csi-controller" })
		containers := workloads(objects)[i].template.Spec.Containers
		pod := slices.ContainsFunc(containers, func(c corev1.Container) bool { return c.Name == "csi-snapshotter" })
		role := slices.ContainsFunc(of[*rbacv1.ClusterRole](objects), func(r *rbacv1.ClusterRole) bool { return r.Name == "weft-csi-snapshotter" })
		if pod != test.want || role != test.want {
			t.Errorf("%q: container %v, role %v; want %v", test.args, pod, role, test.want)
		}
	}
}

var pinned = regexp.MustCompile(`^[^:@]+(/[^:@]+)+(:v?[0-9][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})$`)

func checkContainer(t *testing.T, name string, c corev1.Container, hostNetwork bool) {
	t.Helper()
	if !pinned.MatchString(c.Image) {
		t.Errorf("%s: image %s is not pinned to a version", name, c.Image)
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
		t.Errorf("%s: requests no CPU or no memory", name)
	}
	if c.Resources.Limits.Cpu().Sign() != 0 {
		t.Errorf("%s: a CPU limit would throttle the answer to a pod that waits for its volume", name)
	}
	if c.LivenessProbe == nil {
		t.Errorf("%s: has no liveness probe", name)
	} else if s := c.LivenessProbe.PeriodSeconds * c.LivenessProbe.FailureThreshold; s < 3*60 {
		t.Errorf("%s: is killed after %d s without an answer, which a busy node may take", name, s)
	}
	if c.ReadinessProbe == nil && strings.HasPrefix(c.Name, "weft-") {
		t.Errorf("%s: has no readiness probe", name)
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		if probe != nil && hostNetwork && probe.HTTPGet.Host != "127.0.0.1" {
			t.Errorf("%s: in the node's network its health is served on the loopback address only", name)
		}
	}
	s := c.SecurityContext
	if s == nil || s.ReadOnlyRootFilesystem == nil || s.RunAsNonRoot == nil || s.Privileged == nil || s.AllowPrivilegeEscalation == nil {
		t.Errorf("%s: the security context leaves something to defaults: %+v", name, s)
		return
	}
	if !*s.ReadOnlyRootFilesystem {
		t.Errorf("%s: the root filesystem is writable", name)
	}
}

func checkUnprivileged(t *testing.T, name string, pod corev1.PodSpec, c corev1.Container) {
	t.Helper()
	if pod.HostNetwork || pod.HostPID || pod.HostIPC {
		t.Errorf("%s: shares a namespace with the node", name)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			t.Errorf("%s: sees %s of the node", name, v.HostPath.Path)
		}
	}
	s := c.SecurityContext
	if *s.Privileged || *s.AllowPrivilegeEscalation || !*s.RunAsNonRoot {
		t.Errorf("%s: may become root: %+v", name, s)
	}
	if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) != 0 {
		t.Errorf("%s: keeps capabilities: %+v", name, s.Capabilities)
	}
	if s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: has no seccomp profile", name)
	}
}

func TestNodePodsSeeOnlyWhatTheyNeedAtTheSamePath(t *testing.T) {
	for kubeletDir, args := range map[string][]string{
		"/var/lib/kubelet":     nil,
		"/var/lib/k0s/kubelet": {"--set", "kubeletDir=/var/lib/k0s/kubelet"},
	} {
		seen := map[string][]string{}
		for _, w := range workloads(render(t, args...)) {
			if _, ok := privileged[w.name]; ok {
				seen[w.name] = hostMounts(t, w)
			}
		}
		want := map[string][]string{}
		for name, mounts := range privileged {
			for _, m := range mounts {
				want[name] = append(want[name], strings.Replace(m, "KUBELET", kubeletDir, 1))
			}
			slices.Sort(want[name])
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("kubelet in %s:\n%s", kubeletDir, diff)
		}
	}
}

func hostMounts(t *testing.T, w workload) []string {
	t.Helper()
	host := map[string]string{}
	for _, v := range w.template.Spec.Volumes {
		if v.HostPath != nil {
			host[v.Name] = v.HostPath.Path
		}
	}
	var mounts []string
	for _, m := range w.template.Spec.Containers[0].VolumeMounts {
		path, ok := host[m.Name]
		if !ok {
			continue
		}
		if path != m.MountPath {
			t.Errorf("%s: %s of the node is mounted at %s", w.name, path, m.MountPath)
		}
		if m.ReadOnly {
			path += " ro"
		}
		if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
			path += " stays"
		}
		mounts = append(mounts, path)
	}
	slices.Sort(mounts)
	return mounts
}

// listener matches an argument that names an address to listen on.
var listener = regexp.MustCompile(`^--[a-z-]*(address|endpoint)=(.*)$`)

func TestNothingListensBeyondWhatItMust(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		for _, w := range workloads(objects) {
			for _, c := range w.template.Spec.Containers {
				for _, arg := range c.Args {
					m := listener.FindStringSubmatch(arg)
					if m == nil || strings.HasPrefix(m[2], "unix://") || strings.HasPrefix(arg, "--csi-address=/") {
						continue
					}
					if strings.HasPrefix(arg, "--metrics-bind-address=") || strings.HasPrefix(arg, "--snapshot-metadata-bind-address=[$(NODE_ADDRESS)]:") {
						continue // asked for, and over HTTPS to whom the API server allows it
					}
					// In a pod's own network the kubelet reaches a probe by the pod's address only.
					if w.template.Spec.HostNetwork && !strings.HasPrefix(m[2], "127.0.0.1:") {
						t.Errorf("%s: %s listens on the node's addresses", w.name, arg)
					}
				}
				if w.template.Spec.HostNetwork && len(c.Ports) != 0 {
					t.Errorf("%s: declares ports, which in the node's network keeps them from others", w.name)
				}
			}
		}
	})
}

func TestSelectorsMatchAndNeverChange(t *testing.T) {
	forEachVariation(t, func(t *testing.T, objects []runtime.Object) {
		for _, w := range workloads(objects) {
			selector, err := metav1.LabelSelectorAsSelector(w.selector)
			if err != nil {
				t.Fatal(err)
			}
			if !selector.Matches(labels.Set(w.template.Labels)) {
				t.Errorf("%s: its selector %s does not match its pods", w.name, selector)
			}
			// A selector is immutable: what it names must be the same in every version.
			want := map[string]string{"app.kubernetes.io/name": "weft", "app.kubernetes.io/component": strings.TrimPrefix(w.name, "weft-")}
			if diff := cmp.Diff(want, w.selector.MatchLabels); diff != "" {
				t.Errorf("%s: %s", w.name, diff)
			}
		}
		for _, b := range of[*policyv1.PodDisruptionBudget](objects) {
			if !slices.ContainsFunc(workloads(objects), func(w workload) bool { return cmp.Equal(w.selector, b.Spec.Selector) }) {
				t.Errorf("the PodDisruptionBudget %s is for no workload", b.Name)
			}
		}
	})
}

func TestArgumentsTheProgramsNeed(t *testing.T) {
	want := map[string][]string{
		"weft-operator":       {"--leader-elect", "--namespace=$(POD_NAMESPACE)"},
		"weft-agent":          {"--node-name=$(NODE_NAME)", "--namespace=$(POD_NAMESPACE)"},
		"weft-csi-controller": {"controller", "--endpoint=unix:///csi/csi.sock"},
		"weft-csi-node": {
			"node", "--node-name=$(NODE_NAME)", "--kubelet-dir=/k",
			"--endpoint=unix:///k/plugins/csi.weft.storage/csi.sock",
		},
	}
	for _, w := range workloads(render(t, "--set", "kubeletDir=/k")) {
		c := w.template.Spec.Containers[0]
		for _, arg := range want[w.name] {
			if !slices.Contains(c.Args, arg) {
				t.Errorf("%s: %s is not in %q", w.name, arg, c.Args)
			}
		}
		for _, arg := range c.Args {
			for _, name := range []string{"NODE_NAME", "POD_NAMESPACE"} {
				if strings.Contains(arg, "$("+name+")") && !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
					t.Errorf("%s: %s is not in its environment", w.name, name)
				}
			}
		}
	}
}
