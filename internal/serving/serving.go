// SPDX-License-Identifier: Apache-2.0

// Package serving has the TLS servers of weft's components in common.
package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// skew of clocks that a client may have.
	skew = time.Hour
	// life of a certificate.
	life = 10 * 365 * 24 * time.Hour
)

// SelfSigned makes a certificate of a server for a name and addresses, with a new key on the curve P-256. That takes a
// thousandth of the time of RSA keys, of which the libraries that serve metrics make two (0.03 and 97 ms on one core).
// It lasts longer than a process.
func SelfSigned(name string, addresses ...net.IP) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: addresses,
		NotBefore: now.Add(-skew), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate for %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate for %s: %w", name, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// Metrics are the options of a server of metrics over HTTPS, to whom the API server authenticates and allows to get
// /metrics. The certificate is tls.crt and tls.key of certDir, and self-signed for localhost if no certDir is given, or
// files are missing there. Address "0" serves nothing.
func Metrics(address, certDir string) (metricsserver.Options, error) {
	options := metricsserver.Options{
		BindAddress: address, SecureServing: true, CertDir: certDir, FilterProvider: filters.WithAuthenticationAndAuthorization,
	}
	if certDir != "" {
		return options, nil
	}
	own, err := SelfSigned("localhost", net.IPv4(127, 0, 0, 1))
	if err != nil {
		return metricsserver.Options{}, fmt.Errorf("serve metrics: %w", err)
	}
	options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) {
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &own, nil }
	})
	return options, nil
}
