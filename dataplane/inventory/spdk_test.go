// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/weft-storage/weft/dataplane/inventory"
)

// lvolstoreHead is the beginning of a logical volume store, as SPDK 26.05 wrote it.
const lvolstoreHead = "5350444b424c4f42" + // SPDKBLOB
	"03000000" + "00100000" + // version, length
	"00000000" + "0000000001000000" + // clean, super blob
	"00001000" + "01000000" + "21000000" + "22000000" + "21000000" + "64000000" + "00001000" + // sizes and places
	"4c564f4c53544f524500000000000000" // LVOLSTORE

// blkid does not know SPDK's blobstore, and says that there is nothing: a drive full of volumes must not be blank.
func TestBlkidFindsPoolsOfSPDK(t *testing.T) {
	run(t, "blkid", "--version")
	raw, err := hex.DecodeString(lvolstoreHead)
	if err != nil {
		t.Fatal(err)
	}
	head := string(raw)
	for name, test := range map[string]struct {
		head string
		want inventory.Signature
	}{
		"a logical volume store":        {head, lvolstore},
		"a blobstore of another type":   {strings.Replace(head, "LVOLSTORE", "BLOBFS\x00\x00\x00", 1), inventory.Signature{Type: "SPDK_blobstore", Usage: "other", Label: "BLOBFS"}},
		"a blobstore without type":      {head[:56], inventory.Signature{Type: "SPDK_blobstore", Usage: "other"}},
		"a type that is no text":        {head[:56] + "\xff\xfeLVOL", inventory.Signature{Type: "SPDK_blobstore", Usage: "other", Label: "?LVOL"}},
		"the magic elsewhere":           {"\x00" + head, unnamed},
		"a partition table beside it":   {head + strings.Repeat("\x00", 446-len(head)) + "\x00\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\x08\x00\x00" + strings.Repeat("\x00", 48) + "\x55\xaa", inventory.Signature{Ambivalent: true}},
		"half of the magic is no magic": {"SPDK", unnamed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := inventory.Blkid{}.Probe(t.Context(), disk(t, 0, test.head))
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
