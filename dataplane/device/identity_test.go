// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		names   Names
		planned string
		swapped bool
		want    string // of the error; "" is none
	}{
		"a world-wide ID":                        {Names{"eui.0025", "S1"}, "eui.0025", false, ""},
		"its serial number":                      {Names{"eui.0025", "S1"}, "S1", false, ""},
		"another":                                {Names{"eui.0026", "S2"}, "eui.0025", true, "/dev/nvme0n1 is drive eui.0026 instead of the planned drive eui.0025"},
		"without a name":                         {nil, "eui.0025", false, "is unknown whether it is drive eui.0025"},
		"without a name, as planned":             {nil, "path-pci-0000:00:07.0", false, ""},
		"without a name, by its PCI":             {nil, "pci-0000:00:07.0", false, ""},
		"a drive with a name where one had none": {Names{"S1"}, "path-pci-0000:00:07.0", true, "is drive S1 instead of the planned drive path-pci-0000:00:07.0"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.names.Check("/dev/nvme0n1", c.planned)
			var swapped *SwappedError
			if (err == nil) != (c.want == "") || errors.As(err, &swapped) != c.swapped || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

func TestKernelNames(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Names
	}{
		"an NVMe namespace":  {map[string]string{"wwid": "eui.0025\n", "device/serial": "S1   \n"}, Names{"eui.0025", "S1"}},
		"a SCSI disk":        {map[string]string{"device/wwid": "naa.5000\n", "device/vpd_pg80": "\x00\x80\x00\x04  Z1"}, Names{"naa.5000", "Z1"}},
		"a virtio disk":      {map[string]string{"serial": "disk1\n"}, Names{"disk1"}},
		"one without a name": {map[string]string{"serial": "\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				path := filepath.Join(dir, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if names, err := kernelNames(dir); err != nil || !slices.Equal(names, c.want) {
				t.Errorf("%q, %v; want %q", names, err, c.want)
			}
		})
	}
	t.Run("one that has just gone", func(t *testing.T) {
		if err := CheckKernel(t.TempDir(), "/dev/nvme0n1", 0x10300, "path-x"); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	})
}

// names of a controller: what it tells of itself and of its namespace 1.
type names struct {
	nguid, eui64, uuid []byte
	// old controllers have no descriptors.
	old    bool
	broken uint32
}

func (n names) admin(c AdminCommand) (uint32, []byte, error) {
	data := make([]byte, c.DataBytes)
	put := func(at int, kind byte, id []byte) int {
		if len(id) == 0 {
			return at
		}
		data[at], data[at+1] = kind, byte(len(id))
		return at + 4 + copy(data[at+4:], id)
	}
	switch {
	case c.Opcode != opcodeIdentify || c.CDW10 != identifyController && c.NSID != 1:
		return 0, nil, &AdminStatusError{Opcode: c.Opcode, Status: 0x0b}
	case c.CDW10 == n.broken:
		return 0, nil, os.ErrDeadlineExceeded
	case c.CDW10 == identifyController:
		copy(data, "\x36\x1b")
		copy(data[4:], "node1-0             QEMU NVMe Ctrl                          ")
	case c.CDW10 == identifyNamespace:
		copy(data[namespaceNGUID:], n.nguid)
		copy(data[namespaceEUI64:], n.eui64)
	case n.old:
		return 0, nil, &AdminStatusError{Opcode: c.Opcode, Status: 0x02}
	default:
		put(put(put(0, descriptorEUI64, n.eui64), descriptorNGUID, n.nguid), descriptorUUID, n.uuid)
	}
	return 0, data, nil
}

func TestNVMeNames(t *testing.T) {
	// As the lab's kernel has it in sysfs.
	const bySerial = "nvme.1b36-6e6f6465312d30-51454d55204e564d65204374726c-00000001"
	id := uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff")
	for name, c := range map[string]struct {
		of   names
		want Names
	}{
		"nothing but a serial number": {names{broken: 9}, Names{bySerial, "node1-0"}},
		"an NGUID":                    {names{nguid: id[:], broken: 9}, Names{"eui.00112233445566778899aabbccddeeff", bySerial, "node1-0"}},
		"all of them": {names{nguid: id[:], eui64: id[:8], uuid: id[:], broken: 9},
			Names{"uuid.00112233-4455-6677-8899-aabbccddeeff", "eui.00112233445566778899aabbccddeeff", "eui.0011223344556677", bySerial, "node1-0"}},
		"an old controller": {names{eui64: id[:8], old: true, broken: 9}, Names{"eui.0011223344556677", bySerial, "node1-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := NVMeNames(c.of.admin); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
	for _, broken := range []uint32{identifyController, identifyNamespace, identifyDescriptors} {
		if got, err := NVMeNames(names{broken: broken}.admin); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("without an answer to %d: %q, %v", broken, got, err)
		}
	}
}

func TestPhysicalBlockBytes(t *testing.T) {
	le := binary.LittleEndian
	for name, tt := range map[string]struct {
		awupf, nawupf, nabo, npwg uint16
		features                  byte
		want                      int64
	}{
		"nothing said":                          {want: 512},
		"prefers 16 KiB, and writes them whole": {awupf: 31, npwg: 31, features: featurePerformances, want: 16 << 10},
		"prefers 16 KiB, but may tear them":     {npwg: 31, features: featurePerformances, want: 512},
		"writes 16 KiB whole, prefers nothing":  {awupf: 31, npwg: 31, want: 512},
		"the namespace says it better":          {awupf: 127, nawupf: 7, npwg: 127, features: featurePerformances | featureOwnAtomics, want: 4 << 10},
		"its boundaries lie elsewhere":          {awupf: 31, nabo: 1, npwg: 31, features: featurePerformances, want: 512},
	} {
		do := func(c AdminCommand) (uint32, []byte, error) {
			data := make([]byte, identifyBytes)
			if c.CDW10 == identifyController {
				le.PutUint16(data[controllerAWUPF:], tt.awupf)
				return 0, data, nil
			}
			data[namespaceFeatures] = tt.features
			le.PutUint16(data[namespaceNAWUPF:], tt.nawupf)
			le.PutUint16(data[namespaceNABO:], tt.nabo)
			le.PutUint16(data[namespaceNPWG:], tt.npwg)
			return 0, data, nil
		}
		if got, err := PhysicalBlockBytes(do, 512); err != nil || got != tt.want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, tt.want)
		}
	}
}
