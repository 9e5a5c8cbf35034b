// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
)

// Keys of the Secret that csi.storage.k8s.io/node-stage-secret-name and -namespace of a StorageClass name.
const (
	// secretPassphrase opens a key slot.
	secretPassphrase = "passphrase"
	// secretFormer is the passphrase that secretPassphrase replaces. It is needed until each volume of the Secret was
	// staged once.
	secretFormer = "previousPassphrase"
)

// Bounds of a passphrase, in bytes. The longest is what cryptsetup takes from a person who types it.
const (
	minPassphrase = 8
	maxPassphrase = 512
)

// keysFrom a Secret for a volume. It fails with errNoKey.
func keysFrom(secret map[string]string, volume string) (keySource, error) {
	if len(secret) == 0 {
		return nil, fmt.Errorf("%w: volume %s is encrypted, and no Secret was given for it: set csi.storage.k8s.io/node-stage-secret-name and -namespace, "+
			"and the same of node-publish-secret, in its StorageClass; a PersistentVolume keeps what its class had when it was created", errNoKey, volume)
	}
	if secret[secretVaultAddress] != "" {
		return newVault(secret)
	}
	return newPassphrase(secret)
}

// passphrase is the keySource of a Secret that has the keys themselves.
type passphrase struct{ current, former string }

func newPassphrase(secret map[string]string) (passphrase, error) {
	p := passphrase{secret[secretPassphrase], secret[secretFormer]}
	if p.current == "" {
		return p, fmt.Errorf("%w: the Secret has no %s, but %s", errNoKey, secretPassphrase, strings.Join(slices.Sorted(maps.Keys(secret)), ", "))
	}
	for key, value := range map[string]string{secretPassphrase: p.current, secretFormer: p.former} {
		if n := len(value); n > maxPassphrase || n > 0 && n < minPassphrase {
			return p, fmt.Errorf("%w: %s of the Secret has %d bytes; use %d to %d", errNoKey, key, n, minPassphrase, maxPassphrase)
		}
	}
	return p, nil
}

// newKey implements keySource.
func (p passphrase) newKey(context.Context) ([]byte, string, error) {
	return []byte(p.current), "", nil
}

// withToken implements keySource.
func (passphrase) withToken() bool { return false }

// existingKeys implements keySource.
func (p passphrase) existingKeys(_ context.Context, token string) (current, former []byte, err error) {
	if token != "" {
		return nil, nil, fmt.Errorf("%w: the volume was encrypted with a key of a key management service, and the Secret has a %s", filesystem.ErrWrongKey, secretPassphrase)
	}
	if p.former != "" {
		former = []byte(p.former)
	}
	return []byte(p.current), former, nil
}
