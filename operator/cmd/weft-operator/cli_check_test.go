// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/operator/internal/cli"
)

// A real API server notes when it gets a Lease that is renewed, so that it shows the clock of who renews it.
func TestCheckOfACluster(t *testing.T) {
	c := newCluster(t)
	for _, name := range []string{"checked-1", "checked-2", "checked-3"} {
		c.node(name, "checked", capableModules...)
	}
	c.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DriverName, Labels: map[string]string{v1alpha1.VersionLabel: "1.2.0"}}})
	kubelets := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "checked-1"}}
	kubelets.Spec.HolderIdentity = new("checked-1") // an object that is created empty has no managed fields
	c.create(kubelets)
	kubelets.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(time.Minute)))
	c.Expect(admin.Update(c.ctx, kubelets)).To(Succeed())
	agents := c.lease("checked-2", time.Now().Add(-time.Hour), 40)
	agents.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(-7 * time.Second)))
	c.Expect(admin.Update(c.ctx, agents)).To(Succeed())

	out, code := c.kubectlWeft(nil, "check", "checked-1", "checked-2", "checked-3", "-o", "json")
	c.Expect(code).To(Equal(cli.CodeUnwell), out)
	var got cli.CheckReport
	c.Expect(json.Unmarshal([]byte(out), &got)).To(Succeed())
	c.Expect(got.NotLookedAt).To(BeEmpty())
	c.Expect(got.InstalledVersion).To(Equal("1.2.0"))
	c.Expect(got.Nodes).To(HaveExactElements(
		HaveField("ClockAheadSeconds", HaveValue(BeNumerically("~", 60, 5))),
		HaveField("ClockAheadSeconds", HaveValue(BeNumerically("~", -7, 2))),
		HaveField("ClockAheadSeconds", BeNil())))
	c.Expect(got.Findings).To(ContainElements(
		And(HaveField("Node", "checked-1"), HaveField("Wrong", true), HaveField("Message", MatchRegexp("its clock is .* s ahead of the API server's"))),
		And(HaveField("Node", "checked-2"), HaveField("Wrong", false), HaveField("Message", MatchRegexp("its clock is up to .* s behind the API server's")))))
	c.Expect(got.NotKnown).To(ContainElement(HavePrefix("checked-3: the difference between its clock")))
}

// probes are the pods of kubectl weft check --probe.
func (c *cluster) probes() []corev1.Pod {
	var pods corev1.PodList
	c.Expect(admin.List(c.ctx, &pods, client.MatchingLabels{"app.kubernetes.io/name": "weft-check"})).To(Succeed())
	return pods.Items
}

// kubectl weft check --probe creates its pods in a namespace that a real API server admits them to, reads their logs
// through the kubelets, and deletes everything, with the documented rights alone. A namespace that enforces the
// restricted Pod Security Standard refuses them.
func TestCheckProbesThroughTheAPIServer(t *testing.T) {
	c := newCluster(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/weft-check", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, `{"modules":["dm_mod","nvme_tcp","nvmet","nvmet_tcp"]}`)
	})
	kubelet := httptest.NewTLSServer(mux)
	defer kubelet.Close()
	c.kubeNode("probed-1", "probed")
	node := kubeNode("probed-1")
	c.Expect(admin.Get(c.ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
	node.Status.Addresses[0].Address = "127.0.0.1"
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(portOf(kubelet))
	c.Expect(admin.Status().Update(c.ctx, node)).To(Succeed())

	prober, err := server.Environment.AddUser(envtest.User{Name: "prober"}, &rest.Config{QPS: -1})
	c.Expect(err).NotTo(HaveOccurred())
	core := func(verb string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: resources, Verbs: []string{verb}}
	}
	c.granted("prober", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "prober"},
		core("list", "nodes", "pods", "events"), core("get", "namespaces", "pods/log"), core("create", "namespaces", "serviceaccounts", "pods"), core("delete", "namespaces"), core("deletecollection", "pods"))

	done := make(chan struct{})
	var out string
	go func() {
		defer close(done)
		out, _ = c.kubectlWeftAs(prober.Config(), io.Discard, nil, "check", "probed-1", "--probe", "-o", "json")
	}()
	c.Eventually(c.probes).WithTimeout(time.Minute).Should(HaveLen(1))
	pod := c.probes()[0]
	c.Expect(pod.Spec.NodeName).To(Equal("probed-1"))
	pod.Status.Phase = corev1.PodSucceeded
	c.Expect(admin.Status().Update(c.ctx, &pod)).To(Succeed())
	c.Eventually(done).WithTimeout(time.Minute).Should(BeClosed())
	var got cli.CheckReport
	c.Expect(json.Unmarshal([]byte(out), &got)).To(Succeed(), out)
	c.Expect(got.Findings).To(ContainElement(HaveField("Message", ContainSubstring("no raid1"))))
	c.Expect(got.NotLookedAt).NotTo(ContainElement(HavePrefix("probed-1: ")))
	c.Expect(c.probes()).To(BeEmpty())
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}}
	if err := admin.Get(c.ctx, client.ObjectKeyFromObject(space), space); !apierrors.IsNotFound(err) {
		c.Expect(err).NotTo(HaveOccurred())
		c.Expect(space.DeletionTimestamp).NotTo(BeNil())
	}

	// It stays: nothing here ends namespaces.
	c.Expect(admin.Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}})).To(Succeed())
	out, _ = c.kubectlWeftAs(prober.Config(), io.Discard, nil, "check", "probed-1", "--probe", "--probe-namespace", "restricted")
	c.Expect(out).To(ContainSubstring(`namespace restricted does not admit its pod: violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)`))
	c.Expect(out).To(ContainSubstring("set --probe-namespace to one with the label pod-security.kubernetes.io/enforce=privileged"))
}
