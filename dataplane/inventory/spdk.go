// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// SPDK's blobstore, which blkid does not know: a super block at the device's start, in little endian without
// padding (struct spdk_bs_super_block in lib/blob/blobstore.h of SPDK).
const (
	blobstoreMagic      = "SPDKBLOB"
	blobstoreTypeOffset = 56 // after the magic, four 32-bit words around a 64-bit id, and six words that place the maps
	blobstoreTypeLength = 16
	// lvolstoreType is the blobstore of a logical volume store.
	lvolstoreType = "LVOLSTORE"
	// blobstoreKind is what Signature.Type says; the label is the blobstore's type.
	blobstoreKind = "SPDK_blobstore"
)

// blobstore finds SPDK's blobstore at the start of a device; the zero value is none.
func blobstore(path string) (Signature, error) {
	f, err := os.Open(path)
	if err != nil {
		return Signature{}, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	head := make([]byte, blobstoreTypeOffset+blobstoreTypeLength)
	if n, err := io.ReadFull(f, head); errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		head = head[:n] // a device so short has no super block
	} else if err != nil {
		return Signature{}, fmt.Errorf("reading the start of %s: %w", path, err)
	}
	if !bytes.HasPrefix(head, []byte(blobstoreMagic)) {
		return Signature{}, nil
	}
	sig := Signature{Type: blobstoreKind, Usage: "other"}
	if len(head) == cap(head) {
		kind, _, _ := strings.Cut(string(head[blobstoreTypeOffset:]), "\x00")
		sig.Label = strings.ToValidUTF8(kind, "?")
	}
	return sig, nil
}

// isLvolstore: the blobstore of a logical volume store, which only SPDK makes.
func (s Signature) isLvolstore() bool {
	return s == Signature{Type: blobstoreKind, Usage: s.Usage, Label: lvolstoreType}
}
