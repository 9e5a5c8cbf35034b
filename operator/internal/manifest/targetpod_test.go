// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/manifest"
)

var update = flag.Bool("update", false, "write testdata instead of comparing with it")

var pods = manifest.TargetPods{Namespace: "weft-system", Image: "registry.example/weft-target:v1", ImagePullPolicy: corev1.PullIfNotPresent}

// longName of a node does not fit into the name of a pod.
var longName = strings.Repeat("a", 62) + "." + strings.Repeat("b", 62) + "." + strings.Repeat("c", 62) + "." + strings.Repeat("d", 60)

// spdkNode has every field of a plan that a pod may depend on.
func spdkNode() *v1alpha1.NvmfNode {
	return &v1alpha1.NvmfNode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", ResourceVersion: "7"},
		Spec: v1alpha1.NvmfNodeSpec{Target: "fast", Plan: &v1alpha1.Plan{
			Engine:  v1alpha1.EngineSPDK,
			Portals: []v1alpha1.PlannedPortal{{Portal: v1alpha1.Portal{Transport: v1alpha1.TransportTCP, Address: "192.0.2.1", Port: 4420}}},
			Drives:  []v1alpha1.PlannedDrive{{ID: "b", PCIAddress: "0000:5f:00.0"}, {ID: "a", PCIAddress: "0000:5e:00.0"}},
			SPDK: &v1alpha1.SPDKPlan{
				CoreMask: "0x3c00f0", PollGroupMask: "0x3c0000", Mode: v1alpha1.CoresDynamic,
				Scheduler: &v1alpha1.PlannedScheduler{PeriodMicroseconds: 1000000, LoadLimit: 20, CoreLimit: 80, CoreBusy: 95},
				Hugepages: v1alpha1.Hugepages2Mi, MemoryBytes: 1 << 30, PodMemoryBytes: 300<<20 + 1,
				BdevIOPoolSize: 65535, SmallBuffers: 8192, LargeBuffers: 1024, MaxSubsystems: 4096,
				Transports: []v1alpha1.PlannedTransport{{Type: v1alpha1.TransportTCP, QueueDepth: 128}},
				Placement:  v1alpha1.PlacementNone, Driver: v1alpha1.DriverKernel,
			},
		}},
	}
}

func vfio(node *v1alpha1.NvmfNode) {
	p := node.Spec.Plan.SPDK
	p.Hugepages, p.Mode, p.Driver = v1alpha1.Hugepages1Gi, v1alpha1.CoresInterrupt, v1alpha1.DriverVFIO
}

func noHuge(node *v1alpha1.NvmfNode) {
	p := node.Spec.Plan.SPDK
	p.Hugepages, p.PodMemoryBytes = v1alpha1.HugepagesDisabled, 2<<30
}

func podOf(t *testing.T, node *v1alpha1.NvmfNode) *corev1.Pod {
	t.Helper()
	config, err := pods.Pod(node)
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(data, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// What is recorded here is also what test/chart holds the chart's admission policies to: every shape of a pod that the
// operator makes.
func TestPods(t *testing.T) {
	target := func(change func(*v1alpha1.NvmfNode)) any {
		node := spdkNode()
		change(node)
		config, err := pods.Pod(node)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	guards := manifest.Guards{Namespace: pods.Namespace, Image: "registry.example/weft:v1", ImagePullPolicy: corev1.PullNever}
	for name, config := range map[string]any{
		"targetpod-hugepages-2mi-kernel":    target(func(*v1alpha1.NvmfNode) {}),
		"targetpod-hugepages-1gi-vfio":      target(vfio),
		"targetpod-without-hugepages-small": target(noHuge),
		"targetpod-uio-long-name":           target(func(n *v1alpha1.NvmfNode) { vfio(n); n.Spec.Plan.SPDK.Driver, n.Name = v1alpha1.DriverUIO, longName }),
		"guard":                             guards.Pod(spdkNode()),
		"pull":                              pods.PullPod(spdkNode()),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := yaml.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".yaml")
			got = append([]byte("# SPDX-License-Identifier: Apache-2.0\n"), got...)
			if *update {
				if err := os.WriteFile(path, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("differs from %s; if it should, run `go test ./operator/internal/manifest -update`:\n%s", path, diff)
			}
		})
	}
}

// A pod restarts for nothing that could be changed without.
func TestWhatMakesATargetPodOutdated(t *testing.T) {
	hash := func(change func(*v1alpha1.NvmfNode)) string {
		node := spdkNode()
		change(node)
		return podOf(t, node).Annotations[manifest.StartupAnnotation]
	}
	was := hash(func(*v1alpha1.NvmfNode) {})
	if was == "" {
		t.Fatal("a pod has no hash")
	}
	spdk := func(change func(*v1alpha1.SPDKPlan)) func(*v1alpha1.NvmfNode) {
		return func(n *v1alpha1.NvmfNode) { change(n.Spec.Plan.SPDK) }
	}
	for name, test := range map[string]struct {
		change   func(*v1alpha1.NvmfNode)
		outdated bool
	}{
		"cores":                 {spdk(func(p *v1alpha1.SPDKPlan) { p.CoreMask = "0xf0" }), true},
		"poll groups":           {spdk(func(p *v1alpha1.SPDKPlan) { p.PollGroupMask = "0xf0" }), true},
		"interrupt mode":        {spdk(func(p *v1alpha1.SPDKPlan) { p.Mode = v1alpha1.CoresInterrupt }), true},
		"the scheduler":         {spdk(func(p *v1alpha1.SPDKPlan) { p.Mode, p.Scheduler = v1alpha1.CoresStatic, nil }), false},
		"balancing":             {spdk(func(p *v1alpha1.SPDKPlan) { p.Mode, p.Scheduler, p.Balance = v1alpha1.CoresStatic, nil, true }), false},
		"memory":                {spdk(func(p *v1alpha1.SPDKPlan) { p.MemoryBytes *= 2 }), true},
		"the pod's memory":      {spdk(func(p *v1alpha1.SPDKPlan) { p.PodMemoryBytes *= 2 }), true},
		"latency histograms":    {spdk(func(p *v1alpha1.SPDKPlan) { p.LatencyHistograms = v1alpha1.SwitchEnabled }), true},
		"page size":             {spdk(func(p *v1alpha1.SPDKPlan) { p.Hugepages = v1alpha1.Hugepages1Gi }), true},
		"buffers":               {spdk(func(p *v1alpha1.SPDKPlan) { p.LargeBuffers++ }), true},
		"descriptors":           {spdk(func(p *v1alpha1.SPDKPlan) { p.BdevIOPoolSize++ }), true},
		"subsystems":            {spdk(func(p *v1alpha1.SPDKPlan) { p.MaxSubsystems++ }), true},
		"attachments":           {spdk(func(p *v1alpha1.SPDKPlan) { p.Attachments = &v1alpha1.Attachments{Expected: 256, IOQueues: 2} }), false},
		"a transport":           {spdk(func(p *v1alpha1.SPDKPlan) { p.Transports[0].QueueDepth = 64 }), true},
		"placement":             {spdk(func(p *v1alpha1.SPDKPlan) { p.Placement = v1alpha1.PlacementCPU }), true},
		"driver":                {vfio, true},
		"a drive of SPDK's own": {func(n *v1alpha1.NvmfNode) { vfio(n); n.Spec.Plan.Drives = n.Spec.Plan.Drives[:1] }, true},
		"the scheduler's knobs": {spdk(func(p *v1alpha1.SPDKPlan) { p.Scheduler.LoadLimit = 30 }), false},
		"a drive of the kernel": {func(n *v1alpha1.NvmfNode) { n.Spec.Plan.Drives = n.Spec.Plan.Drives[:1] }, false},
		"a portal":              {func(n *v1alpha1.NvmfNode) { n.Spec.Plan.Portals[0].Port = 4421 }, false},
		"explanations":          {func(n *v1alpha1.NvmfNode) { n.Spec.Plan.Choices = []v1alpha1.Choice{{Setting: "coreMask"}} }, false},
		"new volumes or none":   {func(n *v1alpha1.NvmfNode) { n.Spec.Unschedulable, n.Spec.Leaving = true, true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if is := hash(test.change); (is != was) != test.outdated {
				t.Errorf("outdated is %v, want %v", is != was, test.outdated)
			}
		})
	}
	vfioNode, fewer := spdkNode(), spdkNode()
	vfio(vfioNode)
	vfio(fewer)
	fewer.Spec.Plan.Drives = fewer.Spec.Plan.Drives[:1]
	if podOf(t, vfioNode).Annotations[manifest.StartupAnnotation] == podOf(t, fewer).Annotations[manifest.StartupAnnotation] {
		t.Error("a drive less for SPDK's own driver leaves the pod as it is")
	}
	turned := spdkNode()
	vfio(turned)
	turned.Spec.Plan.Drives[0], turned.Spec.Plan.Drives[1] = turned.Spec.Plan.Drives[1], turned.Spec.Plan.Drives[0]
	if podOf(t, vfioNode).Annotations[manifest.StartupAnnotation] != podOf(t, turned).Annotations[manifest.StartupAnnotation] {
		t.Error("another order of the drives makes the pod outdated")
	}
	other := pods
	other.Image = "registry.example/weft-target:v2"
	config, err := other.Pod(spdkNode())
	if err != nil || config.Annotations[manifest.StartupAnnotation] == was {
		t.Errorf("another image leaves the pod as it is (%v)", err)
	}
	other = pods
	other.ImagePullPolicy = corev1.PullAlways
	config, err = other.Pod(spdkNode())
	if err != nil || config.Annotations[manifest.StartupAnnotation] != was {
		t.Errorf("another pull policy makes the pod outdated (%v)", err)
	}
	if config.Spec.Containers[0].LivenessProbe == nil || config.Spec.Affinity == nil {
		t.Error("hashing took something away from the pod itself")
	}
}

func TestNamesOfLongNodes(t *testing.T) {
	node := longName
	seen := map[string]bool{}
	for _, name := range []string{"n1", "n1.example.com", node, node + "e", strings.Repeat("a.", 120) + "b", strings.Repeat("a", 53) + "." + strings.Repeat("b", 20)} {
		n := spdkNode()
		n.Name = name
		pod := podOf(t, n)
		if errs := validation.IsDNS1123Subdomain(pod.Name); len(errs) > 0 {
			t.Errorf("pod of node %s: %v", name, errs)
		}
		for key, value := range pod.Labels {
			if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
				t.Errorf("label %s=%s: %v", key, value, errs)
			}
		}
		if seen[pod.Name] || seen[pod.Labels[manifest.NodeLabel]] {
			t.Errorf("node %s shares pod %s, or its label, with another", name, pod.Name)
		}
		seen[pod.Name], seen[pod.Labels[manifest.NodeLabel]] = true, true
		fields := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields
		if fields[0].Values[0] != name {
			t.Errorf("pod of node %s is for %v", name, fields)
		}
	}
	if got := manifest.TargetPodName("n1.example.com"); got != "weft-target-n1.example.com" {
		t.Errorf("got %s", got)
	}
}

func TestBudget(t *testing.T) {
	target := &v1alpha1.NvmfTarget{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "u2"}}
	wantJSON(t, pods.Budget(target, nil, 3), `{"kind":"PodDisruptionBudget","apiVersion":"policy/v1","metadata":{"name":"weft-target-fast","namespace":"weft-system",`+
		`"labels":{"app.kubernetes.io/component":"target","app.kubernetes.io/name":"weft","app.kubernetes.io/part-of":"weft","weft.storage/target":"fast"},`+
		`"ownerReferences":[{"apiVersion":"weft.storage/v1alpha1","kind":"NvmfTarget","name":"fast","uid":"u2","controller":true}]},`+
		`"spec":{"minAvailable":2,"selector":{"matchLabels":{"app.kubernetes.io/component":"target","app.kubernetes.io/name":"weft","weft.storage/target":"fast"}},"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`)
	exists := &policyv1.PodDisruptionBudget{}
	exists.Spec.MinAvailable = new(intstr.FromInt(2))
	exists.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{
		"app.kubernetes.io/component": "target", "app.kubernetes.io/name": "weft", "weft.storage/target": "fast",
	}}
	if pods.Budget(target, exists, 3) != nil {
		t.Error("nothing changed, but it would be written")
	}
	for _, n := range []int{0, 1} {
		if got := pods.Budget(target, exists, n).Spec.MinAvailable.IntValue(); got != 0 {
			t.Errorf("%d pods: %d must be available", n, got)
		}
	}
}
