// SPDX-License-Identifier: Apache-2.0

//go:build lab

package device

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTurnOffWriteCacheOfADrive of the machine, whose emulated NVMe drives have a volatile write cache.
func TestTurnOffWriteCacheOfADrive(t *testing.T) {
	const drive, other = "nvme1n1", "vda"
	kernel, err := os.ReadFile("/sys/block/" + drive + "/queue/write_cache")
	if err != nil || strings.TrimSpace(string(kernel)) != "write back" {
		t.Fatalf("the kernel says %q, %v; this test needs a drive with a volatile write cache", kernel, err)
	}
	do := KernelAdmin("/dev/" + drive)
	turnOn := func() {
		if _, _, err := do(AdminCommand{Opcode: opcodeSetFeatures, CDW10: featureWriteCache, CDW11: 1}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(turnOn)
	turnOn()
	for range 2 {
		if err := TurnOffWriteCache(do); err != nil {
			t.Fatal(err)
		}
		if on, err := writeCacheOn(do); err != nil || on {
			t.Errorf("the cache is on: %v, %v", on, err)
		}
	}
	var refused *AdminStatusError
	if _, _, err := do(AdminCommand{Opcode: 0xbf}); !errors.As(err, &refused) {
		t.Errorf("a command that the controller does not know: %v", err)
	}
	if err := TurnOffWriteCache(KernelAdmin("/dev/" + other)); !errors.Is(err, unix.ENOTTY) || errors.Is(err, ErrVolatile) {
		t.Errorf("of a disk that is no NVMe drive: %v", err)
	}
}
