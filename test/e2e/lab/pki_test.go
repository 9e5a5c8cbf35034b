// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"
)

// testLab is a lab with two nodes that has been written down but not started.
func testLab(t *testing.T) *Lab {
	t.Helper()
	l, err := at(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l.state = state{Slot: 1, Nodes: []string{"node1", "node2"}, Cluster: true, RDMA: true, MemoryMiB: 1536}
	return l
}

func pool(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(data) {
		t.Fatalf("%s has no certificate", file)
	}
	return p
}

func leaf(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(file+".crt", file+".key")
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestClusterCertificates(t *testing.T) {
	l := testLab(t)
	if err := l.prepareCluster(); err != nil {
		t.Fatal(err)
	}
	ca, proxyCA := pool(t, l.path("pki", "ca.crt")), pool(t, l.path("pki", "front-proxy-ca.crt"))
	server, client := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, c := range []struct {
		file  string
		roots *x509.CertPool
		usage []x509.ExtKeyUsage
		host  string
	}{
		{l.path("pki", "apiserver"), ca, server, "kubernetes.default.svc"},
		{l.path("pki", "apiserver"), ca, server, apiServiceIP},
		{l.path("pki", "apiserver"), ca, server, l.apiServer().Addr().String()},
		{l.path("pki", "apiserver-kubelet"), ca, client, ""},
		{l.path("pki", "front-proxy"), proxyCA, client, ""},
		{l.nodeDir("node2", "config", "kubelet"), ca, server, l.state.addresses().node(1).Addr().String()},
	} {
		options := x509.VerifyOptions{Roots: c.roots, KeyUsages: c.usage, DNSName: c.host}
		if _, err := leaf(t, c.file).Verify(options); err != nil {
			t.Errorf("%s for %q: %v", filepath.Base(c.file), c.host, err)
		}
	}
	if _, err := leaf(t, l.path("pki", "front-proxy")).Verify(x509.VerifyOptions{Roots: ca, KeyUsages: client}); err == nil {
		t.Error("the API server's clients may pose as the front proxy")
	}
	for file, mode := range map[string]os.FileMode{"apiserver.key": 0o600, "ca.key": 0o600, "service-account.key": 0o600} {
		info, err := os.Stat(l.path("pki", file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %o", file, info.Mode().Perm())
		}
	}
	// What the API server is given has to be of a form that it reads.
	if keys, err := keyutil.PublicKeysFromFile(l.path("pki", "service-account.pub")); err != nil || len(keys) != 1 {
		t.Errorf("service account keys: %v, %v", keys, err)
	}
}

func TestKubeconfigsNameTheirOwner(t *testing.T) {
	l := testLab(t)
	if err := l.prepareCluster(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]struct{ name, group string }{
		l.Kubeconfig(): {"weft-lab-admin", "system:masters"},
		l.nodeDir("node1", "config", "kubelet.kubeconfig"):    {"system:node:node1", "system:nodes"},
		l.nodeDir("node1", "config", "kube-proxy.kubeconfig"): {"system:kube-proxy", ""},
		l.path("config", "kube-scheduler.kubeconfig"):         {"system:kube-scheduler", ""},
	} {
		config, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		if err != nil {
			t.Fatal(err)
		}
		subject := pair.Leaf.Subject
		if subject.CommonName != want.name || (want.group != "" && subject.Organization[0] != want.group) {
			t.Errorf("%s belongs to %s", filepath.Base(file), subject)
		}
		if time.Until(pair.Leaf.NotAfter) < 24*time.Hour {
			t.Errorf("%s ends %s", filepath.Base(file), pair.Leaf.NotAfter)
		}
	}
}
