// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Keys of the Secret.
const (
	AuthoritiesKey  = "ca.crt"
	AuthorityKeyKey = "ca.key"
	CertificateKey  = "tls.crt"
	PrivateKeyKey   = "tls.key"
)

const (
	day = 24 * time.Hour
	// authorityLife and authorityRenewal: a new authority comes when the newest has less than so much left.
	authorityLife, authorityRenewal = 365 * day, 180 * day
	// certificateLife and certificateRenewal are those of the served certificate.
	certificateLife, certificateRenewal = 90 * day, 30 * day
	// settling is how long an authority is trusted before it signs.
	settling = day
	// skew is how far clocks may differ: certificates are valid from so much before they are made.
	skew = time.Hour
	// mostWait bounds the time until the next look.
	mostWait = day
)

// A Decision is what to do with the Secret's content.
type Decision struct {
	// Data that the Secret shall have.
	Data map[string][]byte
	// Why it differs from what it has; empty when it does not.
	Why string
	// Authorities to trust, as PEM.
	Authorities []byte
	// Certificate to serve with.
	Certificate *tls.Certificate
	// Next is when to look again.
	Next time.Time
}

// Decide looks at the content of the webhook's Secret and says what it has to be: with a certificate for all the DNS
// names, renewed in time, and with the authority that the API server is to trust. It is a pure function but for the
// randomness of keys.
//
// The certificate lives in one Secret, which all replicas read and any of them writes:
//
//	ca.crt   authorities that the API server shall trust, the newest first
//	ca.key   key of the newest
//	tls.crt  certificate that replicas serve with
//	tls.key  its key
//
// These invariants let no request fail while one takes the other's place:
//
//   - A new authority is trusted for a day before anything is signed by it, so the API server
//     knows it by then, however slow its watch.
//   - An old authority is trusted until it expires, so a replica that has not taken up the new certificate yet is
//     trusted too.
//   - A certificate is replaced long before it expires, and never outlives its authority.
//
// Only when there is nothing usable left (the first start, a Secret that was damaged, a cluster that
// slept for months) everything is made again at once.
//
// The well-known github.com/open-policy-agent/cert-controller was looked at: it watches
// every Secret of the namespace, and replaces authority and certificate in one step.
func Decide(data map[string][]byte, names []string, now time.Time) (Decision, error) {
	m, why := parse(data, names, now)
	var err error
	switch {
	case m.newest() == nil:
		if err = m.addAuthority(now); err == nil {
			err = m.issue(names, now)
		}
	case m.leaf == nil:
		err = m.issue(names, now)
	case left(m.newest(), now) < authorityRenewal:
		why, err = "the authority expires in some months: another one is added", m.addAuthority(now)
	case made(m.newest()).Add(settling).After(now):
	case m.leaf.CheckSignatureFrom(m.newest()) != nil:
		why, err = "the new authority is known by now, and signs", m.issue(names, now)
	case left(m.leaf, now) < certificateRenewal:
		why, err = "the certificate expires soon", m.issue(names, now)
	}
	if err != nil {
		return Decision{}, err
	}
	return m.decision(why, now)
}

// material is the content of the Secret.
type material struct {
	authorities []*x509.Certificate // the newest first, none of them expired
	key         crypto.Signer       // of the newest; nil when there is none
	leaf        *x509.Certificate
	leafKey     crypto.Signer
}

// newest authority that can sign.
func (m *material) newest() *x509.Certificate {
	if m.key == nil || len(m.authorities) == 0 {
		return nil
	}
	return m.authorities[0]
}

// parse takes what is usable, and says what is not.
func parse(data map[string][]byte, names []string, now time.Time) (m material, why string) {
	all, broken := certificates(data[AuthoritiesKey])
	key, keyErr := privateKey(data[AuthorityKeyKey])
	signs := keyErr == nil && len(all) > 0 && valid(all[0], now) && belongs(key, all[0])
	m.authorities = slices.DeleteFunc(all, func(c *x509.Certificate) bool { return !valid(c, now) || !c.IsCA })
	switch {
	case len(data) == 0:
		return m, "it does not exist yet"
	case !signs:
		return m, "there is no usable authority"
	}
	m.key = key
	why = m.parseLeaf(data, names, now)
	if why == "" && (broken || len(m.authorities) < len(all)) {
		why = "an authority that expired is dropped"
	}
	return m, why
}

func (m *material) parseLeaf(data map[string][]byte, names []string, now time.Time) (why string) {
	chain, _ := certificates(data[CertificateKey])
	key, err := privateKey(data[PrivateKeyKey])
	if len(chain) == 0 || err != nil || !belongs(key, chain[0]) {
		return "the certificate and its key do not fit"
	}
	leaf := chain[0]
	switch {
	case !valid(leaf, now):
		return "the certificate is not valid at this time"
	case !slices.ContainsFunc(m.authorities, func(a *x509.Certificate) bool { return leaf.CheckSignatureFrom(a) == nil }):
		return "no authority signed the certificate"
	case slices.ContainsFunc(names, func(n string) bool { return leaf.VerifyHostname(n) != nil }):
		return "the certificate is for another name"
	}
	m.leaf, m.leafKey = leaf, key
	return ""
}

func (m *material) decision(why string, now time.Time) (Decision, error) {
	d := Decision{Why: why, Data: map[string][]byte{}, Next: now.Add(mostWait)}
	for _, a := range m.authorities {
		d.Authorities = append(d.Authorities, encode("CERTIFICATE", a.Raw)...)
	}
	for name, key := range map[string]crypto.Signer{AuthorityKeyKey: m.key, PrivateKeyKey: m.leafKey} {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return Decision{}, fmt.Errorf("encode a key: %w", err)
		}
		d.Data[name] = encode("PRIVATE KEY", der)
	}
	d.Data[AuthoritiesKey], d.Data[CertificateKey] = d.Authorities, encode("CERTIFICATE", m.leaf.Raw)
	d.Certificate = &tls.Certificate{Certificate: [][]byte{m.leaf.Raw}, PrivateKey: m.leafKey, Leaf: m.leaf}
	due := []time.Time{m.newest().NotAfter.Add(-authorityRenewal), m.leaf.NotAfter.Add(-certificateRenewal), made(m.newest()).Add(settling)}
	for _, t := range due {
		if t.After(now) && t.Before(d.Next) {
			d.Next = t
		}
	}
	return d, nil
}

// addAuthority puts a new one first. The key of the one before is not needed any more: what it signed lasts until the
// new one has settled.
func (m *material) addAuthority(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the authority's key: %w", err)
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "weft webhook authority " + now.UTC().Format(time.RFC3339)},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	authority, err := sign(template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("make the authority: %w", err)
	}
	m.authorities, m.key = slices.Insert(m.authorities, 0, authority), key
	return nil
}

// issue makes a certificate, signed by the newest authority.
func (m *material) issue(names []string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the certificate's key: %w", err)
	}
	end := now.Add(certificateLife)
	if authority := m.newest().NotAfter; authority.Before(end) {
		end = authority
	}
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: names[0]},
		DNSNames: names, NotBefore: now.Add(-skew), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	if m.leaf, err = sign(template, m.newest(), key.Public(), m.key); err != nil {
		return fmt.Errorf("make the certificate: %w", err)
	}
	m.leafKey = key
	// A name that no certificate can be for would have one made after the other, without end.
	for _, n := range names {
		if err := m.leaf.VerifyHostname(n); err != nil {
			return fmt.Errorf("make the certificate: %w; give DNS names", err)
		}
	}
	return nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func valid(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Before(c.NotAfter)
}

func left(c *x509.Certificate, now time.Time) time.Duration { return c.NotAfter.Sub(now) }

// made is when this package made it.
func made(c *x509.Certificate) time.Time { return c.NotBefore.Add(skew) }

func belongs(key crypto.Signer, c *x509.Certificate) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(c.PublicKey)
}

// certificates of a PEM text; broken says that something in it is none.
func certificates(text []byte) (all []*x509.Certificate, broken bool) {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return all, broken || len(bytes.TrimSpace(rest)) > 0
		}
		text = rest
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			broken = true
			continue
		}
		all = append(all, c)
	}
}

func privateKey(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("not a key") // the error of the library is left out: it could tell of the key
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("not a key that signs")
	}
	return signer, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
