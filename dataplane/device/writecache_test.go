// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"os"
	"testing"
)

// drive behaves as an NVMe controller does with its volatile write cache.
type drive struct {
	has, on bool
	// fixed: it refuses to turn it off; deaf: it says that it did, and did not.
	fixed, deaf bool
	// broken answers no command of this opcode.
	broken uint8
	short  bool
}

func (d *drive) admin(c AdminCommand) (uint32, []byte, error) {
	switch {
	case c.Opcode == d.broken:
		return 0, nil, os.ErrDeadlineExceeded
	case c.Opcode == opcodeIdentify && c.CDW10 == identifyController && c.DataBytes == identifyBytes:
		data := make([]byte, c.DataBytes)
		if d.has {
			data[identifyVWC] = 0b111 // present, and what a flush of all namespaces does
		}
		if d.short {
			data = data[:64]
		}
		return 0, data, nil
	case !d.has || c.CDW10 != featureWriteCache:
		return 0, nil, &AdminStatusError{Opcode: c.Opcode, Status: 0x02}
	case c.Opcode == opcodeGetFeatures && d.on:
		return 1, nil, nil
	case c.Opcode == opcodeGetFeatures:
		return 0, nil, nil
	case c.Opcode == opcodeSetFeatures && d.fixed:
		return 0, nil, &AdminStatusError{Opcode: c.Opcode, Status: 0x10e}
	case c.Opcode == opcodeSetFeatures:
		d.on = c.CDW11&1 != 0 || d.on && d.deaf
		return 0, nil, nil
	}
	return 0, nil, &AdminStatusError{Opcode: c.Opcode, Status: 0x01}
}

func TestTurnOffWriteCache(t *testing.T) {
	for name, test := range map[string]struct {
		drive drive
		// known: it is known whether the cache is on, and off says that it is.
		known, off bool
	}{
		"no cache":                  {drive{}, true, true},
		"a cache":                   {drive{has: true, on: true}, true, true},
		"a cache that is off":       {drive{has: true, fixed: true}, true, true},
		"one that cannot be turned": {drive{has: true, on: true, fixed: true}, true, false},
		"one that stays on":         {drive{has: true, on: true, deaf: true}, true, false},
		"no answer to identify":     {drive{has: true, on: true, broken: opcodeIdentify}, false, false},
		"half an answer":            {drive{has: true, on: true, short: true}, false, false},
		"no answer to get":          {drive{has: true, on: true, broken: opcodeGetFeatures}, false, false},
		"no answer to set":          {drive{has: true, on: true, broken: opcodeSetFeatures}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := TurnOffWriteCache(test.drive.admin)
			if off := err == nil; off != test.off || errors.Is(err, ErrVolatile) != (test.known && !test.off) {
				t.Errorf("error %v", err)
			}
			if test.off && test.drive.on {
				t.Error("it is still on")
			}
		})
	}
}
