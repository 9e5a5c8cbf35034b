// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/internal/text"
)

// Keys of a Secret that names a transit engine of Vault or OpenBao in place of a passphrase.
const (
	// secretVaultAddress such as https://vault.example.com:8200.
	secretVaultAddress = "vaultAddress"
	// secretVaultToken may use transit/datakey/plaintext/KEY (update) and transit/decrypt/KEY (update).
	secretVaultToken = "vaultToken"
	// secretVaultKey is the name of the key in the transit engine.
	secretVaultKey = "vaultKey"
	// secretVaultMount is the path of the transit engine. Default transit.
	secretVaultMount = "vaultMount"
	// secretVaultNamespace is optional.
	secretVaultNamespace = "vaultNamespace"
	// secretVaultCA has certificates in PEM of who signed the server's. Default: the system's.
	secretVaultCA = "vaultCACert"
)

const (
	defaultVaultMount = "transit"
	// vaultTimeout bounds one request.
	vaultTimeout = 10 * time.Second
	// vaultAnswer is the most that is read of one.
	vaultAnswer = 1 << 20
	// vaultQuoted bytes of an answer are in an error at most.
	vaultQuoted = 200
	// vaultKeyBits of a volume's key: as many as the cipher's.
	vaultKeyBits = 512
	// vaultHeaderType of the token in the LUKS header.
	vaultHeaderType = "weft-vault-transit"
)

// errKMS says that the key management service did not answer, or not now.
var errKMS = errors.New("the key management service does not answer")

// vault is the keySource of a transit engine. Each volume has a key of its own, which the engine made; the LUKS header
// keeps it as the engine encrypted it. So the key is copied with the data, and is of no use without the engine.
type vault struct {
	address, token, key, mount, namespace string
	client                                *http.Client
}

// vaultHeaderToken is what is kept with the LUKS header, in the format of LUKS2 tokens.
type vaultHeaderToken struct {
	Type       string   `json:"type"`
	Keyslots   []string `json:"keyslots"`
	Ciphertext string   `json:"ciphertext"`
}

func newVault(secret map[string]string) (*vault, error) {
	v := &vault{
		address: strings.TrimSuffix(strings.TrimSpace(secret[secretVaultAddress]), "/"), token: strings.TrimSpace(secret[secretVaultToken]), key: secret[secretVaultKey],
		mount: strings.Trim(secret[secretVaultMount], "/"), namespace: secret[secretVaultNamespace],
	}
	if v.mount == "" {
		v.mount = defaultVaultMount
	}
	for key, value := range map[string]string{secretVaultToken: v.token, secretVaultKey: v.key} {
		if value == "" {
			return nil, fmt.Errorf("%w: the Secret has %s, but no %s", errNoKey, secretVaultAddress, key)
		}
	}
	// Who writes the Secret chooses where a privileged process sends a request: it can only be one to a transit engine.
	for key, value := range map[string]string{secretVaultMount: v.mount, secretVaultKey: v.key} {
		if !vaultPath.MatchString(value) || strings.Contains(value, "..") || key == secretVaultKey && strings.Contains(value, "/") {
			return nil, fmt.Errorf("%w: %s of the Secret has other characters than those of a name in Vault (letters, digits, - _ .), or \"..\"", errNoKey, key)
		}
	}
	address, err := url.Parse(v.address)
	switch {
	case err != nil || address.Host == "" || address.User != nil:
		return nil, fmt.Errorf("%w: %s of the Secret is not an address such as https://vault.example.com:8200", errNoKey, secretVaultAddress)
	case address.RawQuery != "" || address.Fragment != "":
		return nil, fmt.Errorf("%w: %s of the Secret has more than an address and a path", errNoKey, secretVaultAddress)
	case address.Scheme != "https":
		return nil, fmt.Errorf("%w: %s of the Secret must begin with https://: keys of volumes are sent from there", errNoKey, secretVaultAddress)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	if pem := secret[secretVaultCA]; pem != "" {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(pem)) {
			return nil, fmt.Errorf("%w: %s of the Secret has no certificate in PEM", errNoKey, secretVaultCA)
		}
	}
	// A server that redirects would be given the token elsewhere.
	v.client = &http.Client{Transport: transport, Timeout: vaultTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return v, nil
}

// vaultPath is a name, or names with slashes between them.
var vaultPath = regexp.MustCompile(`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$`)

// quoted is what an engine says about an error, for a message that tenants read.
func quoted(words []string) string {
	return strconv.Quote(text.Clip(strings.Join(words, "; "), vaultQuoted))
}

// newKey implements keySource.
func (v *vault) newKey(ctx context.Context) ([]byte, string, error) {
	key, ciphertext, err := v.ask(ctx, "datakey/plaintext", map[string]any{"bits": vaultKeyBits})
	if err == nil && ciphertext == "" {
		err = fmt.Errorf("%w: it answered no ciphertext", errNoKey)
	}
	if err != nil {
		clear(key)
		return nil, "", err
	}
	token, err := json.Marshal(vaultHeaderToken{vaultHeaderType, []string{"0"}, ciphertext})
	return key, string(token), err
}

// withToken implements keySource.
func (*vault) withToken() bool { return true }

// existingKeys implements keySource. The engine's own rotation keeps its former keys.
func (v *vault) existingKeys(ctx context.Context, token string) (current, former []byte, err error) {
	var t vaultHeaderToken
	if err := json.Unmarshal([]byte(token), &t); token == "" || err != nil || t.Type != vaultHeaderType || t.Ciphertext == "" {
		return nil, nil, fmt.Errorf("%w: its LUKS header has no key of a transit engine; put the %s with which the volume was encrypted into the Secret in place of %s", filesystem.ErrWrongKey, secretPassphrase, secretVaultAddress)
	}
	current, _, err = v.ask(ctx, "decrypt", map[string]any{"ciphertext": t.Ciphertext})
	return current, nil, err
}

// ask the transit engine about its key. It fails with errKMS, or with errNoKey when asking again will not help. No
// error has anything of what was sent or answered but the engine's own words.
func (v *vault) ask(ctx context.Context, what string, body map[string]any) (key []byte, ciphertext string, err error) {
	content, err := json.Marshal(body)
	if err != nil {
		return nil, "", err
	}
	where, err := url.JoinPath(v.address, "v1", v.mount, what, url.PathEscape(v.key))
	if err != nil {
		return nil, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, where, bytes.NewReader(content))
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("X-Vault-Token", v.token)
	request.Header.Set("X-Vault-Request", "true")
	if v.namespace != "" {
		request.Header.Set("X-Vault-Namespace", v.namespace)
	}
	response, err := v.client.Do(request)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", errKMS, err)
	}
	defer response.Body.Close() //nolint:errcheck // nothing was written to it
	text, err := io.ReadAll(io.LimitReader(response.Body, vaultAnswer))
	defer clear(text)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", errKMS, err)
	}
	var answer struct {
		Errors []string `json:"errors"`
		Data   struct {
			Plaintext  []byte `json:"plaintext"`
			Ciphertext string `json:"ciphertext"`
		} `json:"data"`
	}
	malformed := json.Unmarshal(text, &answer) != nil
	switch {
	case response.StatusCode >= http.StatusInternalServerError, response.StatusCode == http.StatusTooManyRequests:
		return nil, "", fmt.Errorf("%w: %s answered %d: %s", errKMS, where, response.StatusCode, quoted(answer.Errors))
	case response.StatusCode != http.StatusOK:
		return nil, "", fmt.Errorf("%w: %s answered %d: %s", errNoKey, where, response.StatusCode, quoted(answer.Errors))
	case malformed || len(answer.Data.Plaintext) == 0:
		return nil, "", fmt.Errorf("%w: %s answered no key", errNoKey, where)
	}
	return answer.Data.Plaintext, answer.Data.Ciphertext, nil
}
