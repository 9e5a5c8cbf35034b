// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/weft-storage/weft/test/apiserver"
)

// bundle is a report of the cluster that a user made, by the names of its files.
func (c *cluster) bundle(user *rest.Config, args ...string) map[string]string {
	c.t.Helper()
	out, code := c.kubectlWeftAs(user, os.Stderr, nil, append([]string{"report", "-o", "-"}, args...)...)
	c.Expect(code).To(BeZero())
	zipped, err := gzip.NewReader(strings.NewReader(out))
	c.Expect(err).NotTo(HaveOccurred())
	files := map[string]string{}
	for in := tar.NewReader(zipped); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		c.Expect(err).NotTo(HaveOccurred())
		text, err := io.ReadAll(in)
		c.Expect(err).NotTo(HaveOccurred())
		files[path.Join(strings.Split(h.Name, "/")[1:]...)] = string(text)
	}
}

// kubectl weft report reads metrics and logs of kernels through the API server and the kubelets.
func TestReportThroughTheAPIServer(t *testing.T) {
	c := newCluster(t)
	c.metricsReader()
	c.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "weft-values"}, Data: map[string]string{"values.yaml": "logLevel: debug\n"}})
	forwards, mux := &apiserver.PortForward{}, http.NewServeMux()
	mux.Handle("POST /portForward/"+namespace+"/{pod}", forwards)
	mux.HandleFunc("POST /exec/"+namespace+"/{pod}/weft-agent", func(w http.ResponseWriter, r *http.Request) {
		(&apiserver.Exec{Run: func(command []string, stdout, stderr io.Writer) int {
			if r.PathValue("pod") == "weft-agent-reported-2" {
				_, _ = fmt.Fprintln(stderr, "Operation not permitted")
				return 1
			}
			_, _ = fmt.Fprintf(stdout, "nvme nvme0: asked by %s\nusb 1-1: new device\n", strings.Join(command, " "))
			return 0
		}}).ServeHTTP(w, r)
	})
	kubelet := httptest.NewTLSServer(mux)
	defer kubelet.Close()
	agent := httptest.NewServer(metered())
	defer agent.Close()
	startOperator(t, nil)
	c.target("reported", "reported")
	for _, name := range []string{"reported-1", "reported-2"} {
		c.measured(name, "reported", portOf(kubelet), fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", portOf(agent)))
	}

	// Over a WebSocket, the viewer may not run commands, since that takes the verb get.
	viewer := c.viewer()
	c.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reporter"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"weft-values"}, Verbs: []string{"get"}},
	}})
	c.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reporter"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reporter"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}}})
	var files map[string]string
	for name, user := range map[string]*rest.Config{"the admin": adminConfig, "who has the documented rights": viewer} {
		files = c.bundle(user)
		c.Expect(files["kernel/reported-1.log"]).To(And(ContainSubstring("nvme nvme0: asked by dmesg --decode --time-format iso\n"), Not(ContainSubstring("usb"))), "%s: %s", name, files["errors.txt"])
		c.Expect(files["metrics/weft-agent-reported-1.txt"]).To(ContainSubstring("\nweft_agent_"), name)
		c.Expect(files["values.yaml"]).To(Equal("logLevel: debug\n"), name)
		c.Expect(files["check.txt"]).To(ContainSubstring("reported-1"), name)
	}
	c.Expect(files["errors.txt"]).To(MatchRegexp(`kernel/reported-2.log: run dmesg in pod weft-agent-reported-2: command terminated with exit code 1: Operation not permitted\n`))

	names := func(files map[string]string) []string {
		var all []string
		for name := range files {
			all = append(all, path.Dir(name))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	c.Expect(names(c.bundle(adminConfig, "--kernel-logs=false"))).To(And(ContainElement("metrics"), Not(ContainElement("kernel"))))
	forwards.Wait()
}
