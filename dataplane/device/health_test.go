// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"testing"
)

// worn answers the health log of a drive that has been used a lot, and no other command.
func worn(c AdminCommand) (uint32, []byte, error) {
	if c.Opcode != 0x02 || c.CDW10 != 0x007f0002 || c.NSID != 0xffffffff || c.DataBytes != 512 {
		return 0, nil, &AdminStatusError{Opcode: c.Opcode, Status: 0x02}
	}
	log := make([]byte, 512)
	copy(log, []byte{0b001001, 0x40, 0x01, 7, 10, 120}) // 0x140 = 320 K
	log[32], log[33] = 0x01, 0x02                       // 513 units
	log[48+8] = 1                                       // 2^64 units
	copy(log[128:], []byte{0x10, 0x27})                 // 10,000 h
	log[144], log[160] = 3, 4
	return 0, log, nil
}

func TestReadHealth(t *testing.T) {
	is, err := ReadHealth(worn)
	want := Health{
		Warnings: WarnSpare | WarnReadOnly, TemperatureCelsius: 47, SpareRatio: 0.07, SpareThresholdRatio: 0.1, UsedRatio: 1.2,
		ReadBytes: 513 * 512_000, WrittenBytes: (1 << 64) * 512_000, PowerOnHours: 10_000, UnsafeShutdowns: 3, MediaErrors: 4,
	}
	if err != nil || is != want {
		t.Errorf("read %+v, %v; want %+v", is, err, want)
	}
	if _, err := ReadHealth(func(AdminCommand) (uint32, []byte, error) { return 0, make([]byte, 64), nil }); err == nil {
		t.Error("half a log was taken for a whole one")
	}
	var refused *AdminStatusError
	if _, err := ReadHealth((&drive{}).admin); !errors.As(err, &refused) {
		t.Errorf("a drive without a log: %v", err)
	}
}
