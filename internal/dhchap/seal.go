// SPDX-License-Identifier: Apache-2.0

package dhchap

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"filippo.io/age"
)

// Sealing is that of age with X25519 recipients (https://age-encryption.org/v1): what is sealed to several public keys
// can be opened with the private key of each, and of nobody else.

// ErrCannotOpen says that a pair was sealed to other nodes, or damaged. It must be sealed again.
var ErrCannotOpen = errors.New("keys are not sealed to this node")

const (
	// separator of the two keys of a sealed pair, and its version before them.
	separator = "\n"
	version   = "weft-dhchap-1"
	// maxSealedBytes is far more than two keys take, sealed to several nodes.
	maxSealedBytes = 4096
)

// CheckPublicKey fails unless the text is a public key that can be sealed to, such as age1<58 characters>.
func CheckPublicKey(text string) error {
	if _, err := age.ParseX25519Recipient(text); err != nil {
		return fmt.Errorf("not the public key of a node: %w", err)
	}
	return nil
}

// SealedTo names a set of public keys, in 32 hexadecimal digits, whatever their order. Whether a pair is sealed to the
// keys that nodes have now is seen by it: the sealed text itself does not tell.
func SealedTo(publicKeys ...string) string {
	sorted := slices.Sorted(slices.Values(publicKeys))
	sum := sha256.Sum256([]byte(strings.Join(slices.Compact(sorted), separator)))
	return hex.EncodeToString(sum[:fingerprintBytes])
}

// Seal the pair to public keys, as base64. It differs each time. It fails with ErrInvalid without both keys, and when a
// public key is none.
func (p Pair) Seal(publicKeys ...string) (string, error) {
	if err := p.Validate(); err != nil {
		return "", err
	}
	recipients := make([]age.Recipient, len(publicKeys))
	for i, text := range publicKeys {
		r, err := age.ParseX25519Recipient(text)
		if err != nil {
			return "", fmt.Errorf("seal keys: %w", err)
		}
		recipients[i] = r
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, recipients...)
	if err != nil {
		return "", fmt.Errorf("seal keys: %w", err)
	}
	if _, err := io.WriteString(w, strings.Join([]string{version, p.Host.Text(), p.Controller.Text()}, separator)); err != nil {
		return "", fmt.Errorf("seal keys: %w", err)
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("seal keys: %w", err)
	}
	return base64.StdEncoding.EncodeToString(sealed.Bytes()), nil
}

// Identity of a node: its private key.
type Identity struct {
	private *age.X25519Identity
}

// NewIdentity from the system's random source, which nothing keeps.
func NewIdentity() (*Identity, error) {
	private, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("make the node's key: %w", err)
	}
	return &Identity{private}, nil
}

// identityMode of the file of a private key, and folderMode of its folder where that is made.
const (
	identityMode = 0o600
	folderMode   = 0o700
)

// LoadIdentity reads the node's private key from a file, which is made with a new one when it is missing. A file that
// others may read is closed to them first. It fails when the file holds something else: what is sealed to the key that
// was there could be opened no more, so that it is replaced only by a person, who deletes it.
func LoadIdentity(path string) (*Identity, error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return makeIdentity(path)
	case err != nil:
		return nil, fmt.Errorf("read the node's key: %w", err)
	}
	if err := os.Chmod(path, identityMode); err != nil {
		return nil, fmt.Errorf("close the node's key to others: %w", err)
	}
	private, err := age.ParseX25519Identity(strings.TrimSpace(string(text)))
	if err != nil {
		// The parser's error may repeat what it read.
		return nil, fmt.Errorf("the node's key in %s is damaged; delete the file, so that a new one is made and volumes are attached with new keys", path)
	}
	return &Identity{private}, nil
}

// makeIdentity writes a new key to a file of its own, which then takes the name: a file that was cut off never has it.
// Of two that do so at once, the first wins, and both use its key.
func makeIdentity(path string) (*Identity, error) {
	i, err := NewIdentity()
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, folderMode); err != nil {
		return nil, fmt.Errorf("make the node's key: %w", err)
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return nil, fmt.Errorf("make the node's key: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(i.private.String() + "\n")
	if err = errors.Join(err, f.Chmod(identityMode), f.Sync(), f.Close()); err != nil {
		return nil, fmt.Errorf("write the node's key: %w", err)
	}
	if err := os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
		return LoadIdentity(path)
	} else if err != nil {
		return nil, fmt.Errorf("write the node's key: %w", err)
	}
	return i, syncFolder(dir)
}

// syncFolder makes a new name durable.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write the node's key: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("write the node's key: %w", err)
	}
	return nil
}

// PublicKey that pairs are sealed to for this node, such as age1<58 characters>.
func (i *Identity) PublicKey() string { return i.private.Recipient().String() }

// Open a sealed pair. It fails with ErrCannotOpen when it was not sealed to this node, or is damaged, and with
// ErrInvalid when what was sealed is not a pair.
func (i *Identity) Open(sealed string) (Pair, error) {
	encrypted, err := base64.StdEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return Pair{}, fmt.Errorf("%w: not in base64", ErrCannotOpen)
	}
	r, err := age.Decrypt(bytes.NewReader(encrypted), i.private)
	if err != nil {
		return Pair{}, ErrCannotOpen // the reason would tell only what age is
	}
	text, err := io.ReadAll(io.LimitReader(r, maxSealedBytes))
	if err != nil {
		return Pair{}, fmt.Errorf("%w: it is damaged", ErrCannotOpen)
	}
	parts := strings.Split(string(text), separator)
	if len(parts) != 3 || parts[0] != version {
		return Pair{}, fmt.Errorf("%w: what was sealed is of another version", ErrInvalid)
	}
	var p Pair
	if p.Host, err = ParseKey(parts[1]); err != nil {
		return Pair{}, fmt.Errorf("the host's key: %w", err)
	}
	if p.Controller, err = ParseKey(parts[2]); err != nil {
		return Pair{}, fmt.Errorf("the controller's key: %w", err)
	}
	return p, p.Validate()
}
