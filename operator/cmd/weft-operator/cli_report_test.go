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
	"path"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/test/apiserver"
)

// bundle is a report of the cluster, by the names of its files.
func (c *cluster) bundle(args ...string) map[string]string {
	c.t.Helper()
	out, code := c.kubectlWeft(nil, append([]string{"report", "-o", "-"}, args...)...)
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

	files := c.bundle()
	c.Expect(files["kernel/reported-1.log"]).To(And(ContainSubstring("nvme nvme0: asked by dmesg --decode --time-format iso\n"), Not(ContainSubstring("usb"))))
	c.Expect(files["metrics/weft-agent-reported-1.txt"]).To(ContainSubstring("\nweft_agent_"))
	c.Expect(files["values.yaml"]).To(Equal("logLevel: debug\n"))
	c.Expect(files["errors.txt"]).To(MatchRegexp(`kernel/reported-2.log: run dmesg in pod weft-agent-reported-2: command terminated with exit code 1: Operation not permitted\n`))

	names := func(files map[string]string) []string {
		var all []string
		for name := range files {
			all = append(all, path.Dir(name))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	c.Expect(names(c.bundle("--kernel-logs=false"))).To(And(ContainElement("metrics"), Not(ContainElement("kernel"))))
	forwards.Wait()
}
