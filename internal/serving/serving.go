// SPDX-License-Identifier: Apache-2.0

// Package serving has the TLS servers of weft's components in common.
package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"

	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// SelfSigned makes a certificate for a name, with a new key on the curve P-256. That takes a thousandth of the time of
// an RSA key, of which the libraries that serve metrics make two (0.03 and 97 ms on one core).
func SelfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a key: %w", err)
	}
	leaf, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate for %s: %w", name, err)
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// Metrics are the options of a server of metrics over HTTPS, to whom the API server authenticates and allows to get
// /metrics. The certificate is tls.crt and tls.key of certDir, and self-signed for localhost if that is empty. Address
// "0" serves nothing.
func Metrics(address, certDir string) (metricsserver.Options, error) {
	options := metricsserver.Options{
		BindAddress: address, SecureServing: true, CertDir: certDir, FilterProvider: filters.WithAuthenticationAndAuthorization,
	}
	if certDir != "" {
		return options, nil
	}
	own, err := SelfSigned("localhost")
	if err != nil {
		return metricsserver.Options{}, fmt.Errorf("serve metrics: %w", err)
	}
	options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) {
		c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &own, nil }
	})
	return options, nil
}
