// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func kubeNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestASecondReplicaTakesOver(t *testing.T) {
	c := newCluster(t)
	elect := func(o *settings) { o.LeaderElect = true }
	first, stopFirst := startOperator(t, elect)
	c.Eventually(first.Elected()).Should(BeClosed())
	second, _ := startOperator(t, elect)

	c.target("lead", "lead")
	c.node("lead-1", "lead", capableModules...)
	c.Eventually(c.claimant("lead-1")).Should(Equal("lead"))
	c.Expect(second.Elected()).NotTo(BeClosed(), "only one leads")

	holder := func() string {
		lease := &coordinationv1.Lease{}
		c.Expect(admin.Get(c.ctx, client.ObjectKey{Namespace: namespace, Name: leaderLease}, lease)).To(Succeed())
		return *lease.Spec.HolderIdentity
	}
	was := holder()
	stopFirst()
	c.Eventually(second.Elected()).Should(BeClosed())
	c.Expect(holder()).NotTo(Equal(was))
	c.node("lead-2", "lead", capableModules...)
	c.Eventually(c.claimant("lead-2")).Should(Equal("lead"))
}

func TestHealthAndMetrics(t *testing.T) {
	c := newCluster(t)
	metricsAddress, healthAddress := freeAddress(c), freeAddress(c)
	startOperator(t, func(o *settings) {
		o.MetricsBindAddress, o.HealthProbeBindAddress = metricsAddress, healthAddress
	})
	c.target("metered", "metered")
	c.node("metered-1", "metered", capableModules...)
	c.Eventually(c.claimant("metered-1")).Should(Equal("metered"))

	// The serving certificate is made at start; whom one talks to is not what is tested here.
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(url, token string) (status int, body string, err error) {
		req, err := http.NewRequestWithContext(c.ctx, http.MethodGet, url, nil)
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := web.Do(req)
		if err != nil {
			return 0, "", err
		}
		data, err := io.ReadAll(resp.Body)
		if cerr := resp.Body.Close(); err == nil {
			err = cerr
		}
		return resp.StatusCode, string(data), err
	}
	code := func(url, token string) func() (int, error) {
		return func() (int, error) { status, _, err := get(url, token); return status, err }
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		c.Eventually(code("http://"+healthAddress+path, "")).Should(Equal(http.StatusOK), path)
	}

	url := "https://" + metricsAddress + "/metrics"
	allowed, other := serviceAccount(c, "scraper"), serviceAccount(c, "other")
	c.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "scraper"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}})
	c.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "scraper"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "scraper"}},
	})
	c.Eventually(code(url, allowed)).Should(Equal(http.StatusOK))
	c.Expect(code(url, other)()).To(Equal(http.StatusForbidden))
	c.Expect(code(url, "")()).To(Equal(http.StatusUnauthorized))
	c.Eventually(func() (string, error) { _, body, err := get(url, allowed); return body, err }).Should(And(
		ContainSubstring(`weft_target_nodes{state="capable",target="metered"} 1`),
		ContainSubstring(`weft_target_nodes{state="ready",target="metered"} 0`),
		ContainSubstring(`weft_target_capacity_bytes{kind="total",target="metered"} 0`),
		ContainSubstring(`weft_node_condition{condition="AgentAlive",node="metered-1",status="Unknown",target="metered"} 1`)))
}

func TestWhatIsRequired(t *testing.T) {
	g := NewWithT(t)
	_, err := newManager(t.Context(), operatorConfig, settings{})
	g.Expect(err).To(MatchError(ContainSubstring("--namespace is required")))
	_, err = newManager(t.Context(), operatorConfig, settings{Namespace: namespace})
	g.Expect(err).To(MatchError(ContainSubstring("--target-image is required")))
}

// TestLogsToTheContextsLogger: controller-runtime gives its own one up, for good, where a process needs 30 s to begin.
func TestLogsToTheContextsLogger(t *testing.T) {
	g := NewWithT(t)
	said := ""
	logger := funcr.New(func(_, line string) { said += line }, funcr.Options{})
	mgr, err := newManager(logr.NewContext(t.Context(), logger), operatorConfig, settings{
		Namespace: namespace, MetricsBindAddress: off, HealthProbeBindAddress: off, WebhookBindAddress: off, AllowSeveral: true, TargetImage: targetImage,
	})
	g.Expect(err).NotTo(HaveOccurred())
	mgr.GetLogger().Info("planned")
	g.Expect(said).To(ContainSubstring("planned"))
}

// freeAddress is free for a moment at least.
func freeAddress(c *cluster) string {
	var config net.ListenConfig
	l, err := config.Listen(c.ctx, "tcp", "127.0.0.1:0")
	c.Expect(err).NotTo(HaveOccurred())
	defer func() { c.Expect(l.Close()).To(Succeed()) }()
	return fmt.Sprint(l.Addr())
}

// serviceAccount makes one and returns a token of it.
func serviceAccount(c *cluster, name string) string {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	c.create(account)
	request := &authenticationv1.TokenRequest{}
	c.Expect(admin.SubResource("token").Create(c.ctx, account, request)).To(Succeed())
	return request.Status.Token
}
