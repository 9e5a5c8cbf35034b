// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/cli"
	"github.com/weft-storage/weft/test/apiserver"
)

// metered are two scrapes of an agent, in turns: as it serves them, 10 s apart.
func metered() http.Handler {
	var asked atomic.Int32
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, fmt.Sprintf("../../internal/cli/testdata/top/agent-%d.prom", 2-asked.Add(1)%2))
	})
}

// port of a server of this machine.
func portOf(s *httptest.Server) int { return s.Listener.Addr().(*net.TCPAddr).Port }

// measured node of a target: its kubelet is at a port, and its agent runs with an argument.
func (c *cluster) measured(name, target string, kubelet int, args ...string) {
	c.t.Helper()
	c.node(name, target, capableModules...)
	node := kubeNode(name)
	c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
	node.Status.Addresses[0].Address = "127.0.0.1"
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet)
	c.Expect(admin.Status().Update(c.ctx, node)).To(Succeed())
	c.Eventually(c.claimant(name)).Should(Equal(target))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "weft-agent-" + name, Labels: map[string]string{"app.kubernetes.io/name": "weft", "app.kubernetes.io/component": "agent"}},
		Spec:       corev1.PodSpec{NodeName: name, HostNetwork: true, Containers: []corev1.Container{{Name: "weft-agent", Image: targetImage, Args: args}}},
	}
	c.create(pod)
	pod.Status.Phase = corev1.PodRunning
	c.Expect(admin.Status().Update(c.ctx, pod)).To(Succeed())
}

// reader of metrics, as the chart makes it.
func (c *cluster) metricsReader() {
	c.t.Helper()
	c.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "weft-top"}})
	c.granted("weft-metrics-reader", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "weft-top"},
		rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}})
}

// granted rights in the whole cluster.
func (c *cluster) granted(name string, to rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	c.t.Helper()
	c.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})
	c.create(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: []rbacv1.Subject{to}})
}

// viewer has the rights that docs/kubectl-weft/rights.md lists for top, and no others. Over a WebSocket, it may not
// forward ports, since that takes the verb get.
func (c *cluster) viewer() *rest.Config {
	c.t.Helper()
	user, err := server.Environment.AddUser(envtest.User{Name: "viewer"}, &rest.Config{QPS: -1})
	c.Expect(err).NotTo(HaveOccurred())
	it := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}
	c.granted("viewer", it, rbacv1.PolicyRule{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"get", "list"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes", "persistentvolumes"}, Verbs: []string{"get", "list"}})
	c.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "viewer"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/portforward"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{"weft-top"}, Verbs: []string{"create"}},
	}})
	c.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "viewer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "viewer"}, Subjects: []rbacv1.Subject{it}})
	return user.Config()
}

// kubectl weft top reads metrics through the API server and the kubelets: on loopback addresses without a token, and on
// ports of the nodes with one that the agent lets the API server review. The admin connects over a WebSocket, and who
// may not do that over SPDY.
func TestTopThroughTheAPIServer(t *testing.T) {
	c := newCluster(t)
	c.metricsReader()
	kubelet, mux := &apiserver.PortForward{}, http.NewServeMux()
	mux.Handle("POST /portForward/"+namespace+"/{pod}", kubelet)
	api := httptest.NewTLSServer(mux)
	defer api.Close()
	var withToken atomic.Bool
	agent := metered()
	loopback := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		withToken.Store(withToken.Load() || r.Header.Get("Authorization") != "")
		agent.ServeHTTP(w, r)
	}))
	defer loopback.Close()
	reviews, err := rest.HTTPClientFor(adminConfig)
	c.Expect(err).NotTo(HaveOccurred())
	filter, err := filters.WithAuthenticationAndAuthorization(adminConfig, reviews)
	c.Expect(err).NotTo(HaveOccurred())
	reviewed, err := filter(logr.Discard(), metered())
	c.Expect(err).NotTo(HaveOccurred())
	secure := httptest.NewTLSServer(reviewed)
	defer secure.Close()
	closed := httptest.NewServer(http.NotFoundHandler())
	nobody := portOf(closed)
	closed.Close()

	startOperator(t, nil)
	c.target("topped", "topped")
	address := func(flag string, port int) string { return fmt.Sprintf("--%s-bind-address=127.0.0.1:%d", flag, port) }
	c.measured("topped-1", "topped", portOf(api), address("health-probe", portOf(loopback)))
	c.measured("topped-2", "topped", portOf(api), address("health-probe", nobody), address("metrics", portOf(secure)))
	for name, user := range map[string]*rest.Config{"the admin": adminConfig, "who has the documented rights": c.viewer()} {
		var stderr bytes.Buffer
		out, code := c.kubectlWeftAs(user, &stderr, nil, "top", "nodes", "topped-1", "topped-2", "-o", "json", "--sort-by=name")
		c.Expect(code).To(BeZero(), "%s: %s%s", name, out, &stderr)
		c.Expect(stderr.String()).To(BeEmpty(), name)
		var got struct{ Nodes []cli.TopNode }
		c.Expect(json.Unmarshal([]byte(out), &got)).To(Succeed())
		c.Expect(got.Nodes).To(HaveExactElements(HaveField("Node", "topped-1"), HaveField("Node", "topped-2")))
		for _, n := range got.Nodes {
			c.Expect(n.Problem).To(BeEmpty())
			c.Expect(n.Traffic.ReadsPerSecond).To(Equal(1000.0), "counted in 10 s, by the agent's clock")
		}
	}
	c.Expect(withToken.Load()).To(BeFalse(), "nobody on a loopback address gets a token")

	c.measured("topped-3", "topped", portOf(api), address("health-probe", nobody))
	c.measured("topped-4", "topped", nobody, address("health-probe", nobody))
	var stderr bytes.Buffer
	out, code := c.kubectlWeftAs(adminConfig, &stderr, nil, "top", "targets", "topped")
	c.Expect(code).To(Equal(cli.CodeUnknown), out)
	c.Expect(out).To(And(ContainSubstring("2 of 4"), ContainSubstring("not counted: node topped-3, topped-4")))
	c.Expect(stderr.String()).To(MatchRegexp(`agent of node topped-3: pod weft-agent-topped-3: .*cannot connect to the pod: .*connection refused\n.*agent of node topped-4: .*\n`))
	kubelet.Wait()
}
