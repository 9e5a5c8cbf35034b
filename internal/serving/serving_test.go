// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"
)

// TestMetricsAreServedWithAnOwnCertificate, which a client that knows it accepts. No RSA key is made for it: on a busy
// node, that takes longer than the rest of a start.
func TestMetricsAreServedWithAnOwnCertificate(t *testing.T) {
	options, err := Metrics("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, set := range options.TLSOpts {
		set(config)
	}
	if config.GetCertificate == nil {
		t.Fatal("the server of metrics makes a certificate")
	}
	own, err := config.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	if _, is := own.PrivateKey.(*ecdsa.PrivateKey); !is {
		t.Errorf("the key is a %T", own.PrivateKey)
	}
	roots := x509.NewCertPool()
	roots.AddCert(own.Leaf)
	ours, theirs := net.Pipe()
	ended := make(chan error)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { ended <- tls.Server(ours, config).HandshakeContext(ctx) }()
	if err := tls.Client(theirs, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}).HandshakeContext(ctx); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestMetricsHaveTheirOwnersCertificate: what is in the directory is read by the server of metrics, and again when it
// changes.
func TestMetricsHaveTheirOwnersCertificate(t *testing.T) {
	options, err := Metrics(":8443", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if options.CertDir == "" || len(options.TLSOpts) != 0 {
		t.Errorf("%+v", options)
	}
}
