// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
)

const patience, interval = time.Minute, 50 * time.Millisecond

// discovered answers what it was given.
type discovered struct {
	mu    sync.Mutex
	found *v1alpha1.Inventory
	err   error
}

func (d *discovered) Discover(context.Context) (*v1alpha1.Inventory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.found.DeepCopy(), d.err
}

func (d *discovered) set(found *v1alpha1.Inventory, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found, d.err = found, err
}

// freeAddress on loopback.
func freeAddress(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(l.Close()).To(Succeed()) }()
	return l.Addr().String()
}

// TestRun has the whole agent with its own rights, as main starts it.
func TestRun(t *testing.T) {
	l := newLab(t)
	devices := t.TempDir()
	found := &discovered{found: &v1alpha1.Inventory{Architecture: "amd64"}}
	r := l.run(func(v1alpha1.Engine) (engine.Engine, error) { return l.target, nil }, func(o *Options) {
		o.DeviceFolder, o.Inventory, o.Resync = devices, found, 0
	})

	// The drives are not found yet, and the pools of a claimed node are missing; then a device file appears.
	l.Eventually(r.nodeSays, patience, interval).Should(HaveKeyWithValue("PoolReady", "False/DeviceMissing"))
	found.set(testInventory(), nil)
	l.Expect(os.WriteFile(filepath.Join(devices, "nvme0n1"), nil, 0o600)).To(Succeed())
	l.Eventually(r.nodeSays, patience, interval).Should(HaveKeyWithValue("Ready", "True/AsExpected"))
	l.Eventually(func() (string, error) { return r.get("/readyz") }, patience, interval).Should(HavePrefix("200"))
	l.Expect(r.get("/healthz")).To(HavePrefix("200"))

	var lease coordinationv1.Lease
	l.Eventually(func() error {
		return l.admin.Get(t.Context(), client.ObjectKey{Namespace: testNamespace, Name: v1alpha1.AgentLeasePrefix + l.node}, &lease)
	}, patience, interval).Should(Succeed())
	l.Expect(lease.Labels).To(HaveKeyWithValue(v1alpha1.ComponentLabel, v1alpha1.ComponentAgent))
	l.Expect(*lease.Spec.LeaseDurationSeconds).To(Equal(int32(40)))

	// Its own volumes are served, and another node's are not its business.
	elsewhere := testVolume(50)
	elsewhere.Name, elsewhere.Spec.Node, elsewhere.Generation = l.name(50), "elsewhere", 0
	l.Expect(l.admin.Create(t.Context(), elsewhere)).To(Succeed())
	for n := 1; n <= 20; n++ {
		l.create(n, ofSize("1Gi"), withHosts(hostA))
	}
	for n := 1; n <= 20; n++ {
		l.Eventually(func() map[string]string { return l.says(n) }, patience, interval).Should(HaveKeyWithValue("Ready", "True/AsExpected"))
		l.Expect(l.volume(n).Status.Hosts).To(Equal([]v1alpha1.AdmittedHost{{NQN: hostA, Node: "host", Blank: true}}))
	}
	l.Expect(l.volume(50).Status.Conditions).To(BeEmpty())
	l.Expect(l.state().Volumes).To(HaveLen(20))
	l.Expect(r.get("/metrics")).To(And(ContainSubstring(`weft_agent_exports 20`), ContainSubstring(`weft_agent_volumes{ready="true"} 20`)))
	l.Eventually(func() ([]string, error) {
		var list eventsv1.EventList
		err := l.admin.List(t.Context(), &list, client.InNamespace("default"))
		var reasons []string
		for _, e := range list.Items {
			// In its own name: the chart's admission policy refuses others.
			if e.Regarding.Name == l.node && e.Regarding.Kind == "NvmfNode" && e.ReportingController == "weft-agent" {
				reasons = append(reasons, e.Reason)
			}
		}
		return reasons, err
	}, patience, interval).Should(ContainElements(v1alpha1.ReasonDeviceMissing, v1alpha1.ReasonAsExpected))

	// An engine that does not answer makes the agent unready, and nothing else.
	l.target.FailCall(enginetest.Gather, engine.ErrUnavailable)
	l.change(1, ofSize("2Gi"))
	l.Eventually(func() (string, error) { return r.get("/readyz") }, patience, interval).Should(HavePrefix("500"))
	l.target.FailCall(enginetest.Gather, nil)
	l.Eventually(func() (string, error) { return r.get("/readyz") }, patience, interval).Should(HavePrefix("200"))
	l.Eventually(func() int64 { return l.volume(1).Status.Size.Value() }, patience, interval).Should(Equal(int64(2 * gib)))

	for n := 1; n <= 10; n++ {
		l.change(n, func(v *v1alpha1.NvmfReplica) { v.Spec.Hosts = nil })
		l.delete(n)
	}
	l.Eventually(func() []engine.Volume { return l.state().Volumes }, patience, interval).Should(HaveLen(10))
	l.Eventually(func() int {
		var list v1alpha1.NvmfReplicaList
		l.Expect(l.admin.List(t.Context(), &list, client.MatchingFields{"spec.node": l.node})).To(Succeed())
		return len(list.Items)
	}, patience, interval).Should(Equal(10))

	// Stopping leaves everything serving.
	host, err := l.target.Connect(t.Context(), tcp, l.volume(20).Status.NQN, hostA)
	l.Expect(err).NotTo(HaveOccurred())
	l.target.ForgetCalls()
	r.stop()
	l.Expect(l.changes()).To(BeEmpty())
	l.Expect(host.Disconnected()).To(BeFalse())
}

// TestMetricsAreForWhomTheAPIServerAllows: on a port of the node, whoever reaches the node can ask.
func TestMetricsAreForWhomTheAPIServerAllows(t *testing.T) {
	l := newLab(t)
	address := freeAddress(t)
	r := l.run(func(v1alpha1.Engine) (engine.Engine, error) { return l.target, nil }, func(o *Options) { o.MetricsAddress = address })
	// The certificate is made at start; whom one talks to is not what is tested here.
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(url, token string) func() (int, error) {
		return func() (int, error) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
			if err != nil {
				return 0, err
			}
			if token != "" {
				request.Header.Set("Authorization", "Bearer "+token)
			}
			answer, err := web.Do(request)
			if err != nil {
				return 0, err
			}
			return answer.StatusCode, answer.Body.Close()
		}
	}
	reader := l.name(1)
	allowed, other := l.tokenOf(reader), l.tokenOf(l.name(2))
	l.allow(reader, rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}})
	l.Eventually(get("https://"+address, allowed), patience, interval).Should(Equal(http.StatusOK))
	l.Expect(get("https://"+address, other)()).To(Equal(http.StatusForbidden))
	l.Expect(get("https://"+address, "")()).To(Equal(http.StatusUnauthorized))
	l.Expect(get("http://"+address, allowed)()).To(Equal(http.StatusBadRequest), "not in the clear")
	l.Expect(get("http://"+r.address, allowed)()).To(Equal(http.StatusNotFound), "and not twice")
}

// allow something to a service account.
func (l *lab) allow(account string, rule rbacv1.PolicyRule) {
	l.t.Helper()
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: []rbacv1.PolicyRule{rule}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: account}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: testNamespace, Name: account}},
		},
	} {
		l.Expect(l.admin.Create(l.t.Context(), o)).To(Succeed())
	}
}

// tokenOf a service account, which is made for it unless it is there.
func (l *lab) tokenOf(name string, audiences ...string) string {
	l.t.Helper()
	account, request := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name}}, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	l.Expect(client.IgnoreAlreadyExists(l.admin.Create(l.t.Context(), account))).To(Succeed())
	l.Expect(l.admin.SubResource("token").Create(l.t.Context(), account, request)).To(Succeed())
	return request.Status.Token
}

func TestOptions(t *testing.T) {
	whole := Options{
		StateDir: "/var/lib/weft", NodeName: "n", Namespace: "ns", HealthAddress: "127.0.0.1:0", Inventory: &discovered{}, Tuning: enginetest.NewMachine(),
		Engines: func(v1alpha1.Engine) (engine.Engine, error) { return nil, nil },
	}
	for _, c := range []struct {
		name    string
		without func(*Options)
		says    string
	}{
		{"state folder", func(o *Options) { o.StateDir = "weft" }, "--state-dir is \"weft\"; must be an absolute path"},
		{"node", func(o *Options) { o.NodeName = "" }, "set --node-name or NODE_NAME"},
		{"namespace", func(o *Options) { o.Namespace = "" }, "set --namespace or POD_NAMESPACE"},
		{"--health-probe-bind-address", func(o *Options) { o.HealthAddress = "" }, "is required"},
		{"one address", func(o *Options) { o.SnapshotMetadataAddress = ":9817" }, "must be one IP address of the node and a port"},
		{"not all addresses", func(o *Options) { o.SnapshotMetadataAddress = "[::]:9817" }, "must be one IP address of the node and a port"},
		{"engines", func(o *Options) { o.Engines = nil }, "an agent needs"},
		{"host to tune", func(o *Options) { o.Tuning = nil }, "an agent needs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			o := whole
			c.without(&o)
			g.Expect(Run(t.Context(), nil, o)).To(MatchError(ContainSubstring(c.says)))
		})
	}
	g := NewWithT(t)
	g.Expect(whole.complete()).To(Succeed())
	g.Expect(whole.Settle).To(Equal(time.Minute))
	g.Expect(whole.Resync).To(Equal(30 * time.Second))
	g.Expect(whole.DeviceFolder).To(Equal("/dev"))
}

// TestLogsToTheContextsLogger: controller-runtime gives its own one up, for good, where a process needs 30 s to begin.
func TestLogsToTheContextsLogger(t *testing.T) {
	said := ""
	logger := funcr.New(func(_, line string) { said += line }, funcr.Options{})
	m, err := newManager(logr.NewContext(t.Context(), logger), apiServer(t).agentConfig, Options{NodeName: "node"})
	if err != nil {
		t.Fatal(err)
	}
	if m.GetLogger().Info("gathered"); !strings.Contains(said, "gathered") {
		t.Errorf("the context's logger got %q", said)
	}
}
