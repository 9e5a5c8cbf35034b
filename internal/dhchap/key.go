// SPDX-License-Identifier: Apache-2.0

// Package dhchap has the keys by which an NVMe-oF host and a controller prove themselves to each other (DH-HMAC-CHAP,
// NVMe Base Specification, "In-band Authentication Protocols"), and what carries them through objects that many may
// read: sealed to the nodes that use them.
//
// No key is printed by accident: its String, its JSON and every verb of fmt say only that there is one. Text is the one
// way to its contents.
package dhchap

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unique"
)

// Hash by which a key is transformed before it is used (NVMe Base Specification, "DH-HMAC-CHAP secret
// representation").
type Hash uint8

// Hashes, by their numbers in a key's text.
const (
	HashNone   Hash = 0
	HashSHA256 Hash = 1
	HashSHA384 Hash = 2
	HashSHA512 Hash = 3
)

// lengths of keys in bytes, by hash; a key without one may have any of them.
var lengths = map[Hash]int{HashSHA256: 32, HashSHA384: 48, HashSHA512: 64}

const (
	prefix = "DHHC-1:"
	// hidden is what is printed of a key.
	hidden = "(key)"
)

// ErrInvalid says that a text is not a key. The error never repeats the text.
var ErrInvalid = errors.New("invalid DH-HMAC-CHAP key")

// Key of a host or of a controller. The zero Key is none. Keys can be compared with ==.
type Key struct {
	// handle keeps the text out of what fmt prints by itself where it does not call Format: of a pointer with a verb
	// that does not suit it.
	handle unique.Handle[string]
}

func ofText(text string) Key { return Key{unique.Make(text)} }

// NewKey from the system's random source, as long as the hash's result: 32, 48 or 64 bytes, and 32 without a hash. It
// fails with ErrInvalid when there is no such hash.
func NewKey(hash Hash) (Key, error) {
	length, known := lengths[hash]
	switch {
	case hash == HashNone:
		length = lengths[HashSHA256]
	case !known:
		return Key{}, fmt.Errorf("%w: hash %d; must be from 0 to 3", ErrInvalid, hash)
	}
	secret := make([]byte, length)
	if _, err := rand.Read(secret); err != nil {
		return Key{}, err
	}
	return keyOf(hash, secret), nil
}

// keyOf a secret, followed by its CRC-32 with the lowest byte first, in base64.
func keyOf(hash Hash, secret []byte) Key {
	sealed := binary.LittleEndian.AppendUint32(append([]byte(nil), secret...), crc32.ChecksumIEEE(secret))
	return ofText(fmt.Sprintf("%s%02d:%s:", prefix, hash, base64.StdEncoding.EncodeToString(sealed)))
}

// ParseKey reads a key's text, such as DHHC-1:01:<base64>: without space around it. It fails with ErrInvalid.
func ParseKey(text string) (Key, error) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return Key{}, fmt.Errorf("%w: it does not start with %s", ErrInvalid, prefix)
	}
	number, encoded, ok := strings.Cut(rest, ":")
	if !ok || len(number) != 2 || number[0] != '0' || number[1] < '0' || number[1] > '3' {
		return Key{}, fmt.Errorf("%w: its hash is not 00, 01, 02 or 03", ErrInvalid)
	}
	encoded, ok = strings.CutSuffix(encoded, ":")
	if !ok {
		return Key{}, fmt.Errorf("%w: it does not end with a colon", ErrInvalid)
	}
	sealed, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return Key{}, fmt.Errorf("%w: its secret is not in base64", ErrInvalid)
	}
	secret := sealed[:max(0, len(sealed)-crc32.Size)]
	if err := checkLength(Hash(number[1]-'0'), len(secret)); err != nil {
		return Key{}, err
	}
	if binary.LittleEndian.Uint32(sealed[len(secret):]) != crc32.ChecksumIEEE(secret) {
		return Key{}, fmt.Errorf("%w: its checksum is wrong", ErrInvalid)
	}
	return ofText(text), nil
}

func checkLength(hash Hash, length int) error {
	if want, fixed := lengths[hash]; fixed && length != want {
		return fmt.Errorf("%w: it has %d bytes, but with hash %02d it must have %d", ErrInvalid, length, hash, want)
	}
	for _, allowed := range lengths {
		if length == allowed {
			return nil
		}
	}
	return fmt.Errorf("%w: it has %d bytes; must be 32, 48 or 64", ErrInvalid, length)
}

// Text of the key, as the kernel and SPDK take it; empty for none. Whoever asks for it must not log it, put it into an
// argument, an error or an object, nor write it to a file that others may read.
func (k Key) Text() string {
	if k.IsZero() {
		return ""
	}
	return k.handle.Value()
}

// IsZero says that there is no key.
func (k Key) IsZero() bool { return k == Key{} }

// String never is the key.
func (k Key) String() string {
	if k.IsZero() {
		return ""
	}
	return hidden
}

// GoString never is the key.
func (k Key) GoString() string { return k.String() }

// Format prints String for every verb: %x and %#v would show the field.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// MarshalText never is the key, in JSON and YAML neither.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Pair of keys of one attachment to one replica: the host proves that it has Host, and the controller that it has
// Controller.
type Pair struct {
	Host, Controller Key
}

// NewPair of different keys with SHA-256, 32 bytes each, which every kernel and SPDK that can authenticate takes.
func NewPair() (Pair, error) {
	host, err := NewKey(HashSHA256)
	if err != nil {
		return Pair{}, err
	}
	controller, err := NewKey(HashSHA256)
	return Pair{Host: host, Controller: controller}, err
}

// IsZero says that there are no keys.
func (p Pair) IsZero() bool { return p == Pair{} }

// Validate fails with ErrInvalid unless there are two keys, and different ones: NVMe forbids to use one key for both,
// as a proof could be played back.
func (p Pair) Validate() error {
	switch {
	case p.Host.IsZero() || p.Controller.IsZero():
		return fmt.Errorf("%w: a host's key and a controller's are required", ErrInvalid)
	case p.Host == p.Controller:
		return fmt.Errorf("%w: the host's key and the controller's are the same", ErrInvalid)
	}
	return nil
}

// fingerprintBytes of a SHA-256: two pairs that exist at the same time never have the same.
const fingerprintBytes = 16

// Fingerprint tells pairs apart, in 32 hexadecimal digits; empty without keys. It may be shown: keys of 32 random bytes
// cannot be found from it.
func (p Pair) Fingerprint() string {
	if p.IsZero() {
		return ""
	}
	sum := sha256.Sum256([]byte("weft DH-HMAC-CHAP pair\x00" + p.Host.Text() + "\x00" + p.Controller.Text()))
	return hex.EncodeToString(sum[:fingerprintBytes])
}
