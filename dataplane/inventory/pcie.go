// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/binary"
	"os"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// PCI's configuration space, as in the PCI Express Base Specification and the kernel's pci_regs.h.
const (
	pciStatus          = 0x06
	pciStatusCapList   = 0x10
	pciCapabilityList  = 0x34
	pciCapabilityPCIe  = 0x10
	pcieDeviceCap      = 0x04 // offsets in the capability
	pcieDeviceControl  = 0x08
	pcieReadableToAll  = 64  // bytes that sysfs gives without CAP_SYS_ADMIN
	pciConfigSpace     = 256 // bytes without the extended space
	mostCapabilities   = (pciConfigSpace - pcieReadableToAll) / 4
	payloadSizes       = 0x7
	payloadShift       = 5
	readRequestShift   = 12
	smallestTransfer   = 128 // bytes; each step doubles
	highestLegalSizeID = 5   // 4096 bytes
)

// pcieTransfers of the PCI function at an address; nil when it has none, or its configuration cannot be seen.
func (t tree) pcieTransfers(address string) (*v1alpha1.PCIeTransfers, error) {
	if address == "" {
		return nil, nil
	}
	config, err := os.ReadFile(t.path("sys/bus/pci/devices", address, "config"))
	if unsaid(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parsePCIe(config), nil
}

// parsePCIe follows the list of capabilities. A device that is gone reads as ones, and one that was read without the
// right to, as 64 bytes: neither has a list that leads anywhere.
func parsePCIe(config []byte) *v1alpha1.PCIeTransfers {
	if len(config) <= pciCapabilityList || config[pciStatus]&pciStatusCapList == 0 {
		return nil
	}
	at := int(config[pciCapabilityList]) &^ 3
	for range mostCapabilities {
		if at < pcieReadableToAll || at+pcieDeviceControl+2 > len(config) {
			return nil
		}
		if config[at] == pciCapabilityPCIe {
			capability := binary.LittleEndian.Uint32(config[at+pcieDeviceCap:])
			control := binary.LittleEndian.Uint16(config[at+pcieDeviceControl:])
			return transfers(capability&payloadSizes, uint32(control>>payloadShift)&payloadSizes, uint32(control>>readRequestShift)&payloadSizes)
		}
		at = int(config[at+1]) &^ 3
	}
	return nil
}

func transfers(supported, payload, readRequest uint32) *v1alpha1.PCIeTransfers {
	if max(supported, payload, readRequest) > highestLegalSizeID {
		return nil
	}
	return &v1alpha1.PCIeTransfers{
		MaxPayloadBytes: smallestTransfer << payload, MaxPayloadSupportedBytes: smallestTransfer << supported, MaxReadRequestBytes: smallestTransfer << readRequest,
	}
}
