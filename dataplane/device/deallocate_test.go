// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package device

import (
	"errors"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// A drive is believed only when it can deallocate and says what is read then; what it does not say is not zeroes.
func TestReadDeallocated(t *testing.T) {
	silent := errors.New("it does not answer")
	for name, test := range map[string]struct {
		oncs, dlfeat byte
		vwc          byte
		bytes        int
		err          error
		want         v1alpha1.Deallocated
		fails        bool
	}{
		"zeroes":                   {1 << 2, 0b001, 0, identifyBytes, nil, v1alpha1.DeallocatedZeroes, false},
		"zeroes and more features": {0xff, 0b11001, 0, identifyBytes, nil, v1alpha1.DeallocatedZeroes, false},
		"a volatile write cache":   {1 << 2, 0b001, 0b111, identifyBytes, nil, v1alpha1.DeallocatedUndefined, false},
		"not reported":             {1 << 2, 0b000, 0, identifyBytes, nil, v1alpha1.DeallocatedUndefined, false},
		"ones":                     {1 << 2, 0b010, 0, identifyBytes, nil, v1alpha1.DeallocatedUndefined, false},
		"reserved":                 {1 << 2, 0b101, 0, identifyBytes, nil, v1alpha1.DeallocatedUndefined, false},
		"it cannot deallocate":     {^byte(1 << 2), 0b001, 0, identifyBytes, nil, v1alpha1.DeallocatedUndefined, false},
		"a short answer":           {1 << 2, 0b001, 0, 512, nil, "", true},
		"no answer":                {1 << 2, 0b001, 0, identifyBytes, silent, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadDeallocated(func(c AdminCommand) (uint32, []byte, error) {
				data := make([]byte, identifyBytes)
				switch {
				case c.Opcode != opcodeIdentify || c.DataBytes != identifyBytes:
					t.Errorf("command %+v", c)
				case c.CDW10 == identifyController && c.NSID == 0:
					data[identifyONCS], data[identifyVWC] = test.oncs, test.vwc
				case c.CDW10 == identifyNamespace && c.NSID == 7:
					data[identifyDLFEAT] = test.dlfeat
				default:
					t.Errorf("command %+v", c)
				}
				return 0, data[:test.bytes], test.err
			}, 7)
			if got != test.want || (err != nil) != test.fails {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
