// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// Another process of the host can have the port: volumes go on without metrics. What is no address is an error at once.
func TestMetricsWhoseAddressIsTaken(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var said string
	ctx = klog.NewContext(ctx, funcr.New(func(_, args string) {
		said += args
		cancel() // it would be tried again
	}, funcr.Options{}))
	if err := ServeMetrics(ctx, &rest.Config{Host: "127.0.0.1:1"}, taken.Addr().String(), ""); err != nil {
		t.Errorf("it ends with %v", err)
	}
	if !strings.Contains(said, "address already in use") {
		t.Errorf("it says %q", said)
	}
	if err := ServeMetrics(t.Context(), &rest.Config{Host: "127.0.0.1:1"}, "127.0.0.1", ""); err == nil {
		t.Error("an address without a port is taken")
	}
}

// TestMetricsHaveTheCertificateOfTheirDirectory, which scrapers check, also when it is renewed.
func TestMetricsHaveTheCertificateOfTheirDirectory(t *testing.T) {
	const name = "weft-csi-node-metrics.weft-system.svc"
	dir := t.TempDir()
	renew := func() *tls.Config {
		t.Helper()
		crt, key, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string][]byte{"tls.crt": crt, "tls.key": key} {
			if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(crt)
		return &tls.Config{RootCAs: roots, ServerName: name}
	}
	free, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	trusted := func(config *tls.Config) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
			if err != nil {
				return false, nil //nolint:nilerr // it does not listen yet, or has the former certificate
			}
			return true, conn.Close()
		})
		if err != nil {
			t.Fatalf("nobody serves %s with the certificate of the directory: %v", address, err)
		}
	}
	first := renew()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- ServeMetrics(ctx, &rest.Config{Host: "127.0.0.1:1"}, address, dir) }()
	trusted(first)
	trusted(renew())
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
