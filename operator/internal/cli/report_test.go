// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// planted secrets: each must be nowhere in a bundle.
var planted = map[string]string{
	"key of a host":             "DHHC-1:01:Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4:",
	"short key of a host":       "DHHC-1:00:c2hvcnQ=:",
	"key of TLS":                "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
	"sealed keys":               "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBEZXN0aW5hdGlvbjEyMzQ1Njc4OQ==",
	"identity of age":           "AGE-SECRET-KEY-1QQPQYZ4HJ0000000000000000000000000000000000000000000",
	"token of an account":       "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl",
	"password":                  "hunter2-of-the-database",
	"token of an environment":   "s.tok3nInAnEnvironment",
	"key in hexadecimal":        strings.Repeat("0a1b2c3d", 8),
	"key in base64":             "q83vASNFZ4mrze8BI0VniavN7wEjRWeJq83vASNFZ4k=",
	"private key":               "MIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQ",
	"credentials of a URL":      "admin:let-me-in",
	"annotation of an operator": "vault-wrapped-thing",
	"text of a Secret":          "this-is-in-a-secret-object",
}

// secretsInALog as programs write them.
func secretsInALog() string {
	return strings.Join([]string{
		`{"level":"info","msg":"keys","sealedKeys":"` + planted["sealed keys"] + `","node":"a"}`,
		"nvme connect --dhchap-secret=" + planted["key of a host"] + " --dhchap-ctrl-secret " + planted["short key of a host"],
		"psk " + planted["key of TLS"], planted["identity of age"],
		"Authorization: Bearer " + planted["token of an account"], `{\"token\":\"` + planted["token of an environment"] + `\"}`,
		"password: '" + planted["password"] + "'", "raw " + planted["key in hexadecimal"] + " and " + planted["key in base64"],
		"-----BEGIN PRIVATE KEY-----\n" + planted["private key"] + "\n-----END PRIVATE KEY-----",
		"dial https://" + planted["credentials of a URL"] + "@registry/", "harmless: subsystem nqn.2026-11.storage.weft:v-data-0:" + ofSession,
		"image sha256:" + strings.Repeat("ab12", 16),
	}, "\n") + "\n"
}

// inAKernelLog are the secrets in lines about storage. The kernel never wrote any, as far as is known.
func inAKernelLog() string {
	return "nvme nvme0: " + strings.ReplaceAll(secretsInALog(), "\n", "\nnvme nvme0: ") + "\n"
}

// valuesWithSecrets of a chart that takes none, but arguments of programs.
func valuesWithSecrets() string {
	return "logLevel: info\nagent:\n  extraArgs: [--zap-devel, --api-token=" + planted["token of an environment"] + ", --password, " + planted["password"] + "]\n" +
		"operator: {password: " + planted["password"] + ", extraArgs: ['" + planted["key of a host"] + "', 'https://" + planted["credentials of a URL"] + "@proxy']}\n"
}

// reportRig is a cluster for reports, with secrets wherever somebody could have put some.
type reportRig struct {
	*reporter
	objects *dynamicfake.FakeDynamicClient
}

func newReportRig(t *testing.T) *reportRig {
	t.Helper()
	u := newUsed()
	u.claim.Annotations = map[string]string{"example.com/wrapped": planted["annotation of an operator"], "volume.kubernetes.io/selected-node": "worker"}
	u.replicas[0].Spec.Hosts[0].SealedKeys = planted["sealed keys"]
	u.replicas[0].Status.Conditions[0].Message = "cannot use " + planted["key of a host"]
	rig := newRig(t, u.objects()...)
	plain := newUsed()
	plain.claim, plain.replicas = u.claim, u.replicas
	objects := plain.objects()
	objects = append(objects,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: "keys"}, StringData: map[string]string{"key": planted["text of a Secret"]}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: "foreign"}},
		wefts("weft-agent-1", 1), wefts("other", 0),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: "weft-values"}, Data: map[string]string{"values.yaml": valuesWithSecrets()}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: "another"}, Data: map[string]string{"a": planted["text of a Secret"]}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "told"}, InvolvedObject: corev1.ObjectReference{Kind: "NvmfNode", Name: "a"}, Message: "token=" + planted["token of an environment"]},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: "foreign"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "foreign"}, Reason: "Started", Message: "foreign-event"},
	)
	scheme, err := knownKinds()
	if err != nil {
		t.Fatal(err)
	}
	lists := map[schema.GroupVersionResource]string{}
	for _, kind := range reportedKinds() {
		lists[kind.GroupVersionResource] = kind.Resource + "List"
	}
	var known []runtime.Object
	for _, o := range objects {
		if o.GetName() == "other" {
			o.SetLabels(nil)
		}
		known = append(known, o)
	}
	for gvr := range lists {
		if known := scheme.IsVersionRegistered(gvr.GroupVersion()); known {
			delete(lists, gvr) // the scheme tells its kind
		}
	}
	r := &reportRig{objects: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(scheme, lists, known...)}
	r.reporter = &reporter{
		api: rig.api, objects: r.objects, namespace: "weft-system", version: "1.2.3", now: noon, server: func() (string, error) { return "v1.36.0", nil },
		check: func(context.Context) (*survey, error) {
			return &survey{nodes: []corev1.Node{debian(with(v1alpha1.ConditionMirrorsUnavailable, "token: "+planted["token of an environment"]))}}, nil
		},
		metrics: func(_ context.Context, pod *corev1.Pod) (string, error) {
			return "# metrics of " + pod.Name + "\nweft_volumes{node=\"a\"} 3\n" + secretsInALog(), nil
		},
		exec: func(_ context.Context, pod *corev1.Pod, container string, command []string, out io.Writer) error {
			_, err := fmt.Fprintf(out, "nvme nvme0: %s of %s %s\nusb 1-1: new device\n%s", strings.Join(command, " "), pod.Name, container, inAKernelLog())
			return err
		},
		logs: func(_ context.Context, _, pod, container string, previous bool) (io.ReadCloser, error) {
			if container == "broken" {
				return nil, errors.New("the kubelet answered: Authorization: Bearer " + planted["token of an account"])
			}
			return io.NopCloser(strings.NewReader(fmt.Sprintf("log of %s %s, previous %v\n", pod, container, previous) + secretsInALog())), nil
		},
	}
	return r
}

// wefts is a pod of weft with secrets in its environment and arguments.
func wefts(name string, restarts int32) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: name, Labels: map[string]string{"app.kubernetes.io/name": "weft", v1alpha1.ComponentLabel: componentAgent}}}
	pod.Spec.NodeName, pod.Status.Phase = "a", corev1.PodRunning
	pod.Spec.Containers = []corev1.Container{{
		Name: "weft-agent", Args: []string{"--zap-log-level=info", "--api-token=" + planted["token of an environment"], "--password", planted["password"]},
		Env: []corev1.EnvVar{{Name: "PROXY", Value: "http://" + planted["credentials of a URL"] + "@proxy"}, {Name: "HARMLESS_LOOKING", Value: planted["token of an environment"]},
			{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}},
	}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "weft-agent", RestartCount: restarts, Image: "weft:1.2.3"}, {Name: "broken"}}
	return pod
}

// files of a bundle by name, without its directory.
func files(t *testing.T, bundle []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for in := tar.NewReader(zipped); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		name, inside := strings.CutPrefix(h.Name, "weft-report-20261120-120000/")
		if !inside || h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
		found[name] = string(text)
	}
}

func (r *reportRig) bundle(t *testing.T, most int64) (map[string]string, int) {
	t.Helper()
	var out bytes.Buffer
	failed, err := r.write(t.Context(), &out, most)
	if err != nil {
		t.Fatal(err)
	}
	return files(t, out.Bytes()), failed
}

func TestReportHasNoSecrets(t *testing.T) {
	r := newReportRig(t)
	got, _ := r.bundle(t, 64<<20)
	for name, text := range got {
		for what, secret := range planted {
			for _, part := range strings.Split(secret, "\n") {
				if strings.Contains(text, part) {
					t.Errorf("%s has the %s", name, what)
				}
			}
		}
	}
	for _, a := range r.objects.Actions() {
		resource := a.GetResource().Resource
		if get, one := a.(ktesting.GetAction); one && resource == "configmaps" && get.GetName() == valuesConfigMap {
			continue
		}
		if resource == "secrets" || resource == "configmaps" || a.GetVerb() != "list" {
			t.Errorf("the report does a %s of %s", a.GetVerb(), resource)
		}
	}
}

func TestReportHasWhatIsNeeded(t *testing.T) {
	r := newReportRig(t)
	got, failed := r.bundle(t, 64<<20)
	for name, want := range map[string][]string{
		"README.txt":                                {"errors.txt"},
		"versions.txt":                              {"kubectl weft 1.2.3\nKubernetes v1.36.0\n", "pod weft-agent-1, container weft-agent: weft:1.2.3 (), 1 restarts"},
		"status.txt":                                {"No problems found."},
		"check.txt":                                 {"NODE", "CLOCK", "- a: its pods cannot use volumes with two replicas: token: " + leftOut},
		"pools.txt":                                 {"eui.a", "databases/data"},
		"drives.txt":                                {"eui.b"},
		"snapshots.txt":                             {"No snapshots found."},
		"objects/nvmfvolumes.yaml":                  {"name: v-data", ofVolume},
		"objects/nvmfreplicas.yaml":                 {"sealedKeys: " + leftOut, "nqn.2026-11.storage.weft:v-data-0:" + ofSession, "message: cannot use " + leftOut, `nguid: "33333333333343338333333333333330"`},
		"objects/nodes.yaml":                        {"name: worker", "type: Ready"},
		"objects/persistentvolumes.yaml":            {"name: pv-data"},
		"objects/persistentvolumeclaims.yaml":       {"volume.kubernetes.io/selected-node: worker"},
		"objects/pods.yaml":                         {"--zap-log-level=info", "--api-token=" + leftOut, "- --password\n    - " + leftOut, "name: NODE_NAME", "fieldPath: spec.nodeName"},
		"objects/events.yaml":                       {"reason: ReplicaInSync", "token=" + leftOut},
		"logs/weft-agent-1/weft-agent.log":          {"log of weft-agent-1 weft-agent, previous false", "harmless: subsystem nqn.2026-11.storage.weft:v-data-0:" + ofSession, "sha256:ab12", `"node":"a"`},
		"logs/weft-agent-1/weft-agent.previous.log": {"previous true"},
		"metrics/weft-agent-1.txt":                  {"# metrics of weft-agent-1", `weft_volumes{node="a"} 3`},
		"kernel/a.log":                              {"nvme nvme0: dmesg --decode --time-format iso of weft-agent-1 weft-agent"},
		"values.yaml":                               {"logLevel: info", "- --zap-devel", "- --api-token=" + leftOut + "\n  - --password\n  - " + leftOut, "password: " + leftOut},
		"errors.txt":                                {"logs/weft-agent-1/broken.log: the kubelet answered: Authorization: " + leftOut},
	} {
		for _, w := range want {
			if !strings.Contains(got[name], w) {
				t.Errorf("%s lacks %q:\n%s", name, w, got[name])
			}
		}
	}
	if failed != 1 {
		t.Errorf("%d parts failed:\n%s", failed, got["errors.txt"])
	}
	for name, not := range map[string]string{"objects/persistentvolumeclaims.yaml": "foreign", "objects/events.yaml": "foreign", "objects/pods.yaml": "name: other", "objects/nodes.yaml": "annotations", "kernel/a.log": "usb"} {
		if strings.Contains(got[name], not) {
			t.Errorf("%s has %q:\n%s", name, not, got[name])
		}
	}
}

// What fails does not stop the rest.
func TestReportGoesOnAfterErrors(t *testing.T) {
	r := newReportRig(t)
	r.objects.PrependReactor("list", "*", func(a ktesting.Action) (bool, runtime.Object, error) {
		if a.GetResource().Resource == "nvmfvolumes" || a.GetResource().Resource == "pods" {
			return true, nil, errors.New("etcd is away, token: " + planted["token of an environment"])
		}
		return false, nil, nil
	})
	if err := r.objects.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("configmaps"), "weft-system", valuesConfigMap); err != nil {
		t.Fatal(err)
	}
	r.server = func() (string, error) { return "", errors.New("no answer") }
	r.check = func(context.Context) (*survey, error) { return nil, errors.New("the cluster has no Linux node") }
	r.api = forbids{r.api, []string{"NvmfMirror"}}
	got, failed := r.bundle(t, 64<<20)
	for _, w := range []string{"status.txt, pools.txt, drives.txt, snapshots.txt: ", "objects/nvmfvolumes.yaml: etcd is away, token: " + leftOut, "objects/pods.yaml: etcd", "check.txt: the cluster has no Linux node", "not found; charts before this version do not write it", "version of Kubernetes: no answer",
		"logs: no pods of weft found in namespace weft-system; set it with -n"} {
		if !strings.Contains(got["errors.txt"], w) {
			t.Errorf("errors.txt lacks %q:\n%s", w, got["errors.txt"])
		}
	}
	if failed != 7 || got["objects/nvmfreplicas.yaml"] == "" || !strings.Contains(got["versions.txt"], "Kubernetes unknown") {
		t.Errorf("%d parts failed:\n%s", failed, got["errors.txt"])
	}
}

func TestReportIsBounded(t *testing.T) {
	r := newReportRig(t)
	long := strings.Repeat("x", 3000)
	r.logs = func(context.Context, string, string, string, bool) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(long)), nil
	}
	const most = 12000
	got, failed := r.bundle(t, most)
	total := 0
	for name, text := range got {
		if name != "README.txt" && name != "errors.txt" {
			total += len(text)
		}
	}
	if total > most || failed == 0 || !strings.Contains(got["errors.txt"], "--max-size") {
		t.Errorf("%d bytes, %d parts failed:\n%s", total, failed, got["errors.txt"])
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"driver": v1alpha1.DriverName, "filler": long}}}
	u.SetGroupVersionKind(snapshotContents)
	u.SetName("large")
	if err := r.objects.Tracker().Add(u); err != nil {
		t.Fatal(err)
	}
	if got, _ := r.bundle(t, 4000); !strings.Contains(got["errors.txt"], "objects/volumesnapshotcontents.yaml: 1 objects were left out") {
		t.Errorf("got:\n%s", got["errors.txt"])
	}
}

func TestStorageLines(t *testing.T) {
	trace := "kern  :err   : INFO: task jbd2/dm-0-8:812 blocked for more than 120 seconds.\nkern  :info  :  schedule+0x27/0xf0\nkern  :info  :  </TASK>\n"
	for name, c := range map[string]struct{ log, kept string }{
		"nothing":            {"usb 1-1: new device\nIPv6: ADDRCONF(NETDEV_CHANGE): eth0\n", ""},
		"hosts and targets":  {"nvme nvme3: I/O tag 1 timeout\nnvmet: creating controller 1\nnvmet_tcp: enabling port 1\n", "nvme nvme3: I/O tag 1 timeout\nnvmet: creating controller 1\nnvmet_tcp: enabling port 1\n"},
		"mirrors":            {"md127: recovery done\nmd/raid1:md127: Disk failure on dm-3\nmdio_bus: probed\n", "md127: recovery done\nmd/raid1:md127: Disk failure on dm-3\n"},
		"filesystems":        {"XFS (nvme0n1): Mounting\nEXT4-fs (dm-0): remounted\nBuffer I/O error on dev dm-0\n", "XFS (nvme0n1): Mounting\nEXT4-fs (dm-0): remounted\nBuffer I/O error on dev dm-0\n"},
		"links":              {"mlx5_core 0000:3b:00.0: temperature\neth0: Link is Down\n", "mlx5_core 0000:3b:00.0: temperature\neth0: Link is Down\n"},
		"audits of others":   {"audit: type=1400 audit(1700000000.1:2): comm=\"nvme\"\n", ""},
		"a trace as a whole": {trace + "usb 1-1: new device\n", trace},
		"a trace without its end": {"BUG: unable to handle page fault\n" + strings.Repeat(" ? f+0x1\n", 2*maxTraceLines),
			"BUG: unable to handle page fault\n" + strings.Repeat(" ? f+0x1\n", maxTraceLines-1)},
	} {
		if got := storageLines(c.log); got != c.kept {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// One log of each node's kernel is read, from a pod that runs.
func TestReportReadsTheKernelOfEachNodeOnce(t *testing.T) {
	r := newReportRig(t)
	var mu sync.Mutex
	var asked []string
	r.exec = func(_ context.Context, pod *corev1.Pod, _ string, _ []string, _ io.Writer) error {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, pod.Name)
		return errors.New("forbidden: " + planted["token of an account"])
	}
	pod := func(name, component, node string, phase corev1.PodPhase) corev1.Pod {
		p := wefts(name, 0)
		p.Labels[v1alpha1.ComponentLabel], p.Spec.NodeName, p.Status.Phase = component, node, phase
		return *p
	}
	b := &bundle{tar: tar.NewWriter(io.Discard), most: 1 << 20, left: 1 << 20}
	r.collectKernelLogs(t.Context(), b, []corev1.Pod{
		pod("plugin-a", componentNodePlugin, "a", corev1.PodRunning), pod("agent-a", componentAgent, "a", corev1.PodRunning), pod("agent-b", componentAgent, "b", corev1.PodRunning),
		pod("plugin-c", componentNodePlugin, "c", corev1.PodPending), pod("operator", componentOperator, "d", corev1.PodRunning),
	})
	slices.Sort(asked)
	if !slices.Equal(asked, []string{"agent-b", "plugin-a"}) || len(b.failures) != 2 {
		t.Errorf("asked %q, failed %q", asked, b.failures)
	}
	for _, f := range b.failures {
		if !strings.Contains(f, "run dmesg in pod ") || strings.Contains(f, planted["token of an account"]) {
			t.Errorf("got %q", f)
		}
	}
}

// Metrics are read of what serves some: not of target pods, of guards, and of pods that run no component.
func TestReportReadsTheMetricsOfWhatServesSome(t *testing.T) {
	r := newReportRig(t)
	var pods []corev1.Pod
	for _, component := range []string{componentAgent, componentNodePlugin, componentOperator, componentController, v1alpha1.ComponentTarget, "guard", ""} {
		pod := wefts("pod-of-"+component, 0)
		pod.Labels[v1alpha1.ComponentLabel] = component
		pods = append(pods, *pod)
	}
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	b := &bundle{tar: tar.NewWriter(zipped), dir: r.name(), most: 1 << 20, left: 1 << 20}
	r.collectMetrics(t.Context(), b, pods)
	if err := errors.Join(b.err, b.tar.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(files(t, out.Bytes())))
	if want := []string{"metrics/pod-of-agent.txt", "metrics/pod-of-csi-controller.txt", "metrics/pod-of-csi-node.txt", "metrics/pod-of-operator.txt"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What all pods have together is bounded, and which of them do not fit is said.
func TestReportBoundsWhatIsCollectedOfPods(t *testing.T) {
	b := &bundle{tar: tar.NewWriter(io.Discard), most: 4000, left: 4000}
	pods := []corev1.Pod{*wefts("a", 0), *wefts("b", 0), *wefts("c", 0)}
	b.collect(t.Context(), pods, func(p *corev1.Pod) string { return p.Name }, func(context.Context, *corev1.Pod) (string, error) { return strings.Repeat("x ", 200), nil })
	if len(b.failures) != 1 || b.left != 4000-800 || !strings.Contains(b.failures[0], "a quarter of --max-size") {
		t.Errorf("%d bytes left, failed: %q", b.left, b.failures)
	}
}

// On a terminal, standard error shows how many parts are collected, of all, and nothing of that stays.
func TestReportShowsItsProgressOnATerminal(t *testing.T) {
	r := newReportRig(t)
	v := &terminal{t: t, width: 80, height: 8}
	r.progress = v.screen()
	r.bundle(t, 64<<20)
	v.shows("")
	var shown []string
	for _, m := range regexp.MustCompile(`\] +\d+ %  (\d+ of \d+) parts\n`).FindAllStringSubmatch(v.written.String(), -1) {
		shown = append(shown, m[1])
	}
	// Beside the objects, a pod has metrics, the log of its node's kernel, and the logs of two containers and of one
	// that ended before.
	all := len(reportedKinds()) + 4 + 5
	if len(shown) != all || shown[0] != fmt.Sprintf("1 of %d", all-5) || shown[2] != fmt.Sprintf("3 of %d", all) || shown[all-1] != fmt.Sprintf("%d of %d", all, all) {
		t.Errorf("%d parts were shown: %q", all, shown)
	}
}

func TestReportIsInterrupted(t *testing.T) {
	r := newReportRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.write(ctx, io.Discard, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestReportFile(t *testing.T) {
	r := newReportRig(t)
	file := filepath.Join(t.TempDir(), "weft.tar.gz")
	cmd := Command("test")
	cmd.SetContext(t.Context())
	var out bytes.Buffer
	cmd.SetOut(&out)
	if err := r.writeFile(cmd, file, 64<<20); err != nil || !strings.Contains(out.String(), "wrote "+file+"\n1 parts could not be collected") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := r.writeFile(cmd, file, 64<<20); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file is not overwritten; got %v", err)
	}
	out.Reset()
	if err := r.writeFile(cmd, "-", 64<<20); err != nil || len(files(t, out.Bytes())) == 0 {
		t.Errorf("got %v", err)
	}
}

func TestLastBytes(t *testing.T) {
	lines := strings.Repeat("0123456789\n", 100000)
	for most, want := range map[int]string{0: "", 5: "6789\n", 22: "0123456789\n", 30: "0123456789\n0123456789\n", len(lines): lines} {
		if got, err := lastBytes(strings.NewReader(lines), most); err != nil || want != "" && most < 22 && len(got) > most || most >= 22 && got != want {
			t.Errorf("last %d bytes: got %q, %v; want %q", most, got[:min(len(got), 40)], err, want)
		}
	}
	broken := io.MultiReader(strings.NewReader("a\n"), failing{})
	if got, err := lastBytes(broken, 10); got != "a\n" || err == nil {
		t.Errorf("got %q, %v", got, err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("cut off") }

func TestRedactText(t *testing.T) {
	for _, same := range []string{
		"nqn.2014-08.org.nvmexpress:uuid:" + ofAttachment, "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
		"/dev/disk/by-id/nvme-SAMSUNG_MZQL23T8HCLS-00A07_S64HNE0T123456", "containerd://" + strings.Repeat("0f", 32), "commit " + strings.Repeat("0f", 20),
		"condition TargetImageReady is False", `secret "foo" not found`, "github.com/weft-storage/weft/csi-driver/node.(*Service).NodeStageVolume",
	} {
		if got := redactText(same); got != same {
			t.Errorf("%q became %q", same, got)
		}
	}
	if got := redactText("-----BEGIN EC PRIVATE KEY-----\nabc"); got != leftOut {
		t.Errorf("a block that was cut off became %q", got)
	}
	o := map[string]any{"tokenSecretName": "a", "secretRef": map[string]any{"name": "b"}, "password": "c", "data": map[string]any{"k": "d"}, "count": int64(1)}
	redactObject(o)
	want := map[string]any{"tokenSecretName": "a", "secretRef": map[string]any{"name": "b"}, "password": leftOut, "data": leftOut, "count": int64(1)}
	if fmt.Sprint(o) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", o, want)
	}
}
