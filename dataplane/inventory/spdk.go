// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/weft-storage/weft/dataplane/device"
)

// SPDK's blobstore, which blkid does not know: a super block at the device's start, in little endian without
// padding (struct spdk_bs_super_block in lib/blob/blobstore.h of SPDK).
const (
	blobstoreMagic      = device.SPDKBlobstore
	blobstoreTypeOffset = 56 // after the magic, four 32-bit words around a 64-bit id, and six words that place the maps
	blobstoreTypeLength = 16
	// lvolstoreType is the blobstore of a logical volume store.
	lvolstoreType = "LVOLSTORE"
	// blobstoreKind is what Signature.Type says; the label is the blobstore's type.
	blobstoreKind = "SPDK_blobstore"
)

// headBytes of a device say whether it is a pool.
const headBytes = 512

// headOf a device: its first bytes, or all of a shorter one.
func headOf(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	head := make([]byte, headBytes)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading the start of %s: %w", path, err)
	}
	return head[:n], nil
}

// blobstore that a device begins with; the zero value is none.
func blobstore(head []byte) Signature {
	if !bytes.HasPrefix(head, []byte(blobstoreMagic)) {
		return Signature{}
	}
	sig := Signature{Type: blobstoreKind, Usage: "other"}
	if len(head) >= blobstoreTypeOffset+blobstoreTypeLength { // a device so short has no super block
		kind, _, _ := strings.Cut(string(head[blobstoreTypeOffset:blobstoreTypeOffset+blobstoreTypeLength]), "\x00")
		sig.Label = strings.ToValidUTF8(kind, "?")
	}
	return sig
}

// isLvolstore: the blobstore of a logical volume store, which only SPDK makes.
func (s Signature) isLvolstore() bool {
	return s == Signature{Type: blobstoreKind, Usage: s.Usage, Label: lvolstoreType}
}
