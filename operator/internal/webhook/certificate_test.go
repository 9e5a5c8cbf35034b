// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-storage/weft/operator/internal/webhook"
)

const day = 24 * time.Hour

var (
	epoch = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	names = []string{"weft-operator-webhook.weft-system.svc"}
)

func decide(t *testing.T, data map[string][]byte, now time.Time) webhook.Decision {
	t.Helper()
	d, err := webhook.Decide(data, names, now)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// trusted: a client that trusts the authorities takes the certificate.
func trusted(c *tls.Certificate, authorities []byte, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authorities)
	_, err := c.Leaf.Verify(x509.VerifyOptions{
		DNSName: names[0], Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

func TestDecide(t *testing.T) {
	first := decide(t, nil, epoch)
	other := decide(t, nil, epoch)
	with := func(changes map[string][]byte) map[string][]byte {
		data := maps.Clone(first.Data)
		maps.Copy(data, changes)
		return data
	}
	elsewhere, err := webhook.Decide(nil, []string{"elsewhere.svc"}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	const authority, leaf, neither = "authority", "certificate", "nothing"
	for name, c := range map[string]struct {
		data map[string][]byte
		now  time.Time
		// new is what is replaced; why says so.
		new, why string
	}{
		"at once again":                   {first.Data, epoch, neither, ""},
		"two months later":                {first.Data, epoch.Add(59 * day), neither, ""},
		"near its end":                    {first.Data, epoch.Add(61 * day), leaf, "expires soon"},
		"after its end":                   {first.Data, epoch.Add(91 * day), leaf, "not valid at this time"},
		"made by a clock far ahead":       {first.Data, epoch.Add(-2 * day), authority, "no usable authority"},
		"nothing":                         {nil, epoch, authority, "does not exist yet"},
		"an empty Secret":                 {map[string][]byte{}, epoch, authority, "does not exist yet"},
		"after everything's end":          {first.Data, epoch.Add(400 * day), authority, "no usable authority"},
		"garbage as authority":            {with(map[string][]byte{webhook.AuthoritiesKey: []byte("garbage")}), epoch, authority, "no usable authority"},
		"garbage as the authority's key":  {with(map[string][]byte{webhook.AuthorityKeyKey: []byte("garbage")}), epoch, authority, "no usable authority"},
		"the key of another authority":    {with(map[string][]byte{webhook.AuthorityKeyKey: other.Data[webhook.AuthorityKeyKey]}), epoch, authority, "no usable authority"},
		"no certificate":                  {with(map[string][]byte{webhook.CertificateKey: nil}), epoch, leaf, "do not fit"},
		"garbage as certificate":          {with(map[string][]byte{webhook.CertificateKey: []byte("garbage")}), epoch, leaf, "do not fit"},
		"the key of another certificate":  {with(map[string][]byte{webhook.PrivateKeyKey: other.Data[webhook.PrivateKeyKey]}), epoch, leaf, "do not fit"},
		"a certificate of someone else's": {with(map[string][]byte{webhook.CertificateKey: other.Data[webhook.CertificateKey], webhook.PrivateKeyKey: other.Data[webhook.PrivateKeyKey]}), epoch, leaf, "no authority signed"},
		"a certificate for another name":  {elsewhere.Data, epoch, leaf, "for another name"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(t, c.data, c.now)
			newKey := !bytes.Equal(d.Data[webhook.AuthorityKeyKey], c.data[webhook.AuthorityKeyKey])
			newLeaf := !bytes.Equal(d.Data[webhook.CertificateKey], c.data[webhook.CertificateKey])
			got := map[[2]bool]string{{true, true}: authority, {false, true}: leaf, {false, false}: neither}[[2]bool{newKey, newLeaf}]
			if got != c.new || c.why == "" && d.Why != "" || !strings.Contains(d.Why, c.why) {
				t.Errorf("replaces %q because %q, want %s because %q", got, d.Why, c.new, c.why)
			}
			if err := trusted(d.Certificate, d.Authorities, c.now); err != nil {
				t.Error(err)
			}
			if !d.Next.After(c.now) || d.Next.After(c.now.Add(day)) {
				t.Errorf("looks again %s later, want at most a day", d.Next.Sub(c.now))
			}
			if again := decide(t, d.Data, c.now); !maps.EqualFunc(again.Data, d.Data, bytes.Equal) || again.Why != "" {
				t.Errorf("does not stay: %s", again.Why)
			}
		})
	}
}

func TestOnlyDNSNames(t *testing.T) {
	for _, name := range []string{"127.0.0.1", ""} {
		if d, err := webhook.Decide(nil, []string{name}, epoch); err == nil {
			t.Errorf("%q: made %s", name, d.Why)
		}
	}
}

// What a damaged Secret still trusts, other replicas may still serve with.
func TestAnAuthorityWithoutKeyIsTrustedOn(t *testing.T) {
	first := decide(t, nil, epoch)
	damaged := maps.Clone(first.Data)
	delete(damaged, webhook.AuthorityKeyKey)
	d := decide(t, damaged, epoch.Add(day))
	if err := trusted(first.Certificate, d.Authorities, epoch.Add(day)); err != nil {
		t.Error(err)
	}
}

// Six years of two replicas and an API server, each of which learns of changes late: no request ever meets a
// certificate that is not trusted.
func TestNoRequestFailsWhileAuthoritiesFollowEachOther(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	const mostLate = 12 * time.Hour
	secret := decide(t, nil, epoch)
	published, replicas := secret.Authorities, [2]*tls.Certificate{secret.Certificate, secret.Certificate}
	late := func(now time.Time) time.Time { return now.Add(time.Duration(random.Int64N(int64(mostLate)))) }
	type change struct {
		at    time.Time
		apply func()
	}
	var pending []change
	authorities, leaves := 0, 0
	next := secret.Next
	for now := epoch; now.Before(epoch.Add(6 * 365 * day)); now = now.Add(6 * time.Hour) {
		if !now.Before(next) {
			d := decide(t, secret.Data, now)
			if !bytes.Equal(d.Data[webhook.AuthorityKeyKey], secret.Data[webhook.AuthorityKeyKey]) {
				authorities++
			}
			if !bytes.Equal(d.Data[webhook.CertificateKey], secret.Data[webhook.CertificateKey]) {
				leaves++
			}
			secret, next = d, d.Next
			pending = append(pending, change{late(now), func() { published = d.Authorities }})
			for i := range replicas {
				pending = append(pending, change{late(now), func() { replicas[i] = d.Certificate }})
			}
		}
		pending = slices.DeleteFunc(pending, func(c change) bool {
			if c.at.After(now) {
				return false
			}
			c.apply()
			return true
		})
		for i, c := range replicas {
			if err := trusted(c, published, now); err != nil {
				t.Fatalf("day %d, replica %d: %v", now.Sub(epoch)/day, i, err)
			}
		}
	}
	if authorities < 10 || leaves < 30 {
		t.Errorf("there were %d new authorities and %d new certificates; the time was to have many", authorities, leaves)
	}
}

func TestSecretsStayOutOfErrors(t *testing.T) {
	first := decide(t, nil, epoch)
	half := first.Data[webhook.AuthorityKeyKey][:100]
	d := decide(t, map[string][]byte{webhook.AuthorityKeyKey: half, webhook.AuthoritiesKey: first.Authorities}, epoch)
	if strings.Contains(d.Why, string(half[40:60])) {
		t.Errorf("the reason tells of the key: %s", d.Why)
	}
}
