// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// attempt of somebody who has a part's token.
type attempt struct {
	name string
	// denied is what the refusal says; empty: it is allowed.
	denied string
	do     func() error
}

func try(t *testing.T, attempts []attempt) {
	t.Helper()
	for _, a := range attempts {
		t.Run(a.name, func(t *testing.T) {
			err := a.do()
			if a.denied == "" && err != nil || a.denied != "" && (err == nil || !strings.Contains(err.Error(), a.denied)) {
				t.Errorf("got %v, want %q", err, a.denied)
			}
		})
	}
}

// grant a part rights that its role does not have, so that what is denied afterwards is denied by a policy.
func grant(ctx context.Context, t *testing.T, admin client.Client, part string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "more-"}, Rules: rules}
	if err := admin.Create(ctx, role); err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: part}},
	}); err != nil {
		t.Fatal(err)
	}
}

// operatorsPods are all shapes of pods that the operator makes, as its own tests record them, with the images that the
// chart gives it.
func operatorsPods(t *testing.T) map[string]*corev1.Pod {
	t.Helper()
	args := operator(t).Args
	image := func(flag string) string {
		i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, flag+"=") })
		return strings.TrimPrefix(args[i], flag+"=")
	}
	pods := map[string]*corev1.Pod{}
	for name, content := range files(t, "../../operator/internal/manifest/testdata") {
		for _, pod := range of[*corev1.Pod](must(decode([]byte(content)))) {
			pod.Spec.Containers[0].Image = image("--target-image")
			if pod.Labels[v1alpha1.ComponentLabel] == "guard" {
				pod.Spec.Containers[0].Image = image("--guard-image")
			}
			pods[strings.TrimSuffix(name, ".yaml")] = pod
		}
	}
	if len(pods) != 6 {
		t.Fatalf("the operator makes %d shapes of pods, want 6", len(pods))
	}
	return pods
}

const (
	aTarget, aGuard, aPull = "targetpod-hugepages-1gi-vfio", "guard", "pull"

	imageOnly, programOnly, noHooks    = "must have the image that the chart names", "runs the program that belongs there", "has no environment, hooks or devices"
	oneContainer, itsNode, itsName     = "has one container", "runs on the node of its NvmfNode", "belongs to one NvmfNode and has its name"
	itsAccount, sharesNothing          = "has the service account weft-target, and no token", "shares nothing with its node"
	directories, samePath, probes      = "has no volumes but the directories", "has each directory at its path", "is probed by its launcher"
	noPrivileges, noVolumes, itsKinds  = "have no privileges", "have no volumes", "may create only target pods, guard pods"
	noChange, noSubresource, ownDelete = "may not change pods", "it may only create and delete pods", "may delete only target pods"
)

// escape is a pod by which the operator's token would become root on a node, or somebody else.
type escape struct {
	name, of, denied string
	change           func(*corev1.Pod)
}

func runs(words ...string) *corev1.ExecAction { return &corev1.ExecAction{Command: words} }

func hostPath(name, path string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
}

func volume(v corev1.Volume, mountPath string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, v)
		c := &p.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: mountPath})
	}
}

func first(change func(*corev1.Container)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
}

func spec(change func(*corev1.PodSpec)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { change(&p.Spec) }
}

// escapes of what runs in a pod.
func escapesByProgram() []escape {
	shell := []string{"/bin/sh", "-c", "true"}
	extra := corev1.Container{Name: "extra", Image: "registry.example/shell:1", TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullAlways}
	return []escape{
		{"another image", aTarget, imageOnly, first(func(c *corev1.Container) { c.Image = extra.Image })},
		{"another tag of the image", aTarget, imageOnly, first(func(c *corev1.Container) { c.Image += "-next" })},
		{"another image to pull", aPull, imageOnly, first(func(c *corev1.Container) { c.Image = extra.Image })},
		{"another image of a guard", aGuard, imageOnly, first(func(c *corev1.Container) { c.Image = extra.Image })},
		{"a second container", aTarget, oneContainer, spec(func(s *corev1.PodSpec) { s.Containers = append(s.Containers, extra) })},
		{"an init container", aTarget, oneContainer, spec(func(s *corev1.PodSpec) { s.InitContainers = append(s.InitContainers, extra) })},
		{"an init container of the same image", aGuard, oneContainer, spec(func(s *corev1.PodSpec) {
			c := *s.Containers[0].DeepCopy()
			c.Name = extra.Name
			s.InitContainers = append(s.InitContainers, c)
		})},
		{"another program", aTarget, programOnly, first(func(c *corev1.Container) { c.Command = shell })},
		{"the image's own entry point", aTarget, programOnly, first(func(c *corev1.Container) { c.Command = nil })},
		{"another program for the target", aTarget, programOnly, first(func(c *corev1.Container) { c.Args = append(c.Args, "--target=/var/lib/weft/x") })},
		{"another command of the launcher", aTarget, programOnly, first(func(c *corev1.Container) { c.Args[0] = "probe" })},
		{"another socket", aTarget, programOnly, first(func(c *corev1.Container) { c.Args[1] = "--socket=/var/lib/weft/x" })},
		{"a second socket", aTarget, programOnly, first(func(c *corev1.Container) { c.Args = append(c.Args, "--socket=/var/lib/weft/x") })},
		{"a core mask with more behind it", aTarget, programOnly, first(func(c *corev1.Container) { c.Args = append(c.Args, "--core-mask=0x1\n--target=x") })},
		{"another program of a guard", aGuard, programOnly, first(func(c *corev1.Container) { c.Command = []string{"/usr/local/bin/weft-agent"} })},
		{"arguments of a guard", aGuard, programOnly, first(func(c *corev1.Container) { c.Args = []string{"--kubeconfig=/x"} })},
		{"a pull pod that runs the target", aPull, programOnly, first(func(c *corev1.Container) { c.Command = []string{"/usr/local/bin/weft-launch", "run"} })},
		{"a hook after the start", aTarget, noHooks, first(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: runs(shell...)}}
		})},
		{"a hook before the end", aGuard, noHooks, first(func(c *corev1.Container) {
			c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: runs(shell...)}}
		})},
		{"a library that is loaded first", aTarget, noHooks, first(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/var/lib/weft/x.so"}} })},
		{"a Secret as its environment", aGuard, noHooks, first(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "weft-operator-webhook"}}}}
		})},
		{"another place for its last words", aTarget, noHooks, first(func(c *corev1.Container) { c.TerminationMessagePath = "/usr/local/bin/weft-launch" })},
		{"an input", aTarget, noHooks, first(func(c *corev1.Container) { c.Stdin = true })},
		{"a probe that runs a shell", aTarget, probes, first(func(c *corev1.Container) { c.LivenessProbe.Exec = runs(shell...) })},
		{"a probe of another address", aTarget, probes, first(func(c *corev1.Container) {
			c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "192.0.2.1", Port: intstr.FromInt32(80), Path: "/", Scheme: corev1.URISchemeHTTP}}
		})},
		{"a probe of a guard", aGuard, probes, first(func(c *corev1.Container) {
			c.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: runs("/usr/local/bin/weft-launch", "probe", "--socket=/run/weft/spdk.sock")}}
		})},
	}
}

// escapes by what a pod sees of its node, and by who it is.
func escapesByPlace() []escape {
	token := corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
	}}}
	secret := corev1.Volume{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "weft-operator-webhook"}}}
	scratch := corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	other := corev1.Volume{Name: "other", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "registry.example/shell:1", PullPolicy: corev1.PullAlways}}}
	return []escape{
		{"the node's root", aTarget, directories, volume(hostPath("root", "/"), "/host")},
		{"the kubelet's directory", aTarget, directories, volume(hostPath("kubelet", "/var/lib/kubelet"), "/var/lib/kubelet")},
		{"static pods", aTarget, directories, volume(hostPath("static", "/etc/kubernetes"), "/etc/kubernetes")},
		{"a directory below an allowed one", aTarget, directories, volume(hostPath("below", "/var/lib/weft/x"), "/var/lib/weft/x")},
		{"a Secret", aTarget, directories, volume(secret, "/secret")},
		{"a token", aTarget, directories, volume(token, "/token")},
		{"an empty directory", aTarget, directories, volume(scratch, "/usr/local/bin")},
		{"another image's files", aTarget, directories, volume(other, "/usr/local/bin")},
		{"its directory over its program", aTarget, samePath, volume(hostPath("again", "/var/lib/weft"), "/usr/local/bin")},
		{"a file over its program", aTarget, samePath, first(func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "state", MountPath: "/usr/local/bin/weft-launch", SubPath: "x"})
		})},
		{"hugepages over its program", aTarget, samePath, first(func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "hugepages", MountPath: "/usr/local/bin"})
		})},
		{"an empty directory over its program", aTarget, samePath, first(func(c *corev1.Container) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "tmp", MountPath: "/usr/local/bin"})
		})},
		{"mounts that appear on the node", aTarget, samePath, first(func(c *corev1.Container) {
			c.VolumeMounts[0].MountPropagation = new(corev1.MountPropagationBidirectional)
		})},
		{"a directory of the node in a guard", aGuard, noVolumes, volume(hostPath("dev", "/dev"), "/dev")},
		{"a directory of the node in a pull pod", aPull, noVolumes, volume(hostPath("dev", "/dev"), "/dev")},
		{"a token in a guard", aGuard, noVolumes, volume(token, "/token")},
		{"the node's processes", aTarget, sharesNothing, spec(func(s *corev1.PodSpec) { s.HostPID = true })},
		{"the node's IPC", aTarget, sharesNothing, spec(func(s *corev1.PodSpec) { s.HostIPC = true })},
		{"the node's network for a guard", aGuard, sharesNothing, spec(func(s *corev1.PodSpec) { s.HostNetwork = true })},
		{"another runtime", aGuard, sharesNothing, spec(func(s *corev1.PodSpec) { s.RuntimeClassName = new("other") })},
		{"a kernel parameter", aGuard, sharesNothing, spec(func(s *corev1.PodSpec) {
			s.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "1"}}
		})},
		{"a privileged guard", aGuard, noPrivileges, first(func(c *corev1.Container) {
			c.SecurityContext.Privileged, c.SecurityContext.AllowPrivilegeEscalation = new(true), nil
		})},
		{"a privileged pull pod", aPull, noPrivileges, first(func(c *corev1.Container) {
			c.SecurityContext.Privileged, c.SecurityContext.AllowPrivilegeEscalation = new(true), nil
		})},
		{"a capability", aGuard, noPrivileges, first(func(c *corev1.Container) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"} })},
		{"the runtime's capabilities", aPull, noPrivileges, first(func(c *corev1.Container) { c.SecurityContext.Capabilities.Drop = nil })},
		{"a guard as root", aGuard, noPrivileges, spec(func(s *corev1.PodSpec) {
			s.SecurityContext.RunAsNonRoot, s.SecurityContext.RunAsUser = nil, new(int64(0))
		})},
		{"every system call", aGuard, noPrivileges, first(func(c *corev1.Container) {
			c.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		})},
		{"the agent's account", aTarget, itsAccount, spec(func(s *corev1.PodSpec) { s.ServiceAccountName = "weft-agent" })},
		{"the controller's account", aGuard, itsAccount, spec(func(s *corev1.PodSpec) { s.ServiceAccountName = "weft-csi-controller" })},
		{"its token", aTarget, itsAccount, spec(func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = new(true) })},
		{"the token by default", aPull, itsAccount, spec(func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = nil })},
		{"past the scheduler", aTarget, itsNode, spec(func(s *corev1.PodSpec) { s.NodeName = "b" })},
		{"any node", aTarget, itsNode, spec(func(s *corev1.PodSpec) { s.Affinity = nil })},
		{"another node", aTarget, itsNode, spec(func(s *corev1.PodSpec) {
			s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0] = "b"
		})},
		{"one node or another", aGuard, itsNode, spec(func(s *corev1.PodSpec) {
			required := s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, *required.NodeSelectorTerms[0].DeepCopy())
			required.NodeSelectorTerms[1].MatchFields[0].Values[0] = "b"
		})},
		{"nobody's", aTarget, itsName, func(p *corev1.Pod) { p.OwnerReferences = nil }},
		{"a DaemonSet's", aGuard, itsName, func(p *corev1.Pod) {
			p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = "apps/v1", "DaemonSet"
		}},
		{"a second one of a node", aTarget, itsName, func(p *corev1.Pod) { p.Name += "-2" }},
		{"with a name that is not known yet", aTarget, itsName, func(p *corev1.Pod) { p.Name, p.GenerateName = "", p.Name }},
		{"as an agent", aTarget, itsKinds, func(p *corev1.Pod) { p.Labels[v1alpha1.ComponentLabel] = v1alpha1.ComponentAgent }},
		{"as nothing", aGuard, itsKinds, func(p *corev1.Pod) { p.Labels = nil }},
		{"in another namespace", aTarget, "only in its own namespace", func(p *corev1.Pod) { p.Namespace = "default" }},
	}
}

// testTheOperatorRunsItsPodsAlone: the right to make pods in a namespace that admits privileged ones is root on every
// node, so that whoever has the operator's token must find no way from the pods that it makes to any other.
func testTheOperatorRunsItsPodsAlone(ctx context.Context, t *testing.T, config *rest.Config, admin client.Client, pods map[string]*corev1.Pod) {
	asOperator := tokenOf(ctx, t, config, admin, "weft-operator", nil)
	c := newClient(t, asOperator)
	daemonSet := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x"}}
	if err := c.Create(ctx, daemonSet); err == nil || !strings.Contains(err.Error(), "cannot create resource") {
		t.Errorf("the operator's role: %v", err)
	}
	grant(ctx, t, admin, "weft-operator", rbacv1.PolicyRule{
		APIGroups: []string{"", "apps", "batch"}, Resources: []string{
			"pods", "pods/ephemeralcontainers", "pods/eviction", "pods/binding", "pods/status", "pods/resize", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy",
			"daemonsets", "deployments", "replicasets", "statefulsets", "jobs", "cronjobs", "replicationcontrollers", "podtemplates",
		}, Verbs: []string{"create", "update", "patch", "get", "delete", "deletecollection"},
	})
	if err := admin.Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Handler: "other"}); err != nil {
		t.Fatal(err)
	}
	bad := pods[aTarget].DeepCopy()
	bad.Spec.HostPID = true
	NewWithT(t).Eventually(func() error { return c.Create(ctx, bad.DeepCopy(), client.DryRunAll) }).
		WithTimeout(30 * time.Second).Should(MatchError(ContainSubstring(sharesNothing)))

	for name, pod := range pods {
		t.Run("makes "+name, func(t *testing.T) {
			if err := c.Create(ctx, pod.DeepCopy(), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
	for _, e := range slices.Concat(escapesByProgram(), escapesByPlace()) {
		pod := pods[e.of].DeepCopy()
		e.change(pod)
		try(t, []attempt{{e.name, e.denied, func() error { return c.Create(ctx, pod, client.DryRunAll) }}})
	}
	testTheOperatorChangesNoPod(ctx, t, asOperator, admin, pods)
	testTheOperatorMakesNoWorkload(ctx, t, c)
}

// testTheOperatorChangesNoPod: an agent's pod is as privileged as a target pod, and an image can be changed in place.
func testTheOperatorChangesNoPod(ctx context.Context, t *testing.T, asOperator *rest.Config, admin client.Client, pods map[string]*corev1.Pod) {
	c := newClient(t, asOperator)
	agent := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "weft-agent-x", Labels: map[string]string{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}},
		Spec:       corev1.PodSpec{ServiceAccountName: "weft-agent", Containers: []corev1.Container{{Name: "weft-agent", Image: "weft"}}},
	}
	if err := admin.Create(ctx, agent); err != nil {
		t.Fatal(err)
	}
	own := pods[aTarget].DeepCopy()
	if err := c.Create(ctx, own); err != nil {
		t.Fatal(err)
	}
	patch := func(pod *corev1.Pod, format string, args ...any) func() error {
		return func() error { return c.Patch(ctx, pod.DeepCopy(), strategic(format, args...), client.DryRunAll) }
	}
	sub := func(pod *corev1.Pod, name string, body client.Object) func() error {
		return func() error { return c.SubResource(name).Create(ctx, pod.DeepCopy(), body) }
	}
	connect := func(pod *corev1.Pod, to string) func() error {
		return func() error {
			return kubernetes.NewForConfigOrDie(asOperator).CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
				SubResource(to).Param("command", "sh").Param("stdout", "true").Do(ctx).Error()
		}
	}
	debug := own.DeepCopy()
	debug.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: "registry.example/shell:1", TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullAlways,
	}}}
	var attempts []attempt
	for of, pod := range map[string]*corev1.Pod{"an agent's": agent, "its own": own} {
		attempts = append(attempts, []attempt{
			{of + " image", noChange, patch(pod, `{"spec":{"containers":[{"name":%q,"image":"registry.example/shell:1"}]}}`, pod.Spec.Containers[0].Name)},
			{of + " labels", noChange, patch(pod, `{"metadata":{"labels":{"app.kubernetes.io/component":"operator"}}}`)},
			{of + " annotations", noChange, patch(pod, `{"metadata":{"annotations":{"a":"b"}}}`)},
			{of + " owners", noChange, patch(pod, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}}`)},
			{of + " finalizers", noChange, patch(pod, `{"metadata":{"finalizers":["example.org/x"]}}`)},
			{of + " deadline", noChange, patch(pod, `{"spec":{"activeDeadlineSeconds":1}}`)},
			{of + " pod as it is", "", patch(pod, `{}`)},
			{of + " pod, evicted", noSubresource, sub(pod, "eviction", &policyv1.Eviction{})},
			{of + " pod, bound", noSubresource, sub(pod, "binding", &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "b"}})},
			{of + " pod, a shell", noSubresource, connect(pod, "exec")},
			{of + " pod, attached", noSubresource, connect(pod, "attach")},
			{of + " pod, its ports", noSubresource, connect(pod, "portforward")},
			{of + " pod, its proxy", noSubresource, connect(pod, "proxy")},
			{of + " pod's status", noSubresource, func() error {
				return c.Status().Patch(ctx, pod.DeepCopy(), strategic(`{"status":{"phase":"Failed"}}`), client.DryRunAll)
			}},
		}...)
	}
	slices.SortFunc(attempts, func(a, b attempt) int { return cmp.Compare(a.name, b.name) })
	try(t, append(attempts,
		attempt{"an ephemeral container", noSubresource, func() error { return c.SubResource("ephemeralcontainers").Update(ctx, debug) }},
		attempt{"an agent's pod, deleted", ownDelete, func() error { return c.Delete(ctx, agent.DeepCopy(), client.DryRunAll) }},
		attempt{"all pods, deleted", ownDelete, func() error {
			return c.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.DryRunAll)
		}},
		attempt{"its own pod, deleted", "", func() error { return c.Delete(ctx, own, client.GracePeriodSeconds(0)) }},
	))
}

// testTheOperatorMakesNoWorkload: whose controllers would make the pods, which nobody holds to anything.
func testTheOperatorMakesNoWorkload(ctx context.Context, t *testing.T, c client.Client) {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "x"}
	labels := map[string]string{"a": "b"}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{HostPID: true, RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "x", Image: "x"}}},
	}
	once := *template.DeepCopy()
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := batchv1.JobSpec{Template: once}
	var attempts []attempt
	for name, o := range map[string]client.Object{
		"daemonsets":             &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}},
		"deployments":            &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
		"replicasets":            &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
		"statefulsets":           &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}},
		"jobs":                   &batchv1.Job{ObjectMeta: meta, Spec: job},
		"cronjobs":               &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: job}}},
		"replicationcontrollers": &corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Selector: labels, Template: &template}},
		"podtemplates":           &corev1.PodTemplate{ObjectMeta: meta, Template: template},
	} {
		attempts = append(attempts, attempt{"makes " + name, "may not write " + name, func() error { return c.Create(ctx, o, client.DryRunAll) }})
	}
	try(t, attempts)
}
