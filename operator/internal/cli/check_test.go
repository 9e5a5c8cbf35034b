// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// debian is a node on which nothing is wrong and nothing is special.
func debian(change func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{}}}
	n.Status.NodeInfo = corev1.NodeSystemInfo{
		OperatingSystem: "linux", Architecture: "amd64", OSImage: "Debian GNU/Linux 13 (trixie)", KernelVersion: "6.12.41+deb13-amd64", KubeletVersion: "v1.36.3",
	}
	if change != nil {
		change(&n)
	}
	return n
}

func system(image string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.OSImage = image }
}

// with a condition that is True.
func with(kind corev1.NodeConditionType, message string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue, Message: message})
	}
}

func kubeletVersion(v string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = v }
}

func TestPlatformsOf(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   []string
	}{
		"Debian":        {nil, nil},
		"Talos":         {system("Talos (v1.11.2)"), []string{"Talos Linux"}},
		"OpenShift":     {system("Red Hat Enterprise Linux CoreOS 9.6.20250805-0"), []string{"OpenShift"}},
		"OKD, by label": {func(n *corev1.Node) { n.Labels["node.openshift.io/os_id"] = "scos" }, []string{"OpenShift"}},
		"RHEL":          {system("Red Hat Enterprise Linux 9.4 (Plow)"), []string{"RHEL"}},
		"Rocky":         {system("Rocky Linux 9.5 (Blue Onyx)"), []string{"RHEL"}},
		"Ubuntu":        {system("Ubuntu 24.04.3 LTS"), []string{"Ubuntu"}},
		"Flatcar":       {system("Flatcar Container Linux by Kinvolk 4459.2.1 (Oklo)"), []string{"Flatcar"}},
		"GKE":           {system("Container-Optimized OS from Google"), []string{"Container-Optimized OS"}},
		"k3s":           {kubeletVersion("v1.34.1+k3s1"), []string{"k3s"}},
		"RKE2":          {kubeletVersion("v1.34.1+rke2r1"), []string{"RKE2"}},
		"k0s":           {kubeletVersion("v1.34.1+k0s"), []string{"k0s"}},
		"MicroK8s":      {func(n *corev1.Node) { n.Labels["microk8s.io/cluster"] = "true" }, []string{"MicroK8s"}},
		"arm64":         {func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "arm64" }, []string{"arm64"}},
		"AWS":           {func(n *corev1.Node) { n.Spec.ProviderID = "aws:///eu-west-1a/i-0123" }, []string{"AWS"}},
		"Azure":         {func(n *corev1.Node) { n.Spec.ProviderID = "azure:///subscriptions/x" }, []string{"Azure"}},
		"Google Cloud":  {func(n *corev1.Node) { n.Spec.ProviderID = "gce://project/zone/x" }, []string{"Google Cloud"}},
		"several of them": {func(n *corev1.Node) {
			n.Spec.ProviderID, n.Status.NodeInfo.Architecture = "aws:///eu-west-1a/i-0123", "arm64"
			n.Status.NodeInfo.OSImage, n.Status.NodeInfo.KubeletVersion = "Ubuntu 24.04.3 LTS", "v1.34.1+rke2r1"
		}, []string{"Ubuntu", "RKE2", "arm64", "AWS"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			n := debian(c.change)
			for _, p := range platformsOf(&n) {
				got = append(got, p.name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEveryPlatformHasItsPage(t *testing.T) {
	for _, p := range platforms {
		if _, err := os.Stat(filepath.Join("../../..", platformsPages, p.page)); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

// checkCase is a node and a cluster, and what is found there.
type checkCase struct {
	node    func(*corev1.Node)
	cluster func(*survey)
	// wrong and advice: a part of each finding, in their order.
	wrong, advice []string
}

func (c checkCase) checks(t *testing.T) {
	t.Helper()
	s := &survey{nodes: []corev1.Node{debian(c.node)}, namespace: "weft-system"}
	if c.cluster != nil {
		c.cluster(s)
	}
	wrong, advice := found(s)
	same(t, "wrong", wrong, c.wrong)
	same(t, "advice", advice, c.advice)
}

func TestCheckFindings(t *testing.T) {
	fit := []string{"nvme_tcp", "nvmet", "nvmet_tcp", "xfs"}
	installed := func(dir string) func(*survey) {
		return func(s *survey) { s.installed, s.kubeletDir, s.namespaced, s.enforce = true, dir, true, "privileged" }
	}
	has := func(i v1alpha1.Inventory) func(*survey) {
		return func(s *survey) {
			s.nvmf = map[string]*v1alpha1.NvmfNode{"a": {Status: v1alpha1.NvmfNodeStatus{Inventory: &i}}}
		}
	}
	for name, c := range map[string]checkCase{
		"all is well":          {nil, installed(defaultKubeletDir), nil, nil},
		"before weft is there": {nil, nil, nil, nil},
		"an old kernel": {func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "4.18.0-553.el8_10.x86_64" }, nil,
			[]string{"Linux 4.18.0-553.el8_10.x86_64; upgrade to 5.15 or newer"}, nil},
		"a kernel between": {func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "5.14.0-427.13.1.el9_4.x86_64" }, nil,
			nil, []string{"weft was not compared with kernels before 5.15", "can corrupt the host's memory"}},
		"the oldest kernel": {func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "5.15.0-1036-azure" }, nil,
			nil, []string{"Linux 5.15.0-1036-azure; before 6.7, I/O over NVMe/TCP that times out can corrupt the host's memory"}},
		"the oldest kernel without that fault": {func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "6.7.0-1-amd64" }, nil, nil, nil},
		"a kernel that says nothing": {func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "" }, nil,
			nil, []string{`its kernel's version, "", cannot be read`}},
		"an old kubelet":     {kubeletVersion("v1.31.9"), nil, []string{"upgrade to Kubernetes 1.32 or newer"}, nil},
		"the oldest kubelet": {kubeletVersion("v1.32.0-eks-1234"), nil, nil, nil},
		"another machine": {func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "s390x" }, nil,
			[]string{`its architecture is "s390x"`}, nil},
		"k0s, before": {kubeletVersion("v1.34.1+k0s"), nil, nil, []string{"install weft with --set kubeletDir=/var/lib/k0s/kubelet"}},
		"k0s, as by default": {kubeletVersion("v1.34.1+k0s"), installed(defaultKubeletDir),
			[]string{"upgrade weft with --set kubeletDir=/var/lib/k0s/kubelet"}, nil},
		"k0s, as it must be": {kubeletVersion("v1.34.1+k0s"), installed("/var/lib/k0s/kubelet"), nil, nil},
		"k3s, before":        {kubeletVersion("v1.34.1+k3s1"), nil, nil, nil},
		"k3s, as k0s": {kubeletVersion("v1.34.1+k3s1"), installed("/var/lib/k0s/kubelet"),
			[]string{"by default k3s has it in /var/lib/kubelet"}, nil},
		"a directory of one's own": {nil, installed("/data/kubelet"), nil, nil},
		"Talos, before":            {system("Talos (v1.11.2)"), nil, nil, []string{"create namespace weft-system before you install weft", "pods cannot load kernel modules"}},
		"Talos, without a label": {system("Talos (v1.11.2)"), func(s *survey) { s.installed, s.kubeletDir, s.namespaced = true, defaultKubeletDir, true },
			[]string{"kubectl label namespace weft-system --overwrite pod-security.kubernetes.io/enforce=privileged"}, []string{"pods cannot load kernel modules"}},
		"Talos, with it": {system("Talos (v1.11.2)"), installed(defaultKubeletDir), nil, []string{"machine.kernel.modules"}},
		"a namespace that admits no privileged pods": {nil, func(s *survey) { s.namespaced, s.enforce = true, "restricted" },
			[]string{"does not admit privileged pods (it enforces restricted)"}, nil},
		"OpenShift, before": {system("Red Hat Enterprise Linux CoreOS 9.6.20250805-0"), nil, nil,
			[]string{"install weft with --set openshift.securityContextConstraints=true"}},
		"OpenShift, not granted": {system("Red Hat Enterprise Linux CoreOS 9.6.20250805-0"), func(s *survey) {
			installed(defaultKubeletDir)(s)
			s.rejected = []string{"weft-agent (privileged)"}
		}, []string{"weft-agent (privileged); upgrade weft with --set openshift"}, nil},
		"OpenShift, granted": {system("Red Hat Enterprise Linux CoreOS 9.6.20250805-0"), installed(defaultKubeletDir), nil, nil},
		"AWS":                {func(n *corev1.Node) { n.Spec.ProviderID = "aws:///eu-west-1a/i-0123" }, nil, nil, []string{"EFA cannot carry NVMe over RDMA"}},
		"all modules":        {nil, has(v1alpha1.Inventory{Modules: fit}), nil, nil},
		"no target":          {nil, has(v1alpha1.Inventory{Modules: []string{"nvme_tcp"}}), nil, []string{"cannot serve over TCP with engine: Nvmet"}},
		"Ubuntu without extra modules": {system("Ubuntu 24.04.3 LTS"), has(v1alpha1.Inventory{}),
			[]string{"no nvme_tcp, so its pods cannot use volumes over TCP; on the node: apt-get install linux-modules-extra-$(uname -r)"},
			[]string{"no nvmet_tcp"}},
		"RDMA without its module": {nil, has(v1alpha1.Inventory{Modules: fit, RDMADevices: []v1alpha1.RDMADevice{{Name: "mlx5_0"}}}), nil,
			[]string{"it has an RDMA device, but no nvme_rdma"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.checks(t)
		})
	}
}

// What node plugins, the operator and Leases say of a node is found, and that this program is of another time.
func TestCheckFindsWhatIsReported(t *testing.T) {
	for name, c := range map[string]checkCase{
		"a connection that does not end": {with(v1alpha1.ConditionInitiatorStuck, "stuck in nvme_fabrics"), nil, []string{"stuck in nvme_fabrics"}, nil},
		"an old node plugin":             {with(v1alpha1.ConditionNodeVersionSkew, "0.1.0 and 0.3.0"), nil, []string{"0.1.0 and 0.3.0"}, nil},
		"an old agent": {nil, func(s *survey) {
			s.nvmf = map[string]*v1alpha1.NvmfNode{"a": {Status: v1alpha1.NvmfNodeStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionVersionSkew, Status: metav1.ConditionTrue, Message: "0.1.0 and 0.3.0"}}}}}
		}, []string{"0.1.0 and 0.3.0"}, nil},
		"no mirrors":        {with(v1alpha1.ConditionMirrorsUnavailable, "no raid1"), nil, nil, []string{"cannot use volumes with two replicas: no raid1"}},
		"no encryption":     {with(v1alpha1.ConditionEncryptionUnavailable, "no dm_crypt"), nil, nil, []string{"cannot use encrypted volumes: no dm_crypt"}},
		"no authentication": {with(v1alpha1.ConditionAuthenticationUnavailable, "too old"), nil, nil, []string{"cannot authenticate to targets: too old"}},
		"an old kubectl weft": {nil, func(s *survey) { s.version, s.installedVersion = "0.1.0", "0.3.0" },
			nil, []string{"kubectl weft has version 0.1.0, and weft 0.3.0 is installed"}},
		"a kubectl weft that works": {nil, func(s *survey) { s.version, s.installedVersion = "0.2.0", "0.3.0" }, nil, nil},
		"a clock that is a little off": {nil, func(s *survey) { s.clocks = map[string]clockReading{"a": {ahead: 6 * time.Second}} },
			nil, []string{"its clock is 6 s ahead of the API server's"}},
		"a clock that is far off": {nil, func(s *survey) { s.clocks = map[string]clockReading{"a": {ahead: -time.Minute}} },
			[]string{"its clock is up to 60 s behind the API server's"}, nil},
		"a clock that is right": {nil, func(s *survey) { s.clocks = map[string]clockReading{"a": {ahead: -4 * time.Second}} }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.checks(t)
		})
	}
}

func same(t *testing.T, what string, got []finding, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %+v, want %q", what, got, want)
	}
	for i, f := range got {
		if !strings.Contains(f.says, want[i]) {
			t.Errorf("%s: got %q, want %q", what, f.says, want[i])
		}
		if _, err := os.Stat(filepath.Join("../../..", platformsPages, f.page)); err != nil {
			t.Errorf("%s: %v", f.says, err)
		}
	}
}

// apiServer answers with the objects at their paths, 404 elsewhere, and 403 at the forbidden ones.
func apiServer(t *testing.T, objects map[string]any, mayUse func(user string) bool, forbidden ...string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		object, ok := objects[r.URL.Path]
		if path.Base(r.URL.Path) == "subjectaccessreviews" {
			object, ok = reviewed(t, r, mayUse), true
		}
		status := http.StatusNotFound
		switch {
		case slices.Contains(forbidden, r.URL.Path):
			status = http.StatusForbidden
		case ok:
			status = http.StatusOK
		}
		if status != http.StatusOK {
			reason := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden}[status]
			object = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(status)}
		}
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(object); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: b}}], clusters: [{name: b, cluster: {server: %q}}]}", server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// reviewed answers a SubjectAccessReview, whichever way the client wrote it.
func reviewed(t *testing.T, r *http.Request, mayUse func(user string) bool) *authorizationv1.SubjectAccessReview {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	review := &authorizationv1.SubjectAccessReview{}
	if _, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, review); err != nil {
		t.Error(err)
	}
	review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
	asks := review.Spec.ResourceAttributes
	review.Status.Allowed = asks != nil && asks.Verb == "use" && asks.Resource == "securitycontextconstraints" && mayUse(review.Spec.User)
	return review
}

func TestCheckAsksTheCluster(t *testing.T) {
	const plugins = "/apis/apps/v1/namespaces/weft-system/daemonsets/weft-csi-node"
	nodes := func(changes ...func(*corev1.Node)) corev1.NodeList {
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
		for i, change := range changes {
			n := debian(change)
			n.Name = fmt.Sprintf("node%d", i+1)
			list.Items = append(list.Items, n)
		}
		return list
	}
	plugin := appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{Kind: "DaemonSet", APIVersion: "apps/v1"}}
	plugin.Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{"node", "--kubelet-dir=/var/lib/kubelet"}}}
	rhcos := system("Red Hat Enterprise Linux CoreOS 9.6.20250805-0")
	windows := func(n *corev1.Node) { n.Status.NodeInfo.OperatingSystem = "windows" }
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		objects   map[string]any
		mayUse    func(string) bool
		forbidden []string
		args      []string
		code      int
		want      []string
		never     []string
	}{
		"a cluster without weft": {map[string]any{"/api/v1/nodes": nodes(nil, windows)}, all, nil, nil, 0,
			[]string{"node1   Debian GNU/Linux 13 (trixie)", "Nothing wrong was found."}, []string{"node2"}},
		"two nodes of k0s": {map[string]any{"/api/v1/nodes": nodes(kubeletVersion("v1.34.1+k0s"), kubeletVersion("v1.34.1+k0s")), plugins: plugin}, all, nil, nil, CodeUnwell,
			[]string{"Wrong:\n- node1, node2: weft looks for the kubelet in /var/lib/kubelet", "(docs/platforms/k3s-rke2.md)"}, nil},
		"one of two": {map[string]any{"/api/v1/nodes": nodes(kubeletVersion("v1.31.0"), nil)}, all, nil, []string{"node2"}, 0, []string{"Nothing wrong was found."}, []string{"node1"}},
		"OpenShift, granted": {map[string]any{"/api/v1/nodes": nodes(rhcos), plugins: plugin}, all, nil, nil, 0,
			[]string{"docs/platforms/openshift.md", "Nothing wrong was found."}, nil},
		"OpenShift, one not granted": {map[string]any{"/api/v1/nodes": nodes(rhcos), plugins: plugin},
			func(user string) bool { return user != "system:serviceaccount:weft-system:weft-operator" }, nil, nil, CodeUnwell,
			[]string{"that they need: weft-operator (nonroot-v2);"}, nil},
		"what may not be read is not absent": {map[string]any{"/api/v1/nodes": nodes(rhcos)}, all, []string{plugins}, nil, CodeUnknown,
			[]string{"Not looked at:\n- DaemonSet weft-csi-node:"}, []string{"install weft"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := Command("test")
			cmd.SetArgs(append([]string{"check", "--kubeconfig", apiServer(t, c.objects, c.mayUse, c.forbidden...)}, c.args...))
			cmd.SetOut(&out)
			err := cmd.ExecuteContext(t.Context())
			code := 0
			var exit *ExitError
			switch {
			case errors.As(err, &exit):
				code = exit.Code
			case err != nil:
				t.Fatal(err)
			}
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, w := range c.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("want %q in:\n%s", w, out.String())
				}
			}
			for _, never := range c.never {
				if strings.Contains(out.String(), never) {
					t.Errorf("%q is in:\n%s", never, out.String())
				}
			}
		})
	}
}

func TestCheckRefusesANodeThatIsNotThere(t *testing.T) {
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: []corev1.Node{debian(nil)}}
	cmd := Command("test")
	cmd.SetArgs([]string{"check", "b", "--kubeconfig", apiServer(t, map[string]any{"/api/v1/nodes": list}, nil)})
	cmd.SetOut(&bytes.Buffer{})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "there is no Linux node b") {
		t.Errorf("got %v", err)
	}
}
