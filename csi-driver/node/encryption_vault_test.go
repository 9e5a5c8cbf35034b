// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/weft-storage/weft/internal/header"
)

const vaultToken = "the vault's planted key token"

// transit is what stands in for a transit engine of Vault: it encrypts with a key that never leaves it, and answers
// what Vault 1.17 does (its API documentation, "Transit secrets engine").
type transit struct {
	*httptest.Server
	aead cipher.AEAD

	mu sync.Mutex
	// status to answer instead of doing anything; 0 for none.
	status int
	// refusal in the answer with that status.
	refusal string
	// given out in plain text, so far.
	given [][]byte
}

func newTransit(t testing.TB) *transit {
	t.Helper()
	key := make([]byte, 32)
	_, err := rand.Read(key)
	must(t, err)
	block, err := aes.NewCipher(key)
	must(t, err)
	aead, err := cipher.NewGCM(block)
	must(t, err)
	v := &transit{aead: aead}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/keys/transit/datakey/plaintext/volumes", v.serve(func(body map[string]any) (any, string) {
		if body["bits"] != 512.0 {
			return nil, "invalid bit length"
		}
		plain, nonce := make([]byte, 64), make([]byte, aead.NonceSize())
		_, _ = rand.Read(plain)
		_, _ = rand.Read(nonce)
		v.given = append(v.given, plain)
		return map[string]any{"plaintext": plain, "key_version": 1, "ciphertext": "vault:v1:" + base64.StdEncoding.EncodeToString(aead.Seal(nonce, nonce, plain, nil))}, ""
	}))
	mux.HandleFunc("POST /v1/keys/transit/decrypt/volumes", v.serve(func(body map[string]any) (any, string) {
		text, _ := body["ciphertext"].(string)
		sealed, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "vault:v1:"))
		if err != nil || !strings.HasPrefix(text, "vault:v1:") || len(sealed) < aead.NonceSize() {
			return nil, "invalid ciphertext: no prefix"
		}
		plain, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], nil)
		if err != nil {
			return nil, "cipher: message authentication failed"
		}
		return map[string]any{"plaintext": plain}, ""
	}))
	v.Server = httptest.NewTLSServer(mux)
	t.Cleanup(v.Close)
	return v
}

func (v *transit) serve(do func(body map[string]any) (data any, refused string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v.mu.Lock()
		defer v.mu.Unlock()
		refuse := func(status int, errors ...string) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(map[string]any{"errors": errors})
		}
		var body map[string]any
		switch {
		case v.status != 0:
			refuse(v.status, cmp.Or(v.refusal, "Vault is sealed"))
		case r.Header.Get("X-Vault-Token") != vaultToken:
			refuse(http.StatusForbidden, "permission denied")
		case json.NewDecoder(r.Body).Decode(&body) != nil:
			refuse(http.StatusBadRequest, "error parsing JSON")
		default:
			data, refused := do(body)
			if refused != "" {
				refuse(http.StatusBadRequest, refused)
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
		}
	}
}

func (v *transit) answer(status int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.status = status
}

// secret that names it.
func (v *transit) secret() map[string]string {
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Certificate().Raw})
	return map[string]string{"vaultAddress": v.URL + "/", "vaultToken": vaultToken, "vaultKey": "volumes", "vaultMount": "keys/transit", "vaultCACert": string(certificate)}
}

// Each volume has a key of its own, which only the transit engine can read.
func TestEncryptedVolumeWithAKeyOfVault(t *testing.T) {
	v, s := newTransit(t), setUpEncrypted(t)
	s.secrets = v.secret()
	must(t, s.stage(mountCapability("ext4")))
	s.wantHeader(header.Formatted, "ext4")
	must(t, s.unstage())
	s.wantNoArgument(string(v.given[0]), base64.StdEncoding.EncodeToString(v.given[0]))
	if len(v.given) != 1 || !s.opens(string(v.given[0])) {
		t.Errorf("the volume does not have the only key that was made: %d were", len(v.given))
	}
	data, err := os.ReadFile(s.kernel.Backing(nguid))
	must(t, err)
	for _, text := range [][]byte{v.given[0], []byte(base64.StdEncoding.EncodeToString(v.given[0])), []byte(vaultToken)} {
		if bytes.Contains(data, text) {
			t.Error("the volume has its key, or the token, in plain text")
		}
	}
	s.attach()
	s.context.Blank = false
	must(t, s.stage(mountCapability("ext4")))
	s.encryptedDevice()
	must(t, s.unstage())

	for name, c := range map[string]struct {
		change func()
		code   codes.Code
		words  string
	}{
		"it is sealed":            {func() { v.answer(http.StatusServiceUnavailable) }, codes.Unavailable, "Vault is sealed"},
		"the token is over":       {func() { s.secrets["vaultToken"] = "expired" }, codes.InvalidArgument, "permission denied"},
		"another key":             {func() { s.secrets["vaultKey"] = "others" }, codes.InvalidArgument, "404"},
		"a stranger's":            {func() { delete(s.secrets, "vaultCACert") }, codes.Unavailable, "does not answer"},
		"not encrypted":           {func() { s.secrets["vaultAddress"] = "http://vault.example" }, codes.InvalidArgument, "must begin with https://"},
		"a port of the node":      {func() { s.secrets["vaultAddress"] = "http://127.0.0.1:10255" }, codes.InvalidArgument, "must begin with https://"},
		"an address with a query": {func() { s.secrets["vaultAddress"] += "?list=true" }, codes.InvalidArgument, "more than an address"},
		"another path":            {func() { s.secrets["vaultMount"] = "keys/../../sys" }, codes.InvalidArgument, "vaultMount of the Secret has other characters"},
		"another path, escaped":   {func() { s.secrets["vaultMount"] = "keys/%2e%2e/sys" }, codes.InvalidArgument, "vaultMount of the Secret has other characters"},
		"another path as key":     {func() { s.secrets["vaultKey"] = "../../../sys/seal" }, codes.InvalidArgument, "vaultKey of the Secret has other characters"},
		"a path as key":           {func() { s.secrets["vaultKey"] = "a/b" }, codes.InvalidArgument, "vaultKey of the Secret has other characters"},
		"no address":              {func() { s.secrets["vaultAddress"] = "vault" }, codes.InvalidArgument, "is not an address"},
		"a passphrase":            {func() { s.secrets = map[string]string{"passphrase": firstKey} }, codes.FailedPrecondition, "key management service"},
		"another engine's":        {func() { s.secrets = newTransit(t).secret() }, codes.InvalidArgument, "authentication failed"},
		"away":                    {func() { s.secrets["vaultAddress"] = "https://127.0.0.1:1" }, codes.Unavailable, "does not answer"},
		"no certificate":          {func() { s.secrets["vaultCACert"] = "none" }, codes.InvalidArgument, "no certificate"},
		"an address and more":     {func() { s.secrets["vaultAddress"] = "https://a:b@vault.example" }, codes.InvalidArgument, "is not an address"},
	} {
		t.Run(name, func(t *testing.T) {
			s.secrets = v.secret()
			c.change()
			s.unchanged(func() {
				err := s.stage(mountCapability("ext4"))
				want(t, err, c.code, c.words)
				if err != nil && strings.Contains(err.Error(), vaultToken) {
					t.Errorf("the error has the token: %v", err)
				}
			})
			v.answer(0)
			must(t, s.unstage())
		})
	}
	s.secrets = v.secret()
	must(t, s.stage(mountCapability("ext4")))
}

// Who chooses the address reads the error: it has little of what answers there, and no line of its own.
func TestAnswersOfVaultAreQuotedInPart(t *testing.T) {
	v, s := newTransit(t), setUpEncrypted(t)
	v.refusal = "line\nline" + strings.Repeat("x", 1000) + "end"
	v.status = http.StatusForbidden
	s.secrets = v.secret()
	err := s.stage(mountCapability("ext4"))
	want(t, err, codes.InvalidArgument, `answered 403: "line\nlinexxx`)
	if text := err.Error(); strings.Contains(text, "end") || strings.Contains(text, strings.Repeat("x", 200)) || strings.Contains(text, "\n") {
		t.Errorf("got %s", text)
	}
}

// A volume that was cut off before its key was kept was never used, and gets another one. One that has a passphrase
// keeps it.
func TestEncryptedVolumeThatVaultHasNoKeyOf(t *testing.T) {
	v, s := newTransit(t), setUpEncrypted(t)
	s.secrets = v.secret()
	s.cutPrograms("import", false)
	want(t, s.stage(mountCapability("ext4")), codes.Internal, "cryptsetup")
	s.wantHeader(header.Formatting, "ext4")
	s.programs.instead = nil
	must(t, s.stage(mountCapability("ext4")))
	if len(v.given) != 2 || !s.opens(string(v.given[1])) {
		t.Errorf("%d keys were made", len(v.given))
	}

	s = setUpEncrypted(t)
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.unstage())
	s.secrets = v.secret()
	s.wantRefused(mountCapability("ext4"), "no key of a transit engine")
	if out, err := exec.CommandContext(t.Context(), "cryptsetup", "isLuks", s.kernel.Backing(nguid)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
