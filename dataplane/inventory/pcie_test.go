// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// pciConfig has a power management and an MSI-X capability before PCIe's, as a NIC usually has.
func pciConfig(edit func([]byte)) []byte {
	config := make([]byte, 256)
	config[0x06], config[0x34] = 0x10, 0x40
	config[0x40], config[0x41] = 0x01, 0x9c                  // power management, then
	config[0x9c], config[0x9d] = 0x11, 0x60                  // MSI-X, then
	config[0x60], config[0x61] = 0x10, 0x00                  // PCI Express
	binary.LittleEndian.PutUint32(config[0x64:], 0x10008ce2) // 512 bytes supported
	binary.LittleEndian.PutUint16(config[0x68:], 0x2936)     // 256 bytes, reads of 512
	if edit != nil {
		edit(config)
	}
	return config
}

func TestPCIe(t *testing.T) {
	for name, test := range map[string]struct {
		config []byte
		want   *v1alpha1.PCIeTransfers
	}{
		"a NIC": {pciConfig(nil), &v1alpha1.PCIeTransfers{MaxPayloadBytes: 256, MaxPayloadSupportedBytes: 512, MaxReadRequestBytes: 512}},
		"the largest": {pciConfig(func(c []byte) { c[0x64], c[0x68], c[0x69] = 0x5, 0xa0, 0x50 }),
			&v1alpha1.PCIeTransfers{MaxPayloadBytes: 4096, MaxPayloadSupportedBytes: 4096, MaxReadRequestBytes: 4096}},
		"a size that PCIe does not have": {pciConfig(func(c []byte) { c[0x64] = 0x7 }), nil},
		"no list":                        {pciConfig(func(c []byte) { c[0x06] = 0 }), nil},
		"not PCIe":                       {pciConfig(func(c []byte) { c[0x60] = 0x05 }), nil},
		"a list in a circle":             {pciConfig(func(c []byte) { c[0x9d] = 0x40 }), nil},
		"a list that leads out":          {pciConfig(func(c []byte) { c[0x9d] = 0xfc }), nil},
		"a list into the header":         {pciConfig(func(c []byte) { c[0x34] = 0x04 }), nil},
		"read without the right":         {pciConfig(nil)[:64], nil},
		"nothing":                        {nil, nil},
		"a device that is gone":          {ones(256), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, parsePCIe(test.config)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func ones(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xff
	}
	return b
}

func TestPCIeOfTheTree(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "sys/bus/pci/devices/0000:3b:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := tree{root}.pcieTransfers("0000:3b:00.0")
	if got != nil || err != nil {
		t.Errorf("without config: %v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config"), pciConfig(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err = (tree{root}).pcieTransfers("0000:3b:00.0"); err != nil || got == nil || got.MaxReadRequestBytes != 512 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = (tree{root}).pcieTransfers(""); got != nil || err != nil {
		t.Errorf("on no PCI bus: %v, %v", got, err)
	}
}
