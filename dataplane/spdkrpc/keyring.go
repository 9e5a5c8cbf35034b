// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// KeyringFileAddKey gives SPDK a key that lies in a file. SPDK reads it at this call and again when it is used.
type KeyringFileAddKey struct {
	answers[Done]
	// Name by which other calls mean the key.
	Name string `json:"name"`
	// Path is absolute. The file belongs to SPDK's user and nobody else may read it; otherwise ErrInvalid.
	Path string `json:"path"`
}

func (KeyringFileAddKey) method() string { return "keyring_file_add_key" }

// KeyringFileRemoveKey takes a key away. Connected hosts stay connected.
type KeyringFileRemoveKey struct {
	answers[Done]
	Name string `json:"name"`
}

func (KeyringFileRemoveKey) method() string { return "keyring_file_remove_key" }

// KeyringGetKeys lists the keys, never their contents.
type KeyringGetKeys struct {
	answers[[]Key]
}

func (KeyringGetKeys) method() string { return "keyring_get_keys" }

// Key that SPDK knows.
type Key struct {
	Name   string `json:"name"`
	Module string `json:"module"`
	// Removed: it is gone from the keyring, and still used by a host.
	Removed  bool   `json:"removed"`
	RefCount int    `json:"refcnt"`
	Path     string `json:"path"`
}
