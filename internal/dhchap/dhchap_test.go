// SPDX-License-Identifier: Apache-2.0

package dhchap

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// sample has the bytes 0 to 31, and the CRC-32 that zlib gives for them (0x91267e8a).
var sample = "DHHC-1:01:" + base64.StdEncoding.EncodeToString(append(counting(32), 0x8a, 0x7e, 0x26, 0x91)) + ":"

func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestKeyIsWhatWasParsed(t *testing.T) {
	k, err := ParseKey(sample)
	if err != nil || k.Text() != sample {
		t.Fatalf("%v, %v", k, err)
	}
	if made := keyOf(HashSHA256, counting(32)); made != k {
		t.Error("the same secret makes another key")
	}
}

func TestNewKey(t *testing.T) {
	seen := map[Key]bool{}
	for hash, length := range map[Hash]int{HashNone: 32, HashSHA256: 32, HashSHA384: 48, HashSHA512: 64} {
		for range 3 {
			k, err := NewKey(hash)
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseKey(k.Text())
			if err != nil || again != k || seen[k] {
				t.Errorf("hash %d: %v, known already: %t", hash, err, seen[k])
			}
			seen[k] = true
			want := fmt.Sprintf("DHHC-1:%02d:", hash)
			if got := base64.StdEncoding.DecodedLen(len(k.Text()) - len(want) - 1); !strings.HasPrefix(k.Text(), want) || got < length+4 {
				t.Errorf("hash %d: the key has another form", hash)
			}
		}
	}
	if _, err := NewKey(4); !errors.Is(err, ErrInvalid) {
		t.Errorf("hash 4: %v", err)
	}
}

func TestParseKeyRefuses(t *testing.T) {
	secret := strings.TrimSuffix(strings.TrimPrefix(sample, "DHHC-1:01:"), ":")
	flipped := append(counting(32), 0x8a, 0x7e, 0x26, 0x90)
	for name, text := range map[string]string{
		"nothing":             "",
		"another prefix":      strings.Replace(sample, "DHHC-1", "DHHC-2", 1),
		"no hash":             "DHHC-1:" + secret + ":",
		"an unknown hash":     strings.Replace(sample, ":01:", ":04:", 1),
		"a short hash":        strings.Replace(sample, ":01:", ":1:", 1),
		"no colon at the end": strings.TrimSuffix(sample, ":"),
		"no base64":           "DHHC-1:01:" + strings.Replace(secret, "A", "!", 1) + ":",
		"a line break":        "DHHC-1:01:" + secret[:8] + "\n" + secret[8:] + ":",
		"a wrong checksum":    "DHHC-1:01:" + base64.StdEncoding.EncodeToString(flipped) + ":",
		"too long a hash":     strings.Replace(sample, ":01:", ":03:", 1),
		"only a checksum":     "DHHC-1:00:AAAAAA==:",
		"less":                "DHHC-1:00:AAA=:",
		"space around it":     " " + sample,
		"another length":      keyOf(HashNone, counting(33)).Text(),
	} {
		_, err := ParseKey(text)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), secret[4:20]) {
			t.Errorf("%s: the error has the key in it: %v", name, err)
		}
	}
}

// Whatever prints a key, or a struct that has one, does not show it.
func TestKeysAreNotPrinted(t *testing.T) {
	p, err := NewPair()
	if err != nil {
		t.Fatal(err)
	}
	holder := struct {
		Name string
		Pair Pair
		Ptr  *Pair
		Map  map[string]Pair
	}{"x", p, &p, map[string]Pair{"a": p}}
	encoded, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	printed := string(encoded)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
		printed += fmt.Sprintf(verb, p.Host) + fmt.Sprintf(verb, p) + fmt.Sprintf(verb, &p) + fmt.Sprintf(verb, holder)
	}
	printed += fmt.Errorf("wrapped: %v", p).Error()
	secret := strings.TrimPrefix(p.Host.Text(), "DHHC-1:01:")[:12]
	for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), "DHHC"} {
		if strings.Contains(printed, form) {
			t.Errorf("%q is in %s", form, printed)
		}
	}
	if !strings.Contains(printed, hidden) {
		t.Error("nothing says that there is a key")
	}
}

func TestPair(t *testing.T) {
	p, err := NewPair()
	if err != nil || p.Validate() != nil || p.IsZero() {
		t.Fatalf("%v, %v", err, p.Validate())
	}
	other, err := NewPair()
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]Pair{"none": {}, "no host's": {Controller: p.Controller}, "no controller's": {Host: p.Host}, "one for both": {p.Host, p.Host}} {
		if err := bad.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	prints := map[string]bool{}
	for _, q := range []Pair{p, other, {p.Controller, p.Host}, {p.Host, other.Controller}, {other.Host, p.Controller}} {
		prints[q.Fingerprint()] = true
	}
	if len(prints) != 5 || p.Fingerprint() != (Pair{p.Host, p.Controller}).Fingerprint() || (Pair{}).Fingerprint() != "" {
		t.Errorf("fingerprints: %v", prints)
	}
}

func newIdentity(t *testing.T) *Identity {
	t.Helper()
	i, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func newPair(t *testing.T) Pair {
	t.Helper()
	p, err := NewPair()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSealedPairsOpenWhereTheyWereSealedTo(t *testing.T) {
	agent, plugin, stranger := newIdentity(t), newIdentity(t), newIdentity(t)
	p := newPair(t)
	sealed, err := p.Seal(agent.PublicKey(), plugin.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []*Identity{agent, plugin} {
		if got, err := i.Open(sealed); err != nil || got != p {
			t.Errorf("open: %v", err)
		}
	}
	if _, err := stranger.Open(sealed); !errors.Is(err, ErrCannotOpen) {
		t.Errorf("a stranger: %v", err)
	}
	again, err := p.Seal(agent.PublicKey())
	if err != nil || again == sealed {
		t.Errorf("sealed again: %v, the same: %t", err, again == sealed)
	}
	if _, err := plugin.Open(again); !errors.Is(err, ErrCannotOpen) {
		t.Errorf("not sealed to it: %v", err)
	}
	plain, _ := base64.StdEncoding.DecodeString(sealed)
	if bytes.Contains(plain, []byte(p.Host.Text()[10:30])) || strings.Contains(sealed, p.Host.Text()[10:30]) {
		t.Error("the key can be read in what is sealed")
	}
	if len(sealed) > maxSealedBytes/2 {
		t.Errorf("%d bytes", len(sealed))
	}
}

func TestSealRefuses(t *testing.T) {
	i := newIdentity(t)
	if _, err := (Pair{}).Seal(i.PublicKey()); !errors.Is(err, ErrInvalid) {
		t.Errorf("no keys: %v", err)
	}
	for name, to := range map[string][]string{"nobody": nil, "no key": {"age1x"}, "one bad": {i.PublicKey(), strings.ToUpper(i.PublicKey()) + "x"}} {
		if _, err := newPair(t).Seal(to...); err == nil {
			t.Errorf("%s: sealed", name)
		}
	}
	if CheckPublicKey(i.PublicKey()) != nil || CheckPublicKey("age1") == nil || CheckPublicKey("") == nil || CheckPublicKey(i.private.String()) == nil {
		t.Error("CheckPublicKey is wrong")
	}
}

func TestOpenRefusesWhatIsDamaged(t *testing.T) {
	i := newIdentity(t)
	sealed, err := newPair(t).Seal(i.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := base64.StdEncoding.DecodeString(sealed)
	for at := range raw {
		changed := bytes.Clone(raw)
		changed[at] ^= 1
		if _, err := i.Open(base64.StdEncoding.EncodeToString(changed)); !errors.Is(err, ErrCannotOpen) {
			t.Fatalf("byte %d: %v", at, err)
		}
	}
	for _, text := range []string{"", "!", sealed[:len(sealed)-8], sealed + "AAAA"} {
		if _, err := i.Open(text); !errors.Is(err, ErrCannotOpen) {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
}

func TestSealedTo(t *testing.T) {
	a, b, c := newIdentity(t).PublicKey(), newIdentity(t).PublicKey(), newIdentity(t).PublicKey()
	if SealedTo(a, b) != SealedTo(b, a) || SealedTo(a, a) != SealedTo(a) || SealedTo(a, b) == SealedTo(a, c) || SealedTo(a, b) == SealedTo(a) {
		t.Error("public keys are not told apart")
	}
}

func TestIdentityIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "identity")
	first, err := LoadIdentity(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := LoadIdentity(path)
	if err != nil || again.PublicKey() != first.PublicKey() {
		t.Fatalf("another key: %v", err)
	}
	if info, err = os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may still read it: %v, %v", info.Mode(), err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestIdentityThatIsMadeTwiceAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	keys := make([]string, 8)
	var all sync.WaitGroup
	for n := range keys {
		all.Go(func() {
			i, err := LoadIdentity(path)
			if err != nil {
				t.Error(err)
				return
			}
			keys[n] = i.PublicKey()
		})
	}
	all.Wait()
	for _, k := range keys {
		if k != keys[0] {
			t.Errorf("two identities: %s and %s", k, keys[0])
		}
	}
}

func TestDamagedIdentityIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	for _, content := range []string{"", "AGE-SECRET-KEY-1PLANTED"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadIdentity(path)
		if err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "PLANTED") {
			t.Errorf("%v", err)
		}
		if now, _ := os.ReadFile(path); string(now) != content {
			t.Error("it was replaced")
		}
	}
	if _, err := LoadIdentity(filepath.Join(path, "in-a-file")); err == nil {
		t.Error("made in a file")
	}
}
